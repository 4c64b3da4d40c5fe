"""Batches that are Python objects, as `model.predict` takes them from a generator, turned into columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import describe, is_list, to_array, whole
from penstock.core.records import Array, Column, TensorSpec
from penstock.errors import InputError
from penstock.sources.python_rows import Bad, as_value


@dataclass(frozen=True)
class Piece:
    """Some rows of a stream. A bad row has a value in its place."""

    columns: Mapping[str, Column]
    rows: int
    bad: Bad = field(default_factory=dict)
    is_positional: bool = False


def piece_of(batch: Any) -> Piece:
    """A batch as columns: an array, a dict or table of them, or a tuple (x, y, weights), of which x is the input.

    Raises:
        InputError: It is none of these, or its arrays differ in their number of rows.
    """
    inputs = _without_targets(batch)
    if type(inputs).__module__.partition(".")[0] == "pandas" and hasattr(inputs, "columns"):
        inputs = pa.Table.from_pandas(inputs, preserve_index=False)
    is_positional = False
    if isinstance(inputs, (pa.Table, pa.RecordBatch)):
        columns = {name: _as_column(inputs.column(name)) for name in inputs.schema.names}
    elif isinstance(inputs, Mapping):
        columns = {str(name): _as_column(value) for name, value in inputs.items()}
    else:
        arrays = inputs if _is_several(inputs) else [inputs]
        columns = {f"x{place}": _as_column(value) for place, value in enumerate(arrays)}
        is_positional = True
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(
            "the arrays of a batch differ in their number of rows",
            received=", ".join(f"{name} {rows}" for name, rows in lengths.items()) or "no arrays",
        )
    return Piece(columns, next(iter(lengths.values())), {}, is_positional)


def _without_targets(batch: Any) -> Any:
    if not isinstance(batch, tuple) and not _is_several(batch):
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
    """Whether this is a list of arrays, and not an array written as a list."""
    if isinstance(value, tuple):
        return True
    return isinstance(value, list) and any(hasattr(item, "__array__") or isinstance(item, Mapping) for item in value)


def _as_column(value: Any) -> Column:
    if isinstance(value, pa.ChunkedArray):
        value = whole(value)
    if isinstance(value, pa.ExtensionArray) and not isinstance(value.type, pa.FixedShapeTensorType):
        return value.storage
    if isinstance(value, pa.Array):
        return value
    if hasattr(value, "row_splits"):
        return pa.array(value.to_list())  # a ragged tensor
    array = as_value(value)
    if isinstance(array, (list, tuple)):
        return pa.array(array)  # ragged lists
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise InputError(
            "an element of the input is not a batch of rows",
            received=f"{type(value).__name__} {value!r:.60}",
            allowed="an array with rows first, a dict of arrays, or a tuple (x, y)",
            hint="where every element is a single row, give penstock.Rows(…)",
        )
    if array.dtype.kind in "US":
        return array.astype(object)
    if array.dtype.kind not in "O" or _are_texts(array):
        return array
    return pa.array(array.tolist())


def _are_texts(array: Array) -> bool:
    """Whether the first things of an array of objects are text: one odd one later is a row failure, not a date."""
    items = [item for item in array.ravel()[:100].tolist() if item is not None]
    return not items or all(isinstance(item, (str, bytes)) for item in items)


class BatchTemplate:
    """What all batches have to be like: the first one."""

    def __init__(self, first: Piece) -> None:
        self._nothing = {name: _nothing_like(column, 0) for name, column in first.columns.items()}
        self._schema = {name: describe(name, column) for name, column in first.columns.items()}
        self.is_positional = first.is_positional

    def schema(self) -> dict[str, TensorSpec]:
        return self._schema

    def fit(self, piece: Piece) -> Piece:
        """The piece with columns like the first one's. Where one cannot be made so, all of its rows are bad."""
        columns: dict[str, Column] = {}
        bad = dict(piece.bad)
        for name, like in self._nothing.items():
            found = piece.columns.get(name)
            fitted, reasons = (None, {}) if found is None else _fitted(found, like)
            if fitted is None:
                said = "is missing" if found is None else f"is {describe(name, found)}, not {self._schema[name]}"
                fitted, reasons = _nothing_like(like, piece.rows), dict.fromkeys(range(piece.rows), said)
            columns[name] = fitted
            for row, reason in reasons.items():
                bad.setdefault(row, ("BadBatch", f"column {name!r} {reason}"))
        return Piece(columns, piece.rows, bad, self.is_positional)


def _fitted(column: Column, like: Column) -> tuple[Column | None, Mapping[int, str]]:
    """The column in the type of `like`, if nothing is lost on the way, and the rows that cannot be had so."""
    if isinstance(like, np.ndarray):
        if not isinstance(column, np.ndarray):
            if like.ndim == 1 and like.dtype.kind in "biuf" and not is_list(column.type):
                return _cast(column, pa.from_numpy_dtype(like.dtype)), {}  # numbers, some of which are missing
            # A ragged list among arrays: its rows are told apart.
            is_number = like.dtype.kind != "O" and describe("", column).dtype == like.dtype.name
            return to_array(column, like.dtype.name, like.shape[1:]) if is_number else (None, {})
        is_same_kind = (like.dtype.kind == "O") == (column.dtype.kind == "O")
        if column.shape[1:] != like.shape[1:] or not is_same_kind or not np.can_cast(column.dtype, like.dtype, "safe"):
            return None, {}
        return column.astype(like.dtype, copy=False), {}
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
