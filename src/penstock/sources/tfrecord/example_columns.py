"""Columns from the places of features: numpy where rows are numbers of one shape and none is missing, else Arrow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.core.columns import storage_of, take_rows, to_arrow
from penstock.core.records import STRING, Array, Column, Shape
from penstock.sources.tfrecord.example_features import FeatureSpec
from penstock.sources.tfrecord.example_walk import MANY, FoundFeatures, Lists, Window, values_of_lists, varints
from penstock.sources.tfrecord.examples import BYTES, FLOAT, INT64, KIND_NAMES

Reasons = dict[int, str]
_U = np.uint64
_NOTHING = np.zeros(0, np.int64)


@dataclass
class _Cells:
    """Features of several records: the number of values of each, which are valid, and the values of these in a row."""

    counts: Array
    ok: Array
    values: Column
    reasons: Reasons = field(default_factory=dict)


def columns_of(window: Window, found: FoundFeatures, specs: Sequence[FeatureSpec]) -> tuple[dict[str, Column], Reasons]:
    """The columns of Examples, and the rows with a feature that does not fit its column, with the first reason."""
    columns: dict[str, Column] = {}
    reasons: Reasons = {}
    columns.update(_whole_numbers(window, found, specs))
    for number, spec in enumerate(specs):
        if spec.name in columns:
            continue
        places = (found.inner[number], found.starts[number], found.ends[number])
        columns[spec.name] = _column(window, spec, found.kinds[number], places, reasons)
    return {spec.name: columns[spec.name] for spec in specs}, reasons


def _whole_numbers(window: Window, found: FoundFeatures, specs: Sequence[FeatureSpec]) -> dict[str, Column]:
    """All columns of single int64 values at once, if every record has one value for each: tables have many of them."""
    numbers = [n for n, spec in enumerate(specs) if (spec.kind, spec.dtype, spec.shape) == (INT64, "int64", ())]
    if not numbers or not (found.kinds[numbers] == INT64).all():
        return {}
    values, are_single = _single_integers(window, found.starts[numbers].ravel(), found.ends[numbers].ravel())
    if not are_single.all():
        return {}
    return dict(zip([specs[n].name for n in numbers], values.reshape(len(numbers), -1), strict=True))


def _single_integers(window: Window, starts: Array, ends: Array) -> tuple[Array, Array]:
    """The varints at these offsets, and which of them are the only value of their feature."""
    sizes = ends - starts
    if len(sizes) and (sizes == 1).all():
        first = window.bytes[starts]
        return first.astype(np.int64), first < 0x80
    values, used = varints(window.words[starts])
    are_single = used == sizes
    if len(sizes) and int(sizes.max()) > 8:
        long = np.flatnonzero((sizes > 8) & (used == 9))
        high, more = varints(window.words[starts[long] + 8])
        values[long] |= high << _U(56)
        are_single[long] = (more == sizes[long] - 8) & (more <= 2)
    return values.view(np.int64), are_single


def _column(
    window: Window, spec: FeatureSpec, kinds: Array, places: tuple[Array, Array, Array], reasons: Reasons
) -> Column:
    inner, starts, ends = places
    if spec.dtype == STRING and spec.shape == () and (kinds == BYTES).all():
        return take_ranges(window.raw, starts, ends)
    if spec.dtype == "float32" and spec.kind == FLOAT and not spec.varies and (kinds == FLOAT).all():
        nbytes = 4 * spec.per_feature
        if (ends - starts == nbytes).all():
            return fixed_ranges(window.raw, starts, nbytes).view("<f4").reshape(len(starts), *spec.shape)  # type: ignore[arg-type]
    is_there = kinds != 0
    cells = _cells(window, spec, kinds[is_there], inner[is_there], starts[is_there], ends[is_there])
    rows = np.flatnonzero(is_there)
    for position, reason in cells.reasons.items():
        reasons.setdefault(int(rows[position]), reason)
    ok = np.zeros(len(kinds), np.bool_)
    ok[rows[cells.ok]] = True
    return _assembled(spec.inner, cells.counts[cells.ok], cells.values, ok, spec.per_feature)


def _cells(window: Window, spec: FeatureSpec, kinds: Array, inner: Array, starts: Array, ends: Array) -> _Cells:
    """Features that are there, read as `spec` says."""
    is_kind = (kinds == spec.kind) | ((kinds == MANY) & (spec.kind == BYTES))
    reasons: Reasons = {}
    for position in np.flatnonzero(~is_kind).tolist():
        kind = KIND_NAMES[int(kinds[position])] if kinds[position] != MANY else KIND_NAMES[BYTES]
        reasons[position] = f"feature {spec.name!r} is a {kind}, not a {KIND_NAMES[spec.kind]}"
    positions = np.flatnonzero(is_kind)
    read = _strings if spec.dtype == STRING else _raw if spec.is_raw else _floats if spec.kind == FLOAT else _integers
    some = read(window, spec, kinds[positions], inner[positions], starts[positions], ends[positions])
    for position, reason in some.reasons.items():
        reasons[int(positions[position])] = reason
    _check_counts(spec, some)
    for position, reason in some.reasons.items():
        reasons.setdefault(int(positions[position]), reason)
    ok, counts = np.zeros(len(kinds), np.bool_), np.zeros(len(kinds), np.int64)
    ok[positions], counts[positions] = some.ok, some.counts
    return _Cells(counts, ok, some.values, reasons)


def _check_counts(spec: FeatureSpec, cells: _Cells) -> None:
    """Fail records with too few or too many values, and remove their values."""
    size = spec.per_feature
    fits = cells.counts % size == 0 if spec.varies else cells.counts == size
    wrong = np.flatnonzero(cells.ok & ~fits)
    if not len(wrong):
        return
    keep = np.repeat(fits, np.where(cells.ok, cells.counts, 0))
    cells.values = take_rows(cells.values, keep)
    cells.ok = cells.ok & fits
    for position in wrong.tolist():
        wanted = f"a multiple of {size}" if spec.varies else str(size)
        reason = f"feature {spec.name!r} has {int(cells.counts[position])} values, not {wanted}"
        cells.reasons[position] = f"{reason} (--feature {spec.name}={spec.dtype}[?] if that varies)"


def _strings(window: Window, spec: FeatureSpec, kinds: Array, inner: Array, starts: Array, ends: Array) -> _Cells:
    ok = np.ones(len(kinds), np.bool_)
    if (kinds == BYTES).all():
        return _Cells(np.ones(len(kinds), np.int64), ok, take_ranges(window.raw, starts, ends))
    lists, value_starts, value_ends = values_of_lists(window, inner, ends)
    counts = np.bincount(lists, minlength=len(kinds))
    return _Cells(counts, ok, take_ranges(window.raw, value_starts, value_ends))


def _floats(window: Window, spec: FeatureSpec, kinds: Array, inner: Array, starts: Array, ends: Array) -> _Cells:
    counts, rest = np.divmod(ends - starts, 4)
    ok = rest == 0
    reasons = {
        position: f"feature {spec.name!r} is broken: a float_list of {int(ends[position] - starts[position])} bytes"
        for position in np.flatnonzero(~ok).tolist()
    }
    values = joined_ranges(window.raw, starts[ok], ends[ok]).view("<f4")
    with np.errstate(over="ignore"):
        return _Cells(counts, ok, values.astype(spec.dtype, copy=False), reasons)


def _raw(window: Window, spec: FeatureSpec, kinds: Array, inner: Array, starts: Array, ends: Array) -> _Cells:
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    counts, rest = np.divmod(ends - starts, dtype.itemsize)
    ok = (rest == 0) & (kinds == BYTES)
    reasons: Reasons = {}
    for position in np.flatnonzero(~ok).tolist():
        held = f"{int(ends[position] - starts[position])} bytes" if kinds[position] == BYTES else "not one value"
        reasons[position] = f"feature {spec.name!r} cannot be read as raw {spec.dtype}: it holds {held}"
    if not spec.varies and ok.all() and len(counts) and (counts == spec.per_feature).all():
        values = fixed_ranges(window.raw, starts, spec.per_feature * dtype.itemsize).reshape(-1)
    else:
        values = joined_ranges(window.raw, starts[ok], ends[ok])
    return _Cells(counts, ok, values != 0 if spec.dtype == "bool" else values.view(dtype), reasons)


def _integers(window: Window, spec: FeatureSpec, kinds: Array, inner: Array, starts: Array, ends: Array) -> _Cells:
    values, counts, ok = _packed_integers(window, starts, ends)
    reason = f"feature {spec.name!r} is broken: an int64_list that is no run of numbers"
    reasons = dict.fromkeys(np.flatnonzero(~ok).tolist(), reason)
    cells = _Cells(counts, ok, values, reasons)
    if spec.dtype != "int64":
        _narrow(cells, spec, values)
    return cells


def _narrow(cells: _Cells, spec: FeatureSpec, values: Array) -> None:
    """Whole numbers as the dtype that was asked for; one that has no room there fails its row."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(spec.dtype)
    cells.values = cast
    if cast.dtype.kind == "f":
        lost = np.flatnonzero(~np.isfinite(cast))
    else:
        lost = np.flatnonzero((cast.astype(np.int64) != values) | ((values < 0) & (cast.dtype.kind == "u")))
    if not len(lost):
        return
    owner = np.repeat(np.arange(len(cells.counts)), np.where(cells.ok, cells.counts, 0))
    failed = owner[lost]
    for position, value in zip(failed.tolist(), values[lost].tolist(), strict=True):
        cells.reasons.setdefault(position, f"feature {spec.name!r} holds {value}, which is no {spec.dtype}")
    ok = cells.ok.copy()
    ok[failed] = False
    cells.values = cast[ok[owner]]
    cells.ok = ok


def _packed_integers(window: Window, starts: Array, ends: Array) -> tuple[Array, Array, Array]:
    """Runs of varints: all values of the runs that are whole, how many each has, and which are whole."""
    ok = (starts == ends) | (window.bytes[np.maximum(ends, 1) - 1] < 0x80)
    data = joined_ranges(window.raw, starts[ok], ends[ok])
    edges = np.concatenate(([0], np.cumsum((ends - starts)[ok])))
    is_stop = data < 0x80
    upto = np.concatenate(([0], np.cumsum(is_stop)))
    counts = np.zeros(len(ok), np.int64)
    counts[ok] = np.diff(upto[edges])
    stops = np.flatnonzero(is_stop)
    firsts = np.concatenate((np.zeros(min(1, len(stops)), np.int64), stops[:-1] + 1))
    values, are_right = _single_integers(Window(data.tobytes() + bytes(16)), firsts, stops + 1)
    if not are_right.all():
        owner = np.repeat(np.arange(len(ok)), counts)
        ok[owner[~are_right]] = False
        values = values[ok[owner]]
    return values, counts, ok


def _assembled(inner: Shape, counts: Array, values: Column, ok: Array, per_feature: int) -> Column:
    """Values as a column of rows, of which those that are not `ok` are null."""
    if None not in inner:
        return _fixed(inner, values, ok, per_feature)
    lengths = np.zeros(len(ok), np.int64)
    lengths[ok] = counts // per_feature
    items = _fixed(inner[1:], values, np.ones(int(lengths.sum()), np.bool_), per_feature)
    return list_of(lengths, storage_of(to_arrow(items)), ok)


def _fixed(shape: Shape, values: Column, ok: Array, per_row: int) -> Column:
    """Rows of one shape; numpy where none is missing."""
    sizes = tuple(length for length in shape if length is not None)
    if isinstance(values, np.ndarray):
        if ok.all():
            return values.reshape(len(ok), *sizes)
        filled = np.zeros((len(ok), *sizes), values.dtype)
        filled[ok] = values.reshape(-1, *sizes)
        return _with_nulls(to_arrow(filled), ok)
    if ok.all() and not sizes:
        return values
    indices = np.zeros((len(ok), per_row), np.int64)
    indices[ok] = np.arange(int(ok.sum()) * per_row).reshape(-1, per_row)
    filler = values if len(values) else pa.array([b""], values.type)
    column = filler.take(_int64(indices.ravel()))
    for length in reversed(sizes):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return _with_nulls(column, ok)


def _with_nulls(column: pa.Array, ok: Array) -> pa.Array:
    """The same rows, those that are not `ok` null."""
    if ok.all():
        return column
    if isinstance(column, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(column.type, _with_nulls(column.storage, ok))
    bits = pa.py_buffer(np.packbits(ok, bitorder="little"))
    if pa.types.is_fixed_size_list(column.type):
        return pa.Array.from_buffers(column.type, len(column), [bits], children=[column.values])
    return pa.Array.from_buffers(column.type, len(column), [bits, *column.buffers()[1:]])


def list_of(lengths: Array, items: pa.Array, ok: Array) -> pa.Array:
    """Rows of `lengths` items each."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    bits = None if ok.all() else pa.py_buffer(np.packbits(ok, bitorder="little"))
    kind = pa.list_(items.type)
    return pa.Array.from_buffers(kind, len(ok), [bits, pa.py_buffer(offsets)], children=[items])


def sequence_columns(
    window: Window, lists: Lists, records: int, specs: Sequence[FeatureSpec], note: Callable[[int, str], str]
) -> dict[str, Column]:
    """The columns of feature lists."""
    columns: dict[str, Column] = {}
    for number, spec in enumerate(specs):
        mine = np.flatnonzero(lists.known == number)
        record = lists.record[mine]
        arguments = (lists.kinds[mine], lists.inner[mine], lists.starts[mine], lists.ends[mine])
        cells = _cells(window, spec, *arguments)
        for position, reason in cells.reasons.items():
            note(int(record[position]), reason)
        for position in np.flatnonzero(arguments[0] == 0).tolist():
            note(int(record[position]), f"feature list {spec.name!r} holds a feature without a value")
        ok = lists.present[number].copy()
        ok[record[~cells.ok]] = False
        stays = ok[record]
        counts = cells.counts[stays]
        values = take_rows(cells.values, np.repeat(stays[cells.ok], cells.counts[cells.ok]))
        items = _assembled(spec.inner, counts, values, np.ones(len(counts), np.bool_), spec.per_feature)
        lengths = np.bincount(record[stays], minlength=records)
        columns[spec.name] = list_of(lengths, storage_of(to_arrow(items)), ok)
    return columns


def fixed_ranges(raw: bytes, starts: Array, nbytes: int) -> Array:
    """The `nbytes` bytes at each place; one row each."""
    items = np.ndarray((max(0, len(raw) - nbytes + 1),), f"V{nbytes}", raw, 0, (1,))
    return items[starts].view(np.uint8).reshape(len(starts), nbytes)


def joined_ranges(raw: bytes, starts: Array, ends: Array) -> Array:
    """The bytes of all ranges, one after the other, as an array of its own."""
    taken = take_ranges(raw, starts, ends)
    total = int((ends - starts).sum())
    return np.frombuffer(taken.buffers()[2], np.uint8)[:total] if total else np.zeros(0, np.uint8)


def take_ranges(raw: bytes, starts: Array, ends: Array) -> pa.Array:
    """A value for each range. Values and what lies between them are one Arrow array without a copy; every
    second item of it is taken, which costs one copy and no index for each byte."""
    count = len(starts)
    if not count:
        return pa.array([], pa.large_binary())
    indices = np.arange(0, 2 * count, 2)
    if not (starts[1:] >= ends[:-1]).all():
        order = np.lexsort((ends, starts))
        indices = np.empty(count, np.int64)
        indices[order] = np.arange(0, 2 * count, 2)
        starts, ends = starts[order], ends[order]
    offsets = np.empty(2 * count + 1, np.int64)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = starts, ends, ends[-1]
    everything = pa.Array.from_buffers(pa.large_binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
    return everything.take(_int64(indices))


def _int64(values: Array) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
