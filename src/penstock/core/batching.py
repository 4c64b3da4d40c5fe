"""Batches: how large they are, and how rows of any number of blocks are cut into batches of one size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.core.columns import join
from penstock.core.deferred import BadRows
from penstock.core.feeds import Dense, Feed, LoadedRows
from penstock.core.records import UNWATCHED, Array, Column, Columns, RowFailure, Watch

BATCH_BYTES = 8 << 20
MOST_BATCH_BYTES = 128 << 20
OUTPUT_BYTES = 32 << 20
SMALLEST_BATCH, LARGEST_BATCH = 32, 8192


IMAGES_ON_A_CPU = (2 << 20, 8)
"""The bytes of a batch of images on a CPU, and its fewest rows: the output of a convolution is many times as large as
the image, and must stay in the caches (measured: MobileNetV2 on two cores, 111 images/s at 16, 96 at 32, 82 to 97 at
64)."""


def default_batch_size(
    row_bytes: int, rows: int | None = None, batch_bytes: int = BATCH_BYTES, smallest: int = SMALLEST_BATCH
) -> int:
    """The power of two that keeps a batch of inputs near 8 MB, between 32 and 8,192; fewer where 32 rows exceed 128 MB.

    An input of fewer rows than that gets the power of two that holds it, so that little is padded.

    >>> default_batch_size(784)
    8192
    >>> default_batch_size(224 * 224 * 3)
    64
    >>> default_batch_size(784, rows=100)
    128
    >>> default_batch_size(224 * 224 * 3, None, *IMAGES_ON_A_CPU)
    16
    """
    near = 1 << max(0, round(math.log2(batch_bytes / max(1, row_bytes))))
    size = min(max(near, smallest), LARGEST_BATCH)
    while size > 1 and size * row_bytes > MOST_BATCH_BYTES:
        size //= 2
    if rows is not None and rows < size:
        size = 1 << math.ceil(math.log2(max(1, rows)))
    return size


def most_rows_of_outputs(row_bytes: int) -> int:
    """The power of two that keeps the outputs of a batch below 32 MB.

    >>> most_rows_of_outputs(300_000)
    64
    """
    return 1 << max(0, math.floor(math.log2(OUTPUT_BYTES / max(1, row_bytes))))


@dataclass
class Batch:
    """What one device sees in one step: `arrays` always have the full batch size, of which `rows` are real.

    `positions` are the places of the real rows in their span: a run, or any order where rows were sorted by size.
    `kept` and `failures` are those of the real rows. For each input whose rows differ in size, `sizes` holds their
    sizes (rows by dimensions that vary), and `padded` of the `values` in `arrays` are padding. Once the batch has run
    in pieces, because it did not fit into the memory, `reduced_to` is the number of rows of a piece. For each input
    with rows that are still to be decoded, `encoded` holds how many encoded bytes lie in the place of each row; 0 for a
    row that is decoded.
    """

    index: int
    positions: range | Array
    rows: int
    arrays: Columns
    kept: Mapping[str, Column] = field(default_factory=dict)
    failures: tuple[RowFailure, ...] = ()
    sizes: Mapping[str, Array] = field(default_factory=dict)
    values: int = 0
    padded: int = 0
    reduced_to: int | None = None
    encoded: Mapping[str, Array] = field(default_factory=dict)

    @property
    def lengths(self) -> dict[str, Array]:
        """The sizes of inputs of which one dimension varies."""
        return {name: sizes[:, 0] for name, sizes in self.sizes.items() if sizes.shape[1] == 1}

    @property
    def size(self) -> int:
        """The number of rows in its arrays, real or padded."""
        return len(next(iter(self.arrays.values())))


Room = Callable[[Mapping[str, tuple[tuple[int, ...], Any]]], Columns]
"""Makes the arrays that a batch is written to, from the shape and dtype of every input."""


def on_the_heap(wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> Columns:
    return {name: np.empty(shape, dtype) for name, (shape, dtype) in wanted.items()}


def cut(
    pieces: Iterable[LoadedRows], batch_size: int, room: Room = on_the_heap, watch: Watch = UNWATCHED
) -> Iterator[Batch]:
    """Cut pieces into batches of exactly `batch_size` rows; the last one is padded with its last row.

    It is not padded with zeros: a model may reject a row that is not real, such as an empty string instead of an image.

    On the heap, a batch that lies inside one piece is a view of it: nothing is copied.
    """
    building = _Building(0, 0, batch_size)
    for piece in pieces:
        may_view = room is on_the_heap and all(isinstance(feed, Dense) for feed in piece.feeds.values())
        position = 0
        while position < piece.rows:
            taken = min(batch_size - building.filled, piece.rows - position)
            if taken == batch_size and may_view:
                building.view(piece, position)
            else:
                building.copy(piece, position, taken, room, watch)
            position += taken
            if building.filled == batch_size:
                yield building.close()
                building = building.next()
    if building.filled:
        yield building.close()


class _Building:
    """A batch that is being filled."""

    def __init__(self, index: int, offset: int, batch_size: int) -> None:
        self._index = index
        self._offset = offset
        self._batch_size = batch_size
        self._arrays: Columns = {}
        self._kept: list[Mapping[str, Column]] = []
        self._failures: dict[int, RowFailure] = {}
        self._encoded: dict[str, Array] = {}
        self.filled = 0

    def view(self, piece: LoadedRows, position: int) -> None:
        rows = slice(position, position + self._batch_size)
        self._arrays = {name: feed.array[rows] for name, feed in piece.feeds.items() if isinstance(feed, Dense)}
        self._gather(piece, position, self._batch_size)

    def copy(self, piece: LoadedRows, position: int, taken: int, room: Room, watch: Watch) -> None:
        if not self.filled:
            wanted = {name: ((self._batch_size, *known(feed)), feed.dtype) for name, feed in piece.feeds.items()}
            self._arrays = room(wanted)
        rows = slice(position, position + taken)
        for name, feed in piece.feeds.items():
            out = self._arrays[name][self.filled : self.filled + taken]
            bad = feed.write(rows, out, piece.start, watch)
            note(bad, name, range(piece.start + position, piece.start + piece.rows), self._failures)
            for place, size in bad.encoded.items():
                sizes = self._encoded.setdefault(name, np.zeros(self._batch_size, np.int64))
                sizes[self.filled + place] = size
        self._gather(piece, position, taken)

    def _gather(self, piece: LoadedRows, position: int, taken: int) -> None:
        first = piece.start + position
        for row, failure in piece.failures.items():
            if first <= row < first + taken:
                self._failures[row] = failure
        if piece.kept:
            self._kept.append({name: column[position : position + taken] for name, column in piece.kept.items()})
        self.filled += taken

    def close(self) -> Batch:
        if self.filled < self._batch_size:
            for array in self._arrays.values():
                array[self.filled :] = array[self.filled - 1]
        return Batch(
            self._index,
            range(self._offset, self._offset + self.filled),
            self.filled,
            self._arrays,
            joined(self._kept),
            tuple(self._failures.values()),
            encoded=self._encoded,
        )

    def next(self) -> _Building:
        return _Building(self._index + 1, self._offset + self.filled, self._batch_size)


def known(feed: Feed) -> tuple[int, ...]:
    """The shape of a feed's rows, which must not vary."""
    return tuple(length if length is not None else 1 for length in feed.shape)


def note(bad: BadRows, name: str, rows: Sequence[int] | Array, failures: dict[int, RowFailure]) -> None:
    """Record bad rows, whose numbers are `rows`, as failures; the first reason of a row stays."""
    for position, reason in bad.items():
        row = int(rows[position])
        kind = bad.errors.get(position)
        shown = reason if kind is not None else f"column {name!r} {reason}"
        failures.setdefault(row, RowFailure(row, "", "load", kind or "BadValue", shown))


def joined(pieces: list[Mapping[str, Column]]) -> dict[str, Column]:
    return {name: join([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else {})}
