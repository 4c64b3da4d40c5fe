"""Search for the batch size: larger sizes are tried until they bring no more. Pure: points go in, sizes come out.

sizes:  s, 2s, 4s … ─► stop when two steps together gained less than 3 %, or the memory would not suffice
        s/2, s/4 … while the smallest is the fastest
        a size that was much slower than both its neighbours, once more
then:   once more between the best size and its better neighbour
answer: the knee, the smallest size that is within 2 % of the best
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.core.records import Binding

LEAST_GAIN = 0.03
KNEE = 0.02
_STEPS_WITHOUT_GAIN = 2
_DIP = 0.85
_FIRST_BATCH_S = 0.02
_BATCH_COST_S = 0.0004
"""Seconds of one core to carry a batch to the model and back (measured on photos and on tables: 0.4 to 0.6 ms)."""
TRIED_ROWS = 32
_BATCH_S, _LONGEST_BATCH_S = 1.0, 4.0
SEARCH_SHARE = 0.1
SAVING_SHARE = 0.6
"""A search may take this share of the time that it is expected to save."""
POLISH_SHARE = 0.1
"""Climbing may take this share of a job's expected time, once every promising runtime was tried."""
MOST_SEARCH_S = 120.0
LEAST_SEARCH_S = 3.0


@dataclass(frozen=True)
class Point:
    """What one batch size gave. Where `rows_per_s` is 0, it did not run, and `problem` says why."""

    batch_size: int
    rows_per_s: float = 0.0
    memory_bytes: int = 0
    problem: str | None = None


@dataclass
class Ladder:
    """The sizes to try next, from what the others gave.

    Args:
        start: The first size.
        most: The largest that makes sense: what the input has, or what the host can hold.
        room_bytes: The memory that may be taken; None where that is unknown.
    """

    start: int
    most: int
    room_bytes: int | None = None
    points: list[Point] = field(default_factory=list)
    stopped: str | None = None
    """Why it ended, in words."""
    _is_refined: bool = False

    def next(self) -> int | None:
        """The size to measure next; None when enough is known."""
        if not self.points:
            return min(self.start, self.most)
        last = self.points[-1]
        if self.stopped is None:
            self.stopped = self._why_stop(last)
        if self.stopped is None:
            return min(2 * last.batch_size, self.most)
        return self._dip() or self._smaller() or self._refinement()

    def add(self, point: Point) -> None:
        self.points.append(point)

    @property
    def best(self) -> Point | None:
        """The knee: the smallest size that is nearly as fast as the fastest."""
        ran = [point for point in self.points if point.problem is None and self._has_room(point.memory_bytes)]
        if not ran:
            return None
        fastest = max(point.rows_per_s for point in ran)
        return min((p for p in ran if p.rows_per_s >= (1 - KNEE) * fastest), key=lambda point: point.batch_size)

    def _why_stop(self, last: Point) -> str | None:
        if last.problem is not None:
            return f"a batch of {last.batch_size:,} rows: {last.problem}"
        if last.batch_size >= self.most:
            return f"{self.most:,} rows are the most that this input can use"
        if not self._has_room(self._predicted(2 * last.batch_size)):
            return f"{2 * last.batch_size:,} rows would take more memory than is allowed"
        rates = [point.rows_per_s for point in self.points]
        if len(rates) > _STEPS_WITHOUT_GAIN:
            before = max(rates[:-_STEPS_WITHOUT_GAIN])
            if max(rates[-_STEPS_WITHOUT_GAIN:]) < (1 + LEAST_GAIN) * before:
                return "larger batches are no faster"
        return None

    def _has_room(self, memory_bytes: float) -> bool:
        return self.room_bytes is None or memory_bytes <= self.room_bytes

    def _predicted(self, batch_size: int) -> float:
        """The memory of a size that was not tried, extrapolated in a straight line from the last two sizes."""
        if len(self.points) < 2:
            return float(self.points[-1].memory_bytes)
        before, last = self.points[-2:]
        step = last.batch_size - before.batch_size
        slope = max(0, last.memory_bytes - before.memory_bytes) / step if step else 0.0
        return last.memory_bytes + slope * (batch_size - last.batch_size)

    def _dip(self) -> int | None:
        """A size that was much slower than both its neighbours: the machine was busy, and it is measured once more."""
        rates = self._rates()
        once = {size for size in rates if sum(point.batch_size == size for point in self.points) == 1}
        for before, size, after in zip(rates, list(rates)[1:], list(rates)[2:], strict=False):
            if size in once and rates[size] < _DIP * min(rates[before], rates[after]):
                return size
        return None

    def _rates(self) -> dict[int, float]:
        """By size, the smallest first, the most rows a second that it reached."""
        ran = sorted((point.batch_size, point.rows_per_s) for point in self.points if point.problem is None)
        return dict(ran)

    def _smaller(self) -> int | None:
        """Half of the smallest size, if that one is the fastest: the search began too high."""
        ran = [point for point in self.points if point.problem is None]
        smallest = min(ran, key=lambda point: point.batch_size, default=None)
        if smallest is None or self._is_refined or smallest.batch_size == 1:
            return None
        is_fastest = all(point.rows_per_s < smallest.rows_per_s for point in ran if point is not smallest)
        return smallest.batch_size // 2 if is_fastest and len(ran) > 1 else None

    def _refinement(self) -> int | None:
        """The size half-way between the knee and its faster neighbour."""
        knee = self.best
        if self._is_refined or knee is None:
            return None
        self._is_refined = True
        ran = self._rates()
        beside = [size for size in (knee.batch_size // 2, 2 * knee.batch_size) if size in ran]
        if not beside:
            return None
        middle = (knee.batch_size + max(beside, key=lambda size: ran[size])) // 2
        return middle if middle not in ran else None


def with_its_way(rows_per_s: float, batch_size: int, cores: int) -> float:
    """The speed of a model on a CPU whose cores also carry its batches and answers.

    >>> round(with_its_way(300.0, 1, 2)), round(with_its_way(300.0, 8, 2))
    (283, 298)
    """
    return rows_per_s / (1 + rows_per_s * _BATCH_COST_S / (batch_size * cores))


def first_size(default: int, batch_s: float) -> int:
    """The first size: far below the rule of thumb, because some runtimes are fastest with a single image.

    If a batch of the `default` size takes long (`batch_s` seconds), the first one takes about a fiftieth of a second.

    >>> first_size(8192, 0.01), first_size(16, 0.2), first_size(8192, 8.0)
    (512, 1, 16)
    """
    quick = int(default * _FIRST_BATCH_S / max(batch_s, 1e-9))
    return max(1, min(default // 16, 1 << max(0, quick.bit_length() - 1)))


def likely_size(default: int, batch_s: float) -> int:
    """One size for a first trial of a runtime: half-way, in doublings, between `first_size` and the rule of thumb.

    >>> likely_size(8192, 0.01), likely_size(16, 0.2), likely_size(1, 0.2)
    (2048, 4, 1)
    """
    return 1 << round(math.log2(first_size(default, batch_s) * default) / 2)


def family(bindings: Iterable[Binding]) -> str:
    """What rows look like: `images`, `sequences` or `tables`. The same runtimes are fast for models of one family."""
    shapes = [(len(binding.shape), binding.dtype) for binding in bindings]
    if any(rank >= 3 for rank, _ in shapes):
        return "images"
    is_long = any(rank == 2 or (rank == 1 and dtype.startswith(("int", "uint3", "uint6"))) for rank, dtype in shapes)
    return "sequences" if is_long else "tables"


def size_if_slow(rule: int, few_s: float) -> int:
    """The batch size by the rule of thumb; where such a batch would take long, one that takes about a second.

    The rule counts the bytes of a row, not the arithmetic: it would give a transformer batches of 8,192 short texts.
    `few_s` is what a batch of `TRIED_ROWS` takes.

    >>> size_if_slow(8192, 0.002), size_if_slow(8192, 0.16), size_if_slow(8192, 16.0)
    (8192, 128, 32)
    """
    if few_s * rule <= _LONGEST_BATCH_S * TRIED_ROWS:
        return rule
    rows = int(TRIED_ROWS * _BATCH_S / few_s)
    return max(TRIED_ROWS, 1 << max(0, rows.bit_length() - 1))


@dataclass(frozen=True)
class Budget:
    """How long a search may take: a tenth of the job's time, or more if it can save much. At most two minutes.

    If the job could run `gain` times as fast, a search may take six tenths of the time saved where that is more than
    the tenth, and enough to find something (`least_s` seconds). For a job that waits for its rows, only the
    `computed_s` seconds of the model count as time that can be saved. A short job gets no search at all.

    >>> Budget.of(600.0).seconds, Budget.of(36_000.0).seconds, Budget.of(12.0).seconds
    (60.0, 120.0, 0.0)
    >>> Budget.of(145.0, gain=2.0, least_s=8.0).seconds, Budget.of(20.0, gain=2.0, least_s=8.0).seconds
    (43.5, 0.0)
    """

    seconds: float
    is_by_gain: bool = False
    """Whether the time that a faster runtime is expected to save pays for the search."""

    @classmethod
    def of(cls, predicted_s: float, gain: float = 1.0, least_s: float = 0.0, computed_s: float | None = None) -> Budget:
        by_gain = SAVING_SHARE * (predicted_s if computed_s is None else computed_s) * (1 - 1 / max(1.0, gain))
        is_by_gain = by_gain >= max(least_s, LEAST_SEARCH_S)
        seconds = min(MOST_SEARCH_S, max(SEARCH_SHARE * predicted_s, by_gain if is_by_gain else 0.0))
        return cls(seconds if seconds >= LEAST_SEARCH_S else 0.0, is_by_gain)
