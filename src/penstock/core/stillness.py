"""Workers that hang: which of them have shown no sign of progress for too long. Pure: the time is an argument."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

_TIMES_THE_SLOWEST = 20
_SHORT_S = 1.0
"""Shorter times without progress are not measured: signs are looked at a few times a second."""


@dataclass(frozen=True)
class Timeouts:
    """How long workers may take before they count as hung.

    `row_s` is for one row, or one call of the user's function. `hang_s` is the least time without a sign of progress
    between batches. `start_s` is for starting, loading the model and compiling it. `read_s` is for the next batch of a
    replica that reads by itself: a remote file is tried five times before it fails.
    """

    row_s: float = 120.0
    hang_s: float = 60.0
    start_s: float = 1800.0

    @property
    def read_s(self) -> float:
        return 5 * self.row_s


DEFAULT_TIMEOUTS = Timeouts()


class Stillness:
    """How long each worker has been still.

    A worker is looked at while it has something to do. Time between two looks counts as at most one second: after the
    coordinator was stopped, or waited for a slow disk, its workers may be waiting for it.

    Args:
        least_s: How long a worker may always be still.
        times: A worker may also be still so many times as long as any worker was before it went on.
    """

    def __init__(self, least_s: float, times: int = _TIMES_THE_SLOWEST) -> None:
        self._least_s = least_s
        self._times = times
        self._slowest_s = 0.0
        self._looked_at: float | None = None
        self._still_s: dict[int, float] = {}
        self._signs: dict[int, Hashable] = {}

    @property
    def limit_s(self) -> float:
        return max(self._least_s, self._times * self._slowest_s)

    def look(self, now: float, signs: Mapping[int, Hashable]) -> dict[int, float]:
        """Which workers hang, and for how long they have been still.

        Args:
            now: The time.
            signs: For every worker that has something to do, a value that changes when it makes progress.
        """
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, _SHORT_S)
        self._looked_at = now
        still_s: dict[int, float] = {}
        for worker, sign in signs.items():
            still_s[worker] = self._still_s.get(worker, 0.0) + passed
            if self._signs.get(worker) != sign:
                if worker in self._signs and still_s[worker] > _SHORT_S:
                    self._slowest_s = max(self._slowest_s, still_s[worker])
                still_s[worker] = 0.0
        self._still_s, self._signs = still_s, dict(signs)
        return {worker: seconds for worker, seconds in still_s.items() if seconds > self.limit_s}
