"""What all kinds of worker process share: a line that is always listened to, messages dealt with in turn, a board."""

import contextlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from penstock.core.messages import Failed
from penstock.core.records import RowFailure, Watch
from penstock.errors import PenstockError
from penstock.pool.processes.board import Board
from penstock.pool.processes.channel import Channel


class BoardWatch(Watch):
    """Writes the rows that are under way where the coordinator sees them."""

    about_rows = (BaseException,)

    def __init__(self, board: Board) -> None:
        self._board = board

    def take(self, poisoned: Iterable[RowFailure], *, is_careful: bool) -> None:
        """Watch the next order."""
        self.is_careful = is_careful
        self.poisoned: dict[int, RowFailure] = {failure.row: failure for failure in poisoned}

    def begin(self, first_row: int, rows: int) -> None:
        self._board.write(first_row, rows)

    def end(self) -> None:
        self._board.clear()


def keep_to_itself(channel: Channel) -> None:
    """See that the line of this worker stays its own: a process that the user's code forks must not hold it open."""
    os.set_inheritable(channel.connection.fileno(), False)
    os.register_at_fork(after_in_child=channel.close)


def end_with_all_children() -> NoReturn:
    """End this process, and what the user's code started in it."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class Serving:
    """A worker's side of its line to the coordinator.

    Args:
        channel: The line. The process ends at once when it is closed.
        handle: Deals with messages, one after the other.
        take_at_once: Takes a message that must not wait behind others (a free slot); returns whether it did.
    """

    def __init__(self, channel: Channel, handle: Callable[[Any], None], take_at_once: Callable[[Any], bool]) -> None:
        self._channel = channel
        self._handle = handle
        self._take_at_once = take_at_once
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve(self) -> None:
        keep_to_itself(self._channel)
        # The coordinator handles interrupts: here only the user's code can raise KeyboardInterrupt.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._listen, daemon=True, name="listener").start()
        while True:
            message = self._inbox.get()
            try:
                self._handle(message)
            except BaseException as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Report an error to the coordinator and in the log."""
        details = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):  # the disk of the log may be full
            sys.stderr.write(details)
            sys.stderr.flush()
        known = error if isinstance(error, PenstockError) else None
        self._channel.send(Failed(known, type(error).__name__, details))

    def _listen(self) -> None:
        """Runs beside everything else, so that slots are free again and a lost coordinator is noticed at any time."""
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                end_with_all_children()
            except Exception as error:  # a message that cannot be read ends the job, with an error
                self.fail(error)
                continue
            if not self._take_at_once(message):
                self._inbox.put(message)
