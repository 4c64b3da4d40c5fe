"""Streams of rows: generators, iterators, `tf.data` and streamed Hugging Face datasets.

The caller's process pulls them. It writes each span to a file without a name, which loaders map, and frees the file
when the result of the span has arrived: only spans that are under way take memory.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.core.columns import describe
from penstock.core.nesting import Nesting
from penstock.core.protocols import Source, SourceTraits, with_changes
from penstock.core.records import Block, Column, Fragment, RowFailure, Span, TensorSpec
from penstock.errors import InputError, one_line
from penstock.sources.python.batches import BatchTemplate, StreamPiece, piece_of
from penstock.sources.python.rows import RowTemplate
from penstock.sources.python.shared_columns import Layout, map_columns, write_columns

_BLOCK_ROWS = 1024
_BLOCK_BYTES = 16 << 20
_PEEKED_SPANS = 2


class Rows:
    """An iterable whose elements are single rows, not batches: dicts of values, tuples, arrays or numbers.

    >>> list(Rows([1, 2]).iterable)
    [1, 2]
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)


def pieces_of_batches(batches: Iterable[Any]) -> Iterator[StreamPiece]:
    """Every batch as columns, as they come."""
    return map(piece_of, batches)


def pieces_of_rows(rows: Iterable[Any]) -> Iterator[StreamPiece]:
    """Single rows, gathered. What the iterable raises comes after the rows before it."""
    template: RowTemplate | None = None
    held: list[Any] = []
    step = 1
    try:
        for row in rows:
            if template is None:
                template = RowTemplate(row)
                step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, template.row_bytes)))
            held.append(row)
            if len(held) == step:
                yield _gathered(template, held)
                held = []
    except Exception:
        if template is not None and held:
            yield _gathered(template, held)
        raise
    if template is not None and held:
        yield _gathered(template, held)


def _gathered(template: RowTemplate, rows: list[Any]) -> StreamPiece:
    columns, bad = template.gather(rows)
    return StreamPiece(columns, len(rows), bad, template.is_positional)


class StreamedRows(Source):
    """A stream of rows, divided while it is pulled. A locator is (path, inode, layout, bad rows), plain JSON.

    `divide` may be called several times for the same rows, until one division goes beyond its second span. That
    division is the run, and drops the rows that it has passed. A copy in another process can only `read`.
    `fitted_to`, `without_first` and `with_batches` return another view of the same stream, which can be read once.

    Args:
        pieces: The rows, in order.
        name: What the user calls them, for messages.
        may_have_targets: Whether columns without names may include what the model was trained to answer.
        varies: Whether the rows of one batch may have another shape than those of the next.
    """

    traits = SourceTraits(is_resumable=False)

    def __init__(
        self, pieces: Iterator[StreamPiece], name: str, *, may_have_targets: bool = False, varies: bool = False
    ) -> None:
        self.traits = SourceTraits(is_resumable=False, may_have_targets=may_have_targets)
        self._varies = varies
        self._name = name
        self._stream = _Stream(pieces, name)
        self._files: _SpanFiles | None = _SpanFiles()
        self._template: BatchTemplate | None = None
        self._fitted: dict[int, StreamPiece] = {}
        self._begin = (0, 0)
        self._skipped = 0
        self._most_batches: int | None = None

    def with_batches(self, most: int) -> StreamedRows:
        """No more than the first `most` batches of the stream, which may be endless."""
        return self._view(_most_batches=most)

    def without_first(self, rows: int) -> StreamedRows:
        """The stream without its first rows, which are pulled and dropped for good."""
        number, left = 0, rows
        while self._has(number) and self._stream.head[number].rows <= left:
            left -= self._stream.head[number].rows
            number += 1
            self._stream.drop_before(number)
        return self._view(_begin=(number, left), _skipped=rows)

    def holding(self, piece: StreamPiece) -> StreamedRows:
        """A source of other rows, those of `piece`. Its columns must be like those of the first rows."""
        stream = _Stream(iter([piece]), self._name)
        return self._view(_stream=stream, _template=self._like_first(), _begin=(0, 0), _skipped=0)

    def fitted_to(self, inputs: Sequence[TensorSpec]) -> StreamedRows:
        """Rows of any length for inputs that have an open one: the next batch may have longer ones."""
        template = self._like_first()
        schema = list(template.schema().values())
        by_name = {spec.name: spec for spec in inputs}
        in_order = dict(zip((column.name for column in schema), inputs, strict=False)) if self.is_positional else {}
        fed = {column.name: by_name.get(column.name, in_order.get(column.name)) for column in schema}
        opened = [name for name, spec in fed.items() if spec is not None and _is_open(spec)]
        return self._view(_template=template.opened(opened))

    def _view(self, **changes: Any) -> StreamedRows:
        self._fitted.clear()  # the new view is the one that is read
        return with_changes(self, **changes, _fitted={})

    def batches(self) -> Iterator[StreamPiece]:
        """Every batch, unchanged, one by one. Batches are dropped as soon as they were yielded.

        Raises:
            InputError: The stream raised an error, after the batches before it were yielded; or it was read before.
        """
        self._stream.check_unread()
        self._stream.is_under_way = True
        for number in itertools.count(self._begin[0]):
            if not self._has(number):
                break
            piece = self._stream.head[number]
            self._stream.drop_before(number + 1)
            yield piece
        self._stream.check()

    def is_mixed(self) -> bool:
        """Whether batches have rows of different shapes, as the stream declares or its first two batches show."""
        if self._varies or not (self._has(0) and self._has(1)):
            return self._varies
        pieces = [self._stream.head[number] for number in (0, 1)]
        first, second = ({name: describe(name, c) for name, c in piece.columns.items()} for piece in pieces)
        return first != second

    @property
    def is_positional(self) -> bool:
        return self._like_first().is_positional

    @property
    def given(self) -> Nesting | None:
        """How the arrays of the first batch were given."""
        return self._like_first().given

    def fragments(self) -> Sequence[Fragment]:
        """A fragment with a unique name: another stream of the same kind may give other rows."""
        return [Fragment(f"stream:{self._name}:{self._stream.token}", 0, 0)]

    def schema(self) -> dict[str, TensorSpec]:
        return self._like_first().schema()

    def origin(self, span: Span, row: int) -> str:
        return f"{self._name}, row {self._skipped + row}"

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        """Spans of exactly `rows_per_span` rows, the last one shorter, pulled one by one.

        Raises:
            InputError: The stream raised an error, after the rows before it were yielded; or it was read before.
        """
        self._stream.check_unread()
        return self._spans(rows_per_span)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        path, inode, layout, bad = span.locator
        mapped = _open_span(path, inode, layout)
        failures = tuple(
            RowFailure(span.start + position, self.origin(span, span.start + position), "read", error, reason)
            for position, error, reason in bad
        )
        yield Block(span.start, span.rows, {name: mapped[name] for name in columns}, failures)

    def release(self, span: Span) -> None:
        """Free the memory of a span whose result is there. A loader that is still reading it can go on."""
        if self._files is not None:
            self._files.remove(span.locator[0])

    def close(self) -> None:
        """Free the memory of all spans."""
        if self._files is not None:
            self._files.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fitted": {}, "_files": None}

    def _like_first(self) -> BatchTemplate:
        if self._template is not None:
            return self._template
        if self._stream.template is None:
            self._has(0)
        if self._stream.template is None:
            self._stream.check()
            raise InputError("the input has no rows", received=self._name)
        return self._stream.template

    def _spans(self, rows_per_span: int) -> Iterator[Span]:
        assert self._files is not None
        start = 0
        begin = self._begin
        for index in itertools.count():
            taken, begin = self._take(rows_per_span, *begin)
            rows = sum(stop - first for _, first, stop in taken)
            if rows and index >= _PEEKED_SPANS:
                self._stream.is_under_way = True
                self._stream.drop_before(begin[0])
                self._fitted = {number: piece for number, piece in self._fitted.items() if number >= begin[0]}
            if rows:
                yield Span(index, start, rows, self._files.add(taken))
                start += rows
            if rows < rows_per_span:
                break
        self._stream.check()

    def _take(self, rows: int, number: int, offset: int) -> tuple[list[tuple[StreamPiece, int, int]], tuple[int, int]]:
        """The next rows, from row `offset` of piece `number`; and the number and offset after them."""
        taken: list[tuple[StreamPiece, int, int]] = []
        while rows and (piece := self._piece(number)) is not None:
            stop = min(piece.rows, offset + rows)
            taken.append((piece, offset, stop))
            rows -= stop - offset
            number, offset = (number + 1, 0) if stop == piece.rows else (number, stop)
        return taken, (number, offset)

    def _piece(self, number: int) -> StreamPiece | None:
        """A piece that was pulled before, or the next one; None at the end of the iterator or after its error."""
        if not self._has(number):
            return None
        if number not in self._fitted:
            self._fitted[number] = self._like_first().fit(self._stream.head[number])
        return self._fitted[number]

    def _has(self, number: int) -> bool:
        return self._stream.has(number, self._most_batches)


class _Stream:
    """Pieces pulled from an iterator and not dropped yet. Several views share it. In another process it is empty."""

    def __init__(self, pieces: Iterator[StreamPiece], name: str) -> None:
        self.token = uuid.uuid4().hex
        self.head: dict[int, StreamPiece] = {}
        self.template: BatchTemplate | None = None
        self.is_under_way = False
        self._name = name
        self._pieces: Iterator[StreamPiece] | None = pieces
        self._drawn = self._pulled = self._pulled_rows = 0
        self._is_over = False
        self._error: InputError | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pieces": None, "head": {}}

    def has(self, number: int, most: int | None) -> bool:
        """Whether there is such a piece among the first `most` of the iterator; it is pulled if it must be."""
        while number not in self.head:
            is_at_end = self._is_over or self._pieces is None or (most is not None and self._drawn >= most)
            if is_at_end or number < self._pulled:
                return False
            self._pull()
        return True

    def drop_before(self, number: int) -> None:
        """Drop the pieces before this one."""
        self.head = {each: piece for each, piece in self.head.items() if each >= number}

    def check(self) -> None:
        """Raise what the iterator raised."""
        if self._error is not None:
            raise self._error

    def check_unread(self) -> None:
        if self.is_under_way or self._pieces is None:
            raise InputError(
                "a stream can be read only once",
                received=self._name,
                hint="make a new generator; or give an object with __len__ and __getitem__, which can be read again",
            )

    def _pull(self) -> None:
        assert self._pieces is not None
        try:
            piece = next(self._pieces, None)
            self._drawn += 1
            self._is_over = piece is None
            if piece is not None and piece.rows:
                self.template = self.template or BatchTemplate(piece)
                self.head[self._pulled] = piece
                self._pulled, self._pulled_rows = self._pulled + 1, self._pulled_rows + piece.rows
        except Exception as error:
            self._is_over, self._error = True, self._as_input_error(error)

    def _as_input_error(self, error: Exception) -> InputError:
        origin = f"{self._name}, row {self._pulled_rows}"
        if isinstance(error, InputError):
            return InputError(
                error.problem, received=f"{origin}: {error.received}", allowed=error.allowed, hint=error.hint
            )
        failure = InputError("the input raised an exception", received=f"{origin}: {one_line(error)}")
        failure.__cause__ = error
        return failure


def _is_open(spec: TensorSpec) -> bool:
    """Whether rows of an input may have any length, and only that: more than one open dimension cannot be padded."""
    return spec.shape is not None and spec.shape[:1] == (None,) and None not in spec.shape[1:]


class _SpanFiles:
    """The files of spans that are under way, by the path under which other processes open them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}
        weakref.finalize(self, _close_all, self._open)

    def add(self, taken: Sequence[tuple[StreamPiece, int, int]]) -> tuple[Any, ...]:
        """Write the rows of a span; returns its locator."""
        path, descriptor = new_file("penstock-stream")
        with self._lock:
            self._open[path] = descriptor
        names = taken[0][0].columns
        layout = write_columns(
            descriptor, {name: [piece.columns[name][start:stop] for piece, start, stop in taken] for name in names}
        )
        bad: list[tuple[int, str, str]] = []
        first = 0
        for piece, start, stop in taken:
            bad += [(first + row - start, *why) for row, why in piece.bad.items() if start <= row < stop]
            first += stop - start
        return path, os.fstat(descriptor).st_ino, layout, tuple(sorted(bad))

    def remove(self, path: str) -> None:
        with self._lock:
            descriptor = self._open.pop(path, None)
        if descriptor is not None:
            _close(path, descriptor)

    def clear(self) -> None:
        for path in list(self._open):
            self.remove(path)


def new_file(name: str) -> tuple[str, int]:
    """A path that processes of this user can open, and a descriptor that keeps it."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        return f"/proc/{os.getpid()}/fd/{descriptor}", descriptor
    descriptor, path = tempfile.mkstemp(prefix=f"{name}-")
    return path, descriptor


def _close(path: str, descriptor: int) -> None:
    os.close(descriptor)
    if not path.startswith("/proc/"):
        os.unlink(path)


def _close_all(files: dict[str, int]) -> None:
    while files:
        _close(*files.popitem())


def _open_span(path: str, inode: int, layout: Layout) -> dict[str, Column]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError("a span of a stream is gone", received=f"{path}: {error.strerror}") from error
    try:
        if os.fstat(descriptor).st_ino != inode:
            raise InputError("a span of a stream is gone", received=f"{path} holds another one")
        return map_columns(descriptor, layout)
    finally:
        os.close(descriptor)
