"""Comparison of two runs of a model: their answers must be the same, apart from the order of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import leaves, to_arrow
from penstock.core.output_selection import CLASSES, SCORES, numpy_top_k, shown
from penstock.core.records import Array, Column

CHECKED_ROWS = 64
"""How many answers are compared with those of the model's own framework: one batch, or several small ones."""
ENOUGH_ROWS = 16
"""The fewest rows that are compared where batches are small: one row alone proves nothing."""
MOST_BY_NOISE = 1e-3
"""The largest share of the spread that a framework's own noise may allow others. Float16 differs by more."""
_FEW = 64
"""A last axis of at most so many values may hold several quantities; a longer one holds a single quantity."""
_SMALL = 0.1
"""A quantity that varies by less than this share of the whole output's spread is judged by its own spread."""
_BY_ITS_NOISE = 4
"""Such a quantity may differ by so many times its noise: the largest of a few distances is less certain."""
_OFFSET = 1e-2
"""The least scale of such a quantity, as a share of its largest value: rounding follows the size, not the spread."""
LEAST_LOOSENED = 1e-4
"""Below this tolerance, which is the default, noise allows nothing: a user who gives a smaller one means it."""
FLOAT64 = "its answers in float64"
_GROSS = 0.01
"""A difference above this share of the spread is not one of rounding."""
_NOISE = 1e-6
"""Scores that are closer than this share of the spread are a tie."""


NANS = "rows with NaN"
Strangers = Mapping[str, Column] | None
"""Answers to rows of a kind that no sample has; None where they are rejected."""


@dataclass(frozen=True)
class Noise:
    """How far a framework's answers to the first rows are from the truth, or, where that is unknown, from one another.

    Args:
        distances: The largest distance of each output, in its own units: of each place of a row, where these are few.
        how: What the answers were compared with.
    """

    distances: Mapping[str, Array] = field(default_factory=dict)
    how: str = ""

    def joined(self, other: Noise) -> Noise:
        """The larger distance of each output."""
        names = {*self.distances, *other.distances}
        largest = {name: np.maximum(self.of_places(name), other.of_places(name)) for name in names}
        return Noise(largest, " and ".join(each for each in (self.how, other.how) if each))

    def of_places(self, name: str) -> Array:
        """The distances of an output, or zero; all places of a row may share one."""
        return self.distances.get(name, np.zeros(1))

    def share(self, name: str, answers: Column) -> float:
        """The noise of an output, as a share of the spread of these answers."""
        largest = float(self.of_places(name).max())
        return largest / (_spread(_values(answers)) or 1.0) if largest else 0.0

    def largest_share(self, answers: Mapping[str, Column]) -> float:
        return max((self.share(name, column) for name, column in answers.items()), default=0.0)

    def allows(self, name: str, answers: Column, tolerance: float) -> float:
        """The share of the spread by which another runtime may differ: the tolerance, or twice the noise.

        Two runtimes that are as far from the truth as the framework is, on opposite sides, are twice as far apart.
        """
        if tolerance < LEAST_LOOSENED:
            return tolerance
        return max(tolerance, min(MOST_BY_NOISE, 2 * self.share(name, answers)))


NO_NOISE = Noise()


def distances(ours: Mapping[str, Column], theirs: Mapping[str, Column]) -> dict[str, Array]:
    """The largest distances between two answers to the same rows, as `Noise` has them; of numbers of one shape."""
    found: dict[str, Array] = {}
    for name, column in ours.items():
        mine, other = _places(column), _places(theirs[name]) if name in theirs else np.zeros((0, 1))
        far = _apart(mine, other).max(axis=0) if mine.size and mine.shape == other.shape else np.array([np.inf])
        if np.isfinite(far).all():
            found[name] = far
    return found


@dataclass(frozen=True)
class Disagreement:
    """A place where two answers differ by more than is allowed."""

    output: str
    row: int
    ours: str
    theirs: str
    difference: str = ""

    def __str__(self) -> str:
        return f"{self.output}, row {self.row}: {self.ours} here, {self.theirs} there{self.difference}"


@dataclass(frozen=True)
class Proof:
    """Whether sample answers show that another runtime computes the same model.

    `difference` is the largest difference, as a share of the spread of its output; `allowed` is what that output may
    differ by. `problem` says why the answers prove nothing: they differ, or, where `is_comparable` is False, other
    models could give the same answers. `of_nan` says how the answers to rows with NaN differ. `needed` is the smallest
    tolerance that allows these answers, given the framework's noise.
    """

    difference: float
    problem: str | None = None
    is_comparable: bool = True
    allowed: float = 0.0
    needed: float = 0.0
    of_nan: str | None = None

    def may_be_noise(self, tolerance: float) -> bool:
        """Whether the framework's own noise could explain the problem."""
        is_possible = self.is_comparable and tolerance >= LEAST_LOOSENED
        return self.problem is not None and is_possible and 0 < self.difference <= MOST_BY_NOISE


def prove(ours: Mapping[str, Column], theirs: Mapping[str, Column], tolerance: float, noise: Noise = NO_NOISE) -> Proof:
    """Compare the answers of another runtime with those of the model's own framework, as far as its noise is known.

    Stricter than `compare`: an output that is the same in every row of the sample proves nothing, the class that a row
    is given must be the same, too, and a small quantity beside a large one counts by its own spread.
    """
    shares = {name: _share(ours[name], theirs[name]) for name in ours if name in theirs}
    by_noise = {name: noise.allows(name, theirs[name], LEAST_LOOSENED) for name in shares}
    worst = max(shares, key=lambda name: shares[name], default=None)
    difference = shares[worst] if worst is not None else 0.0
    if not theirs or not len(next(iter(theirs.values()))):
        return Proof(difference, "no row of the sample has an answer", is_comparable=False)
    constant = [shown(name) for name, column in theirs.items() if _is_constant(column)]
    if constant:
        problem = f"the output {constant[0]} is the same in every row of the sample: that proves nothing"
        return Proof(difference, problem, is_comparable=False)
    disagreement = compare(ours, theirs, tolerance, noise)
    disagreement = disagreement or _other_class(ours, theirs, noise) or _other_side(ours, theirs, noise)
    share, other = _other_quantity(ours, theirs, max(tolerance, MOST_BY_NOISE), noise)
    disagreement = disagreement or other
    return Proof(
        difference,
        str(disagreement) if disagreement is not None else None,
        allowed=noise.allows(worst, theirs[worst], tolerance) if worst is not None else tolerance,
        needed=max([share, *(share for name, share in shares.items() if share > by_noise[name])]),
    )


def other_on_strangers(ours: Mapping[str, Strangers], theirs: Mapping[str, Strangers]) -> dict[str, str]:
    """The kinds of rows that no sample has and that get different answers, each with the difference in words.

    Only gross differences count: few digits of the answers to such values mean anything.
    """
    found = {kind: _other_on_one(kind, ours.get(kind, wanted), wanted) for kind, wanted in theirs.items()}
    return {kind: problem for kind, problem in found.items() if problem is not None}


def _other_on_one(kind: str, ours: Strangers, theirs: Strangers) -> str | None:
    if theirs is None:
        return f"it answers {kind}, which the model's own framework rejects" if ours is not None else None
    if kind != NANS:  # in a column of plain numbers, answers to such values may differ by rounding
        return None
    if ours is None:
        return f"it rejects {kind}, which the model's own framework answers"
    disagreement = compare(ours, theirs, _GROSS)
    return f"{kind} are answered otherwise: {disagreement}" if disagreement is not None else None


def largest_difference(
    ours: Sequence[Mapping[str, Column]], theirs: Sequence[Mapping[str, Column]]
) -> tuple[float, str | None]:
    """The largest difference of several answers, as a share of the spread of an output in all of `theirs`.

    It is infinite where shapes, or values that are not numbers, differ. The second value names an output that is the
    same in every row of `theirs`, and so proves nothing.
    """
    worst, constant = 0.0, None
    for name in theirs[0]:
        pairs = [(mine[name], other[name]) for mine, other in zip(ours, theirs, strict=True)]
        if any(_differ(name, mine, other, float("inf")) is not None for mine, other in pairs):
            return float("inf"), None
        flat = [(_values(mine), _values(other)) for mine, other in pairs]
        far = max((float(_apart(mine, other).max()) for mine, other in flat if other.size), default=0.0)
        spread = _spread(np.concatenate([other for _, other in flat])) or 1.0
        worst = max(worst, far / spread)
        if all(_is_constant(other) for _, other in pairs) and _is_constant(_first_rows([other for _, other in pairs])):
            constant = shown(name)
    return worst, constant


def _values(column: Column) -> Array:
    """All floats of a column, as one flat array; empty for other types, whose values are compared for equality."""
    values = column if isinstance(column, np.ndarray) else leaves(to_arrow(column))[0].to_numpy(zero_copy_only=False)
    return values.reshape(-1).astype(np.float64) if values.dtype.kind in "fc" else np.zeros(0)


def _places(column: Column) -> Array:
    """The numbers of a column, with an axis for the places of a row where these may be quantities of their own."""
    has_places = isinstance(column, np.ndarray) and column.ndim >= 2 and 2 <= column.shape[-1] <= _FEW
    return _values(column).reshape(-1, column.shape[-1] if has_places else 1)


def _first_rows(columns: Sequence[Column]) -> Column:
    """The first row of each answer, where all rows have one shape; otherwise the whole first answer."""
    shapes = {column.shape[1:] if isinstance(column, np.ndarray) else None for column in columns}
    if len(shapes) > 1 or None in shapes:
        return columns[0]
    return np.concatenate([column[:1] for column in columns])


def _share(mine: Column, other: Column) -> float:
    """The largest difference of two outputs of numbers, as a share of the spread; 0 for what is not numbers."""
    ours, theirs = _values(mine), _values(other)
    if ours.size != theirs.size:
        return float("inf")
    far = float(_apart(ours, theirs).max()) if ours.size else 0.0
    return far / (_spread(theirs) or 1.0) if far else 0.0


def _is_constant(column: Column) -> bool:
    """Whether all rows have the same answer, apart from noise."""
    if not isinstance(column, np.ndarray):
        values = column.to_pylist()
        return all(value == values[0] for value in values)
    rows = column.reshape(len(column), -1)
    if column.dtype.kind not in "fc":
        return bool(np.all(rows == rows[:1]))
    finite = np.where(np.isfinite(rows), rows, 0.0).astype(np.float64)
    return not finite.size or float(np.ptp(finite, axis=0).max()) <= _NOISE * float(np.abs(finite).max())


def _other_class(ours: Mapping[str, Column], theirs: Mapping[str, Column], noise: Noise) -> Disagreement | None:
    """A row whose scores name another class. Classes that score the same but for noise may change places."""
    for name, column in ours.items():
        other = theirs.get(name)
        if not isinstance(column, np.ndarray) or not isinstance(other, np.ndarray) or not _are_scores(other):
            continue
        mine, best = column.argmax(axis=1), other.argmax(axis=1)
        rows = np.arange(len(other))
        gap = (other[rows, best] - other[rows, mine]).astype(np.float64)
        tie = max(_NOISE, min(MOST_BY_NOISE, 2 * noise.share(name, other)))
        wrong = np.flatnonzero((mine != best) & (gap > tie * _spread(other.astype(np.float64))))
        if len(wrong):
            row = int(wrong[0])
            return Disagreement(name, row, f"class {mine[row]}", f"class {best[row]}")
    return None


def _other_side(ours: Mapping[str, Column], theirs: Mapping[str, Column], noise: Noise) -> Disagreement | None:
    """A row that is yes on one side and no on the other, where an output is a single probability."""
    for name, column in ours.items():
        other = theirs.get(name)
        if not isinstance(column, np.ndarray) or not isinstance(other, np.ndarray) or other.dtype.kind != "f":
            continue
        if other.size != len(other) or (other < 0).any() or (other > 1).any():
            continue
        mine, far = column.reshape(-1), np.abs(other.reshape(-1).astype(np.float64) - 0.5)
        sides = (mine > 0.5) != (other.reshape(-1) > 0.5)
        tie = max(_NOISE, min(MOST_BY_NOISE * _spread(other.astype(np.float64)), noise.of_places(name).max()))
        wrong = np.flatnonzero(sides & (far > tie))
        if len(wrong):
            row = int(wrong[0])
            return Disagreement(name, row, f"{mine[row]:.9g}", f"{other.reshape(-1)[row]:.9g}")
    return None


def _other_quantity(
    ours: Mapping[str, Column], theirs: Mapping[str, Column], tolerance: float, noise: Noise
) -> tuple[float, Disagreement | None]:
    """The tolerance that would allow every place of a row, and the worst value, if that exceeds `tolerance`.

    The first is 0 where the noise, or `MOST_BY_NOISE` of the place's own scale, allows all of them.

    In the whole output, a price beside a probability would hide an error of the probability. Probabilities that add up
    to one are left out: the class decides there, and the digits of small ones are noise.
    """
    needed, disagreement = 0.0, None
    for name, column in ours.items():
        other = theirs.get(name)
        if not isinstance(column, np.ndarray) or not isinstance(other, np.ndarray) or other.dtype.kind != "f":
            continue
        mine, wanted = _places(column), _places(other)
        if wanted.shape[1] < 2 or np.allclose(wanted.sum(axis=1), 1, atol=1e-3):
            continue
        finite = wanted[np.isfinite(wanted).all(axis=1)]
        if not len(finite):
            continue
        scale, whole = np.maximum(np.ptp(finite, axis=0), _OFFSET * np.abs(finite).max(axis=0)), _spread(wanted)
        scale = np.where((scale > 0) & (scale < _SMALL * whole), scale, whole)
        by_noise = np.minimum(_BY_ITS_NOISE * noise.of_places(name), MOST_BY_NOISE * whole)
        far = _apart(mine, wanted)
        shares = np.where(far > np.maximum(by_noise, MOST_BY_NOISE * scale), far / np.maximum(scale, 1e-300), 0.0)
        if shares.max() > needed:
            needed = float(shares.max())
            line, place = map(int, np.unravel_index(shares.argmax(), shares.shape))
            row, values = line * len(other) // len(mine), [f"{each[line, place]:.9g}" for each in (mine, wanted)]
            note = f" (place {place} of a row: {tolerance * scale[place]:.3g} is allowed there)"
            disagreement = Disagreement(name, row, values[0], values[1], note)
    return needed, disagreement if needed > tolerance else None


def _are_scores(values: Array) -> bool:
    """Whether rows can name a class by their largest value, be it a probability or a logit."""
    return values.ndim == 2 and values.shape[1] >= 2 and values.dtype.kind == "f"


def compare(
    ours: Mapping[str, Column], theirs: Mapping[str, Column], tolerance: float, noise: Noise = NO_NOISE
) -> Disagreement | None:
    """Where an output first disagrees with that of the model's own framework, or disagrees most; None where all agree.

    Numbers may differ by `tolerance` times the spread (largest less smallest value) of that output, or by twice the
    `noise` of that framework; all else must be equal. Where we kept only the best classes and `theirs` are whole
    outputs, our classes must score as high there.
    """
    for key, column in ours.items():
        output = key.removeprefix(CLASSES).removeprefix(SCORES)
        if key in theirs:
            allowed = noise.allows(key, theirs[key], tolerance)
            disagreement: Disagreement | None = _differ(key, column, theirs[key], allowed)
        elif output not in theirs:
            disagreement = Disagreement(shown(key), 0, "an output", "no output of that name")
        else:
            allowed = noise.allows(output, theirs[output], tolerance)
            disagreement = _differ_in_rank(key, np.asarray(column), theirs[output], allowed)
        if disagreement is not None:
            return disagreement
    return None


def _differ(name: str, mine: Column, other: Column, tolerance: float) -> Disagreement | None:
    if not isinstance(mine, np.ndarray) or not isinstance(other, np.ndarray):
        return _differ_in_lists(name, mine, other, tolerance)
    if mine.shape != other.shape:
        return Disagreement(name, 0, f"shape {mine.shape[1:]}", f"shape {other.shape[1:]}")
    if mine.dtype.kind in "fc" and other.dtype.kind in "fc":
        if mine.dtype != other.dtype:
            return Disagreement(name, 0, str(mine.dtype), str(other.dtype))
        return _differ_in_value(name, mine.astype(np.float64), other.astype(np.float64), tolerance)
    unequal = np.flatnonzero(np.asarray(mine != other, dtype=bool).reshape(len(mine), -1).any(axis=1))
    if not len(unequal):
        return None
    row = int(unequal[0])
    return Disagreement(name, row, _told(mine[row]), _told(other[row]))


def _differ_in_lists(name: str, mine: Column, other: Column, tolerance: float) -> Disagreement | None:
    """Rows of different lengths: the lengths must be equal, and the values are compared as any others."""
    ours, theirs = to_arrow(mine), to_arrow(other)
    if ours.type != theirs.type:
        return Disagreement(name, 0, str(ours.type), str(theirs.type))
    if not hasattr(ours, "offsets"):
        plain = [np.asarray(each.to_pylist(), dtype=object) for each in (ours, theirs)]
        return _differ(name, plain[0], plain[1], tolerance)
    lengths, expected = (np.diff(np.asarray(each.offsets)) for each in (ours, theirs))
    disagreement = _differ(name, lengths, expected, 0.0)
    if disagreement is not None:
        return Disagreement(name, disagreement.row, f"{disagreement.ours} values", f"{disagreement.theirs} values")
    inside = [each.flatten() for each in (ours, theirs)]
    if pa.types.is_floating(inside[0].type):
        inside = [each.to_numpy(zero_copy_only=False) for each in inside]
    disagreement = _differ(name, inside[0], inside[1], tolerance) if len(inside[0]) else None
    row = int(np.searchsorted(np.cumsum(lengths), disagreement.row, side="right")) if disagreement is not None else 0
    return replace(disagreement, row=row) if disagreement is not None else None


def _differ_in_value(name: str, mine: Array, other: Array, tolerance: float) -> Disagreement | None:
    if tolerance == float("inf"):
        return None
    flat, expected = mine.reshape(len(mine), -1), other.reshape(len(other), -1)
    allowed = tolerance * _spread(expected)
    far = _apart(flat, expected)
    if not far.size or far.max() <= allowed:
        return None
    worst = int(np.argmax(far))
    note = f" (apart {far.flat[worst]:.3g}, allowed {allowed:.3g}: {tolerance:g} of the spread)"
    ours, theirs = f"{flat.flat[worst]:.9g}", f"{expected.flat[worst]:.9g}"
    return Disagreement(name, worst // flat.shape[1], ours, theirs, note)


def _spread(values: Array) -> float:
    """The largest value minus the smallest; where all are equal, their absolute value."""
    finite = values[np.isfinite(values)]
    return float(np.ptp(finite) or np.abs(finite).max()) if finite.size else 0.0


def _apart(values: Array, expected: Array) -> Array:
    """The distances between values. NaN and infinities are infinitely far from all but the same value."""
    is_finite = np.isfinite(expected) & np.isfinite(values)
    with np.errstate(invalid="ignore"):
        difference = np.abs(values - expected)
    is_alike = (values == expected) | (np.isnan(values) & np.isnan(expected))
    apart: Array = np.where(is_finite, difference, np.where(is_alike, 0.0, np.inf))
    return apart


def _differ_in_rank(key: str, mine: Array, whole: Column, tolerance: float) -> Disagreement | None:
    """The classes that we kept must score as high, in their framework's answer, as the best ones there."""
    scores = np.asarray(whole).astype(np.float64)
    kept = mine if mine.ndim == 2 else mine[:, None]
    best, _ = numpy_top_k(scores, kept.shape[1])
    reached = kept.astype(np.float64) if key.startswith(SCORES) else np.take_along_axis(scores, kept, axis=1)
    far = _apart(reached, best)
    if not far.size or far.max() <= tolerance * _spread(scores):
        return None
    row = int(np.argmax(far)) // far.shape[1]
    return Disagreement(shown(key), row, _told(kept[row]), f"the best scores {_told(best[row])}")


def _told(value: Any) -> str:
    text = np.array2string(np.asarray(value), precision=6, threshold=6) if isinstance(value, np.ndarray) else str(value)
    return text[:120]
