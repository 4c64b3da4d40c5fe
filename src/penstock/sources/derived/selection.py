"""Some rows of another source: `--limit`, `--skip`, `--sample`. Rows keep their numbers in the whole input.

Samples are seeded: the same input gives the same rows.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.core.columns import to_arrow
from penstock.core.deferred import Deferred
from penstock.core.protocols import Source, SourceTraits, with_changes
from penstock.core.records import Array, Block, Extent, RowFailure, Span, Watch
from penstock.errors import InputError, UsageError
from penstock.sources.derived.wrapper import Around
from penstock.sources.files.file_source import SpanCutter
from penstock.sources.python.streaming import StreamedRows

_COUNT_ROWS = 1 << 16
_NO_END = 1 << 62

Runs = list[tuple[int, int]]
"""Rows as (first row, number of rows), in order."""


class SelectedRows(Around):
    """The rows of `source` that lie in `runs`. `shift` rows of the input were left out before the source begins.

    Inside the job these rows are numbered without gaps; `Span.numbers` has their numbers in the whole input.
    """

    def __init__(self, source: Source, runs: Runs, shift: int = 0) -> None:
        super().__init__(source)
        self._shift = shift
        self._watch: Watch | None = None
        self._runs = runs
        self._stops = [first + rows for first, rows in runs]

    @property
    def traits(self) -> SourceTraits:
        return replace(self.source.traits, reads_at_random=False)

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        span = SpanCutter()
        group: str | None = None
        end = self._stops[-1] if self._stops else 0
        for inner in self._inner_spans(rows_per_span, most_rows, end):
            runs = tuple(self._runs_in(inner))
            rows = sum(count for _, count in runs)
            if not rows:
                continue
            if span.rows + rows > rows_per_span or inner.group is not None or group is not None:
                yield from span.cut(group, self._numbers_of(span))
            span.add((inner.start, inner.rows, inner.locator, inner.group, runs), rows)
            group = inner.group
        yield from span.cut(group, self._numbers_of(span))

    def _numbers_of(self, span: SpanCutter) -> tuple[tuple[int, int], ...]:
        return tuple((first + self._shift, count) for piece in span.runs for first, count in piece[4])

    def origin(self, span: Span, row: int) -> str:
        position = row - span.start
        for inner, runs in _opened(span):
            for first, count in runs:
                if position < count:
                    return self.source.origin(inner, first + position)
                position -= count
        return ""

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        for inner, _ in _opened(span):
            yield from super().extents(inner, columns)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        row = span.start
        for inner, runs in _opened(span):
            last, rows = runs[-1]
            for block in self._watched(runs, row).read(inner, columns):
                for first, count in overlap(runs, block.start, block.start + block.rows):
                    yield _cut(block, first, count, row)
                    row += count
                if block.start + block.rows >= last + rows:
                    break

    def release(self, span: Span) -> None:
        for inner, _ in _opened(span):
            super().release(inner)

    def watched_by(self, watch: Watch) -> Self:
        return with_changes(self, _watch=watch)

    def _watched(self, runs: Sequence[tuple[int, int]], row: int) -> Source:
        """The inner source, which reports rows under their numbers in the job."""
        return self.source if self._watch is None else self.source.watched_by(Renumbered(self._watch, runs, row))

    def _inner_spans(self, rows_per_span: int, most_rows: int | None, end: int) -> Iterator[Span]:
        """Spans up to the last wanted row: an endless source must not be divided further."""
        for inner in self.source.divide(rows_per_span, most_rows):
            yield inner
            if inner.stop >= end:
                return

    def _runs_in(self, inner: Span) -> Iterator[tuple[int, int]]:
        nearest = bisect.bisect_right(self._stops, inner.start)
        for position in range(nearest, len(self._runs)):
            if self._runs[position][0] >= inner.stop:
                return
            yield from overlap([self._runs[position]], inner.start, inner.stop)


class WholeBatches(SelectedRows):
    """All rows of `source` in spans of exactly the requested size, except for the last one.

    Spans do not end with a file or a row group. This is for models whose answers depend on the rows before.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source, [(0, _NO_END)])

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        span = SpanCutter()
        numbers: list[Array] = []
        for inner in self.source.divide(rows_per_span, most_rows):
            row = inner.start
            while row < inner.stop:
                taken = min(inner.stop - row, rows_per_span - span.rows)
                span.add((inner.start, inner.rows, inner.locator, inner.group, ((row, taken),)), taken)
                numbers.append(_numbers(inner)[row - inner.start : row - inner.start + taken])
                row += taken
                if span.rows == rows_per_span:
                    yield from span.cut(None, tuple(to_runs(np.concatenate(numbers))))
                    numbers = []
        if numbers:
            yield from span.cut(None, tuple(to_runs(np.concatenate(numbers))))


def _numbers(span: Span) -> Array:
    """The number in the whole input of every row of a span."""
    runs = span.numbers or ((span.start, span.rows),)
    return np.concatenate([np.arange(first, first + rows) for first, rows in runs])


class Renumbered(Watch):
    """Reports rows of the inner source under their numbers in the job. Rows outside the selection are not reported."""

    def __init__(self, outside: Watch, runs: Sequence[tuple[int, int]], row: int) -> None:
        self._outside = outside
        self._runs = runs
        self._row = row
        self.is_careful = outside.is_careful
        if outside.poisoned:
            poisoned = outside.poisoned
            self.poisoned = {inside: poisoned[row] for inside, row in self._numbers.items() if row in poisoned}

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """Computed on first use: most sources report nothing."""
        inside = (first + position for first, count in self._runs for position in range(count))
        return {number: self._row + position for position, number in enumerate(inside)}

    def begin(self, first_row: int, rows: int) -> None:
        number = self._numbers.get(first_row)
        self._outside.begin(number if number is not None else first_row, rows if number is not None else max(2, rows))

    def end(self) -> None:
        self._outside.end()


def _opened(span: Span) -> Iterator[tuple[Span, tuple[tuple[int, int], ...]]]:
    for start, rows, locator, group, runs in span.locator:
        yield Span(0, start, rows, locator, group), runs


def _cut(block: Block, first: int, count: int, row: int) -> Block:
    """Rows of a block, numbered from `row`."""
    begin = first - block.start
    columns = {name: column[begin : begin + count] for name, column in block.columns.items()}
    failures = tuple(
        RowFailure(row + failure.row - first, failure.origin, failure.stage, failure.error, failure.reason)
        for failure in block.failures
        if first <= failure.row < first + count
    )
    inside = block.explain_null
    explain_null = None if inside is None else lambda column, position: inside(column, begin + position)
    return Block(row, count, columns, failures, explain_null)


def select(source: Source, *, skip: int, limit: int | None) -> SelectedRows:
    """The rows after the first `skip`, at most `limit` of them."""
    if isinstance(source, StreamedRows):
        return SelectedRows(source.without_first(skip), [(0, _NO_END if limit is None else limit)], shift=skip)
    return SelectedRows(source, [(skip, _NO_END - skip if limit is None else limit)])


def sample(source: Source, wanted: int, by: str | None, seed: int) -> SelectedRows:
    """`wanted` rows of a source, evenly, or so that every value of the column `by` keeps its share.

    Raises:
        InputError: There is no such column.
        UsageError: The source is a stream: its rows can be read only once, and a sample needs to count them first.
    """
    if not source.traits.is_resumable:
        raise UsageError("a stream cannot be sampled", received=f"sample={wanted}", allowed="skip and limit")
    if by is None:
        total = sum(span.rows for span in source.divide(_COUNT_ROWS))
        return SelectedRows(source, to_runs(sample_evenly(total, wanted, seed)))
    if by not in source.schema():
        raise InputError(
            "the input has no such column", received=f"--sample-by {by}", allowed=", ".join(list(source.schema())[:12])
        )
    return SelectedRows(source, to_runs(sample_by_class(_classes(source, by), wanted, seed)))


def _classes(source: Source, column: str) -> Array:
    """A number for the value that every row has in a column; nulls and broken rows are a class of their own."""
    codes: dict[Any, int] = {}
    pieces: list[Array] = []
    for span in source.divide(_COUNT_ROWS):
        for block in source.read(span, [column]):
            values = block.columns[column]
            arrow = to_arrow(values.raw() if isinstance(values, Deferred) else values)
            encoded = arrow.dictionary_encode() if not pa.types.is_dictionary(arrow.type) else arrow
            names = [repr(value) for value in encoded.dictionary.to_pylist()]
            lookup = np.array([codes.setdefault(name, len(codes)) for name in [*names, "null"]], np.int64)
            class_codes = lookup[encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]
            class_codes[[failure.row - block.start for failure in block.failures]] = codes["null"]
            pieces.append(class_codes)
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def sample_evenly(total: int, wanted: int, seed: int) -> Array:
    """`wanted` of `total` rows, each as likely as any other, in order."""
    if wanted >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(seed).choice(total, wanted, replace=False))


def sample_by_class(classes: Array, wanted: int, seed: int) -> Array:
    """Rows in which every class has the share that it has in the whole, and at least one row where that is possible.

    Args:
        classes: A number for the class of every row.
        wanted: How many rows.
        seed: Decides which rows of a class.
    """
    total = len(classes)
    if wanted >= total:
        return np.arange(total)
    _, inverse, counts = np.unique(classes, return_inverse=True, return_counts=True)
    shares = allot(counts, wanted)
    generator = np.random.default_rng(seed)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(counts)
    picked = [
        generator.choice(order[end - count : end], share, replace=False)
        for end, count, share in zip(ends, counts, shares, strict=True)
    ]
    return np.sort(np.concatenate(picked))


def allot(counts: Array, wanted: int) -> Array:
    """How many rows of each class: in proportion, by largest remainder; at least one each, largest classes first.

    >>> allot(np.array([90, 9, 1]), 10).tolist()
    [8, 1, 1]
    """
    least = np.zeros(len(counts), np.int64)
    least[np.argsort(-counts, kind="stable")[:wanted]] = 1
    exact = counts * wanted / counts.sum()
    shares: Array = np.maximum(np.floor(exact).astype(np.int64), least)
    while shares.sum() > wanted:
        over = np.where(shares > least, shares - exact, -np.inf)
        shares[int(np.argmax(over))] -= 1
    while shares.sum() < wanted:
        under = np.where(shares < counts, exact - shares, -np.inf)
        shares[int(np.argmax(under))] += 1
    return shares


def to_runs(rows: Array) -> Runs:
    """Sorted row numbers as runs.

    >>> to_runs(np.array([3, 4, 5, 9]))
    [(3, 3), (9, 1)]
    """
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = np.concatenate(([0], breaks))
    stops = np.concatenate((breaks, [len(rows)]))
    return [(int(rows[start]), int(stop - start)) for start, stop in zip(starts, stops, strict=True)]


def overlap(runs: Iterable[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The pieces of runs that lie from `start` to `stop`."""
    for first, rows in runs:
        begin, end = max(first, start), min(first + rows, stop)
        if begin < end:
            yield begin, end - begin
