"""Bad input of `penstock fit`: one line, a hint and the exit code; bad rows; a loss that is NaN."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.shuffling import split_rows
from tests.conftest import Penstock, summary_of
from tests.support import fit_models
from tests.support.fit_runs import assert_same_job, fit

CORRUPT = [5, 130]


def write_rows(path: Path, *, y: Any = None, is_null: Any = (), is_nan: Any = ()) -> Path:
    """The rows of `fit_models` with other labels, rows that are null, and rows that are no numbers."""
    x, classes = fit_models.rows()
    x[list(is_nan)] = np.nan
    missing = np.isin(np.arange(len(x)), is_null)
    values = [None if is_missing else row for row, is_missing in zip(x.tolist(), missing, strict=True)]
    column = pa.array(values, pa.list_(pa.float32(), fit_models.WIDTH))
    pq.write_table(pa.table({"x": column, "y": classes if y is None else y}), path, row_group_size=50)
    return path


def with_rows(made: Path, rows: Path, output: Path, *more: object, model: str = "model.keras") -> list[object]:
    arguments = fit(made, output, *more)
    arguments[1:3] = made / model, rows
    return arguments


def labels(kind: str) -> Any:
    _, y = fit_models.rows()
    if kind == "too large":
        y[77] = 3
        return y
    if kind == "vectors of two":
        return pa.array([[0.0, 1.0]] * len(y), pa.list_(pa.float32(), 2))
    if kind == "fractions":
        return y + 0.5
    assert kind == "ragged"
    return pa.array([[1.0] * (1 + number % 2) for number in range(len(y))])


@pytest.mark.parametrize(
    ("kind", "model", "code", "said"),
    [
        ("too large", "model.keras", 5, ["a label is out of range", "row 77: 3", "0 to 2"]),
        pytest.param(
            "vectors of two", "model.keras", 5, ["do not have the shape of the output"], marks=pytest.mark.slow
        ),
        pytest.param(
            "fractions", "model.keras", 5, ["a label is out of range", "a whole number"], marks=pytest.mark.slow
        ),
        pytest.param("ragged", "model.keras", 4, ["column 'y' has 2 values, not 1"], marks=pytest.mark.slow),
        pytest.param("fractions", "plain.keras", 5, ["labels are classes", "a whole number"], marks=pytest.mark.slow),
    ],
)
def test_labels_that_do_not_fit_are_told_in_one_line(
    made: Path, tmp_path: Path, penstock_run: Penstock, kind: str, model: str, code: int, said: list[str]
) -> None:
    rows = write_rows(tmp_path / "rows.parquet", y=labels(kind))
    ran = penstock_run(*with_rows(made, rows, tmp_path / "out", model=model))
    assert ran.returncode == code, ran.stderr
    for words in said:
        assert words in ran.stderr


def test_what_is_wrong_with_the_labels_is_told_before_anything_is_loaded(
    made: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    output = tmp_path / "out"
    missing = penstock_run(*fit(made, output)[:3], "--label", "z", "-o", output)
    assert missing.returncode == 5, missing.stderr
    assert "no such column" in missing.stderr
    assert "x, y, name" in missing.stderr
    fractions = write_rows(tmp_path / "rows.parquet", y=labels("fractions"))
    refused = penstock_run(*with_rows(made, fractions, output, "--class-weights", "balanced"))
    assert refused.returncode == 5, refused.stderr
    assert "these labels are no classes" in refused.stderr
    assert not output.exists()


@pytest.mark.parametrize(
    ("is_text", "said"),
    [
        (True, "no row of owl is on the side of validation; --stratify divides every class"),
        pytest.param(False, "no row of 2 is on the side of validation", marks=pytest.mark.slow),
    ],
)
def test_classes_that_a_side_of_the_split_lacks_are_named(
    made: Path, tmp_path: Path, penstock_run: Penstock, is_text: bool, said: str
) -> None:
    _, y = fit_models.rows()
    trained_on, _ = split_rows(len(y), 0.1, seed=0)
    classes = np.where(np.arange(len(y)) == trained_on.numbers(np.arange(1))[0], 2, y % 2)
    rows = write_rows(tmp_path / "rows.parquet", y=np.array(["ant", "bee", "owl"])[classes] if is_text else classes)
    ran = penstock_run(*with_rows(made, rows, tmp_path / "out", "--validation-split", 0.1, "--epochs", 2))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count(said) == 1


def test_a_loss_that_is_no_number_names_step_and_rows_and_keeps_the_last_good_checkpoint(
    made: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    rows, output = write_rows(tmp_path / "rows.parquet", is_nan=[100]), tmp_path / "out"
    ran = penstock_run(*with_rows(made, rows, output, "--no-shuffle", "--checkpoint-every", 1))
    assert ran.returncode == 6, ran.stderr
    assert "the loss is NaN or infinite" in ran.stderr
    assert "in step 7 (epoch 1), NaN or infinite values in row 100" in ran.stderr
    assert "hint: " in ran.stderr
    kept = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert kept == ["step-0000000005.safetensors", "step-0000000006.safetensors"]


@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_weights_that_are_no_number_end_training_also_where_the_loss_is_one(
    made: Path, tmp_path: Path, penstock_run: Penstock, runtime: str
) -> None:
    output, step = tmp_path / "out", "tests.support.fit_models:step_of_infinite_slope"
    options = ("--runtime", runtime, "--step", step, "--batch-size", fit_models.ROWS, "--epochs", 1)
    ran = penstock_run(*fit(made, output, *options))
    assert ran.returncode == 6, ran.stderr
    assert "weights are NaN, although the loss is a number" in ran.stderr
    assert "after step 1" in ran.stderr
    assert not (output / "model.keras").exists()


@pytest.fixture(scope="module")
def corrupt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("corrupt") / "rows.parquet", is_null=CORRUPT)


@pytest.fixture(scope="module")
def trained(made: Path, corrupt: Path, penstock_run: Penstock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("trained") / "out"
    found = summary_of(penstock_run(*with_rows(made, corrupt, output, "--json")))
    assert (found["rows"], found["failed"], found["steps"]) == (201, 2, 39)
    return output


class TestBadRows:
    def test_they_are_recorded_once(self, trained: Path) -> None:
        lines = (trained / "_penstock" / "failures.jsonl").read_text().splitlines()
        assert [json.loads(line)["row"] for line in lines] == CORRUPT

    @pytest.mark.slow
    def test_they_change_nothing_where_the_trainer_is_killed(
        self, made: Path, corrupt: Path, trained: Path, tmp_path: Path, penstock_run: Penstock
    ) -> None:
        output = tmp_path / "out"
        crash = {"PENSTOCK_CRASH_AT": "checkpoint_written:4"}
        ran = penstock_run(*with_rows(made, corrupt, output, "--checkpoint-every", 5), environment=crash)
        assert ran.returncode == 3, ran.stderr
        assert "was killed by SIGKILL" in ran.stderr
        assert_same_job(output, trained)
        assert (output / "_penstock" / "failures.jsonl").read_bytes() == (
            trained / "_penstock" / "failures.jsonl"
        ).read_bytes()

    def test_too_many_of_them_end_training(self, made: Path, tmp_path: Path, penstock_run: Penstock) -> None:
        rows = write_rows(tmp_path / "rows.parquet", is_null=range(0, 200, 5))
        ran = penstock_run(*with_rows(made, rows, tmp_path / "out"))
        assert ran.returncode == 4, ran.stderr
        assert "too many rows failed" in ran.stderr
        assert "raise --max-failures" in ran.stderr


@pytest.mark.slow
def test_a_changed_input_or_model_and_a_foreign_checkpoint_are_refused_at_resume(
    made: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    rows, output, other = write_rows(tmp_path / "rows.parquet"), tmp_path / "out", tmp_path / "other"
    stop = {"PENSTOCK_CRASH_AT": "publish_begun"}
    model = shutil.copy(made / "model.keras", tmp_path / "model.keras")
    for folder, seed in ((output, 0), (other, 1)):
        asked = ("--epochs", 1, "--seed", seed, "--batch-size", 64)
        ran = penstock_run(*with_rows(made, rows, folder, *asked, model=str(model)), environment=stop)
        assert ran.returncode == 9, ran.stderr
    before = rows.read_bytes()
    write_rows(rows, is_nan=range(50))
    changed = penstock_run("resume", output)
    assert changed.returncode == 5, changed.stderr
    assert "the input changed since training began" in changed.stderr
    assert "hint: put it back, or begin again: `penstock fit … --output NEW`" in changed.stderr
    changed_byte = bytearray(before)
    changed_byte[-20] ^= 1
    rows.write_bytes(changed_byte)
    changed = penstock_run("resume", output)
    assert changed.returncode == 5, changed.stderr
    assert f"the input changed since training began: {rows}" in changed.stderr
    assert "other bytes than it had" in changed.stderr
    rows.write_bytes(before)
    digests = output / "_penstock" / "input.json"
    whole = digests.read_bytes()
    digests.write_bytes(whole[:-5])
    unknown = penstock_run("resume", output)
    assert unknown.returncode == 5, unknown.stderr
    assert "no digest to compare it with" in unknown.stderr
    digests.write_bytes(whole)
    shutil.copy(made / "sure.keras", model)
    changed = penstock_run("resume", output)
    assert changed.returncode == 7, changed.stderr
    assert f"the content of the model was changed since the job began: {model}" in changed.stderr
    assert "or begin a new job: `penstock fit … --output NEW`" in changed.stderr
    shutil.copy(made / "model.keras", model)
    for path in (output / "checkpoints").iterdir():
        path.write_bytes((other / "checkpoints" / path.name).read_bytes())
    foreign = penstock_run("resume", output)
    assert foreign.returncode == 6, foreign.stderr
    assert "the input was touched since the job began; it has the same bytes: going on" in foreign.stderr
    assert "the checkpoint is of another job" in foreign.stderr
