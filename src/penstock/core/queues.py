"""What the queues of the standard library lack."""

import contextlib
import queue
from typing import TypeVar

T = TypeVar("T")


def drained(full: queue.Queue[T] | queue.SimpleQueue[T]) -> list[T]:
    """Take all that is in a queue now, in its order, and wait for nothing."""
    taken: list[T] = []
    with contextlib.suppress(queue.Empty):
        while True:
            taken.append(full.get_nowait())
    return taken
