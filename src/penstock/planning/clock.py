"""Clock of a search: a stop flag that is also raised when the time is over."""

import time

from penstock.core.stopping import StopFlag
from penstock.errors import PenstockError


class OutOfTime(PenstockError):
    """The search has used up its time."""


class Clock(StopFlag):
    """A stop flag whose `check` also raises when the time of the search is over.

    Args:
        stop: The flag of the whole run.
        seconds: What the search may take.
    """

    def __init__(self, stop: StopFlag, seconds: float) -> None:
        super().__init__()
        self._stop = stop
        self.seconds = seconds
        self.began = time.perf_counter()
        self._until = self.began + seconds

    @property
    def left(self) -> float:
        return self._until - time.perf_counter()

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    def shorten_to(self, seconds: float) -> None:
        """Let the search end in so many seconds, if it would end later."""
        self._until = min(self._until, time.perf_counter() + seconds)

    def check(self) -> None:
        self._stop.check()
        if self.left <= 0:
            raise OutOfTime("the time of the search is over")
