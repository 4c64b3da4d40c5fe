"""Stop flag shared by the signal handler and the run loop."""

from dataclasses import dataclass

from penstock.errors import Interrupted


@dataclass
class StopFlag:
    """Set by the signal handler. An exception from the handler could be swallowed by the code that it interrupts."""

    signal_number: int | None = None

    @property
    def is_raised(self) -> bool:
        return self.signal_number is not None

    def check(self) -> None:
        """Raise Interrupted if it is set: for the time before there is anything to commit."""
        if self.signal_number is not None:
            raise Interrupted.by_signal(self.signal_number, "stopped before the first row")
