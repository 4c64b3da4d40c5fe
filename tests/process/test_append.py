"""`--append`: an input that grows is predicted once, and its rows go on where the last ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock
from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows

from .test_kills import wait_for

PINNED: dict[str, Any] = {"batch_size": 32, "threads": 1, "devices": "cpu:1", "part_rows": 64, "progress": False}
SINKS = [
    "parquet",
    "npy",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("csv", "jsonl", "arrow")),
]


def add(folder: Path, name: str, first: int, rows: int = 100) -> np.ndarray[Any, Any]:
    """A file whose rows tell where they come from."""
    values = np.arange(first, first + rows, dtype=np.float32)[:, None] + np.zeros(4, np.float32)
    np.save(folder / f"{name}.npy", values)
    return values


def in_order(output: Path, format_: str) -> tuple[list[int], list[float]]:
    """The numbers of the rows and the first value of each, in the order of the parts."""
    if format_ == "npy":
        rows, values = (
            np.concatenate([np.load(path) for path in sorted((output / name).glob("*.npy"))])
            for name in ("row", "doubled")
        )
        return rows.tolist(), values[:, 0].tolist()
    if format_ == "csv":
        table = pa.concat_tables([pyarrow.csv.read_csv(path) for path in sorted(output.glob("*.csv"))])
        return table["row"].to_pylist(), table["doubled_0"].to_pylist()
    read = {"parquet": pq.read_table, "jsonl": pyarrow.json.read_json, "arrow": pyarrow.feather.read_table}[format_]
    table = pa.concat_tables([read(str(path)) for path in sorted(output.glob(f"*.{format_}"))])
    return table["row"].to_pylist(), [float(value[0]) for value in table["doubled"].to_pylist()]


def files_of(output: Path) -> dict[str, bytes]:
    """The parts and the failures, without what tells about runs."""
    names = [path for path in output.rglob("*") if path.is_file() and path.name not in ("log.txt", "lock", "journal")]
    return {str(path.relative_to(output)): path.read_bytes() for path in names if path.name != "manifest.json"}


@pytest.mark.parametrize("format_", SINKS)
def test_only_new_files_are_predicted_and_rows_go_on(light_models: Path, tmp_path: Path, format_: str) -> None:
    model, folder, output = light_models / "double.onnx", tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    expected = [add(folder, "b", 0), add(folder, "d", 1000)]
    wanted = {**PINNED, "format": format_, "output": output}
    assert penstock.predict(model, folder, append=True, **wanted).rows == 200, "the first one begins the job"
    before = files_of(output)
    expected += [add(folder, "a", 2000, 70), add(folder, "c", 3000)]  # one sorts before all, one between
    if format_ == "parquet":
        tried = penstock.predict(model, folder, append=True, dry_run=True, **wanted)
        assert [tried[name] for name in ("files", "rows", "rows_before", "parts")] == [2, 170, 200, 3]
        assert files_of(output) == before
    summary = penstock.predict(model, folder, append=True, **wanted)
    assert (summary.rows, summary.rows_before) == (370, 200)
    after = files_of(output)
    assert {name: after[name] for name in before} == before, "what was finished is not touched"
    rows, values = in_order(output, format_)
    assert rows == list(range(370))
    assert values == (2 * np.concatenate(expected)[:, 0]).tolist()


@pytest.mark.parametrize("content", ["", "a,b,c,d\n"], ids=["no bytes", "a header"])
def test_new_files_without_rows_are_nothing_to_append(
    light_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    model, folder, output = light_models / "double.onnx", tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.csv").write_text("a,b,c,d\n1,2,3,4\n", encoding="utf-8")
    wanted = {**PINNED, "inputs": {"x": ["a", "b", "c", "d"]}, "output": output, "progress": True}
    penstock.predict(model, folder, **wanted)
    before = files_of(output)
    (folder / "b.csv").write_text(content, encoding="utf-8")
    assert penstock.predict(model, folder, append=True, dry_run=True, **wanted)["rows"] == 0
    assert penstock.predict(model, folder, append=True, **wanted).rows == 1
    assert "nothing to append: the new files have no rows" in capsys.readouterr().err
    assert files_of(output) == before
    (folder / "b.csv").write_text("a,b,c,d\n5,6,7,8\n", encoding="utf-8")
    assert penstock.predict(model, folder, append=True, **wanted).rows == 2


def test_job_that_was_appended_to_is_like_any_other(light_models: Path, tmp_path: Path, penstock_run: Penstock) -> None:
    model, folder, output = light_models / "double.onnx", tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    first = add(folder, "b", 0)
    penstock.predict(model, [folder / "b.npy"], output=output, **PINNED)
    second = add(folder, "a", 1000)
    third = add(folder, "c", 2000)
    penstock.predict(model, [folder / "a.npy", folder / "b.npy"], output=output, append=True, **PINNED)
    penstock.predict(model, [folder], output=output, append=True, **PINNED)
    assert penstock.status(output)["state"] == "finished"
    assert penstock.predict(model, [folder], output=output, **PINNED).rows_before == 300, "nothing is redone"

    add(folder, "d", 3000)
    flags = ("--batch-size", 32, "--threads", 1, "--devices", "cpu:1", "--part-rows", 64)
    refused = penstock_run("predict", model, folder, "--output", output, *flags)
    assert refused.returncode == 5
    assert f"the input changed since the job began: {folder / 'd.npy'}" in refused.stderr
    assert "hint: --append predicts new files only" in refused.stderr
    (folder / "d.npy").unlink()

    # A part of each generation is lost: all are predicted again from their own files, beside a file that is new.
    whole = files_of(output)
    add(folder, "0", 3000)
    for name in ("part-00000000", "part-00000002", "part-00000005"):
        (output / f"{name}.parquet").unlink()
    resumed = penstock_run("resume", output)
    assert resumed.returncode == 0, resumed.stderr
    assert "1 new file left out" in resumed.stderr
    assert files_of(output) == whole
    assert in_order(output, "parquet")[1] == (2 * np.concatenate([first, second, third])[:, 0]).tolist()

    again = penstock_run("predict", model, folder / "?.npy", "--output", output, *flags, "--append")
    assert again.returncode == 0, again.stderr
    assert read_rows(output).column("row").to_pylist() == list(range(400))
    nothing = penstock_run("predict", model, folder / "?.npy", "--output", output, *flags, "--append", "--json")
    assert nothing.returncode == 0
    assert json.loads(nothing.stdout)["rows_before"] == 400
    assert "nothing to append" in nothing.stderr
    tried = penstock_run("predict", model, folder / "?.npy", "--output", output, *flags, "--append", "--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout == f"nothing to append: the input has no new files; the job in {output} has 400 rows\n"
    add(folder, "e", 4000, 7)
    tried = penstock_run("predict", model, folder / "?.npy", "--output", output, *flags, "--append", "--dry-run")
    assert tried.stdout.startswith("would append 7 rows of 1 new file, from row 400 on\n"), tried


def test_killed_append_goes_on_to_the_same_bytes(
    light_models: Path, tmp_path: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]], penstock_run: Penstock
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    arguments = ["predict", light_models / "slow_digits.onnx", folder, "--threads", 1, "--batch-size", 32]
    arguments += ["--part-rows", 500, "--devices", "cpu:1", "--append", "--output"]
    np.save(folder / "1.npy", pixels[:1000])
    assert penstock_run(*arguments, tmp_path / "out").returncode == 0
    subprocess.run(["cp", "-r", tmp_path / "out", tmp_path / "undisturbed"], check=True)
    np.save(folder / "0.npy", pixels[1000:6000])
    assert penstock_run(*arguments, tmp_path / "undisturbed").returncode == 0

    def killed(after: int) -> None:
        process = subprocess.Popen(
            penstock_command(*arguments, tmp_path / "out"), env=ENVIRONMENT, stdout=-1, stderr=-1, text=True
        )
        wait_for(lambda: journal_length(tmp_path / "out") >= after, process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()

    killed(4)
    status = penstock.status(tmp_path / "out")
    assert (status["state"], status["rows"]) == ("unfinished", 6000)
    assert 1000 < status["committed"] < 6000
    assert penstock_run("resume", tmp_path / "out").returncode == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "undisturbed")

    # Killed again, and the input has grown since: the append is gone on with, and what is new is the next one.
    np.save(folder / "2.npy", pixels[6000:10_000])
    killed(penstock.status(tmp_path / "out")["parts"] + 2)
    np.save(folder / "3.npy", pixels[10_000:10_500])
    assert penstock_run(*arguments, tmp_path / "out").returncode == 0
    assert read_rows(tmp_path / "out").column("row").to_pylist() == list(range(10_500))
    manifest = json.loads((tmp_path / "out" / "_penstock" / "manifest.json").read_bytes())
    assert [each["first_fragment"] for each in manifest["generations"]] == [0, 1, 2, 3]


def test_photos_are_appended_with_their_failures_on_object_storage(light_models: Path, tmp_path: Path) -> None:
    folder, output = tmp_path / "photos", "memory://appended/out"
    folder.mkdir()

    def draw(*shades: int) -> None:
        for shade in shades:
            Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(folder / f"{shade:03d}.bmp")

    draw(10, 30, 50)
    wanted = {**PINNED, "output": output, "max_failures": 1.0}
    penstock.predict(light_models / "colour.onnx", folder, **wanted)
    draw(0, 20, 60)
    (folder / "015.bmp").write_bytes(b"BM")
    summary = penstock.predict(light_models / "colour.onnx", folder, append=True, **wanted)
    assert (summary.rows, summary.failed, summary.rows_before) == (6, 1, 3)
    store = fsspec.filesystem("memory")
    table = pa.concat_tables(
        [pq.read_table(store.open(path)) for path in sorted(store.glob("/appended/out/part-*.parquet"))]
    )
    assert table["row"].to_pylist() == [0, 1, 2, 3, 5, 6]
    assert [Path(path).stem for path in table["path"].to_pylist()] == ["010", "030", "050", "000", "020", "060"]
    (failure,) = map(json.loads, store.cat_file("/appended/out/_penstock/failures.jsonl").splitlines())
    assert (failure["row"], failure["origin"]) == (4, str(folder / "015.bmp"))

    (folder / "030.bmp").unlink()
    with pytest.raises(penstock.InputError, match=r"the input changed since the job began: .*030\.bmp"):
        penstock.predict(light_models / "colour.onnx", folder, append=True, **wanted)


def test_what_cannot_be_appended_is_refused_and_changes_nothing(light_models: Path, tmp_path: Path) -> None:
    model, folder, output = light_models / "double.onnx", tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    add(folder, "1", 0)
    penstock.predict(model, folder, output=output, **PINNED)
    add(folder, "2", 100)
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}

    def refused(error: type[penstock.PenstockError], told: str, data: Any = folder, **wanted: Any) -> None:
        with pytest.raises(error, match=told):
            penstock.predict(wanted.pop("model", model), data, **{**PINNED, "output": output, "append": True, **wanted})

    for name in ("limit", "skip", "sample"):
        refused(penstock.UsageError, "all rows of new files are appended", **{name: 5})
    refused(penstock.UsageError, "appended to or removed", overwrite=True)
    refused(penstock.UsageError, "append is for jobs with an output", output=None)
    refused(penstock.OutputError, "nothing can be appended", data=np.zeros((3, 4), np.float32))
    refused(penstock.OutputError, "another job", batch_size=16)
    refused(penstock.OutputError, "another job", model=light_models / "digits.onnx")
    refused(penstock.InputError, "the input changed", data=folder / "2.npy")
    np.save(folder / "2.npy", np.zeros((3, 5), np.float32))
    refused(penstock.PenstockError, "no column fits")  # five numbers a row, where the model takes four
    add(folder, "2", 100)
    add(folder, "1", 1)
    refused(penstock.InputError, "the input changed since the job began: .*1.npy")
    add(folder, "1", 0)
    assert {path: path.read_bytes() for path in before} == before

    journal = output / "_penstock" / "journal"
    journal.write_bytes(journal.read_bytes().partition(b"\n")[0] + b"\n")
    refused(penstock.OutputError, "is not finished")
    assert penstock.resume(output, progress=False).rows == 100
