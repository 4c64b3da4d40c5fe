"""The wish to stop, shared by who hears it and who has to act on it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import Interrupted


@dataclass
class StopFlag:
    """Raised by a signal. A handler that threw instead could be swallowed by whatever code it interrupts."""

    signal_number: int | None = None

    @property
    def is_raised(self) -> bool:
        return self.signal_number is not None

    def check(self) -> None:
        """For the time before there is anything to commit: end at once."""
        if self.signal_number is not None:
            raise Interrupted.by_signal(self.signal_number, "stopped before the first row")
