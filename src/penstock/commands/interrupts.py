"""Ctrl-C: the first one finishes the work in flight, the second one stops at once. SIGTERM and SIGHUP do the same."""

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.core.stopping import StopFlag
from penstock.errors import Interrupted

_STOPPING = "stopping: what is in flight is finished and committed (again to stop at once)"


def stopping_signals() -> list[signal.Signals]:
    """The signals that ask a command to stop. If SIGHUP is ignored, as under `nohup`, it stays ignored."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_ignored else [signal.SIGHUP])]


def let_go_of_lost_terminal() -> None:
    """If the terminal was closed, send all output for it to /dev/null: otherwise every write would be an error."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


@contextmanager
def graceful(tell: Callable[[str], None], stopping: Callable[[], str] = lambda: _STOPPING) -> Iterator[StopFlag]:
    """Inside the context, the first SIGINT, SIGTERM or SIGHUP raises the flag, and the second raises Interrupted.

    At the first one, the user gets the text that `stopping` returns.

    Handlers can only be set on the main thread. On any other thread this does nothing, and the caller must stop the
    thread in its own way.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.is_raised and number == signal.SIGHUP:
            return  # when a terminal closes, SIGHUP comes twice: from the shell and from the kernel
        if flag.is_raised:
            raise Interrupted.by_signal(number, "stopped at once")
        flag.signal_number = number
        let_go_of_lost_terminal()
        tell(stopping())

    previous = {number: signal.signal(number, handle) for number in stopping_signals()}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            # None means that the handler was not set from Python: Python cannot set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
