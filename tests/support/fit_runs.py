"""Runs of `penstock fit` on the rows of `fit_models`, and what is equal of two of them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import h5py

EPOCHS = 3


def fit(made: Path, output: Path, *more: object) -> list[object]:
    files = (made / "model.keras", made / "rows.parquet")
    return ["fit", *files, "--label", "y", "--epochs", EPOCHS, "--batch-size", 16, "-o", output, *more]


def read_weights(model: Path) -> dict[str, Any]:
    """Every array of a model file: weights, and the variables of the optimizer."""
    found: dict[str, Any] = {}
    with zipfile.ZipFile(model) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(lambda name, each: found.update({name: each[()]}) if isinstance(each, h5py.Dataset) else None)
    return found


def weights_of(model: Path) -> dict[str, bytes]:
    """The bytes of every array of a model file."""
    return {name: array.tobytes() for name, array in read_weights(model).items()}


def assert_same_job(output: Path, other: Path) -> None:
    assert (output / "history.csv").read_bytes() == (other / "history.csv").read_bytes()
    assert weights_of(output / "model.keras") == weights_of(other / "model.keras")
