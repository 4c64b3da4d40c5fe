"""The rows of another source in a seeded order, which differs in every epoch.

Where rows can be read at random, the order is a permutation of all rows. Elsewhere whole spans are read, in an order
that is shuffled, and rows are shuffled inside windows of several spans.

Bad rows are left out without changing the order of the others: an epoch is the same whether or not a row was known to
be bad when the epoch began. Therefore training can continue in the middle of an epoch.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import OPAQUE, describe, join, take_positions, to_array
from penstock.core.deferred import Deferred, TakenRows
from penstock.core.protocols import Source
from penstock.core.records import STRING, Array, Block, Column, RowFailure, SourceColumn, Span, TensorSpec, Watch
from penstock.core.sharing import Share
from penstock.core.shuffling import RowSet, permutation, row_seeds
from penstock.sources.derived.wrapper import Around

SEED = "@seed"
"""A column with a number for every row, computed from seed, epoch and row: a seed for augmentation."""

_SPANS_OF_A_WINDOW = 8
_ROWS_OF_A_BLOCK = 4096
_SHUFFLES_ALL = "shuffle: all rows, anew in every epoch"


@dataclass(frozen=True)
class Order:
    """Which rows are read, and in which order; without a seed, in the order of the input."""

    rows: RowSet
    seed: int | None

    def shuffled(self, values: Array, epoch: int, size: int, *key: int) -> Array:
        return values if self.seed is None else permutation(size, self.seed, epoch, *key)(values)


class EpochRows(Around, abc.ABC):
    """The rows of a source, epoch by epoch. Rows are counted through all epochs, so that no number is used twice."""

    share: Share | None = None
    """What this process reads of every batch; None for all rows."""

    def __init__(self, source: Source, order: Order) -> None:
        super().__init__(source)
        self.order = order

    def schema(self) -> dict[str, TensorSpec]:
        return {**self.source.schema(), SEED: TensorSpec(SEED, "int64", ())}

    def good(self, bad: Iterable[int]) -> int:
        """How many rows an epoch has without these."""
        numbers = np.fromiter(bad, np.int64)
        return self.order.rows.count - int(np.count_nonzero(self.order.rows.contains(numbers)))

    def read_of(self, rows: int) -> int:
        """How many rows this process reads of the first `rows` of an epoch."""
        return rows if self.share is None else self.share.count(rows)

    @abc.abstractmethod
    def spans(self, epoch: int, rows_per_span: int, bad: Sequence[int] = (), skip: int = 0) -> Iterator[Span]:
        """The spans of an epoch without the bad rows, and without the first `skip` of the others."""

    @abc.abstractmethod
    def numbers(self, span: Span) -> Array:
        """The number in the whole input of every row of a span."""

    @abc.abstractmethod
    def remarks(self) -> list[str]: ...

    @abc.abstractmethod
    def _read(self, span: Span, numbers: Array, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of a span, whose numbers are these."""

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        return self.spans(0, rows_per_span)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        numbers = self.numbers(span)
        inside = [name for name in columns if name != SEED]
        if len(inside) == len(columns):
            yield from self._read(span, numbers, columns)
            return
        for block in self._read(span, numbers, inside or list(self.source.schema())[:1]):
            first = block.start - span.start
            seeds = row_seeds(numbers[first : first + block.rows], self.order.seed or 0, span.locator[0])
            yield replace(block, columns={**block.columns, SEED: seeds})


class RandomRows(EpochRows):
    """Rows of a source that reads at random, in the order of a permutation.

    A locator is (epoch, first position, number of positions, good rows of the epoch, positions that are left out,
    counted from the first …).

    Args:
        source: Where the rows come from.
        order: Which rows, and the seed.
        share: What this process reads of every batch; None for all rows.
    """

    def __init__(self, source: Source, order: Order, share: Share | None = None) -> None:
        super().__init__(source, order)
        self.share = share

    def spans(self, epoch: int, rows_per_span: int, bad: Sequence[int] = (), skip: int = 0) -> Iterator[Span]:
        total = self.order.rows.count
        left_out = self._positions(epoch, bad)
        # The position of the good row with rank g is g plus the number of bad rows before it.
        good_before = left_out - np.arange(len(left_out))
        good = total - len(left_out)
        end = self.read_of(good)
        for index, place in enumerate(range(self.read_of(skip), end, rows_per_span)):
            rows = min(rows_per_span, end - place)
            first, last = (
                rank + int(np.searchsorted(good_before, rank, "right"))
                for rank in (self._rank(good, place), self._rank(good, place + rows - 1))
            )
            between = left_out[np.searchsorted(left_out, first) : np.searchsorted(left_out, last)] - first
            yield Span(index, epoch * total + place, rows, (epoch, first, last + 1 - first, good, *between.tolist()))

    def _rank(self, good: int, place: int) -> int:
        """The rank of the good row that this process reads at a place of an epoch."""
        return place if self.share is None else int(self.share.ranks(good, place, 1)[0])

    def _positions(self, epoch: int, bad: Sequence[int]) -> Array:
        """The positions of bad rows in an epoch, in order."""
        numbers = np.asarray(sorted(bad), np.int64)
        ranks = self.order.rows.ranks(numbers[self.order.rows.contains(numbers)])
        if self.order.seed is not None:
            ranks = permutation(self.order.rows.count, self.order.seed, epoch).inverse(ranks)
        return np.sort(ranks)

    def numbers(self, span: Span) -> Array:
        epoch, first, count, good, *left_out = span.locator
        positions = np.arange(first, first + count)
        if left_out:
            positions = np.delete(positions, left_out)
        if self.share is not None:
            ranks = self.share.ranks(good, span.start - epoch * self.order.rows.count, span.rows)
            positions = positions[ranks - ranks[0]]
        return self.order.rows.numbers(self.order.shuffled(positions, epoch, self.order.rows.count))

    def origin(self, span: Span, row: int) -> str:
        return self.source.origin(self.source.pick(self.numbers(span), span.start), row)

    def _read(self, span: Span, numbers: Array, columns: Sequence[str]) -> Iterator[Block]:
        return self.source.read(self.source.pick(numbers, span.start), columns)

    def remarks(self) -> list[str]:
        return [*self.source.remarks(), *([_SHUFFLES_ALL] if self.order.seed is not None else [])]


class WindowedRows(EpochRows):
    """Rows of a source that reads whole spans, shuffled inside windows of several spans.

    A locator is (epoch, spans inside, rows at the beginning that are left out, numbers of bad rows …). Spans that can
    only be read one after the other (pieces of a large row group, of a compressed file) stay in their order.

    Args:
        source: Where the rows come from.
        order: Which rows, and the seed.
        window_rows: How many rows a window has, about.
    """

    def __init__(self, source: Source, order: Order, window_rows: int) -> None:
        super().__init__(source, order)
        self.window_rows = window_rows
        inside = list(source.divide(max(1, window_rows // _SPANS_OF_A_WINDOW)))
        self._total = sum(span.rows for span in inside)
        self._units = _units(inside)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the units: a loader needs only the spans that it is given."""
        return {**self.__dict__, "_units": []}

    def spans(self, epoch: int, rows_per_span: int, bad: Sequence[int] = (), skip: int = 0) -> Iterator[Span]:
        index, start = 0, epoch * self._total
        bad_rows = np.asarray(sorted(bad), np.int64)
        bad_rows = bad_rows[self.order.rows.contains(bad_rows)]
        for window in self._windows(epoch):
            inside = tuple((span.start, span.rows, span.locator, span.group) for span in window)
            rows = np.concatenate([np.arange(span.start, span.stop) for span in window])
            found = bad_rows[np.isin(bad_rows, rows)].tolist()
            good = int(np.count_nonzero(self.order.rows.contains(rows))) - len(found)
            if skip < good:
                yield Span(index, start + skip, good - skip, (epoch, inside, skip, *found))
                index += 1
            skip, start = max(0, skip - good), start + len(rows)

    def _windows(self, epoch: int) -> Iterator[list[Span]]:
        order = self.order.shuffled(np.arange(len(self._units)), epoch, len(self._units))
        window: list[Span] = []
        for span in itertools.chain.from_iterable(self._units[unit] for unit in order.tolist()):
            window.append(span)
            if sum(span.rows for span in window) >= self.window_rows:
                yield window
                window = []
        if window:
            yield window

    def numbers(self, span: Span) -> Array:
        _, inside, *_ = span.locator
        rows = np.concatenate([np.arange(start, start + rows) for start, rows, _, _ in inside])
        return rows[self._places(span, rows)]

    def _places(self, span: Span, rows: Array) -> Array:
        """The places of a span's rows among all rows of its inner spans, whose numbers are `rows`."""
        epoch, _, skip, *bad = span.locator
        places = np.flatnonzero(self.order.rows.contains(rows))
        places = places[self.order.shuffled(np.arange(len(places)), epoch, len(places), int(rows[0]) + 1)]
        if bad:
            places = places[~np.isin(rows[places], bad)]
        made: Array = places[skip:]
        return made

    def origin(self, span: Span, row: int) -> str:
        number = int(self.numbers(span)[row - span.start])
        for inside in _opened(span):
            if inside.start <= number < inside.stop:
                return self.source.origin(inside, number)
        return ""

    def watched_by(self, watch: Watch) -> WindowedRows:
        """The same source: rows are read in another order than they are counted in, so only decoding is reported."""
        return self

    def _read(self, span: Span, numbers: Array, columns: Sequence[str]) -> Iterator[Block]:
        blocks = [block for inside in _opened(span) for block in self.source.read(inside, columns)]
        window = _Window(blocks)
        rows = np.concatenate([np.arange(block.start, block.start + block.rows) for block in blocks])
        places = self._places(span, rows)
        for first in range(0, len(places), _ROWS_OF_A_BLOCK):
            yield window.block(span.start + first, places[first : first + _ROWS_OF_A_BLOCK])

    def remarks(self) -> list[str]:
        if self.order.seed is None:
            return self.source.remarks()
        return [*self.source.remarks(), self._shuffle_remark()]

    def _shuffle_remark(self) -> str:
        """How rows are shuffled. A window that holds all of them is a shuffle of all."""
        if self._total <= self.window_rows:
            return _SHUFFLES_ALL
        of = "put together anew in every epoch" if len(self._units) > 1 else "in the order of the input"
        return f"shuffle: inside windows of about {self.window_rows:,} rows, {of}; --cache memory or disk shuffles all"


class _Window:
    """The blocks of a window, from which rows are taken in any order."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._starts = np.cumsum([0, *(block.rows for block in blocks)])
        self._failures: Mapping[int, RowFailure] = {
            failure.row - block.start + int(start): failure
            for block, start in zip(blocks, self._starts[:-1].tolist(), strict=True)
            for failure in block.failures
        }
        self._columns = {name: _joined([block.columns[name] for block in blocks]) for name in blocks[0].columns}
        self._explains = any(block.explain_null is not None for block in blocks)

    def block(self, start: int, places: Array) -> Block:
        """The rows at these places, counted from `start`."""
        failures = []
        if self._failures:
            for position, place in enumerate(places.tolist()):
                if place in self._failures:
                    failures.append(replace(self._failures[place], row=start + position))
        columns = {name: _taken(column, places) for name, column in self._columns.items()}

        def explain(column: str, position: int) -> str:
            return self._explain(column, int(places[position]))

        return Block(start, len(places), columns, tuple(failures), explain if self._explains else None)

    def _explain(self, column: str, place: int) -> str:
        number = int(np.searchsorted(self._starts, place, "right")) - 1
        explain = self._blocks[number].explain_null
        return explain(column, place - int(self._starts[number])) if explain is not None else "is null"


def _joined(pieces: list[SourceColumn]) -> SourceColumn:
    if any(isinstance(piece, Deferred) for piece in pieces):
        deferred = [piece for piece in pieces if isinstance(piece, Deferred)]
        places = [(piece, place) for piece in deferred for place in range(len(piece))]
        return TakenRows(places)
    return _quickly_taken(join([piece for piece in pieces if not isinstance(piece, Deferred)]))


def _quickly_taken(column: Column) -> Column:
    """Numbers without nulls as an array, from which rows are taken faster than from Arrow's."""
    if isinstance(column, np.ndarray) or column.null_count:
        return column
    spec = describe("", column)
    is_fixed = isinstance(column, pa.FixedShapeTensorArray) or pa.types.is_fixed_size_list(column.type)
    if not is_fixed and not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        return column
    if spec.dtype in (STRING, OPAQUE, "bool") or spec.shape is None or None in spec.shape:
        return column
    array, bad = to_array(column, spec.dtype, spec.shape)
    return column if bad else array


def _taken(column: SourceColumn, places: Array) -> SourceColumn:
    if isinstance(column, Deferred):
        assert isinstance(column, TakenRows)
        return column.take(places)
    return take_positions(column, places)


def _units(spans: Sequence[Span]) -> list[list[Span]]:
    """The units that are shuffled: single spans, and runs of spans that must be read in sequence."""
    units: list[list[Span]] = []
    for span in spans:
        if span.group is not None and units and units[-1][-1].group == span.group:
            units[-1].append(span)
        else:
            units.append([span])
    return units


def _opened(span: Span) -> Iterator[Span]:
    for start, rows, locator, group in span.locator[1]:
        yield Span(0, start, rows, locator, group)
