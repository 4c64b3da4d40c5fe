"""--postprocess: the user's function behind the model, in processes of its own. --squeeze and --format csv."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.pool.processes.finisher_pool import Finishers
from tests.conftest import Penstock

ROWS = 2000

STEPS = """
import os, time

def best(columns):
    return {"best": columns["digit"].argmax(1), "is_sure": columns["digit"].max(1) > 0.3}

def hostile(columns):
    for name in columns["name"]:
        if name == "0-300":
            os._exit(3)
        if name == "0-301":
            time.sleep(1000)
        if name == "0-302":
            raise ValueError("not this one")
    return best(columns)

def deadly(columns):
    os._exit(3)

def mended(columns):
    is_mended = os.path.exists("mended")
    if "0-300" in columns["name"] and not is_mended:
        raise ValueError("not yet")
    return {"best": columns["digit"].argmax(1).astype("float64" if is_mended else "int64")}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "finishing_steps.py").write_text(STEPS, encoding="utf-8")
    return tmp_path


def test_row_that_raises_hangs_or_kills_the_process_fails_alone(
    light_models: Path, digits: Path, folder: Path, penstock_run: Penstock
) -> None:
    arguments = ["predict", light_models / "digits.onnx", digits, "--output", "out", "--limit", ROWS, "--keep", "name",
                 "--batch-size", 256, "--row-timeout", 3, "--plan", "off"]  # fmt: skip
    ran = penstock_run(*arguments, "--postprocess", "finishing_steps:hostile", cwd=folder)
    assert ran.returncode == 3, ran.stderr
    written = pd.read_parquet(folder / "out")
    assert written.columns.tolist() == ["row", "best", "is_sure", "name"]
    assert sorted(set(range(ROWS)) - set(written["row"])) == [300, 301, 302]
    lines = (folder / "out" / "_penstock" / "failures.jsonl").read_text().splitlines()
    failures = [json.loads(line) for line in lines]
    assert [(failure["row"], failure["stage"], failure["error"]) for failure in failures] == [
        (300, "postprocess", "FinisherDied"),
        (301, "postprocess", "TimeoutError"),
        (302, "postprocess", "ValueError"),
    ]
    assert all(f"0.parquet, row {failure['row']}" in failure["origin"] for failure in failures)

    digit = penstock.predict(light_models / "digits.onnx", digits, limit=ROWS, plan="off")
    np.testing.assert_array_equal(written["best"], np.delete(digit.argmax(1), [300, 301, 302]))

    # It is part of the job: the same one is finished, another function is another job.
    ran = penstock_run(*arguments, "--postprocess", "finishing_steps:hostile", cwd=folder)
    assert "nothing was redone" in ran.stdout
    ran = penstock_run(*arguments, "--postprocess", "finishing_steps:best", cwd=folder)
    assert ran.returncode == 7
    assert "postprocess=" in ran.stderr


def test_resumed_job_writes_the_types_that_its_parts_have(
    light_models: Path, digits: Path, folder: Path, penstock_run: Penstock
) -> None:
    arguments = ["predict", light_models / "digits.onnx", digits, "--output", "out", "--limit", ROWS, "--keep", "name",
                 "--batch-size", 64, "--part-rows", 64, "--plan", "off",
                 "--postprocess", "finishing_steps:mended"]  # fmt: skip
    assert penstock_run(*arguments, "--max-failures", 0, cwd=folder).returncode == 4
    begun = pd.read_parquet(folder / "out")
    assert 300 < len(begun) < ROWS
    (folder / "mended").touch()
    ran = penstock_run(*arguments, "--max-failures", 0.5, cwd=folder)
    assert ran.returncode == 3, ran.stderr
    kinds = {str(pq.read_schema(path).field("best").type) for path in (folder / "out").glob("*.parquet")}
    assert kinds == {"int64"}
    assert len(pd.read_parquet(folder / "out")) == ROWS - 1


def test_output_and_kept_column_of_one_name_are_refused_before_the_function_sees_them(
    light_models: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    def both(columns: dict[str, Any]) -> dict[str, Any]:
        return {"best": columns["p"].argmax(1), "true": columns["digit"]}

    model, rows = light_models / "digits.onnx", {"pixels": pixels[:20], "digit": np.arange(20)}
    with pytest.raises(penstock.UsageError, match="two columns would have one name") as caught:
        next(penstock.stream(model, rows, keep=["digit"], postprocess=both))
    assert caught.value.received == "outputs digit; kept digit"
    (made,) = penstock.stream(model, rows, keep=["digit"], rename={"digit": "p"}, postprocess=both)
    np.testing.assert_array_equal(made["true"], rows["digit"])
    np.testing.assert_array_equal(made["best"], penstock.predict(model, pixels[:20]).argmax(1))


def test_function_that_kills_its_process_at_every_row_ends_the_job(
    light_models: Path, digits: Path, folder: Path, penstock_run: Penstock
) -> None:
    ran = penstock_run("predict", light_models / "digits.onnx", digits, "--output", "out", "--limit", 10,
                       "--postprocess", "finishing_steps:deadly", cwd=folder)  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert "the postprocessing function fails on every one of the first rows" in ran.stderr
    ran = penstock_run("predict", light_models / "digits.onnx", digits, "--output", "out", "--limit", 10,
                       "--postprocess", "finishing_steps.py:best", cwd=folder)  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert "the postprocessing function is not understood" in ran.stderr or "is not found" in ran.stderr
    assert not (folder / "out").exists()


def test_function_that_is_slow_at_many_rows_and_not_at_one_loses_none(
    light_models: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    def slow(columns: dict[str, Any]) -> Any:
        time.sleep(0 if len(columns["digit"]) == 1 else 1000)
        return columns["digit"].argmax(1)

    answers = penstock.predict(
        light_models / "digits.onnx", pixels[:100], postprocess=slow, row_timeout=1.0, batch_size=32
    )
    assert answers.shape == (100,)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pause_s", [0.0, 2.0])
def test_stream_that_is_left_early_waits_for_no_function_that_hangs(
    light_models: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]], pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pause after the processes were ended, in which threads come to what is still waiting."""
    close = Finishers.close

    def close_slowly(finishers: Finishers) -> None:
        close(finishers)
        time.sleep(pause_s)

    monkeypatch.setattr(Finishers, "close", close_slowly)

    def hanging(columns: dict[str, Any]) -> Any:
        time.sleep(3600 if columns["id"].min() else 0)
        return columns["digit"].argmax(1)

    rows = {"pixels": pixels[:2000], "id": np.arange(2000)}
    blocks = penstock.stream(
        light_models / "digits.onnx", rows, keep=["id"], postprocess=hanging, batch_size=16, row_timeout=3600
    )
    assert next(blocks)["row"][0] == 0
    blocks.close()  # type: ignore[attr-defined]


def test_functions_of_the_caller_travel_by_value(
    light_models: Path, tmp_path: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    limit = 0.3

    def decide(columns: dict[str, Any]) -> dict[str, Any]:
        return {"is_sure": columns["digit"].max(1) > limit}

    model, x = light_models / "digits.onnx", pixels[:500]
    digit = penstock.predict(model, x)
    np.testing.assert_array_equal(penstock.predict(model, x, postprocess=decide)["is_sure"], digit.max(1) > limit)
    single = penstock.predict(model, x, postprocess=lambda columns: columns["digit"].argmax(1))
    np.testing.assert_array_equal(single, digit.argmax(1))
    blocks = list(penstock.stream(model, x, postprocess=decide))
    assert blocks[0].keys() == {"row", "is_sure"}
    np.save(tmp_path / "x.npy", x)
    penstock.predict(model, tmp_path / "x.npy", output=tmp_path / "out", postprocess=decide, progress=False)
    with pytest.raises(penstock.UsageError, match="the postprocessing function of this job was of the script"):
        penstock.resume(tmp_path / "out")


def test_squeezed_outputs_are_plain_columns_of_a_csv(
    light_models: Path, tmp_path: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    model, x = light_models / "digits.onnx", pixels[:500]
    digit = penstock.predict(model, x)
    summary = penstock.predict(
        model, x, output=tmp_path / "out", format="csv", top_k=1, squeeze=True, part_rows=200, batch_size=64,
        progress=False,
    )  # fmt: skip
    paths = sorted((tmp_path / "out").glob("part-*.csv"))
    assert len(paths) == summary.parts > 1
    written = pd.concat([pd.read_csv(path) for path in paths])
    assert written.columns.tolist() == ["row", "digit_class", "digit_score"]
    assert written["row"].tolist() == list(range(500))
    np.testing.assert_array_equal(written["digit_class"], digit.argmax(1))
    np.testing.assert_allclose(written["digit_score"], digit.max(1), rtol=1e-6)
    best = penstock.predict(model, x, top_k=1, squeeze=True)
    assert best["digit_class"].shape == (500,)
    penstock.predict(model, x, output=tmp_path / "all", format="csv", progress=False)
    (path,) = (tmp_path / "all").glob("*.csv")
    assert pd.read_csv(path).columns.tolist() == ["row", *(f"digit_{n}" for n in range(10))]


@pytest.mark.slow
def test_search_for_a_plan_copes_with_what_is_written(
    light_models: Path, digits: Path, folder: Path, penstock_run: Penstock
) -> None:
    ran = penstock_run("plan", light_models / "digits.onnx", digits, "--limit", ROWS, "--runtime", "onnx",
                       "--threads", 1, "--replicas-per-device", 1, "--fresh", "--json", "--format", "csv",
                       "--keep", "name", "--rename", "name=id", "--postprocess", "finishing_steps:best",
                       cwd=folder)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["rows"] == ROWS
