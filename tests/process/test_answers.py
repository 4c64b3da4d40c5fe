"""What is kept of the answers, and whether they are right: --outputs, --top-k, --argmax, --labels, --check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import UsageError
from tests.conftest import Penstock, read_rows

LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def whole(models: Path, digits: Path, penstock_run: Penstock, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """All ten values of every row."""
    out = tmp_path_factory.mktemp("whole") / "out"
    ran = penstock_run("predict", models / "digits.keras", digits, "--output", out, "--threads", "1", "--check")
    assert ran.returncode == 0, ran.stderr
    assert "checked: 64 rows are as tensorflow on the CPU gives each of them alone" in ran.stderr
    return np.stack(read_rows(out)["digit"].to_numpy(zero_copy_only=False))


@pytest.mark.parametrize(
    ("runtime", "more"), [("tensorflow", ["--devices", "cpu:2"]), ("jax", ["--check"])], ids=["tensorflow", "jax"]
)
def test_the_best_classes_with_their_scores_and_names(
    models: Path, digits: Path, whole: np.ndarray, penstock_run: Penstock, tmp_path: Path, runtime: str, more: list[str]
) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n", encoding="utf-8")
    ran = penstock_run(
        "predict", models / "digits.keras", digits, "--output", tmp_path / "out", "--runtime", runtime,
        "--threads", "1", "--top-k", "3", "--labels", tmp_path / "labels.txt", *more,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    table = read_rows(tmp_path / "out")
    assert table.column_names == ["row", "digit_class", "digit_label", "digit_score"]
    places = np.array(table["digit_class"].to_pylist())
    scores = np.array(table["digit_score"].to_pylist())
    best = np.sort(whole, axis=1)[:, ::-1][:, :3]
    np.testing.assert_allclose(scores, best, atol=2e-6)
    np.testing.assert_allclose(np.take_along_axis(whole, places, axis=1), best, atol=2e-6)
    assert table["digit_label"].to_pylist() == [[LABELS[place] for place in row] for row in places.tolist()]


def test_the_best_class_in_python_from_a_file(models: Path, pixels: Pixels, whole: np.ndarray) -> None:
    answered = penstock.predict(models / "digits.keras", pixels[:500], argmax=True, labels=LABELS, outputs="digit")
    assert answered.keys() == {"digit_class", "digit_label"}
    assert answered["digit_class"].tolist() == whole[:500].argmax(axis=1).tolist()
    assert answered["digit_label"].tolist() == [LABELS[place] for place in answered["digit_class"]]


def test_one_output_of_several(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(50, 4)).astype("f4"))
    ran = penstock_run(
        "predict", models / "two_signatures", tmp_path / "x.npy", "--output", tmp_path / "out",
        "--signature", "project", "--outputs", "length",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert read_rows(tmp_path / "out").column_names == ["row", "length"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--outputs", "digits"], "allowed: digit"),
        (["--top-k", "11"], "at most 10"),
    ],
)
def test_what_the_model_does_not_give_is_told(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path, options: list[str], told: str
) -> None:
    ran = penstock_run("predict", light_models / "digits.onnx", digits, "--output", tmp_path / "out", *options)
    assert ran.returncode == 2
    assert told in ran.stderr
    assert not (tmp_path / "out").exists()


def test_a_check_that_fails_names_output_row_and_values(
    models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    # No tolerance at all: JAX sums in another order than TensorFlow.
    ran = penstock_run(
        "predict", models / "digits.keras", digits, "--output", tmp_path / "out",
        "--runtime", "jax", "--check", "--tolerance", "0",
    )  # fmt: skip
    assert ran.returncode == 6
    assert "received: digit, row " in ran.stderr
    assert "tensorflow on one CPU device" in ran.stderr
    assert not (tmp_path / "out").exists()


def test_a_resumed_job_keeps_what_it_was_asked_to_keep(light_models: Path, digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.predict(light_models / "digits.onnx", str(digits), output=out, top_k=2, labels=LABELS, progress=False)
    request = json.loads((out / "_penstock" / "manifest.json").read_text())["request"]
    assert (request["top_k"], request["labels"]) == (2, LABELS)
    assert penstock.resume(out, progress=False).rows == 20_000
    with pytest.raises(penstock.PenstockError, match="another job"):
        penstock.predict(light_models / "digits.onnx", str(digits), output=out, top_k=3, labels=LABELS, progress=False)


def test_labels_without_classes_are_refused() -> None:
    with pytest.raises(UsageError, match="labels name the best classes"):
        penstock.predict("model.keras", np.zeros((1, 1)), labels=LABELS)
