"""Columns: arrays, and rows that are still encoded. An encoded image is decoded straight into its batch."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import one_line

Array = np.ndarray[Any, np.dtype[Any]]
Column: TypeAlias = "Array | pa.Array"
"""Rows first. Numbers are numpy arrays wherever that costs no copy; everything else is an Arrow array."""
Columns = dict[str, Array]

Announce = Callable[[int], None]
"""Called with the position of every row before work on it begins, so that a row that hangs or kills can be named."""

IS_NULL = "is null"
"""The reason of a row that lacks a value."""


class BadRows(dict[int, str]):
    """Position in a column to the reason why that row cannot be fed; `errors` holds the kind of error, where known.

    `encoded` are rows that are not decoded yet, and the number of bytes that lie in their places: see `routed`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[int, str] = {}
        self.encoded: dict[int, int] = {}

    def blame(self, position: int, error: BaseException) -> None:
        self[position] = one_line(error)
        self.errors[position] = type(error).__name__


class Deferred(abc.ABC):
    """Rows that are still encoded. Slicing is cheap; `fill` does the work."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, rows: slice) -> Deferred: ...

    @abc.abstractmethod
    def raw(self) -> pa.Array:
        """The encoded values, for a model that decodes by itself."""

    def kept(self) -> pa.Array:
        """The values that are written where the column is kept."""
        return self.raw()

    @abc.abstractmethod
    def sizes(self) -> Array:
        """int64 of (rows, n): how long each row is in its n dimensions that vary; -1 where it is unknown."""

    def natural(self) -> Deferred:
        """The same rows, to be padded to a common size instead of resized to it."""
        return self

    def routed(self, share: float) -> Deferred:
        """The same rows, of which a decoder at the replica decodes this share: `fill` leaves that share encoded."""
        return self

    @abc.abstractmethod
    def fill(self, out: Array, announce: Announce) -> BadRows:
        """Decode every row into `out`, whose first dimension is the row. Rows that fail are zero-filled and named.

        `out` decides the size: an image is resized to it. Where the job has buckets of sizes instead, the rest of
        a row that is smaller stays zero.
        """


class TakenRows(Deferred):
    """Rows of other columns in any order: each is a column and a place in it."""

    def __init__(self, rows: Sequence[tuple[Deferred, int]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> TakenRows:
        return TakenRows(self._rows[rows])

    def take(self, places: Array) -> TakenRows:
        return TakenRows([self._rows[place] for place in places.tolist()])

    def raw(self) -> pa.Array:
        return pa.concat_arrays([one.raw() for one in self._each()])

    def kept(self) -> pa.Array:
        return pa.concat_arrays([one.kept() for one in self._each()])

    def sizes(self) -> Array:
        return np.concatenate([one.sizes() for one in self._each()])

    def natural(self) -> TakenRows:
        return TakenRows([(one.natural(), 0) for one in self._each()])

    def fill(self, out: Array, announce: Announce) -> BadRows:
        bad = BadRows()
        for position, one in enumerate(self._each()):
            announce(position)
            found = one.fill(out[position : position + 1], lambda place: None)
            if found:
                bad[position] = found[0]
                bad.errors |= {position: found.errors[0]} if 0 in found.errors else {}
        return bad

    def _each(self) -> Iterator[Deferred]:
        return (column[place : place + 1] for column, place in self._rows)


SourceColumn: TypeAlias = "Array | pa.Array | Deferred"
"""What a source reads: arrays, or rows that are decoded when their place in a batch is known."""
