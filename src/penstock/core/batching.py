"""Batches: how large, and how blocks of any size become batches of exactly one size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from penstock.core.records import Array, Columns

BATCH_BYTES = 8 << 20
SMALLEST_BATCH, LARGEST_BATCH = 32, 8192


def default_batch_size(row_bytes: int, rows: int | None = None) -> int:
    """The power of two that keeps a batch of inputs near 8 MB, between 32 and 8,192.

    An input of fewer rows than that gets the power of two that holds it, so that little is padded.

    >>> default_batch_size(784)
    8192
    >>> default_batch_size(224 * 224 * 3)
    64
    >>> default_batch_size(784, rows=100)
    128
    """
    near = 1 << max(0, round(math.log2(BATCH_BYTES / max(1, row_bytes))))
    size = min(max(near, SMALLEST_BATCH), LARGEST_BATCH)
    if rows is not None and rows < size:
        size = 1 << math.ceil(math.log2(max(1, rows)))
    return size


@dataclass
class Batch:
    """What one device sees in one step: `arrays` always have the full batch size, of which `rows` are real."""

    index: int
    offset: int
    rows: int
    arrays: Columns


def cut(blocks: Iterable[Mapping[str, Array]], batch_size: int) -> Iterator[Batch]:
    """Cut blocks of inputs into batches of exactly `batch_size` rows; the last one is padded with its last row.

    Not with zeros: a model may reject what is no real row, such as an empty string in the place of an image.

    A batch that lies inside one block is a view of it: nothing is copied.
    """
    index = offset = filled = 0
    buffer: Columns = {}
    for block in blocks:
        rows = len(next(iter(block.values())))
        position = 0
        while position < rows:
            if filled == 0 and rows - position >= batch_size:
                arrays = {name: array[position : position + batch_size] for name, array in block.items()}
                yield Batch(index, offset, batch_size, arrays)
                index, offset, position = index + 1, offset + batch_size, position + batch_size
                continue
            if filled == 0:
                buffer = {name: _room(array, batch_size) for name, array in block.items()}
            taken = min(batch_size - filled, rows - position)
            for name, array in block.items():
                buffer[name][filled : filled + taken] = array[position : position + taken]
            filled, position = filled + taken, position + taken
            if filled == batch_size:
                yield Batch(index, offset, batch_size, buffer)
                index, offset, filled = index + 1, offset + batch_size, 0
    if filled:
        for array in buffer.values():
            array[filled:] = array[filled - 1]
        yield Batch(index, offset, filled, buffer)


def _room(array: Array, batch_size: int) -> Array:
    return np.empty((batch_size, *array.shape[1:]), dtype=array.dtype)
