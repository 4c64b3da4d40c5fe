"""Whether two runs of a model gave the same answers, as far as numbers in another order of summing can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.answering import CLASS, SCORE, Answers, NumpyRanking
from penstock.core.records import Array, Column


@dataclass(frozen=True)
class Disagreement:
    """The first place where two answers differ by more than is allowed."""

    output: str
    row: int
    ours: str
    theirs: str
    difference: str = ""

    def __str__(self) -> str:
        return f"{self.output}, row {self.row}: {self.ours} here, {self.theirs} there{self.difference}"


def compare(
    ours: Mapping[str, Column], theirs: Mapping[str, Column], tolerance: float, answers: Answers | None = None
) -> Disagreement | None:
    """The worst disagreement between our answers and those of the model's own framework; None where there is none.

    Numbers may differ by `tolerance` times the spread (largest less smallest value) of that output; all else must be
    equal. Where only the best classes were kept, `theirs` are still whole outputs, and our classes must be as good.
    """
    for name, column in ours.items():
        mine = _plain(column)
        if name in theirs:
            found = _differ(name, mine, _plain(theirs[name]), tolerance)
        else:
            found = _differ_in_rank(name, mine, theirs, tolerance, answers)
        if found is not None:
            return found
    return None


def _plain(column: Column) -> Array:
    return column if isinstance(column, np.ndarray) else np.array(column.to_pylist(), dtype=object)


def _differ(name: str, mine: Array, other: Array, tolerance: float) -> Disagreement | None:
    if mine.shape != other.shape:
        return Disagreement(name, 0, f"shape {mine.shape[1:]}", f"shape {other.shape[1:]}")
    if mine.dtype.kind not in "fc" or other.dtype.kind not in "fc":
        unequal = np.flatnonzero(np.asarray(mine != other, dtype=bool).reshape(len(mine), -1).any(axis=1))
        if not len(unequal):
            return None
        row = int(unequal[0])
        return Disagreement(name, row, _shown(mine[row]), _shown(other[row]))
    return _differ_in_value(name, mine.astype(np.float64), other.astype(np.float64), tolerance)


def _differ_in_value(name: str, mine: Array, other: Array, tolerance: float) -> Disagreement | None:
    flat, expected = mine.reshape(len(mine), -1), other.reshape(len(other), -1)
    if not flat.size:
        return None
    finite = np.isfinite(expected)
    spread = float(np.ptp(expected[finite])) if finite.any() else 0.0
    # An output that is the same for all rows has no spread: its own size is the measure then.
    allowed = tolerance * (spread or float(np.abs(expected[finite]).max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        far = np.where(finite, np.abs(flat - expected), 0.0)
    same_kind = (np.isnan(flat) == np.isnan(expected)) & (np.isposinf(flat) == np.isposinf(expected))
    same_kind &= np.isneginf(flat) == np.isneginf(expected)
    far = np.where(same_kind, far, np.inf)
    worst = int(np.argmax(far))
    if far.flat[worst] <= allowed:
        return None
    row = worst // flat.shape[1]
    note = f" (apart {far.flat[worst]:.3g}, allowed {allowed:.3g}: {tolerance:g} of the spread)"
    return Disagreement(name, row, f"{flat.flat[worst]:.9g}", f"{expected.flat[worst]:.9g}", note)


def _differ_in_rank(
    name: str, mine: Array, theirs: Mapping[str, Column], tolerance: float, answers: Answers | None
) -> Disagreement | None:
    """The classes that we kept must score as high, in their framework's answer, as the best ones there."""
    output = name.removesuffix(CLASS).removesuffix(SCORE)
    if answers is None or output not in theirs:
        return Disagreement(name, 0, "an output", "no output of that name")
    whole = _plain(theirs[output]).astype(np.float64)
    places = mine if mine.ndim == 2 else mine[:, None]
    best, _ = NumpyRanking().top_k(whole, places.shape[1])
    reached = places.astype(np.float64) if name.endswith(SCORE) else np.take_along_axis(whole, places, axis=1)
    allowed = tolerance * float(np.ptp(whole))
    far = np.abs(reached - best)
    worst = int(np.argmax(far))
    if not far.size or far.flat[worst] <= allowed:
        return None
    row = worst // far.shape[1]
    return Disagreement(name, row, _shown(places[row]), f"scores {_shown(best[row])}")


def _shown(value: Any) -> str:
    text = (
        np.array2string(np.asarray(value), precision=6, threshold=6) if isinstance(value, np.ndarray) else str(value)
    )
    return text[:120]
