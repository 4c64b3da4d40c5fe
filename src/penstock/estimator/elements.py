"""Elements of an `input_fn` on their way to a replica process, and predictions on their way back.

An element is whatever `input_fn` gives in one step: any number of tensors of any shapes. So a row of such a job is a
bundle of whole elements, laid into a file without a name; what travels through the pipe is only where it lies.
"""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.records import STRING, Block, Fragment, Span, TensorSpec
from penstock.sources.python.streaming import new_file

COLUMN = "elements"
ANSWERS = "answers"

_ALIGNMENT = 64
_COUNT = struct.Struct("<Q")


def pack(value: Any) -> list[memoryview]:
    """Any structure of arrays as pieces of bytes: arrays of numbers as they lie in memory, without a copy."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    lengths = b"".join(_COUNT.pack(number) for number in (len(raw), *(piece.nbytes for piece in raw)))
    pieces: list[memoryview] = []
    for piece in (memoryview(lengths), *raw):
        pieces += [piece, memoryview(bytes(-piece.nbytes % _ALIGNMENT))]
    return pieces


def unpack(memory: Any) -> Any:
    """What `pack` packed. The arrays are views of `memory`, and can be written to if it can."""
    view = memoryview(memory).cast("B")
    (count,) = _COUNT.unpack_from(view)
    lengths = [_COUNT.unpack_from(view, _COUNT.size * (1 + number))[0] for number in range(count)]
    position = _rounded(_COUNT.size * (1 + count))
    pieces = []
    for length in lengths:
        pieces.append(view[position : position + length])
        position += _rounded(length)
    return pickle.loads(pieces[0], buffers=pieces[1:])


def pack_to_row(value: Any) -> pa.Array:
    """A structure of arrays as one row, as a replica answers: a list of one piece of bytes, of any length each time."""
    content = b"".join(pack(value))
    offsets = np.array([0, len(content)], np.int64)
    piece = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
    return pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), piece)


def unpack_row(row: pa.Array) -> Any:
    """What `pack_to_row` packed, in memory that its reader may write to."""
    piece = row.flatten()
    _, offsets, content = piece.buffers()
    first, last = np.frombuffer(offsets, np.int64)[piece.offset : piece.offset + 2]
    return unpack(np.frombuffer(content, np.uint8)[first:last].copy())


def _rounded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


class ElementFiles:
    """The source of a job whose rows are bundles of elements. They are put into it while it is read.

    A copy in another process can only `read`, which gives places; `open_bundle` opens them.
    """

    is_resumable = False

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._numbers = itertools.count()

    def add(self, elements: Sequence[Any]) -> Span:
        """Lay a bundle into memory that other processes can map."""
        path, descriptor = new_file("penstock-elements")
        self._open[path] = descriptor
        with os.fdopen(os.dup(descriptor), "wb") as file:
            for piece in pack(list(elements)):
                file.write(piece)
        number = next(self._numbers)
        return Span(number, number, 1, (path, os.fstat(descriptor).st_ino))

    def fragments(self) -> Sequence[Fragment]:
        return [Fragment("input_fn", 0, 0)]

    def schema(self) -> dict[str, TensorSpec]:
        return {COLUMN: TensorSpec(COLUMN, STRING, ())}

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        raise NotImplementedError("bundles are added one by one")

    def origin(self, span: Span, row: int) -> str:
        return f"input_fn, bundle {row}"

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        place = np.empty(1, object)
        place[0] = place_of(span)
        yield Block(span.start, 1, {COLUMN: place})

    def release(self, span: Span) -> None:
        """Free the memory of a bundle whose answers are there."""
        self._close(span.locator[0])

    def close(self) -> None:
        for path in list(self._open):
            self._close(path)

    def __getstate__(self) -> dict[str, Any]:
        return {"_open": {}, "_numbers": itertools.count()}

    def _close(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)
            if not path.startswith("/proc/"):
                os.unlink(path)


def place_of(span: Span) -> bytes:
    """Where the elements of a span lie, for `open_bundle`."""
    path, inode = span.locator
    return f"{inode} {path}".encode()


def open_bundle(place: bytes) -> list[Any]:
    """The elements of a bundle, mapped from where the other process put them."""
    inode, _, path = place.decode().partition(" ")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_ino != int(inode):
            raise FileNotFoundError(f"{path} holds another bundle")
        elements: list[Any] = unpack(mmap.mmap(descriptor, found.st_size, prot=mmap.PROT_READ))
        return elements
    finally:
        os.close(descriptor)
