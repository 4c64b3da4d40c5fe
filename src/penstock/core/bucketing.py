"""Batches of rows of different sizes: the rows of a span are sorted by size, cut, and padded to one of a few sizes.

Because rows are sorted first, a span needs no more batches than without buckets. Padding fills the difference between
the rows of a batch, and between its largest row and the next boundary. Every boundary is one compiled shape.

Where padding would change the answers, a batch holds rows of exactly one size instead.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from penstock.core.batching import Batch, Room, joined, note
from penstock.core.columns import take_positions
from penstock.core.feeds import Encoded, Feed, LoadedRows
from penstock.core.records import Array, Column, RowFailure, Watch

Boundaries = Sequence[int]
MOST_BOUNDARIES = 8
LEAST_STEP = 8
MOST_PADDING = 0.1
"""Boundaries are added until rounding up to them wastes less than this share of the values."""


def choose_boundaries(lengths: Array, most: int = MOST_BOUNDARIES, cap: float = MOST_PADDING) -> tuple[int, ...]:
    """Choose a few lengths to pad to, so that rows of these lengths need little padding.

    Where all rows have one length there is nothing to pad.

    >>> choose_boundaries(np.array([17, 17, 17]))
    (17,)
    >>> choose_boundaries(np.array([3, 5, 60, 64]))
    (8, 64)
    """
    lengths = np.maximum(np.asarray(lengths, np.int64), 1)
    if len(np.unique(lengths)) <= 1:
        return (int(lengths[0]),) if len(lengths) else (1,)
    step = LEAST_STEP if lengths.max() >= LEAST_STEP else 1
    rounded = -(-lengths // step) * step
    # Quantiles of rows and of distinct lengths: a few long rows among many short ones may hold most of the values.
    places = np.linspace(0, 1, 65)
    likely = [np.quantile(values, places, method="higher") for values in (rounded, np.unique(rounded))]
    candidates = np.unique(np.concatenate(likely)).astype(np.int64).tolist()
    chosen = [candidates.pop()]
    while candidates and len(chosen) < most and _waste(lengths, chosen) > cap:
        best = min(candidates, key=lambda candidate: _waste(lengths, [*chosen, candidate]))
        candidates.remove(best)
        chosen.append(best)
    return tuple(sorted(chosen))


def _waste(lengths: Array, boundaries: Sequence[int]) -> float:
    ends = np.sort(np.asarray(boundaries))
    return 1.0 - float(lengths.sum()) / float(ends[np.searchsorted(ends, lengths)].sum())


def boundary(length: int, boundaries: Boundaries) -> int:
    """The boundary that a length is padded to. Beyond the last boundary, that one is doubled until it is long enough.

    >>> boundary(9, (8, 16)), boundary(40, (8, 16))
    (16, 64)
    """
    for end in boundaries:
        if length <= end:
            return end
    last = boundaries[-1]
    return int(last * 2 ** math.ceil(math.log2(length / last)))


MOST_BEYOND = 16
"""A row more than so many times as large as the largest planned size fails: its whole batch would be padded to it."""


def cut_by_size(
    pieces: Sequence[LoadedRows],
    batch_size: int,
    buckets: Mapping[str, Sequence[Boundaries]],
    room: Room,
    watch: Watch,
    *,
    is_in_order: bool = False,
) -> Iterator[Batch]:
    """Batches of the rows of a whole span: the largest rows first or, with `is_in_order`, in the order of the input.

    Args:
        pieces: All pieces of the span.
        batch_size: Rows of every batch.
        buckets: Input name to the boundaries of each dimension that varies.
        room: Where batches are written.
        watch: Called before every row that is decoded.
    """
    if not pieces:
        return
    rows = _Rows(pieces, buckets)
    order = np.arange(rows.count) if is_in_order else rows.largest_first()
    for index, start in enumerate(range(0, len(order), batch_size)):
        yield rows.batch(index, order[start : start + batch_size], batch_size, room, watch)


def cut_by_one_size(
    pieces: Sequence[LoadedRows],
    batch_size: int,
    fewest_rows: int,
    buckets: Mapping[str, Sequence[Boundaries]],
    room: Room,
    watch: Watch,
) -> Iterator[Batch]:
    """Batches of the rows of a whole span, each of rows of exactly one size, the most common size first.

    A batch is filled up to a power of two of rows, at least to `fewest_rows` and at most to `batch_size`.
    """
    if not pieces:
        return
    rows = _Rows(pieces, buckets, is_padded=False, is_bounded=fewest_rows > 1)
    index = 0
    for group in rows.by_size():
        for start in range(0, len(group), batch_size):
            taken = group[start : start + batch_size]
            filled = min(max(1 << (len(taken) - 1).bit_length(), fewest_rows), batch_size)
            yield rows.batch(index, taken, filled, room, watch)
            index += 1


class _Rows:
    """All rows of a span, their sizes, and where they lie."""

    def __init__(
        self,
        pieces: Sequence[LoadedRows],
        buckets: Mapping[str, Sequence[Boundaries]],
        *,
        is_padded: bool = True,
        is_bounded: bool = True,
    ) -> None:
        self._pieces = pieces
        self._buckets = buckets
        self._is_padded = is_padded
        self._starts = np.cumsum([0, *(piece.rows for piece in pieces)])
        first = pieces[0].feeds
        self._sizes = {name: np.concatenate([piece.feeds[name].sizes() for piece in pieces]) for name in first}
        for name, boundaries in buckets.items():
            if is_bounded:
                self._sizes[name] = _bounded(self._sizes[name], boundaries)
        if not is_padded:
            self._hide_failed()

    @property
    def count(self) -> int:
        return int(self._starts[-1])

    def largest_first(self) -> Array:
        cost = np.zeros(self.count, np.int64)
        for name in self._buckets:
            cost += self._sizes[name].prod(axis=1)
        return np.argsort(-cost, kind="stable")

    def by_size(self) -> list[Array]:
        """The rows of each size: the most common size first and, of equally common sizes, the larger one first."""
        sizes = np.concatenate([self._sizes[name] for name in self._buckets], axis=1)
        _, group_of, counts = np.unique(-sizes, axis=0, return_inverse=True, return_counts=True)
        groups = np.split(np.argsort(group_of.reshape(-1), kind="stable"), np.cumsum(counts)[:-1])
        return sorted(groups, key=len, reverse=True)

    def _hide_failed(self) -> None:
        """Give rows that failed already, or will fail when decoded, the size of another row: they have none."""
        failed = np.zeros(int(self._starts[-1]), dtype=bool)
        for piece, start in zip(self._pieces, self._starts[:-1].tolist(), strict=True):
            failed[[start + row - piece.start for row in piece.failures]] = True
            for name, feed in piece.feeds.items():
                if isinstance(feed, Encoded):
                    stop = start + piece.rows
                    failed[start:stop] |= (self._sizes[name][start:stop] == 0).any(axis=1)
        host = int(np.argmin(failed))
        for name, boundaries in self._buckets.items():
            smallest = [ends[0] for ends in boundaries]
            self._sizes[name][failed] = smallest if failed[host] else self._sizes[name][host]

    def batch(self, index: int, positions: Array, batch_size: int, room: Room, watch: Watch) -> Batch:
        # Back to the order of the input: the rows of one piece then lie together, and one call writes them.
        positions = np.sort(positions)
        first = self._pieces[0].feeds
        shapes = {name: self._shape(name, feed, positions) for name, feed in first.items()}
        arrays = room({name: ((batch_size, *shapes[name]), feed.dtype) for name, feed in first.items()})
        failures: dict[int, RowFailure] = {}
        kept: list[Mapping[str, Column]] = []
        for piece, inside, place in self._by_piece(positions):
            for name, feed in piece.feeds.items():
                out = arrays[name][place : place + len(inside)]
                bad = feed.write(inside, out, piece.start, watch)
                note(bad, name, piece.start + inside, failures)
            wanted = {piece.start + row for row in inside.tolist()}
            failures |= {row: failure for row, failure in piece.failures.items() if row in wanted}
            if piece.kept:
                kept.append({name: take_positions(column, inside) for name, column in piece.kept.items()})
        for array in arrays.values():
            array[len(positions) :] = array[len(positions) - 1]
        values, padded = self._padding(positions, shapes, batch_size)
        return Batch(
            index,
            positions,
            len(positions),
            arrays,
            joined(kept),
            tuple(failures.values()),
            sizes={name: self._sizes[name][positions] for name in self._buckets},
            values=values,
            padded=padded,
        )

    def _shape(self, name: str, feed: Feed, positions: Array) -> tuple[int, ...]:
        largest = iter(self._sizes[name][positions].max(axis=0).tolist())
        if not self._is_padded:
            return tuple(next(largest) if n is None else n for n in feed.shape)
        boundaries = iter(self._buckets.get(name, ()))
        return tuple(boundary(next(largest), next(boundaries)) if n is None else n for n in feed.shape)

    def _by_piece(self, positions: Array) -> Iterator[tuple[LoadedRows, Array, int]]:
        """Each piece that has some of these rows, their places in it, and where the first of them goes in the batch."""
        cuts = np.searchsorted(positions, self._starts)
        for number, piece in enumerate(self._pieces):
            if cuts[number] < cuts[number + 1]:
                inside = positions[cuts[number] : cuts[number + 1]] - self._starts[number]
                yield piece, inside, int(cuts[number])

    def _padding(self, positions: Array, shapes: Mapping[str, tuple[int, ...]], batch_size: int) -> tuple[int, int]:
        """How many values the inputs that vary have, and how many of these are padding."""
        values = real = 0
        for name in self._buckets:
            values += batch_size * math.prod(shapes[name])
            varying = self._pieces[0].feeds[name].shape
            fixed = math.prod(length for length in varying if length is not None)
            real += int(self._sizes[name][positions].prod(axis=1).sum()) * fixed
        return values, values - real


def _bounded(sizes: Array, boundaries: Sequence[Boundaries]) -> Array:
    """The sizes, with 1 for a size far beyond the planned ones: such a row gets no room, and its write fails."""
    if not boundaries:
        return sizes
    largest = np.array([ends[-1] for ends in boundaries]) * MOST_BEYOND ** (1 / len(boundaries))
    return np.where((sizes > largest).any(axis=1, keepdims=True), 1, sizes)
