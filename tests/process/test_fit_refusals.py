"""`penstock fit` says what is wrong with a model or with labels in one message, and trains what Keras alone cannot."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.conftest import ENVIRONMENT

REPOSITORY = Path(__file__).parents[2]
Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    command = [sys.executable, "-m", "tests.support.fit_in_one_process", str(folder)]
    ran = subprocess.run(command, cwd=REPOSITORY, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def told(folder: Path) -> Told:
    found: Told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("frozen", 6, "the model has no weights to train"),
        ("no metric", 2, "hint: did you mean accuracy, binary_accuracy"),
        ("a step that raises", 6, "a step of training fails\nreceived: RuntimeError: the step is broken"),
        ("a negative weight", 5, "a weight is out of range\nreceived: row 201: -0.5"),
        ("an infinite weight", 5, "a weight is out of range\nreceived: row 201: inf"),
        ("too many classes", 5, "received: 4 classes, an output of 3 values"),
        ("too many channels", 2, "3 channels for"),
        ("no column", 5, "received: a float32[], name string[]"),
        (
            "text in memory",
            2,
            "labels that are text have no numbers yet\nreceived: y with 'ant'\nallowed: numbers\nhint: ",
        ),
        ("fractions for a softmax", 5, "a whole number, the class of"),
        ("too many of one", 5, "received: 4 classes, an output of 2 values"),
        ("two to divide", 2, "classes of several outputs cannot be balanced or divided at once"),
    ],
)
def test_what_cannot_be_trained_is_told_with_its_code(told: Told, case: str, code: int, words: str) -> None:
    assert told[case]["code"] == code, told[case]["errors"]
    assert words in told[case]["errors"]
    assert "bug of penstock" not in told[case]["errors"]


def test_a_compiled_hdf5_file_is_trained_on_with_the_state_of_its_optimizer(folder: Path, told: Told) -> None:
    """Keras 3 itself loads such a file with an optimizer that raises at the first step."""
    assert told["an HDF5 file"]["code"] == 0, told["an HDF5 file"]["errors"]
    with (
        zipfile.ZipFile(folder / "an HDF5 file" / "model.keras") as archive,
        h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file,
    ):
        assert int(file["optimizer/vars/0"][()]) == 14, "seven steps before it was saved, seven since"


def test_bad_rows_of_another_input_for_validation_are_told(folder: Path, told: Told) -> None:
    case = told["another validation"]
    assert case["code"] == 3, case["errors"]
    assert json.loads((folder / "another validation" / "_penstock" / "failures.jsonl").read_text())["row"] == 0
    assert "row 0: column 'name' is 'owl', which is not among the 3 known labels" in case["output"]


@pytest.mark.parametrize("case", ["in pieces", "two outputs"])
def test_batches_in_pieces_and_models_of_two_outputs_train_to_the_end(folder: Path, told: Told, case: str) -> None:
    assert told[case]["code"] == 0, told[case]["errors"]
    assert (folder / case / "model.keras").stat().st_size > 0


def test_scaled_inputs_train_as_with_a_layer_that_scales_them(folder: Path, told: Told) -> None:
    assert told["scaled"]["code"] == 0, told["scaled"]["errors"]
    history = (folder / "scaled" / "history.csv").read_bytes()
    assert history == (folder / "scaled by a layer" / "history.csv").read_bytes()
    assert b"val_loss" in history


def test_whole_numbers_that_are_floats_are_the_classes_of_a_softmax(told: Told) -> None:
    case = told["whole numbers with gaps"]
    assert case["code"] == 3, case["errors"]
    reason = "proposed because labels are classes and the last layer is a softmax of 3 values"
    assert f"loss sparse_categorical_crossentropy, {reason}" in case["errors"]
    assert "1 row bad and left out" in case["output"]


def test_two_outputs_have_labels_of_text_each_with_its_own_classes(folder: Path, told: Told) -> None:
    case = told["two of text"]
    assert case["code"] == 0, case["errors"]
    assert "3 classes of kind: ant, bee, cat\n2 classes of sign: minus, plus\n" in case["errors"]
    names = json.loads((folder / "two of text" / "labels.json").read_text())
    assert names == {"kind": ["ant", "bee", "cat"], "sign": ["minus", "plus"]}


@pytest.mark.parametrize(
    ("case", "shown"), [("bytes", "3 classes: \\xe9, \\xff, b"), ("unprintable", "3 classes: '', 'b\\n', '\\u202ec'")]
)
def test_any_text_is_a_class_and_is_shown_on_one_line(told: Told, case: str, shown: str) -> None:
    assert told[case]["code"] == 0, told[case]["errors"]
    assert shown in told[case]["errors"].splitlines()
