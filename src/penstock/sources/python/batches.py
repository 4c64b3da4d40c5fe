"""Columns from batches that are Python objects, as `model.predict` takes them from a generator."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import describe, is_list, to_array, to_lists
from penstock.core.nesting import Nesting, name_of
from penstock.core.records import Column, TensorSpec
from penstock.core.sparse import SparseColumn
from penstock.errors import InputError
from penstock.sources.python.array_like import as_column, flat, from_series, given_as, is_array
from penstock.sources.python.rows import Bad


@dataclass(frozen=True)
class StreamPiece:
    """Some rows of a stream. A bad row has a value in its place."""

    columns: Mapping[str, Column]
    rows: int
    bad: Bad = field(default_factory=dict)
    is_positional: bool = False
    given: Nesting | None = None
    """The structure of its arrays, if the piece was a batch of them."""


def piece_of(batch: Any) -> StreamPiece:
    """A batch as columns: an array, a structure or table of them, or a tuple (x, y, weights), of which x is the input.

    Raises:
        InputError: It is none of these, or its arrays differ in their number of rows.
    """
    inputs = _without_targets(batch)
    if type(inputs).__module__.partition(".")[0] == "pandas" and hasattr(inputs, "columns"):
        series = {str(name): inputs.iloc[:, place] for place, name in enumerate(inputs.columns)}
        return _checked(StreamPiece({name: _as_column(from_series(name, each)) for name, each in series.items()}, 0))
    if isinstance(inputs, (pa.Table, pa.RecordBatch)):
        columns = {name: _as_column(inputs.column(name)) for name in inputs.schema.names}
        return _checked(StreamPiece(columns, 0))
    leaves = flat(inputs)
    names = [name_of(path) for path, _ in leaves]
    columns = {
        name or f"x{number}": _as_column(value)
        for number, (name, (_, value)) in enumerate(zip(names, leaves, strict=True))
    }
    return _checked(StreamPiece(columns, 0, {}, not any(names), given_as(inputs)))


def _checked(piece: StreamPiece) -> StreamPiece:
    lengths = {name: len(column) for name, column in piece.columns.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(
            "the arrays of a batch differ in their number of rows",
            received=", ".join(f"{name} {rows}" for name, rows in lengths.items()) or "no arrays",
        )
    return replace(piece, rows=next(iter(lengths.values())))


def _without_targets(batch: Any) -> Any:
    if not isinstance(batch, tuple) and not (isinstance(batch, list) and any(map(_is_several, batch))):
        return batch
    if not 1 <= len(batch) <= 3:
        raise InputError(
            "a batch is not understood",
            received=f"a {type(batch).__name__} of {len(batch)}",
            allowed="x, (x,), (x, y) or (x, y, sample_weights), as `model.predict` takes them",
            hint="where the model has several inputs, x is a dict or a list of arrays",
        )
    return batch[0]


def _is_several(value: Any) -> bool:
    return is_array(value) or isinstance(value, Mapping)


def _as_column(value: Any) -> Column:
    try:
        column = as_column(value)
    except InputError as error:
        raise InputError(
            "an element of the input is not a batch of rows",
            received=error.received,
            allowed="an array with rows first, a dict of arrays, or a tuple (x, y)",
            hint="where every element is a single row, give penstock.Rows(…)",
        ) from None
    if isinstance(column, SparseColumn):
        return column[:]
    return column.astype(object) if isinstance(column, np.ndarray) and column.dtype.kind in "US" else column


class BatchTemplate:
    """The columns of the first batch, which all other batches must have."""

    def __init__(self, first: StreamPiece) -> None:
        self._nothing = {name: _nothing_like(column, 0) for name, column in first.columns.items()}
        self._schema = {name: describe(name, column) for name, column in first.columns.items()}
        self.is_positional = first.is_positional
        self.given = first.given

    def schema(self) -> dict[str, TensorSpec]:
        return self._schema

    def opened(self, names: Sequence[str]) -> BatchTemplate:
        """The template with rows of any length in these columns: their arrays become lists."""
        arrays = {name: self._nothing[name] for name in names}
        lists = {
            name: to_lists([like])
            for name, like in arrays.items()
            if isinstance(like, np.ndarray) and like.ndim > 1 and like.dtype.kind in "biuf"
        }
        specs = {
            name: replace(describe(name, like), shape=self._schema[name].shape, varies=True)
            for name, like in lists.items()
        }
        made = copy.copy(self)
        made._nothing, made._schema = self._nothing | lists, self._schema | specs
        return made

    def fit(self, piece: StreamPiece) -> StreamPiece:
        """The piece with columns like those of the first piece. If a column cannot be made so, all rows are bad."""
        columns: dict[str, Column] = {}
        bad = dict(piece.bad)
        for name, like in self._nothing.items():
            column = piece.columns.get(name)
            fitted, reasons = (None, {}) if column is None else _fitted(column, like)
            if fitted is None:
                said = "is missing" if column is None else f"is {describe(name, column)}, not {self._schema[name]}"
                fitted, reasons = _nothing_like(like, piece.rows), dict.fromkeys(range(piece.rows), said)
            columns[name] = fitted
            for row, reason in reasons.items():
                bad.setdefault(row, ("BadBatch", f"column {name!r} {reason}"))
        return StreamPiece(columns, piece.rows, bad, self.is_positional, self.given)


def _fitted(column: Column, like: Column) -> tuple[Column | None, Mapping[int, str]]:
    """The column in the type of `like`, if nothing is lost by that, and the rows that cannot be converted."""
    if isinstance(like, np.ndarray):
        if not isinstance(column, np.ndarray):
            if like.ndim == 1 and like.dtype.kind in "biuf" and not is_list(column.type):
                return _cast(column, pa.from_numpy_dtype(like.dtype)), {}  # numbers, some of which are missing
            # A ragged list among arrays: only rows of another length are bad.
            is_number = like.dtype.kind != "O" and describe("", column).dtype == like.dtype.name
            return to_array(column, like.dtype.name, like.shape[1:]) if is_number else (None, {})
        is_same_kind = (like.dtype.kind == "O") == (column.dtype.kind == "O")
        if column.shape[1:] != like.shape[1:] or not is_same_kind or not np.can_cast(column.dtype, like.dtype, "safe"):
            return None, {}
        return column.astype(like.dtype, copy=False), {}
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        column = to_lists([column])
    return _cast(column, like.type), {}


def _cast(column: Column, kind: pa.DataType) -> pa.Array | None:
    """The column as Arrow's `kind`; None where that would lose something."""
    try:
        return pa.array(column.tolist(), kind) if isinstance(column, np.ndarray) else column.cast(kind)
    except (pa.ArrowException, TypeError, ValueError):
        return None


def _nothing_like(like: Column, rows: int) -> Column:
    if not isinstance(like, np.ndarray):
        return pa.nulls(rows, like.type)
    return np.full((rows, *like.shape[1:]), "" if like.dtype.kind == "O" else 0, like.dtype)
