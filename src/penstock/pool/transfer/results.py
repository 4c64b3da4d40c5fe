"""A result on its way from a replica to the coordinator: laid out as bytes, carried in slots, put together again."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import to_arrow, whole
from penstock.core.messages import Chunk, ColumnLayout, SpanDone
from penstock.core.records import Column, Result, Span, Timings
from penstock.core.tracing import HAND_OVER, SHORT_S, SLOTS_IN_USE, WAIT_FOR_SLOT, Level, Mark
from penstock.pool.transfer.slots import FreeSlots, Slots

_ALIGNMENT = 64


def send(
    result: Result, timings: Timings, slots: Slots, free: FreeSlots, say: Callable[[Chunk | SpanDone], None]
) -> None:
    """Copy a result into slots, one after the other; then send its layout and its timings."""
    started = time.perf_counter()
    layout, buffers, total = lay_out(result.columns)
    waits = spill((result.span.index,), layout, buffers, total, Writable(slots, free, say))
    ended = time.perf_counter()
    waited = sum(wait.end - wait.start for wait in waits)
    timings.wait_for_slot += waited
    timings.hand_over += ended - started - waited
    if timings.marks:  # a span that is traced has some by now
        thread, span = threading.current_thread().name, result.span.index
        timings.marks += [wait for wait in waits if wait.end - wait.start > SHORT_S]
        timings.marks.append(Mark(HAND_OVER, thread, started, ended, span, rows=result.span.rows))
        timings.marks.append(Level(SLOTS_IN_USE, ended, slots.count - free.count))
    say(SpanDone(result.span.index, layout, result.failures, timings, result.reduced_to))


@dataclass(frozen=True)
class Writable:
    """Slots, those of them that are free, and the function that sends messages about them."""

    slots: Slots
    free: FreeSlots
    say: Callable[[Any], None]


def spill(
    key: tuple[int, ...], layout: Sequence[ColumnLayout], buffers: Sequence[memoryview], total: int, into: Writable
) -> list[Mark]:
    """Send columns in as many slots as they need, one after the other. Returns when it waited for a free slot."""
    writer = _SlotWriter(key, total, into)
    for column, buffer in zip(layout, buffers, strict=True):
        writer.write(column.offset, buffer)
    writer.flush()
    return writer.waits


def lay_out(columns: Mapping[str, Column]) -> tuple[tuple[ColumnLayout, ...], list[memoryview], int]:
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

    def __init__(self, key: tuple[int, ...], total: int, into: Writable) -> None:
        self._key = key
        self._total = total
        self._slots = into.slots
        self._free = into.free
        self._say = into.say
        self._slot: int | None = None
        self._start = 0
        self._filled = 0
        self.waits: list[Mark] = []

    def write(self, offset: int, buffer: memoryview) -> None:
        """Bytes that belong at `offset` of the result. Offsets only grow; gaps are padding."""
        while buffer.nbytes:
            if self._slot is not None and offset - self._start >= self._slots.slot_bytes:
                self.flush()
            if self._slot is None:
                self._slot, self._start = self._take(), offset
            place = offset - self._start
            taken = min(buffer.nbytes, self._slots.slot_bytes - place)
            self._slots.view(self._slot, place + taken)[place:] = buffer[:taken]
            self._filled = place + taken
            buffer, offset = buffer[taken:], offset + taken

    def _take(self) -> int:
        started = time.perf_counter()
        slot = self._free.take()
        thread = threading.current_thread().name
        self.waits.append(Mark(WAIT_FOR_SLOT, thread, started, time.perf_counter(), self._key[0], slot=slot))
        return slot

    def flush(self) -> None:
        if self._slot is not None:
            self._say(Chunk(self._key, self._slot, self._start, self._filled, self._total))
            self._slot = None


class Assembly:
    """The receiver's side: chunks of the results or batches that one process sends, until each is whole.

    They are delivered whole or not at all: what a process leaves behind when it dies is dropped with this object.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._buffers: dict[tuple[int, ...], memoryview] = {}

    def add(self, chunk: Chunk) -> None:
        """Copy a chunk out of its slot, which is free again when this returns."""
        self.put(chunk, self._slots.view(chunk.slot, chunk.nbytes))

    def put(self, chunk: Chunk, content: memoryview | bytes) -> None:
        """Take a chunk that is no longer in its slot."""
        buffer = self._buffers.get(chunk.key)
        if buffer is None:
            buffer = self._buffers[chunk.key] = memoryview(np.empty(chunk.total, np.uint8).data)
        buffer[chunk.offset : chunk.offset + chunk.nbytes] = content

    def drop(self, batch: tuple[int, int]) -> None:
        """Forget what was sent of a batch, in any attempt."""
        for key in [key for key in self._buffers if key[:2] == batch]:
            del self._buffers[key]

    def finish(self, span: Span, done: SpanDone) -> Result:
        return Result(span, self.columns((span.index,), done.layout), done.failures, done.reduced_to)

    def columns(self, key: tuple[int, ...], layout: Sequence[ColumnLayout]) -> dict[str, Column]:
        """The columns that were sent under `key`, all of whose chunks are here."""
        raw = self._buffers.pop(key, memoryview(b""))
        return {entry.name: restore(entry, raw) for entry in layout}


def restore(entry: ColumnLayout, raw: memoryview) -> Column:
    piece = raw[entry.offset : entry.offset + entry.nbytes]
    if entry.dtype is not None:
        return np.frombuffer(piece, entry.dtype).reshape(entry.shape)
    return whole(pa.ipc.open_stream(pa.py_buffer(piece)).read_all().column(0))
