"""How many loaders: more while replicas wait for data, fewer while loaders wait for replicas. Pure."""

from dataclasses import dataclass

from penstock.core.records import Timings

WINDOW_S = 1.0
REPLICAS_WAIT = 0.1
LOADERS_WAIT = 0.5
LEAST_SHARE_OF_GAIN = 0.25
"""A step pays where the speed grows by at least this share of what so many more loaders could bring."""
PATIENCE = 8


@dataclass(frozen=True)
class Observation:
    """What happened since the last decision.

    Args:
        seconds: The length of that time.
        rows: Rows predicted in it.
        replica_busy_s: The time that all lanes spent computing.
        replica_wait_s: The time that all lanes waited for data.
        loader_busy_s: The time that all loaders spent loading.
        loader_wait_s: The time that all loaders waited for a slot.
    """

    seconds: float
    rows: int
    replica_busy_s: float
    replica_wait_s: float
    loader_busy_s: float
    loader_wait_s: float


class LoaderCount:
    """Decides once a window how many loaders there are.

    Loaders that do not make the run faster only take cores: they are removed, and the wait until the next try doubles.

    Args:
        start: How many there are.
        most: How many there may be.
    """

    def __init__(self, start: int, most: int) -> None:
        self.start = self.count = self.highest = start
        self._most = most
        self._before: tuple[int, float] | None = None
        self._windows_to_wait = 0
        self._patience = PATIENCE
        self._since: float | None = None
        self._replicas = Timings()
        self._loaders = (0.0, 0.0)

    def take_all(self) -> int:
        """Go to the most at once: a GPU is faster than any number of loaders."""
        self.count = self.highest = self._most
        return self.count

    def add(self, timings: Timings) -> None:
        """A replica has delivered a span."""
        self._replicas.add(timings)

    def look(self, now: float, busy_s: float, wait_s: float, *, has_newcomers: bool) -> int | None:
        """How many loaders there should be from now on; None within a window.

        Args:
            now: The time on a clock that never goes back.
            busy_s: The time that all loaders have spent loading so far.
            wait_s: The time that all loaders have waited for a slot so far.
            has_newcomers: Whether a loader has not finished a span yet: then its effect cannot be seen.
        """
        if self._since is None:
            self._since = now
        if now - self._since < WINDOW_S or not self._replicas.rows:
            return None
        seen = Observation(
            now - self._since,
            self._replicas.rows,
            self._replicas.compute,
            self._replicas.wait_for_data,
            busy_s - self._loaders[0],
            wait_s - self._loaders[1],
        )
        self._since, self._replicas, self._loaders = now, Timings(), (busy_s, wait_s)
        return None if has_newcomers else self.decide(seen)

    def describe(self, count: int) -> str:
        """How many loaders there are and were, in words."""
        return (
            str(count)
            if self.highest == self.start == count
            else f"{count} (began with {self.start}, up to {self.highest})"
        )

    def decide(self, seen: Observation) -> int:
        """How many there should be from now on."""
        rate = seen.rows / seen.seconds if seen.seconds > 0 else 0.0
        self._windows_to_wait = max(0, self._windows_to_wait - 1)
        if self._before is not None:
            self._judge(rate, *self._before)
        elif self._replicas_starve(seen) and self.count < self._most and not self._windows_to_wait:
            self._before = (self.count, rate)
            self.count = min(self._most, self.count + max(1, self.count // 4))
        elif self._loaders_idle(seen) and self.count > 1:
            self.count -= 1
        self.highest = max(self.highest, self.count)
        return self.count

    def _judge(self, rate: float, count_before: int, rate_before: float) -> None:
        """Undo the step that was tried in the last window, unless it pays."""
        possible = rate_before * (self.count - count_before) / count_before
        if rate - rate_before < LEAST_SHARE_OF_GAIN * possible:
            self.count = count_before
            self._windows_to_wait, self._patience = self._patience, 2 * self._patience
        self._before = None

    @staticmethod
    def _replicas_starve(seen: Observation) -> bool:
        lanes = seen.replica_busy_s + seen.replica_wait_s
        return lanes > 0 and seen.replica_wait_s > REPLICAS_WAIT * lanes

    def _loaders_idle(self, seen: Observation) -> bool:
        loaders = seen.loader_busy_s + seen.loader_wait_s
        # One loader fewer must still keep up: the others take over its work.
        return loaders > 0 and seen.loader_wait_s > max(LOADERS_WAIT, 1.0 / self.count) * loaders
