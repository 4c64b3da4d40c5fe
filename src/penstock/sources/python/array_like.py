"""Columns from the rows of one input in memory: arrays, tensors, lists, rows of different lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import objects, to_lists, whole
from penstock.core.nesting import DENSE, RAGGED, SPARSE, ArrayLeaf, Nesting, flatten, nesting_of
from penstock.core.records import Array, Column
from penstock.core.sparse import SparseColumn, is_sparse, to_sparse
from penstock.errors import InputError, one_line
from penstock.sources.python.rows import as_value


def is_array(value: Any) -> bool:
    """Whether this is an array or tensor of any library that has rows: not a number of numpy's, nor a list."""
    if isinstance(value, (np.generic, str, bytes)):
        return False
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    if is_sparse(value) or is_ragged(value) or isinstance(value, (pa.Array, pa.ChunkedArray)):
        return True
    return hasattr(value, "__array__") and getattr(value, "ndim", 1) != 0


def is_ragged(value: Any) -> bool:
    return hasattr(value, "row_splits") and hasattr(value, "flat_values")


def is_nested(value: Any) -> bool:
    """Whether this is a structure of several arrays, and not one that is written as a list.

    >>> is_nested([[1, 2], [3, 4]]), is_nested([np.zeros(2), (np.zeros(2),)])
    (False, True)
    """
    if isinstance(value, Mapping):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and all(is_array(item) or is_nested(item) for item in value)


def given_as(data: Any) -> Nesting:
    """The structure in which the arrays were given, without the arrays."""
    is_any_ragged = any(is_ragged(value) for _, value in flat(data))
    return nesting_of(data, is_nested, lambda value: _leaf(value, is_any_ragged))


def flat(data: Any) -> list[tuple[tuple[str | int, ...], Any]]:
    """Every array, and the keys that lead to it."""
    return list(flatten(data, is_nested))


def _leaf(value: Any, needs_dtype: bool) -> ArrayLeaf:
    kind = RAGGED if is_ragged(value) else SPARSE if is_sparse(value) else DENSE
    if not needs_dtype:
        return ArrayLeaf(kind)
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    return ArrayLeaf(kind, str(getattr(dtype, "name", dtype)))


def from_series(name: str, series: Any) -> Column:
    """A column of a DataFrame. NaN among its floats is a value, as `model.predict` takes it; NA and None are not."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiub":
        return np.asarray(series.to_numpy())
    try:
        column = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return from_rows(series.tolist(), f"column {name!r}")  # arrays of several dimensions, which Arrow has none of
    return whole(column) if isinstance(column, pa.ChunkedArray) else column


def as_column(value: Any, what: str = "an array") -> Column | SparseColumn:
    """What was given as a column. Rows of different lengths become lists.

    Raises:
        InputError: It has no rows, or they cannot be put into one column.
    """
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return stored(whole(value) if isinstance(value, pa.ChunkedArray) else value)
    if is_ragged(value):
        return _from_ragged(value)
    sparse = to_sparse(value)
    if sparse is not None:
        return sparse
    plain = as_value(value)
    if isinstance(plain, (list, tuple)) or (isinstance(plain, np.ndarray) and _are_objects(plain)):
        return from_rows(list(plain), what)
    if not isinstance(plain, np.ndarray) or plain.ndim == 0:
        is_number = isinstance(plain, (int, float, np.number, np.ndarray))
        raise InputError(
            "a single number has no rows" if is_number else f"{what} has no rows",
            received=f"{type(value).__name__} {value!r:.60}",
            allowed="an array with rows first, a list of rows, or a dict of them",
        )
    if plain.dtype.kind == "c":
        raise InputError(
            "complex numbers cannot be fed", received=f"{what}: {plain.dtype}", allowed="real and imaginary parts"
        )
    return plain


def _are_objects(array: Array) -> bool:
    """Whether the rows of an array are read one by one: rows that are objects, but not rows of several texts."""
    if array.dtype != object or array.ndim < 2:
        return array.dtype == object and array.ndim == 1
    first = next((value for value in array.flat if value is not None), None)
    return isinstance(first, (int, float, np.number))


def from_rows(rows: Sequence[Any], what: str = "an array") -> Column:
    """Rows one by one as a column: text, one array where all have one shape, lists where their lengths differ."""
    if all(row is None or isinstance(row, (str, bytes)) for row in rows):
        return objects(rows)
    if any(row is None or isinstance(row, (Mapping, str, bytes)) for row in rows):
        return _by_arrow(rows, what)
    try:
        arrays = [np.asarray(as_value(row)) for row in rows]
    except ValueError:  # a row is ragged itself
        return _by_arrow(rows, what)
    ranks = {array.ndim for array in arrays}
    if len(ranks) > 1:
        odd = next(number for number, array in enumerate(arrays) if array.ndim != arrays[0].ndim)
        raise InputError(
            f"the rows of {what} differ in the number of their dimensions",
            received=f"row 0 has the shape {arrays[0].shape}, row {odd} the shape {arrays[odd].shape}",
        )
    if any(array.dtype.kind not in "biuf" for array in arrays):
        is_text = all(array.dtype.kind in "US" for array in arrays) and len({array.shape for array in arrays}) == 1
        return np.stack(arrays).astype(object) if is_text else _by_arrow([array.tolist() for array in arrays], what)
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    common = np.result_type(*{array.dtype for array in arrays})
    return to_lists([array.astype(common, copy=False)[None] for array in arrays])


def _by_arrow(rows: Sequence[Any], what: str) -> pa.Array:
    try:
        return pa.array(rows)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the rows of {what} cannot be put into one column",
            received=one_line(error),
            allowed="rows of one kind: numbers, text, or arrays and lists of them",
        ) from None


def stored(column: pa.Array) -> Column:
    """The column without its extension type, which other libraries give to arrays of several dimensions."""
    if not isinstance(column, pa.ExtensionArray) or isinstance(column.type, pa.FixedShapeTensorType):
        return column
    kind, storage = column.type, column.storage
    if not kind.extension_name.startswith("ray.data."):
        return storage
    if pa.types.is_struct(storage.type):  # each row has a shape of its own
        dtype = kind.value_type.to_pandas_dtype()
        rows = storage.to_pylist()
        return from_rows([row and np.array(row["data"], dtype).reshape(row["shape"]) for row in rows])
    values = pa.list_(storage.type.value_type, math.prod(kind.shape))
    tensors = pa.fixed_shape_tensor(storage.type.value_type, kind.shape)
    return pa.ExtensionArray.from_storage(tensors, storage.cast(values))


def _from_ragged(tensor: Any) -> pa.Array:
    """A ragged tensor of TensorFlow as lists."""
    if tensor.ragged_rank != 1:
        raise InputError(
            "a ragged tensor varies in more than one dimension",
            received=f"shape {tuple(tensor.shape)}",
            allowed="rows of different lengths, all else of one size",
        )
    values = np.asarray(tensor.flat_values)
    inner = values.tolist() if values.dtype == object else None
    items = pa.array(inner) if inner is not None else _stored_values(values)
    return pa.LargeListArray.from_arrays(pa.array(np.asarray(tensor.row_splits, np.int64)), items)


def _stored_values(values: Array) -> pa.Array:
    return to_lists([values]) if values.ndim > 1 else pa.array(values)
