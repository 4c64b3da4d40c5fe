"""A thread that makes batches, or the rows that they are cut from, while a step runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Generic, Protocol, TypeVar


class Releasable(Protocol):
    """Rows in memory that `release` gives back."""

    @property
    def release(self) -> Callable[[], None]: ...


Item = TypeVar("Item", bound=Releasable)


def close_iterator(items: Iterator[object]) -> None:
    """Close an iterator that is a generator. Other iterators need no closing."""
    if isinstance(items, Generator):
        items.close()


def _nothing() -> None:
    """The default of `cancel`: nothing can end the making of an item early."""


class ReadAhead(Generic[Item]):
    """Items of an iterator that a thread runs, up to `count` items ahead.

    What the iterator raises is raised where items are taken. Leaving the context ends the thread, closes the iterator
    and releases the items that nobody took.

    Args:
        items: Makes the items. Only the thread runs it.
        count: How many items may wait.
        cancel: Called when the context is left early; it should end the making of the current item soon.

    Example:
        >>> with ReadAhead(iter([]), 2) as items:
        ...     list(items)
        []
    """

    def __init__(self, items: Iterator[Item], count: int, cancel: Callable[[], None] = _nothing) -> None:
        self._items = items
        self._cancel = cancel
        self._room = threading.Semaphore(count)
        self._ready: queue.SimpleQueue[Item | BaseException | None] = queue.SimpleQueue()
        self._is_closed = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)

    def __enter__(self) -> Iterator[Item]:
        self._thread.start()
        return self._take()

    def __exit__(self, *exception: object) -> None:
        self._is_closed = True
        if not self._is_over:
            self._cancel()
        self._room.release()
        self._thread.join()
        while not self._ready.empty():
            left = self._ready.get()
            if left is not None and not isinstance(left, BaseException):
                left.release()

    def _take(self) -> Iterator[Item]:
        while (item := self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            self._room.release()
            yield item
        self._is_over = True

    def _run(self) -> None:
        try:
            while True:
                self._room.acquire()
                item = next(self._items, None) if not self._is_closed else None
                if item is None:
                    break
                self._ready.put(item)
            close_iterator(self._items)
        except BaseException as error:  # raised again where items are taken
            self._ready.put(error)
        self._ready.put(None)
