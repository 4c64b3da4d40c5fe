"""Files that can only be read from front to back: the reader goes on where the last span ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from penstock.core.records import Column


class Stream(Protocol):
    """An open reader with a place. `read` moves it on by `rows` rows."""

    def read(self, rows: int) -> Iterator[Mapping[str, Column]]: ...

    def skip(self, rows: int) -> None: ...


class OpenStreams:
    """The open stream of each file or row group that this process is reading.

    Two loaders that want neighbouring spans of one stream take turns: the second waits, because decoding everything
    before its span again would cost more than waiting.
    """

    def __init__(self, capacity: int = 4) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._open: dict[Hashable, _Place] = {}

    @contextmanager
    def at(self, key: Hashable, start: int, open_stream: Callable[[], Stream]) -> Iterator[_Place]:
        """The stream of `key`, standing at row `start`."""
        with self._lock:
            place = self._open.pop(key, None) or _Place()
            self._open[key] = place
            while len(self._open) > self._capacity:
                self._open.pop(next(iter(self._open)))
        with place.lock:
            if place.stream is None or place.row > start:
                place.stream, place.row = open_stream(), 0
            if place.row < start:
                place.stream.skip(start - place.row)
                place.row = start
            try:
                yield place
            except BaseException:
                place.stream = None  # its place is unknown now
                raise


class _Place:
    """A stream and the row it stands at."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stream: Stream | None = None
        self.row = 0

    def read(self, rows: int) -> Iterator[Mapping[str, Column]]:
        assert self.stream is not None
        yield from self.stream.read(rows)
        self.row += rows
