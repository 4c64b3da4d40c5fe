"""What sources of files share: paths, spans over several files, and streams that stay open from span to span."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

from penstock.core.protocols import Source
from penstock.core.records import Column, Fragment, Span
from penstock.sources.files.paths import fragments


class FileSource(Source):
    """A source of files. Each copy in another process has streams of its own."""

    paths: Sequence[str] = ()

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def fragments(self) -> Sequence[Fragment]:
        return fragments(self.paths)

    @cached_property
    def _streams(self) -> OpenStreams:
        return OpenStreams()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_streams"}


class SpanCutter:
    """Gathers runs of rows into spans, and numbers the spans and their rows."""

    def __init__(self) -> None:
        self._index = self.start = self.rows = 0
        self.runs: list[tuple[Any, ...]] = []

    def add(self, run: tuple[Any, ...], rows: int) -> None:
        self.runs.append(run)
        self.rows += rows

    def cut(self, group: str | None = None, numbers: tuple[tuple[int, int], ...] | None = None) -> Iterator[Span]:
        """The span of the gathered runs; none where nothing was gathered."""
        if self.runs:
            yield Span(self._index, self.start, self.rows, tuple(self.runs), group, numbers)
            self._index, self.start, self.rows, self.runs = self._index + 1, self.start + self.rows, 0, []


def spans_of_files(rows_of_files: Iterable[int], rows_per_span: int) -> Iterator[Span]:
    """Cut files, known by their numbers of rows, into spans of `rows_per_span` rows; files join without a gap."""
    span = SpanCutter()
    for file, rows in enumerate(rows_of_files):
        position = 0
        while position < rows:
            taken = min(rows - position, rows_per_span - span.rows)
            span.add((file, position, taken), taken)
            position += taken
            if span.rows == rows_per_span:
                yield from span.cut()
    yield from span.cut()


def origin_of_run(paths: Sequence[str], start: int, runs: Iterable[tuple[int, int, int]], row: int) -> str:
    """The file and the row in it of `row`, in a span that begins at `start` and is made of (file, first row, rows)."""
    position = row - start
    for file, first, rows in runs:
        if position < rows:
            return f"{paths[file]}, row {first + position}"
        position -= rows
    return ""


def even_parts(rows: int, limit: int, multiple: int) -> list[tuple[int, int]]:
    """Cut `rows` into the fewest runs of at most `limit` rows, all but the last a multiple of `multiple`.

    >>> even_parts(100, 64, 8)
    [(0, 56), (56, 44)]
    """
    count = -(-rows // limit)
    size = -(-rows // count)
    size = min(limit, -(-size // multiple) * multiple)
    return [(start, min(size, rows - start)) for start in range(0, rows, size)]


class Stream(Protocol):
    """An open reader with a current row. `read` advances it by `rows` rows."""

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
        self._open: dict[Hashable, _OpenStream] = {}

    @contextmanager
    def at(self, key: Hashable, start: int, open_stream: Callable[[], Stream]) -> Iterator[_OpenStream]:
        """The stream of `key`, standing at row `start`."""
        with self._lock:
            opened = self._open.pop(key, None) or _OpenStream()
            self._open[key] = opened
            while len(self._open) > self._capacity:
                self._open.pop(next(iter(self._open)))
        with opened.lock:
            if opened.stream is None or opened.row > start:
                opened.stream, opened.row = open_stream(), 0
            if opened.row < start:
                opened.stream.skip(start - opened.row)
                opened.row = start
            try:
                yield opened
            except BaseException:
                opened.stream = None  # its place is unknown now
                raise


class _OpenStream:
    """A stream and its current row."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stream: Stream | None = None
        self.row = 0

    def read(self, rows: int) -> Iterator[Mapping[str, Column]]:
        assert self.stream is not None
        yield from self.stream.read(rows)
        self.row += rows
