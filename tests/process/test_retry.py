"""Retry: failed rows run again after a fix, at their old places, and nothing else changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import InputError, OutputError
from tests.conftest import Penstock, read_rows
from tests.support import onnx_models

ROWS = 500
BAD = {7: "oops", 8: "", 130: "one", 499: "1;2"}
PINNED: dict[str, Any] = {"batch_size": 32, "part_rows": 128, "threads": 1, "plan": "off", "progress": False}


def write_rows(path: Path, bad: dict[int, str] = BAD, rows: int = ROWS) -> None:
    numbers = np.random.default_rng(2).integers(0, 1000, (rows, 4)) / 8
    lines = [",".join([bad.get(row, str(first)), *map(str, rest)]) for row, (first, *rest) in enumerate(numbers)]
    path.write_text("a,b,c,d\n" + "\n".join(lines) + "\n", encoding="utf-8")


def predict(light_models: Path, data: Path, output: Path, **keywords: Any) -> penstock.Summary:
    inputs = {"x": ["a", "b", "c", "d"]}
    summary: penstock.Summary = penstock.predict(
        light_models / "double.onnx", data, output=output, inputs=inputs, **PINNED, **keywords
    )
    return summary


def files_of(output: Path) -> dict[str, bytes]:
    """The files of parts and the failures, under the names that parts have when they were written once."""
    paths = [path for path in sorted(output.rglob("part-*")) if path.is_file()]
    files = {str(path.relative_to(output)).replace("_0001", ""): path.read_bytes() for path in paths}
    return files | {"failures": (output / "_penstock" / "failures.jsonl").read_bytes()}


def failed_rows(output: Path) -> dict[int, str]:
    lines = (output / "_penstock" / "failures.jsonl").read_text(encoding="utf-8").splitlines()
    return {failure["row"]: failure["reason"] for failure in map(json.loads, lines)}


SINKS = ["parquet", "csv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("npy", "jsonl", "arrow"))]


@pytest.mark.parametrize("sink", SINKS)
def test_mended_rows_are_put_into_their_parts(light_models: Path, tmp_path: Path, sink: str) -> None:
    data, output = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    write_rows(data / "0.csv")
    write_rows(data / "1.csv", {})
    assert predict(light_models, data, output, format=sink).failed == 4
    untouched = {path: path.stat().st_mtime_ns for path in output.rglob("part-0000000[246]*")}
    assert len(untouched) == (6 if sink == "npy" else 3)

    write_rows(data / "0.csv", {130: "still wrong"})  # other sizes: every later row lies elsewhere in the file
    summary = penstock.retry(output, progress=False)
    assert (summary.rows, summary.failed, summary.retried) == (2 * ROWS - 1, 1, 4)
    assert "still wrong" in failed_rows(output)[130]
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched
    assert penstock.verify(output)["is_whole"]

    predict(light_models, data, tmp_path / "at once", format=sink)
    assert files_of(output) == files_of(tmp_path / "at once")
    assert predict(light_models, data, output, format=sink).failed == 1, "it is the job of the mended input now"
    write_rows(data / "0.csv", {})
    assert penstock.retry(output, progress=False).failed == 0
    # A retry that was killed left the second version of a part, and no list of failures.
    (output / f"part-00000001_0007.{sink}").write_bytes(b"half a part")
    (output / "_penstock" / "failures.jsonl").unlink()
    assert penstock.retry(output, progress=False).failed == 0, "there is nothing to do"
    assert penstock.verify(output)["is_whole"]


def test_mended_files_of_an_append_are_put_into_their_parts(light_models: Path, tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    write_rows(data / "1.csv")
    predict(light_models, data, output)
    write_rows(data / "0.csv")  # it comes first in the folder, and last in the job
    assert predict(light_models, data, output, append=True).failed == 8
    write_rows(data / "0.csv", {7: "wrong"})
    write_rows(data / "1.csv", {})
    assert penstock.retry(output, progress=False).failed == 1
    assert list(failed_rows(output)) == [ROWS + 7]
    assert penstock.verify(output)["is_whole"]
    rows = read_rows(output)
    assert rows["row"].to_pylist() == [row for row in range(2 * ROWS) if row != ROWS + 7]
    assert rows["doubled"][0].as_py() == [2 * float(x) for x in (data / "1.csv").read_text().split()[1].split(",")]


def shares(outputs: dict[str, Any]) -> dict[str, Any]:
    return {"total": outputs["doubled"].sum(axis=1), "b": outputs["b"]}


WAYS: dict[str, dict[str, Any]] = {
    "ranked": {"keep": ["b"], "top_k": 2},
    "finished by a function": {"keep": ["b"], "postprocess": f"{__name__}:shares"},
}


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_retried_rows_are_what_the_mended_input_gives(light_models: Path, tmp_path: Path, way: str) -> None:
    data, output = tmp_path / "rows.csv", tmp_path / "out"
    write_rows(data)
    assert predict(light_models, data, output, **WAYS[way]).failed == 4
    write_rows(data, {130: "still wrong"})
    for _ in range(2):
        assert penstock.retry(output, progress=False).failed == 1
        assert list(failed_rows(output)) == [130], "recorded once"
    predict(light_models, data, tmp_path / "at once", **WAYS[way])
    assert files_of(output) == files_of(tmp_path / "at once")


def test_rows_of_any_length_are_retried(tmp_path: Path) -> None:
    model, data, output = tmp_path / "sum.onnx", tmp_path / "rows.parquet", tmp_path / "out"
    total = [onnx_models.node("ReduceSum", ["x", "axes"], ["total"], keepdims=0)]
    inputs, outputs = {"x": ("FLOAT", ["rows", "length"])}, {"total": ("FLOAT", ["rows"])}
    onnx_models.save(model, total, inputs, outputs, initializers={"axes": np.array([1])})

    def write(*bad: int, rows: int = 60) -> None:
        lists = [None if row in bad else [float(row)] * (1 + row % 7) for row in range(rows)]
        pq.write_table(pa.table({"x": pa.array(lists, pa.list_(pa.float32()))}), data, row_group_size=10)

    pinned = {**PINNED, "batch_size": 4, "part_rows": 16}
    write(5, 33, 59)
    assert penstock.predict(model, data, output=output, **pinned).failed == 3
    write(rows=61)
    with pytest.raises(InputError, match="other rows than when the job began") as caught:
        penstock.retry(output, progress=False)
    assert "61 rows" in (caught.value.received or "")
    write(33)
    assert penstock.retry(output, progress=False).failed == 1
    penstock.predict(model, data, output=tmp_path / "at once", **pinned)
    assert files_of(output) == files_of(tmp_path / "at once")


def test_input_that_changed_elsewhere_is_refused(light_models: Path, tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    write_rows(data / "0.csv")
    write_rows(data / "1.csv", {})
    predict(light_models, data, output)
    before = files_of(output)
    write_rows(data / "0.csv", {}, ROWS + 1)
    with pytest.raises(InputError, match="other rows than when the job began"):
        penstock.retry(output, progress=False)
    write_rows(data / "0.csv", {})
    write_rows(data / "1.csv", {3: "12345678"})
    with pytest.raises(InputError, match=r"the input changed since the job began: .*1\.csv"):
        penstock.retry(output, progress=False)
    os.remove(data / "1.csv")
    with pytest.raises(InputError, match=r"1\.csv"):
        penstock.retry(output, progress=False)
    assert files_of(output) == before
    assert len(failed_rows(output)) == 4


@pytest.mark.parametrize("sink", ["parquet", "jsonl"])
def test_mended_values_of_another_type_are_refused(light_models: Path, tmp_path: Path, sink: str) -> None:
    """What was text in the rows that are there would be a number in those that are mended."""
    data, output = tmp_path / "rows.csv", tmp_path / "out"
    data.write_text("id,a,b,c,d\n01,1,2,3,4\n02,1,2,3,4\nno,,2,3,4\n", encoding="utf-8")
    assert predict(light_models, data, output, format=sink, keep=["id"], max_failures=0.9).failed == 1
    before = files_of(output)
    data.write_text("id,a,b,c,d\n01,1,2,3,4\n02,1,2,3,4\n03,1,2,3,4\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"kept columns of other types .*\n.*id int64.*\n.*id string"):
        penstock.retry(output, progress=False)
    assert files_of(output) == before
    data.write_text("id,a,b,c,d\n01,1,2,3,4\n02,1,2,3,4\nno,1,2,3,4\n", encoding="utf-8")
    assert penstock.retry(output, progress=False).failed == 0


FUNCTION = """
def rows(block):
    if set(block["name"]) & {wrong!r}:
        raise ValueError("I do not like this name")
    return {{"pixels": block["pixels"]}}
"""


def test_mended_function_runs_the_failed_rows(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    module, output = tmp_path / "mine.py", tmp_path / "out"
    names = {"0-7", "0-999", "0-1000"}
    module.write_text(FUNCTION.format(wrong=names), encoding="utf-8")
    arguments = ("--preprocess", "mine:rows", "--limit", 3000, "--batch-size", 100, "--threads", 1, "--part-rows", 1000)
    model = light_models / "digits.onnx"
    ran = penstock_run("predict", model, digits, "-o", output, *arguments, "--plan", "off", cwd=tmp_path)
    assert ran.returncode == 3, ran.stderr
    assert set(failed_rows(output)) == {7, 999, 1000}
    module.write_text(FUNCTION.format(wrong={"0-999"}), encoding="utf-8")
    retried = penstock_run("retry", output, "--json", cwd=tmp_path)
    assert retried.returncode == 3, retried.stderr
    assert json.loads(retried.stdout)["rows"] == 2999
    assert list(failed_rows(output)) == [999]
    module.write_text(FUNCTION.format(wrong=set()), encoding="utf-8")
    assert penstock_run("retry", output, cwd=tmp_path).returncode == 0
    assert penstock.verify(output)["is_whole"]
    ran = penstock_run("predict", model, digits, "-o", tmp_path / "once", *arguments, "--plan", "off", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert read_rows(output).equals(read_rows(tmp_path / "once"))
    assert read_rows(output)["row"].to_pylist() == list(range(3000))


def picky(block: dict[str, Any]) -> dict[str, Any]:
    if 28.0 in block["x"]:
        raise ValueError("not this one")
    return {"x": block["x"]}


def wider(block: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.concatenate([block["x"], block["x"]], axis=1)}


def named_otherwise(block: dict[str, Any]) -> dict[str, Any]:
    return {"z": block["x"]}


@pytest.mark.slow
def test_function_that_gives_other_columns_is_not_retried_with(tmp_path: Path) -> None:
    model, output = tmp_path / "double.onnx", tmp_path / "out"
    double = [onnx_models.node("Add", ["x", "x"], ["doubled"])]
    onnx_models.save(model, double, {"x": ("FLOAT", ["rows", "n"])}, {"doubled": ("FLOAT", ["rows", "n"])})
    np.savez(tmp_path / "rows.npz", x=np.arange(400, dtype=np.float32).reshape(100, 4))
    here = f"{__name__}:"
    assert (
        penstock.predict(model, tmp_path / "rows.npz", output=output, preprocess=here + "picky", **PINNED).failed == 1
    )
    before = files_of(output)
    for function, given in (("wider", r"x ← x, float32\[8\]"), ("named_otherwise", r"x ← z, float32\[4\]")):
        with pytest.raises(InputError, match=rf"function does not feed the model .*\n.*{given}\n.*x ← x, float32\[4\]"):
            penstock.retry(output, preprocess=here + function, progress=False)
    assert files_of(output) == before


def test_job_that_is_not_there_is_not_retried(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="holds no job"):
        penstock.retry(tmp_path)
