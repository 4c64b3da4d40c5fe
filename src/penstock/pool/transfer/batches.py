"""A batch on its way from a loader process to a replica: decoded in place in a slot, and read there without a copy.

Inputs of numbers lie in the slot itself. What has no fixed size (text, kept columns) follows them; what does not fit
is sent before them, in slots that the receiver empties at once.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.batching import Batch, on_the_heap
from penstock.core.messages import ColumnLayout, Filled
from penstock.core.records import UNWATCHED, Array, Column, Columns, Watch
from penstock.pool.transfer.results import Assembly, Writable, lay_out, restore, spill
from penstock.pool.transfer.slots import Slots

_ALIGNMENT = 64
_INPUT, _KEPT, _SIZES, _ENCODED, _POSITIONS = "input:", "kept:", "sizes:", "encoded:", "positions"


class SlotRoom:
    """Room for the batches of one loader. One batch at a time is open: `seal` sends it."""

    def __init__(self, into: Writable, watch: Watch = UNWATCHED) -> None:
        self._into = into
        self._watch = watch
        self._slot: int | None = None
        self._layout: tuple[ColumnLayout, ...] = ()
        self.waited_s = 0.0
        self.attempt = 0

    def __call__(self, wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> Columns:
        """Arrays inside a slot; on the heap where a slot is too small."""
        numbers = {name: entry for name, entry in wanted.items() if not _is_object(entry[1])}
        layout, total = _place(numbers)
        if not numbers or total > self._into.slots.slot_bytes:
            self._slot, self._layout = None, ()
            return on_the_heap(wanted)
        started = time.perf_counter()
        self._watch.end()  # waiting for a slot is not hanging in a row
        self._slot = self._into.free.take()
        self.waited_s += time.perf_counter() - started
        self._layout = layout
        arrays = _views(layout, self._into.slots.view(self._slot, total), _INPUT)
        return arrays | on_the_heap({name: entry for name, entry in wanted.items() if name not in numbers})

    def take_waited(self) -> float:
        """How long it has waited for slots since the last call, in seconds."""
        waited, self.waited_s = self.waited_s, 0.0
        return waited

    def let_go(self) -> int | None:
        """The slot of the batch that was filled, which the caller gives back; None for one on the heap."""
        slot, self._slot, self._layout = self._slot, None, ()
        return slot

    def seal(self, span: int, batch: Batch) -> Filled:
        """The message for a filled batch. Columns that are not in its slot yet are put there, or sent before it."""
        placed = {entry.name for entry in self._layout}
        texts = {name: array for name, array in batch.arrays.items() if array.dtype == object}
        rest: dict[str, Column] = {
            _INPUT + name: pa.array(array.ravel().tolist(), pa.large_binary()) if name in texts else array
            for name, array in batch.arrays.items()
            if _INPUT + name not in placed
        }
        rest |= {_KEPT + name: column for name, column in batch.kept.items()}
        offset = 0
        if isinstance(batch.positions, range):
            offset = batch.positions.start
        else:
            rest[_POSITIONS] = batch.positions
        rest |= {_SIZES + name: sizes for name, sizes in batch.sizes.items()}
        rest |= {_ENCODED + name: sizes for name, sizes in batch.encoded.items()}
        spilled = self._add(span, batch, rest)
        filled = Filled(
            span,
            batch.index,
            batch.rows,
            offset,
            self._slot,
            self._layout,
            spilled,
            batch.failures,
            self.attempt,
            text_shapes={name: array.shape for name, array in texts.items()},
            values=batch.values,
            padded=batch.padded,
        )
        self._slot, self._layout = None, ()
        return filled

    def _add(self, span: int, batch: Batch, rest: Mapping[str, Column]) -> tuple[ColumnLayout, ...]:
        """Put columns behind the arrays in the slot, or send them in other slots; returns where they lie."""
        if not rest:
            return ()
        layout, buffers, total = lay_out(rest)
        used = _aligned(max((entry.offset + entry.nbytes for entry in self._layout), default=0))
        if self._slot is None or used + total > self._into.slots.slot_bytes:
            spill((span, batch.index, self.attempt), layout, buffers, total, self._into)
            return layout
        view = self._into.slots.view(self._slot, used + total)
        for entry, buffer in zip(layout, buffers, strict=True):
            start = used + entry.offset
            view[start : start + entry.nbytes] = buffer
        self._layout = (*self._layout, *(replace(entry, offset=used + entry.offset) for entry in layout))
        return ()


def open_batch(filled: Filled, slots: Slots, assembly: Assembly) -> Batch:
    """The batch behind a message. Its inputs of numbers are views of the slot; all else is copied out of it."""
    columns: dict[str, Column] = {}
    if filled.slot is not None:
        size = max(entry.offset + entry.nbytes for entry in filled.layout)
        view = slots.view(filled.slot, size)
        for entry in filled.layout:
            if entry.dtype is not None and entry.name.startswith(_INPUT):
                columns[entry.name] = restore(entry, view)
            else:
                piece = memoryview(bytes(view[entry.offset : entry.offset + entry.nbytes]))
                columns[entry.name] = restore(
                    ColumnLayout(entry.name, 0, entry.nbytes, entry.dtype, entry.shape), piece
                )
    columns |= assembly.columns((filled.span, filled.index, filled.attempt), filled.spilled)
    positions = columns.pop(_POSITIONS, None)
    inputs = {name.removeprefix(_INPUT): _array(column) for name, column in columns.items() if name.startswith(_INPUT)}
    inputs |= {name: inputs[name].reshape(shape) for name, shape in filled.text_shapes.items()}
    return Batch(
        filled.index,
        range(filled.offset, filled.offset + filled.rows) if positions is None else _array(positions),
        filled.rows,
        inputs,
        {name.removeprefix(_KEPT): column for name, column in columns.items() if name.startswith(_KEPT)},
        filled.failures,
        {name.removeprefix(_SIZES): _array(column) for name, column in columns.items() if name.startswith(_SIZES)},
        filled.values,
        filled.padded,
        encoded={
            name.removeprefix(_ENCODED): _array(column) for name, column in columns.items() if name.startswith(_ENCODED)
        },
    )


def bytes_needed(shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> int:
    """The bytes of a slot that holds arrays of these shapes and dtypes."""
    return _place({name: entry for name, entry in shapes.items() if not _is_object(entry[1])})[1]


def _place(wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> tuple[tuple[ColumnLayout, ...], int]:
    layout: list[ColumnLayout] = []
    position = 0
    for name, (shape, dtype) in wanted.items():
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        layout.append(ColumnLayout(_INPUT + name, position, nbytes, kind.str, tuple(shape)))
        position = _aligned(position + nbytes)
    return tuple(layout), position


def _views(layout: tuple[ColumnLayout, ...], view: memoryview, prefix: str) -> Columns:
    return {
        entry.name.removeprefix(prefix): np.frombuffer(
            view, np.dtype(entry.dtype), int(np.prod(entry.shape, dtype=np.int64)), entry.offset
        ).reshape(entry.shape)
        for entry in layout
    }


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _is_object(dtype: Any) -> bool:
    return np.dtype(dtype).kind in "OSU"


def _array(column: Column) -> Array:
    """A column as an array; text as an array of bytes objects."""
    if isinstance(column, np.ndarray):
        return column
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)
