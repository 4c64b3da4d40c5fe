"""Conversion of columns between Arrow, as sources read and sinks write them, and numpy, as devices take them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.deferred import IS_NULL, BadRows
from penstock.core.records import STRING, Array, Column, Shape, TensorSpec

OPAQUE = "opaque"
"""The dtype name of columns that can be kept but not fed: dates, structs, maps."""


def describe(name: str, column: Column) -> TensorSpec:
    """The spec of a column; the length of its lists is the most common one."""
    if isinstance(column, np.ndarray):
        kind = STRING if column.dtype.kind in "OSU" else column.dtype.newbyteorder("=").name
        return TensorSpec(name, kind, tuple(column.shape[1:]))
    varies = bool(pa.types.is_list(column.type) or pa.types.is_large_list(column.type))
    return TensorSpec(name, *_describe_type(column.type, column), varies=varies)


def _describe_type(kind: pa.DataType, sample: pa.Array) -> tuple[str, Shape]:
    if isinstance(kind, pa.FixedShapeTensorType):
        order = kind.permutation
        return _number(kind.value_type), tuple(kind.shape if order is None else (kind.shape[axis] for axis in order))
    if pa.types.is_dictionary(kind):
        return _describe_type(kind.value_type, sample.dictionary if len(sample) else sample)
    if pa.types.is_fixed_size_list(kind):
        dtype, inner = _describe_type(kind.value_type, sample.flatten())
        return dtype, (kind.list_size, *inner)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = sample.value_lengths().drop_null()
        dtype, inner = _describe_type(kind.value_type, sample.flatten())
        # The most common length: one odd row among the first must not speak for all.
        usual = int(np.bincount(lengths.to_numpy(zero_copy_only=False)).argmax()) if len(lengths) else None
        return dtype, (usual, *inner)
    if is_text(kind):
        return STRING, ()
    if pa.types.is_boolean(kind):
        return "bool", ()
    if pa.types.is_decimal(kind):
        return "float64", ()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _number(kind), ()
    return OPAQUE, ()


def _number(kind: pa.DataType) -> str:
    """The numpy name of a number. (Arrow's own way to ask imports pandas.)"""
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid:  # more than 2 GB of text, where offsets have 32 bits
        return column.cast(_with_long_offsets(column.type)).combine_chunks()


def _with_long_offsets(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(_with_long_offsets(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_long_offsets(field.type)) for field in kind])
    return kind


def storage_of(column: pa.Array) -> pa.Array:
    """A column without the extension type around it, such as that of a fixed-shape tensor."""
    if not isinstance(column, pa.ExtensionArray):
        return column
    if isinstance(column.type, pa.FixedShapeTensorType) and column.type.permutation is not None:
        return _in_logical_order(column.storage, column.type)
    return column.storage


def _in_logical_order(rows: pa.Array, kind: pa.FixedShapeTensorType) -> pa.Array:
    """The rows of tensors whose axes are stored in another order than they have: transposed, nulls as they are."""
    order = [0, *(1 + axis for axis in kind.permutation)]
    stored = rows.flatten()  # has no values of rows that are null
    places = np.arange(len(stored)).reshape(-1, *kind.shape).transpose(order).reshape(-1)
    tensors = pa.FixedSizeListArray.from_arrays(stored.take(pa.array(places)), math.prod(kind.shape))
    is_there = rows.is_valid().to_numpy(zero_copy_only=False)
    return tensors.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))


def is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


_PLAIN = {pa.float32(): "float32", pa.float64(): "float64", pa.int32(): "int32", pa.int64(): "int64"}


def to_array(column: Column, dtype: str, shape: Shape) -> tuple[Array, BadRows]:
    """The rows of a column as one array of `dtype`, each row of `shape`.

    A row that is null, or has another length than the rest, is zero-filled and named in the second value.
    """
    bad = BadRows()
    if (
        shape == ()
        and not isinstance(column, np.ndarray)
        and not column.null_count
        and dtype == _PLAIN.get(column.type)
    ):
        # A short cut for tables of many plain columns: the general path below would take a fifth of the reading time.
        return column.to_numpy(), bad
    if isinstance(column, np.ndarray):
        values = _encode_text(column, bad) if dtype == STRING else column
    else:
        values = _from_arrow(column, dtype, shape, bad)
    if dtype == STRING:
        return values.reshape(len(column), *_known(shape, values.size, len(column))), bad
    if np.dtype(dtype).kind in "iu" and values.dtype.kind in "fiu" and not np.can_cast(values.dtype, dtype):
        values = _without_what_would_be_cut_off(values, np.dtype(dtype), len(column), bad)
    native = np.ascontiguousarray(values, dtype=np.dtype(dtype))
    return native.reshape(len(column), *_known(shape, native.size, len(column))), bad


def _known(shape: Shape, size: int, rows: int) -> tuple[int, ...]:
    """`shape` with its single unknown dimension worked out from the number of values."""
    unknown = [position for position, length in enumerate(shape) if length is None]
    if not unknown:
        return tuple(length for length in shape if length is not None)
    others = math.prod(length for length in shape if length is not None)
    filled = list(shape)
    filled[unknown[0]] = size // max(1, rows * others)
    return tuple(length for length in filled if length is not None)


def _encode_text(column: Array, bad: BadRows) -> Array:
    """Text as bytes objects, which is what a string tensor is made of."""
    if column.dtype.kind == "S":
        return column.astype(object)
    encoded = np.empty(column.size, dtype=object)
    per_row = max(1, column.size // max(1, len(column)))
    for position, item in enumerate(column.ravel().tolist()):
        if isinstance(item, (str, bytes)):
            encoded[position] = item.encode() if isinstance(item, str) else item
            continue
        encoded[position] = b""
        bad.setdefault(position // per_row, IS_NULL if item is None else f"is {item!r:.40}, not text")
    return encoded.reshape(column.shape)


def _without_what_would_be_cut_off(values: Array, kind: np.dtype[Any], rows: int, bad: BadRows) -> Array:
    """Numbers for an integer input. A number that is not whole, or does not fit, fails its row."""
    limits = np.iinfo(kind)
    if values.dtype.kind in "iu" and values.size and limits.min <= values.min() and values.max() <= limits.max:
        return values
    with np.errstate(invalid="ignore"):
        is_whole = values == np.rint(values)
        is_held = (values >= limits.min) & (values <= limits.max)
    per_row = max(1, values.size // max(1, rows))
    for position in np.flatnonzero(~(is_whole & is_held)).tolist():
        value = values.flat[position]
        reason = "is not a whole number" if not is_whole.flat[position] else f"does not fit into {kind}"
        bad.setdefault(position // per_row, f"is NaN, which no {kind} is" if value != value else reason)
    return np.where(is_whole & is_held, values, 0)


def _from_arrow(column: pa.Array, dtype: str, shape: Shape, bad: BadRows) -> Array:
    column = storage_of(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_list(column.type):
        return _from_lists(column, dtype, shape, bad)
    if column.null_count:
        bad |= dict.fromkeys(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist(), IS_NULL)
    if dtype == STRING:
        filled = column.cast(pa.large_binary())
        filled = pc.fill_null(filled, b"") if column.null_count else filled
        return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=object)
    if is_text(column.type):
        return _numbers_in_text(column, bad)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(0).cast(column.type))
    values: Array = column.to_numpy(zero_copy_only=False)
    return values


def _numbers_in_text(column: pa.Array, bad: BadRows) -> Array:
    """The numbers that text stands for. CSV columns are text if a number among the first rows would lose digits."""
    numbers = np.zeros(len(column))
    for position, text in enumerate(column.to_pylist()):
        try:
            numbers[position] = float(text) if text else 0.0
        except ValueError:
            bad.setdefault(position, f"is {text!r:.40}, not a number")
        else:
            if text in ("", b""):
                bad.setdefault(position, IS_NULL)
    return numbers


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _from_lists(column: pa.Array, dtype: str, shape: Shape, bad: BadRows) -> Array:
    """Nested lists as one flat run of values, a fixed number of them for each row."""
    rows = len(column)
    per_row = math.prod(length for length in shape if length is not None)
    values, found = _flatten(column)
    is_full = not values.null_count and (None in shape or len(values) == rows * per_row)
    if is_full and found is not None and _can_be(found, shape):
        return _from_arrow(values, dtype, (), bad)
    return _repair(column, dtype, shape, bad)


def _flatten(column: pa.Array) -> tuple[pa.Array, tuple[int, ...] | None]:
    """The innermost values, and the shape that every row has; no shape where rows differ, or one of them is null."""
    shape: list[int] = []
    is_whole = True
    while is_list(column.type):
        is_whole = is_whole and column.null_count == 0 and _is_uniform(column)
        rows = len(column)
        column = storage_of(column.flatten())
        shape.append(len(column) // max(1, rows))
    return column, tuple(shape) if is_whole else None


def _can_be(found: Sequence[int], shape: Shape) -> bool:
    """Whether rows with as many values as `shape` may be read as that: axes of length 1 do not count.

    A flat list may have any shape, and any shape may become a flat list.

    >>> _can_be((784,), (28, 28, 1)), _can_be((28, 28), (28, 28, 1)), _can_be((2, 3), (3, 2))
    (True, True, False)
    """
    if min(len(found), len(shape)) <= 1:
        return True
    is_same = len(found) == len(shape) and all(b in (a, None) for a, b in zip(found, shape, strict=True))
    return is_same or [length for length in found if length != 1] == [length for length in shape if length != 1]


def leaves(column: pa.Array) -> tuple[pa.Array, Array]:
    """The innermost values of nested lists, and where rows begin and end among them. A null list has no values."""
    ends = np.arange(len(column) + 1, dtype=np.int64)
    while True:
        column = storage_of(column)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not is_list(column.type):
            return column, ends
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))[ends]
        column = column.flatten()


def common_shape(column: pa.Array) -> tuple[int, ...] | None:
    """The shape that every row of a column of lists has; None where rows differ, or one of them is or holds a null."""
    values, shape = _flatten(storage_of(column))
    return None if values.null_count or not len(column) else shape


def _is_uniform(column: pa.Array) -> bool:
    if pa.types.is_fixed_size_list(column.type) or len(column) < 2:
        return True
    lengths = np.diff(column.offsets.to_numpy(zero_copy_only=False))
    return bool((lengths == lengths[0]).all())


def _repair(column: pa.Array, dtype: str, shape: Shape, bad: BadRows) -> Array:
    """The slow way, row by row: only for blocks in which a row is null or has another length."""
    per_row = math.prod(length for length in shape if length is not None)
    kind: Any = object if dtype == STRING else np.dtype(dtype)
    repaired = np.zeros((len(column), per_row), dtype=kind)
    if dtype == STRING:
        repaired[:] = b""
    for position in range(len(column)):
        row = column.slice(position, 1)
        if row.null_count:
            bad[position] = IS_NULL
            continue
        values, found = _flatten(row)
        if len(values) != per_row:
            bad[position] = f"has {len(values)} values, not {per_row}"
        elif found is None:
            bad[position] = "is ragged: its lists differ in length"
        elif not _can_be(found, shape):
            bad[position] = f"has the shape {list(found)}, not {list(shape)}"
        elif values.null_count:
            bad[position] = "holds a null"
        else:
            repaired[position], wrong = to_array(values, dtype, ())
            if wrong:
                bad[position] = next(iter(wrong.values()))
    return repaired.reshape(-1)


def to_arrow(column: Column) -> pa.Array:
    """A column as a sink stores it: rows of rank 2 and above become a fixed-shape tensor."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype.kind in "OSU":
        return _text_to_arrow(column)
    if not column.dtype.isnative:
        column = column.astype(column.dtype.newbyteorder("="))
    if column.ndim == 1:
        return _numbers_to_arrow(column)
    if column.dtype == np.bool_:
        # Arrow has no tensors of bits.
        column = column.astype(np.uint8)
    flat = _numbers_to_arrow(column.reshape(-1))
    width = math.prod(column.shape[1:])
    storage = pa.FixedSizeListArray.from_arrays(flat, width)
    if column.ndim == 2:
        return storage
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, column.shape[1:]), storage)


def to_lists(pieces: Sequence[Array]) -> pa.Array:
    """Rows whose dimensions may differ from piece to piece, as lists: the type depends on the rank alone.

    >>> to_lists([np.zeros((1, 2)), np.zeros((2, 0))]).to_pylist()
    [[0.0, 0.0], [], []]
    """
    values = to_arrow(np.concatenate([piece.reshape(-1) for piece in pieces]))
    for level in range(pieces[0].ndim - 1, 0, -1):
        lengths = [np.full(math.prod(piece.shape[:level]), piece.shape[level], np.int64) for piece in pieces]
        offsets = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
        values = pa.LargeListArray.from_arrays(to_arrow(offsets), values)
    return values


def _numbers_to_arrow(values: Array) -> pa.Array:
    """Without a copy, and without `pa.array`, which imports pandas where it is installed."""
    if values.dtype.kind not in "iuf":
        return pa.array(values)
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def _text_to_arrow(column: Array) -> pa.Array:
    items = column.reshape(-1).tolist()
    raw = [item.encode() if isinstance(item, str) else item for item in items]
    values = pa.array(raw, type=pa.large_binary())
    try:
        values = values.cast(pa.large_string())
    except pa.ArrowInvalid:
        pass  # not UTF-8: stays binary
    for length in reversed(column.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    return values


def take_positions(column: Column, positions: Array) -> Column:
    """The rows of a column at these positions, in that order."""
    return column[positions] if isinstance(column, np.ndarray) else column.take(pa.array(positions))


def take_rows(column: Column, keep: Array) -> Column:
    """The rows of a column where `keep` is true."""
    return column[keep] if isinstance(column, np.ndarray) else column.filter(pa.array(keep))


def objects(items: Sequence[Any]) -> Array:
    """An array of objects, also where the objects are arrays or lists."""
    return np.fromiter(items, object, len(items))


def join(pieces: list[Column]) -> Column:
    """Pieces of one column, in order, as one."""
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        return np.concatenate(pieces)
    arrays = [to_arrow(piece) for piece in pieces]
    arrays = [array.dictionary_decode() if pa.types.is_dictionary(array.type) else array for array in arrays]
    kinds = list(dict.fromkeys(array.type for array in arrays))
    if len(kinds) > 1:  # a user's function may give integers for one piece and fractions or empty lists for another
        schemas = [pa.schema([("", kind)]) for kind in kinds]
        common = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        arrays = [array.cast(common) for array in arrays]
    return pa.concat_arrays(arrays)


def count_not_finite(columns: Iterable[Column]) -> int:
    """How many rows hold a NaN or an infinity in any of these columns, which have the same rows."""
    masks = [mask for column in columns if (mask := _not_finite(column)) is not None]
    return int(np.count_nonzero(np.logical_or.reduce(masks))) if masks else 0


def _not_finite(column: Column) -> Array | None:
    """Which rows hold a NaN or an infinity; None where none does."""
    ends: Array | None = None
    if not isinstance(column, np.ndarray):
        values, ends = leaves(column)
        if not pa.types.is_floating(values.type):
            return None
        column = values.to_numpy(zero_copy_only=False)
    if column.dtype.kind not in "fc" or not column.size or _is_surely_finite(column):
        return None
    bad = ~np.isfinite(column)
    if ends is None:
        return np.asarray(bad.reshape(len(bad), -1).any(axis=1))
    before = np.concatenate(([0], np.cumsum(bad)))
    return np.asarray(before[ends[1:]] > before[ends[:-1]])


def _is_surely_finite(values: Array) -> bool:
    """One pass without a copy: a sum is finite only where all of its terms are. One that overflows proves nothing."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum()))
