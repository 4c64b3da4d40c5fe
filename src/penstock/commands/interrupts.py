"""Ctrl-C once finishes what is in flight; twice stops at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.core.stopping import StopFlag
from penstock.errors import Interrupted


@contextmanager
def graceful(tell: Callable[[str], None]) -> Iterator[StopFlag]:
    """While this is open, the first SIGINT or SIGTERM raises the flag, and the second raises Interrupted.

    Handlers can only be set on the main thread; on any other this does nothing, and the caller's own ways of
    stopping a thread apply.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.is_raised:
            raise Interrupted.by_signal(number, "stopped at once")
        flag.signal_number = number
        tell("stopping: what is in flight is finished and committed (again to stop at once)")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            # None: a handler that was not set from Python and cannot be set again from there.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
