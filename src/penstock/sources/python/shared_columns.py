"""Columns in a file without a name, which other processes map: numbers as they are, all else as Arrow."""

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import join, whole
from penstock.core.records import Array, Column

_ALIGNMENT = 64

Layout = tuple[tuple[str, int, int, str, tuple[int, ...]], ...]
"""For every column: name, first byte, bytes, dtype and shape (both empty where it is Arrow). Plain JSON."""


def anonymous_file() -> int:
    """The descriptor of a file that the kernel frees with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock-input", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write_columns(descriptor: int, columns: Mapping[str, Sequence[Column]]) -> Layout:
    """Write columns, each given in one or more pieces, one after the other."""
    layout: list[tuple[str, int, int, str, tuple[int, ...]]] = []
    position = 0
    with os.fdopen(os.dup(descriptor), "wb") as file:
        for name, pieces in columns.items():
            file.seek(position)
            numbers = _numbers(pieces)
            if numbers is not None:
                for piece in numbers:
                    file.write(_bytes_of(piece))
                shape = (sum(len(piece) for piece in numbers), *numbers[0].shape[1:])
                entry = (numbers[0].dtype.str, shape)
            else:
                file.write(_to_ipc(name, join(list(pieces))))
                entry = ("", ())
            layout.append((name, position, file.tell() - position, *entry))
            position = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
    return tuple(layout)


def map_columns(descriptor: int, layout: Layout) -> dict[str, Column]:
    """The columns of such a file, without a copy. They stay readable when the descriptor is closed."""
    size = os.fstat(descriptor).st_size
    mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ) if size else b""
    columns: dict[str, Column] = {}
    for name, offset, nbytes, dtype, shape in layout:
        raw = memoryview(mapped)[offset : offset + nbytes]
        columns[name] = np.frombuffer(raw, dtype).reshape(shape) if dtype else _from_ipc(raw)
    return columns


def buffers(column: Column) -> Iterator[Any]:
    """The content of a column as bytes, for a digest."""
    if not isinstance(column, np.ndarray) or column.dtype.kind == "O":
        yield memoryview(_to_ipc("column", column))
    elif column.size:
        yield _bytes_of(column)


def _numbers(pieces: Sequence[Column]) -> list[Array] | None:
    """The pieces, if all of them are numpy arrays of the same numbers."""
    arrays = [piece for piece in pieces if isinstance(piece, np.ndarray) and piece.dtype.kind not in "OSU"]
    if len(arrays) < len(pieces) or len({array.dtype for array in arrays}) > 1:
        return None
    return arrays


def _bytes_of(array: Array) -> memoryview:
    flat: Array = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data


def _to_ipc(name: str, column: Column) -> memoryview:
    array = column if isinstance(column, pa.Array) else pa.array(column.tolist())
    stream = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=[name])
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(stream.getvalue()).cast("B")


def _from_ipc(raw: memoryview) -> pa.Array:
    return whole(pa.ipc.open_stream(pa.py_buffer(raw)).read_all().column(0))
