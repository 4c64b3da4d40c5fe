"""The digits of scikit-learn, from its own file: importing scikit-learn takes two seconds of processor time."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def folder_of_datasets() -> Path:
    """The folder of scikit-learn, which is not imported, with its data and photos."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets"


def load_digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """1,797 rows of 8×8 pixels from 0 to 16, and which digits they are."""
    with gzip.open(folder_of_datasets() / "data" / "digits.csv.gz", "rt") as file:
        rows: npt.NDArray[Any] = np.loadtxt(file, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(np.int64)
