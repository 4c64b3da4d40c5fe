"""Cuts global batches from a stream of good rows, which comes in pieces of any size. Pure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.core.batching import Batch
from penstock.core.bucketing import boundary
from penstock.core.records import Array, Columns, RowFailure, Span
from penstock.core.training import TrainBatch, keep

INPUT, TARGET, WEIGHT = "input:", "target:", "weight:"
"""The beginning of a column's name, by the role of the column."""

Buckets = Mapping[str, Sequence[Sequence[int]]]
"""For each input, the sizes to which each of its varying dimensions is padded."""

_SMALL_BYTES = 1 << 20
_LARGE_BYTES = 64 << 20


def rows_per_chunk(batch_size: int, row_bytes: int, rows: int) -> int:
    """How many rows are loaded at once: a batch, or several small ones, or a part of a very large one.

    >>> rows_per_chunk(32, 3_000, 100_000), rows_per_chunk(256, 150_528, 100_000), rows_per_chunk(32, 3_000, 40)
    (320, 256, 64)
    """
    batch_bytes = max(1, batch_size * row_bytes)
    if batch_bytes > _LARGE_BYTES:
        return -(-batch_size // -(-batch_bytes // _LARGE_BYTES))
    return batch_size * max(1, min(_SMALL_BYTES // batch_bytes, -(-rows // batch_size)))


@dataclass(frozen=True)
class GoodRows:
    """Good rows in the order of the stream. Its arrays are valid until `release` is called.

    `sizes` has an array for each input whose rows differ in size: the lengths of every row in its varying dimensions.
    """

    numbers: Array
    arrays: Columns
    release: Callable[[], None]
    sizes: Mapping[str, Array] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.numbers)

    def part(self, start: int, stop: int, release: Callable[[], None]) -> GoodRows:
        if start == 0 and stop == self.rows:
            return replace(self, release=release)
        rows = slice(start, stop)
        sizes = {name: each[rows] for name, each in self.sizes.items()}
        return GoodRows(self.numbers[rows], {name: array[rows] for name, array in self.arrays.items()}, release, sizes)

    def as_batch(self, buckets: Buckets) -> TrainBatch:
        """The batch of these rows, padded to the bucket of the largest of them, and not of rows loaded with them."""
        whole = replace(self, arrays={**self.arrays, **self._trimmed(buckets)}) if self.sizes else self
        inputs, targets, weights = whole._of(INPUT), whole._of(TARGET), whole._of(WEIGHT)
        return TrainBatch(self.rows, inputs, targets, weights, self.numbers, self.release)

    def _trimmed(self, buckets: Buckets) -> Columns:
        made: Columns = {}
        for name, sizes in self.sizes.items():
            largest = sizes.max(axis=0).tolist()
            ends = [boundary(length, ends) for length, ends in zip(largest, buckets[name], strict=True)]
            # Dimensions that vary are the first ones of a row.
            made[name] = self.arrays[name][(slice(None), *map(slice, ends))]
        return made

    def _of(self, role: str) -> Columns:
        return {name.removeprefix(role): array for name, array in self.arrays.items() if name.startswith(role)}


def good_rows(
    batch: Batch, span: Span, numbers: Array, release: Callable[[], None]
) -> tuple[GoodRows, list[RowFailure]]:
    """The rows of a loaded batch that did not fail, and the failures, with the rows' numbers in the whole input.

    `numbers` are the numbers of all rows of the span.
    """
    positions = np.asarray(batch.positions)
    arrays = {name: array[: batch.rows] for name, array in batch.arrays.items()}
    if not batch.failures:
        return GoodRows(numbers[positions], arrays, release, batch.sizes), []
    places = {failure.row - span.start for failure in batch.failures}
    alive = ~np.isin(positions, list(places))
    failures = [replace(failure, row=int(numbers[failure.row - span.start])) for failure in batch.failures]
    copied = {name: array[alive] for name, array in arrays.items()}
    release()
    sizes = {name: each[alive] for name, each in batch.sizes.items()}
    return GoodRows(numbers[positions[alive]], copied, keep, sizes), failures


class _Lease:
    """Memory of which several batches are views. It is released with the last of them."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._users = 1

    def share(self) -> Callable[[], None]:
        """Add a user of the memory. Returns a function that ends this use."""
        with self._lock:
            self._users += 1
        return self.end

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            is_over = self._users == 0
        if is_over:
            self._release()


def cut_batches(pieces: Iterable[GoodRows], sizes: Iterator[int]) -> Iterator[GoodRows]:
    """Batches of exactly these sizes; the last may be shorter. A batch that lies inside one piece is a view of it."""
    pending: list[GoodRows] = []
    room = next(sizes, 0)
    try:
        for piece in pieces:
            lease = _Lease(piece.release)
            position, rows = 0, piece.rows
            while position < rows and room:
                stop = min(rows, position + room)
                pending.append(piece.part(position, stop, keep if piece.release is keep else lease.share()))
                room -= stop - position
                position = stop
                if not room:
                    whole, pending, room = pending, [], next(sizes, 0)
                    yield _joined(whole)
            lease.end()
        if pending:
            whole, pending = pending, []
            yield _joined(whole)
    finally:
        for part in pending:
            part.release()


def _joined(parts: Sequence[GoodRows]) -> GoodRows:
    if len(parts) == 1:
        return parts[0]
    arrays = {name: _padded([part.arrays[name] for part in parts]) for name in parts[0].arrays}
    numbers = np.concatenate([part.numbers for part in parts])
    sizes = {name: np.concatenate([part.sizes[name] for part in parts]) for name in parts[0].sizes}
    for part in parts:
        part.release()
    return GoodRows(numbers, arrays, keep, sizes)


def _padded(parts: list[Array]) -> Array:
    """The rows of all parts, one after the other. Rows that are shorter than others are filled up with zeros."""
    shapes = [part.shape[1:] for part in parts]
    if len(set(shapes)) == 1:
        return np.concatenate(parts)
    largest = tuple(max(lengths) for lengths in zip(*shapes, strict=True))
    nothing = b"" if parts[0].dtype == object else 0
    made = np.full((sum(map(len, parts)), *largest), nothing, parts[0].dtype)
    first = 0
    for part in parts:
        made[(slice(first, first + len(part)), *(slice(length) for length in part.shape[1:]))] = part
        first += len(part)
    return made
