"""Columns as serialized `tf.train.Example` records, one for each row, without TensorFlow and without a loop over rows.

A record consists of nested messages, and the length of each stands before it. Here every length takes the same number
of bytes in every row, and so does every integer of a column: the wire format allows a number to take more bytes than it
needs. The bytes between the values therefore form a matrix with a row for each record, and Arrow joins these matrices
with the values, which are buffers of bytes already.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import leaves, take_rows, to_array
from penstock.core.deferred import IS_NULL, BadRows
from penstock.core.records import STRING, Array, Column, Feature

_KINDS = {STRING: b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
"""The tag of a feature's list: bytes_list, float_list, int64_list."""
_LENGTH_BYTES = 5
"""The number of bytes of a length that differs from row to row: enough for any length."""
_VALUES, _KEY, _FEATURE = b"\x0a", b"\x0a", b"\x12"


@dataclass(frozen=True)
class _Values:
    """The values of one feature as they are on the wire: row i is `raw[offsets[i]:offsets[i + 1]]`.

    A row that is not `present` has no such feature.
    """

    raw: Array
    offsets: Array
    present: Array

    @property
    def lengths(self) -> Array:
        return np.diff(self.offsets)


def encode(columns: Sequence[Column], features: Sequence[Feature]) -> tuple[Array, dict[int, BadRows]]:
    """One serialized `tf.train.Example` for each row.

    A null becomes a missing feature, where the model has a default for it. A row whose values do not fit gets zeros in
    their place and is named.

    Args:
        columns: A column for each feature.
        features: What the model parses.

    Returns:
        An object array of bytes, and the rows that do not fit for each column that has any, by its position.
    """
    rows = len(columns[0])
    if not rows:
        return np.empty(0, object), {}
    bad: dict[int, BadRows] = {}
    regular = _Regular(rows)
    pieces: list[pa.Array] = []
    for position, (column, feature) in enumerate(zip(columns, features, strict=True)):
        values, wrong = _values(column, feature)
        if wrong:
            bad[position] = wrong
        if feature.dtype != STRING and _is_fixed(feature) and values.present.all():
            regular.add(feature, values.raw.reshape(rows, len(values.raw) // rows))
        else:
            pieces += _entry(feature, values)
    if not pieces:
        return _to_objects(_every(regular.matrix(is_whole=True))), bad
    lengths = sum((_lengths(piece) for piece in pieces), np.full(rows, regular.width, np.int64))
    head = _every(_matrix([_VALUES, lengths], rows))
    joined = pc.binary_join_element_wise(head, _every(regular.matrix()), *pieces, _nothing())
    return _to_objects(joined), bad


def _to_objects(records: pa.Array) -> Array:
    return np.asarray(records.to_numpy(zero_copy_only=False), dtype=object)


class _Regular:
    """The features that have the same number of bytes in every row: one matrix for all of them."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._parts: list[tuple[bytes, Array]] = []

    @property
    def width(self) -> int:
        return sum(len(before) + values.shape[1] for before, values in self._parts)

    def add(self, feature: Feature, values: Array) -> None:
        size = values.shape[1]
        run = _VALUES + _varint(size)
        kept = _KINDS[feature.dtype] + _varint(len(run) + size) + run
        start = _start(feature) + _varint(len(kept) + size) + kept
        self._parts.append((_VALUES + _varint(len(start) + size) + start, values))

    def matrix(self, *, is_whole: bool = False) -> Array:
        """The bytes of every row; with `is_whole`, if there are no other features, also the bytes before them all."""
        head = _VALUES + _varint(self.width) if is_whole else b""
        template = head + b"".join(before + bytes(values.shape[1]) for before, values in self._parts)
        out = np.empty((self._rows, len(template)), np.uint8)
        out[:] = np.frombuffer(template, np.uint8)
        place = len(head)
        for before, values in self._parts:
            place += len(before)
            out[:, place : place + values.shape[1]] = values
            place += values.shape[1]
        return out


def _start(feature: Feature) -> bytes:
    key = feature.name.encode()
    return _KEY + _varint(len(key)) + key + _FEATURE


def _lengths(binary: pa.Array) -> Array:
    lengths: Array = pc.binary_length(binary).to_numpy(zero_copy_only=False)
    return lengths


def _entry(feature: Feature, values: _Values) -> list[pa.Array]:
    """A feature of every row: the bytes before its values, and the values."""
    start = _start(feature)
    lengths = values.lengths
    # Numbers share one length in front of them; each text has its own already.
    run: list[bytes | Array] = [] if feature.dtype == STRING else [_VALUES, lengths]
    list_bytes = lengths if feature.dtype == STRING else lengths + 1 + _LENGTH_BYTES
    feature_bytes = list_bytes + 1 + _LENGTH_BYTES
    entry_bytes = feature_bytes + _LENGTH_BYTES + len(start)
    tag = _KINDS[feature.dtype]
    before = _matrix([_VALUES, entry_bytes, start, feature_bytes, tag, list_bytes, *run], len(lengths))
    return [_some(before, values.present), _binary(values.raw, values.offsets)]


def _nothing() -> pa.Scalar:
    """The empty separator of joined pieces. (`pa.scalar` imports pandas.)"""
    return _binary(np.zeros(0, np.uint8), np.zeros(2, np.int64))[0]


def _binary(raw: Array, offsets: Array) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(raw)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _matrix(parts: Sequence[bytes | Array], rows: int) -> Array:
    """Bytes that are the same in every row, and lengths that are not, beside each other."""
    written = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (rows, len(part)))
        if isinstance(part, bytes)
        else _varints(part, _LENGTH_BYTES)
        for part in parts
    ]
    return np.concatenate(written, axis=1)


def _varints(numbers: Array, size: int) -> Array:
    """Numbers as varints of `size` bytes each, even where fewer bytes would do."""
    unsigned = numbers.astype(np.int64, copy=False).view(np.uint64)
    out = np.empty((len(numbers), size), np.uint8)
    for place in range(size):
        out[:, place] = (unsigned >> np.uint64(7 * place)).astype(np.uint8) & 0x7F
    out[:, : size - 1] |= 0x80
    return out


def _varint(number: int) -> bytes:
    size = max(1, -(-number.bit_length() // 7))
    return _varints(np.array([number]), size).tobytes()


def _every(matrix: Array) -> pa.Array:
    return _some(matrix, np.ones(len(matrix), bool))


def _some(matrix: Array, present: Array) -> pa.Array:
    """The rows of a matrix of bytes; rows that are not present are empty."""
    kept = matrix if present.all() else matrix[present]
    offsets = np.concatenate(([0], np.cumsum(present, dtype=np.int64) * matrix.shape[1]))
    return _binary(np.ascontiguousarray(kept).reshape(-1), offsets)


def _values(column: Column, feature: Feature) -> tuple[_Values, BadRows]:
    present = _present(column)
    flat, counts, bad = _fixed(column, feature) if _is_fixed(feature) else _flattened(column, feature)
    absent = np.flatnonzero(~present).tolist()
    if feature.is_required:
        for position in absent:
            bad.setdefault(position, IS_NULL)
        present = np.ones(len(column), bool)
    elif absent:
        for position in absent:
            bad.pop(position, None)
        flat = take_rows(flat, np.repeat(present, counts))
        counts = np.where(present, counts, 0)
    raw, offsets = _on_the_wire(flat, feature.dtype, np.concatenate(([0], np.cumsum(counts))))
    return _Values(raw, offsets, present), bad


def _is_fixed(feature: Feature) -> bool:
    return feature.shape is not None and None not in feature.shape


def _fixed(column: Column, feature: Feature) -> tuple[Column, Array, BadRows]:
    """As `_flattened`, for a feature of which every row has the same number of values."""
    per_row = math.prod(length for length in feature.shape or () if length is not None)
    if feature.dtype == STRING and not isinstance(column, np.ndarray):
        flat, counts, bad = _flattened(column, feature)
        if (counts == per_row).all():
            return flat, counts, bad
    with np.errstate(over="ignore"):
        array, bad = to_array(column, feature.dtype, (per_row,))
    return array.reshape(-1), np.full(len(column), per_row, np.int64), bad


def _present(column: Column) -> Array:
    if isinstance(column, np.ndarray):
        if column.dtype != object or column.ndim > 1:
            return np.ones(len(column), bool)
        return np.array([item is not None for item in column.tolist()], bool)
    valid: Array = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _flattened(column: Column, feature: Feature) -> tuple[Column, Array, BadRows]:
    """All values, their number in each row, and the rows with values that do not fit. Texts stay in Arrow."""
    if isinstance(column, np.ndarray):
        with np.errstate(over="ignore"):
            array, bad = to_array(column, feature.dtype, tuple(column.shape[1:]))
        counts = np.full(len(column), array.size // max(1, len(column)), np.int64)
        return array.reshape(-1), counts, bad
    values, ends = leaves(column)
    flat, wrong = _text(values) if feature.dtype == STRING else _numbers(values, feature.dtype)
    counts = np.diff(ends)
    bad = BadRows()
    for position, reason in wrong.items():
        row = int(np.searchsorted(ends, position, side="right")) - 1
        bad.setdefault(row, f"has a value that {reason}" if len(values) != len(column) else reason)
    unit = max(1, math.prod(length for length in (feature.shape or ())[1:] if length is not None))
    for position in np.flatnonzero(counts % unit).tolist():
        bad.setdefault(position, f"has {counts[position]} values, which is no multiple of {unit}")
    return flat, counts, bad


def _numbers(values: pa.Array, kind: str) -> tuple[Array, BadRows]:
    with np.errstate(over="ignore"):
        return to_array(values, kind, ())


def _text(values: pa.Array) -> tuple[pa.Array, BadRows]:
    bad = BadRows()
    if values.null_count:
        for position in np.flatnonzero(~_present(values)).tolist():
            bad[position] = IS_NULL
        values = pc.fill_null(values.cast(pa.large_binary()), b"")
    return values.cast(pa.large_binary()), bad


def _on_the_wire(flat: Column, kind: str, ends: Array) -> tuple[Array, Array]:
    """Values as bytes, and where the bytes of each row end."""
    if kind == "float32":
        return np.ascontiguousarray(flat, "<f4").view(np.uint8), ends * 4
    if kind == "int64":
        size = _widest(flat)
        return _varints(flat, size).reshape(-1), ends * size
    texts = pa.array(flat.tolist(), pa.large_binary()) if isinstance(flat, np.ndarray) else flat
    lengths = _lengths(texts)
    before = _matrix([_VALUES, lengths], len(flat))
    joined = pc.binary_join_element_wise(_every(before), texts, _nothing())
    starts = np.concatenate(([0], np.cumsum(lengths + before.shape[1], dtype=np.int64)))
    buffer = joined.buffers()[2]
    raw = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(0, np.uint8)
    return raw, starts[ends]


def _widest(numbers: Array) -> int:
    """How many bytes the longest of these numbers takes; a negative one takes ten."""
    if not len(numbers):
        return 1
    if numbers.min() < 0:
        return 10
    return max(1, -(-int(numbers.max()).bit_length() // 7))
