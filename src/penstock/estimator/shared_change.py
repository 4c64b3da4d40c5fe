"""Changes of the whole process that are undone again, also where several threads need them at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class SharedChange:
    """The first thread that comes in makes the change, and the last one that leaves undoes it.

    No thread waits for another to leave: two of them may be in at the same time, and one may come in twice.

    Args:
        change: Makes the change when it is entered, and undoes it when it is left.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[None]]) -> None:
        self._change = change
        self._lock = threading.RLock()
        self._users = 0
        self._made: AbstractContextManager[None] | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                made = self._change()
                made.__enter__()
                self._made = made
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._made is not None:
                    made, self._made = self._made, None
                    made.__exit__(None, None, None)
