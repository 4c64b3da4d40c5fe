"""Feeds: the rows of one input before they are written into a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from penstock.core.columns import storage_of, to_array
from penstock.core.deferred import IS_NULL, BadRows, Deferred
from penstock.core.records import Array, Column, RowFailure, Shape, Watch

Rows = slice | Array
"""Which rows of a feed: a run of them, or positions in any order."""


class Feed(Protocol):
    """`shape` is that of one row; a None in it varies from row to row, and `sizes` says how long it is."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> Shape: ...

    def __len__(self) -> int: ...

    def sizes(self) -> Array:
        """int64 of (rows, number of Nones in `shape`)."""
        ...

    def write(self, rows: Rows, out: Array, first_row: int, watch: Watch) -> BadRows:
        """Write rows into `out`; what is shorter than `out` is padded with zeros.

        `first_row` is the number of the feed's first row in the whole input. Positions in the answer are those in
        `out`.
        """
        ...


@dataclass(frozen=True)
class Dense:
    """Rows that are in an array already."""

    array: Array

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def shape(self) -> Shape:
        return tuple(self.array.shape[1:])

    def __len__(self) -> int:
        return len(self.array)

    def sizes(self) -> Array:
        return np.zeros((len(self), 0), np.int64)

    def write(self, rows: Rows, out: Array, first_row: int, watch: Watch) -> BadRows:
        out[:] = self.array[rows]
        return BadRows()


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: Array
    offsets: Array

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def shape(self) -> Shape:
        return (None, *self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def sizes(self) -> Array:
        return np.diff(self.offsets).astype(np.int64).reshape(-1, 1)

    def write(self, rows: Rows, out: Array, first_row: int, watch: Watch) -> BadRows:
        out[:] = b"" if out.dtype == object else 0
        starts, stops = self.offsets[:-1][rows], self.offsets[1:][rows]
        bad = BadRows()
        for place, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            if stop - start > out.shape[1]:
                bad[place] = (
                    f"has {stop - start:,} values, far more than the other rows; --buckets can make room for it"
                )
                continue
            out[place, : stop - start] = self.values[start:stop]
        return bad


@dataclass(frozen=True)
class Mask:
    """Ones where a row of another, padded input is real, zeros where it is padding."""

    lengths: Array
    dtype: Any

    @property
    def shape(self) -> Shape:
        return (None,)

    def __len__(self) -> int:
        return len(self.lengths)

    def sizes(self) -> Array:
        return self.lengths.reshape(-1, 1)

    def write(self, rows: Rows, out: Array, first_row: int, watch: Watch) -> BadRows:
        out[:] = np.arange(out.shape[1]) < self.lengths[rows][:, None]
        return BadRows()


@dataclass(frozen=True)
class Encoded:
    """Rows that are decoded straight into the batch."""

    column: Deferred
    dtype: Any
    shape: Shape

    def __len__(self) -> int:
        return len(self.column)

    def sizes(self) -> Array:
        return np.maximum(self.column.sizes(), 0)

    def write(self, rows: Rows, out: Array, first_row: int, watch: Watch) -> BadRows:
        if isinstance(rows, slice) and not watch.poisoned:
            first = first_row + rows.start
            return self.column[rows].fill(out, lambda position: watch.begin(first + position, 1))
        bad = BadRows()
        positions = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        for place, position in enumerate(positions):
            row = first_row + position
            if row in watch.poisoned:
                out[place] = 0
                continue
            watch.begin(row, 1)
            one = self.column[position : position + 1].fill(out[place : place + 1], lambda position: None)
            if one:
                bad[place] = one[0]
                bad.errors[place] = one.errors.get(0, "BadValue")
            if one.encoded:
                bad.encoded[place] = one.encoded[0]
        return bad


@dataclass
class LoadedRows:
    """Rows of a span on their way into batches: a feed for every input, the kept columns, and what failed so far."""

    start: int
    rows: int
    feeds: Mapping[str, Feed]
    kept: Mapping[str, Column] = field(default_factory=dict)
    failures: dict[int, RowFailure] = field(default_factory=dict)


def to_ragged(column: Column, dtype: str, shape: Shape) -> tuple[Ragged, BadRows]:
    """The rows of a column of lists. `shape` is that of a row: its first dimension varies, the others must not.

    A row that is null, or holds something that does not fit, is named in the second value.
    """
    inner = shape[1:]
    if isinstance(column, np.ndarray):
        values, bad = to_array(column, dtype, (column.shape[1], *inner))
        return Ragged(values.reshape(-1, *values.shape[2:]), np.arange(len(column) + 1) * column.shape[1]), bad
    column = storage_of(column)
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    values, bad_values = to_array(column.flatten(), dtype, inner)
    bad = BadRows()
    for null in np.flatnonzero(~column.is_valid().to_numpy(zero_copy_only=False)):
        bad[int(null)] = IS_NULL
    for position, reason in bad_values.items():
        row = int(np.searchsorted(offsets, position, side="right")) - 1
        bad.setdefault(row, f"has a value that {reason}")
    return Ragged(values, offsets), bad
