"""A result on its way from a replica to the coordinator: laid out as bytes, carried in slots, put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from penstock.core.columns import to_arrow, whole
from penstock.core.events import Chunk, ColumnLayout, SpanDone
from penstock.core.records import Column, Result, Span, Timings
from penstock.pool.slots import FreeSlots, Slots

_ALIGNMENT = 64


def send(
    result: Result, timings: Timings, slots: Slots, free: FreeSlots, say: Callable[[Chunk | SpanDone], None]
) -> None:
    """Copy a result into slots, one after the other, and say where it is."""
    layout, buffers, total = _lay_out(result.columns)
    writer = _SlotWriter(result.span.index, total, slots, free, say)
    for column, buffer in zip(layout, buffers, strict=True):
        writer.write(column.offset, buffer)
    writer.flush()
    say(SpanDone(result.span.index, layout, result.failures, timings))


def _lay_out(columns: Mapping[str, Column]) -> tuple[tuple[ColumnLayout, ...], list[memoryview], int]:
    layout: list[ColumnLayout] = []
    buffers: list[memoryview] = []
    position = 0
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.dtype.kind not in "OSU":
            contiguous = np.ascontiguousarray(column)
            buffer = memoryview(contiguous.reshape(-1).view(np.uint8).data)
            entry = ColumnLayout(name, position, buffer.nbytes, contiguous.dtype.str, contiguous.shape)
        else:
            buffer = _to_ipc(to_arrow(column))
            entry = ColumnLayout(name, position, buffer.nbytes, None, (len(column),))
        layout.append(entry)
        buffers.append(buffer)
        position += -(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT
    return tuple(layout), buffers, position


def _to_ipc(array: pa.Array) -> memoryview:
    stream = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=["column"])
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(stream.getvalue()).cast("B")


class _SlotWriter:
    """Fills one slot after the other with the bytes of a result."""

    def __init__(
        self, span: int, total: int, slots: Slots, free: FreeSlots, say: Callable[[Chunk | SpanDone], None]
    ) -> None:
        self._span = span
        self._total = total
        self._slots = slots
        self._free = free
        self._say = say
        self._slot: int | None = None
        self._start = 0
        self._filled = 0

    def write(self, offset: int, buffer: memoryview) -> None:
        """Bytes that belong at `offset` of the result. Offsets only grow; gaps are padding."""
        while buffer.nbytes:
            if self._slot is not None and offset - self._start >= self._slots.slot_bytes:
                self.flush()
            if self._slot is None:
                self._slot, self._start = self._free.take(), offset
            place = offset - self._start
            taken = min(buffer.nbytes, self._slots.slot_bytes - place)
            self._slots.view(self._slot, place + taken)[place:] = buffer[:taken]
            self._filled = place + taken
            buffer, offset = buffer[taken:], offset + taken

    def flush(self) -> None:
        if self._slot is not None:
            self._say(Chunk(self._span, self._slot, self._start, self._filled, self._total))
            self._slot = None


class Assembly:
    """The coordinator's side: chunks of the spans that one replica works on, until each is whole.

    A span is delivered whole or not at all: what a replica leaves behind when it dies is dropped with this object.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._buffers: dict[int, memoryview] = {}

    def add(self, chunk: Chunk) -> None:
        """Copy a chunk out of its slot, which is free again when this returns."""
        buffer = self._buffers.get(chunk.span)
        if buffer is None:
            buffer = self._buffers[chunk.span] = memoryview(np.empty(chunk.total, np.uint8).data)
        buffer[chunk.offset : chunk.offset + chunk.nbytes] = self._slots.view(chunk.slot, chunk.nbytes)

    def finish(self, span: Span, done: SpanDone) -> Result:
        raw = self._buffers.pop(span.index, memoryview(b""))
        columns = {entry.name: _restore(entry, raw) for entry in done.layout}
        return Result(span, columns, done.failures)


def _restore(entry: ColumnLayout, raw: memoryview) -> Column:
    piece = raw[entry.offset : entry.offset + entry.nbytes]
    if entry.dtype is not None:
        return np.frombuffer(piece, entry.dtype).reshape(entry.shape)
    return whole(pa.ipc.open_stream(pa.py_buffer(piece)).read_all().column(0))
