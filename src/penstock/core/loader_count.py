"""How many loaders: more while replicas wait for data, fewer while loaders wait for replicas. Pure."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 1.0
REPLICAS_WAIT = 0.1
LOADERS_WAIT = 0.5
LEAST_GAIN = 0.03


@dataclass(frozen=True)
class Observation:
    """What was seen since the last decision: seconds by activity, and rows that were predicted.

    Args:
        seconds: How long that was.
        rows: Rows predicted in it.
        replica_busy_s: Lanes that computed.
        replica_wait_s: Lanes that waited for data.
        loader_busy_s: Loaders that loaded.
        loader_wait_s: Loaders that waited for a slot.
    """

    seconds: float
    rows: int
    replica_busy_s: float
    replica_wait_s: float
    loader_busy_s: float
    loader_wait_s: float


class LoaderCount:
    """Decides once a window. A loader that brought nothing is taken back, and not tried again: it only takes cores.

    Args:
        start: How many there are.
        most: How many there may be.
    """

    def __init__(self, start: int, most: int) -> None:
        self.start = self.count = self.highest = start
        self._most = most
        self._rate_before: float | None = None

    def decide(self, seen: Observation) -> int:
        """How many there should be from now on."""
        rate = seen.rows / seen.seconds if seen.seconds > 0 else 0.0
        if self._rate_before is not None:
            gained = rate - self._rate_before
            if gained < LEAST_GAIN * self._rate_before:
                self._most = self.count = max(1, self.count - 1)
            self._rate_before = None
        elif self._replicas_starve(seen) and self.count < self._most:
            self.count += 1
            self._rate_before = rate
        elif self._loaders_idle(seen) and self.count > 1:
            self.count -= 1
        self.highest = max(self.highest, self.count)
        return self.count

    @staticmethod
    def _replicas_starve(seen: Observation) -> bool:
        lanes = seen.replica_busy_s + seen.replica_wait_s
        return lanes > 0 and seen.replica_wait_s > REPLICAS_WAIT * lanes

    def _loaders_idle(self, seen: Observation) -> bool:
        loaders = seen.loader_busy_s + seen.loader_wait_s
        # One fewer must still keep up: that one's work falls to the others.
        return loaders > 0 and seen.loader_wait_s > max(LOADERS_WAIT, 1.0 / self.count) * loaders
