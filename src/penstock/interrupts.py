"""Ctrl-C once finishes what is in flight; twice stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from penstock.errors import Interrupted


@dataclass
class Interrupts:
    """The signal that asked the run to stop, if one did."""

    signal_number: int | None = None


@contextmanager
def graceful(stop: Callable[[], None], tell: Callable[[str], None]) -> Iterator[Interrupts]:
    """While this is open, the first SIGINT or SIGTERM calls `stop`, and the second raises Interrupted.

    Handlers can only be set on the main thread; on any other this does nothing, and the caller's own ways of
    stopping a thread apply.
    """
    state = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if state.signal_number is not None:
            raise Interrupted.by_signal(number, "stopped at once")
        state.signal_number = number
        stop()
        tell("stopping: what is in flight is finished and committed (again to stop at once)")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield state
    finally:
        for number, handler in previous.items():
            # None: a handler that was not set from Python and cannot be set again from there.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
