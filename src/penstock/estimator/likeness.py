"""Comparison of two processes' predictions for one element, which shows whether they built the same model."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from penstock.core.agreement import compare

TOLERANCE = {"cpu": 1e-3, "gpu": 1e-2}
"""The largest difference, as a share of the spread of a prediction. Another order of sums or another kernel stays far
below it; another model is above it."""
_MOST_UNEQUAL = 0.01
"""The share of classes that may differ, where there are a hundred or more: a class changes if two scores are nearly
equal."""


class Reference(NamedTuple):
    """Two predictions of this process for one element. Arrays that differ between them are random, and are skipped."""

    once: Any
    again: Any

    def unlike(self, predictions: Any, kind: str) -> str | None:
        """How the predictions of another process differ, in words; None where they are the same."""
        once, again, theirs = flatten(self.once), flatten(self.again), flatten(predictions)
        if list(once) != list(theirs):
            return f"predictions are {', '.join(once)} here, {', '.join(theirs)} there"
        for name, mine in once.items():
            if _difference(name, mine, again[name], 0.0) is not None:
                continue
            difference = _difference(name, mine, theirs[name], TOLERANCE[kind])
            if difference is not None:
                return difference
        return None


def flatten(predictions: Any, name: str = "") -> dict[str, Any]:
    """The arrays of a structure of predictions, by their places in it. Sparse and ragged ones are taken apart."""
    if isinstance(predictions, Mapping):
        parts: Any = predictions.items()
    elif isinstance(predictions, tuple) and hasattr(predictions, "_fields"):
        parts = zip(predictions._fields, predictions, strict=True)
    elif hasattr(predictions, "row_splits"):
        parts = (("values", predictions.values), ("row_splits", predictions.row_splits))
    elif isinstance(predictions, (list, tuple)):
        parts = enumerate(predictions)
    else:
        return {name or "the prediction": np.asarray(predictions)}
    arrays: dict[str, Any] = {}
    for key, part in parts:
        arrays |= flatten(part, f"{name}/{key}" if name else str(key))
    return arrays


def _difference(name: str, mine: Any, other: Any, tolerance: float) -> str | None:
    if mine.shape != other.shape:
        return f"{name}: shape {mine.shape} here, {other.shape} there"
    if mine.dtype.kind == "V":  # floats that numpy itself does not have
        mine, other = mine.astype(np.float32), other.astype(np.float32)
    if mine.dtype.kind not in "fc":
        unequal = int(np.count_nonzero(np.asarray(mine != other)))
        if unequal <= (_MOST_UNEQUAL * mine.size if tolerance else 0):
            return None
    disagreement = compare({name: np.atleast_1d(mine)}, {name: np.atleast_1d(other)}, tolerance)
    return None if disagreement is None else str(disagreement)
