"""Which rows of every global batch one of several processes reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.core.records import Array


@dataclass(frozen=True)
class Share:
    """The share of one process. Every process reads the whole of a batch that cannot be divided among all devices.

    Args:
        rank: The number of the process.
        size: How many processes there are.
        devices: How many devices they have, all together.
        batch_size: Rows of a global batch; `devices` divide it.
    """

    rank: int
    size: int
    devices: int
    batch_size: int

    def bounds(self, rows: int) -> tuple[int, int]:
        """Where the rows of this process begin and end in a batch of `rows` rows.

        >>> Share(1, 2, 2, 8).bounds(8), Share(1, 2, 2, 8).bounds(3)
        ((4, 8), (0, 3))
        """
        if rows % self.devices:
            return 0, rows
        each = rows // self.size
        return self.rank * each, (self.rank + 1) * each

    def count(self, rows: int) -> int:
        """How many of the first `rows` rows of an epoch this process reads: whole batches, and maybe a short one."""
        begin, end = self.bounds(rows % self.batch_size)
        return rows // self.batch_size * (self.batch_size // self.size) + end - begin

    def batches(self, rows: int, skip: int = 0) -> Iterator[tuple[int, int]]:
        """For every batch after the first `skip` rows: how many rows this process reads, and how many the batch has."""
        for first in range(skip, rows, self.batch_size):
            total = min(self.batch_size, rows - first)
            begin, end = self.bounds(total)
            yield end - begin, total

    def ranks(self, rows: int, first: int, count: int) -> Array:
        """The places, in an epoch of `rows` rows, of `count` rows that this process reads, from its row `first` on.

        >>> Share(1, 2, 2, 4).ranks(11, 2, 5).tolist()
        [6, 7, 8, 9, 10]
        """
        each = self.batch_size // self.size
        whole = rows // self.batch_size
        places = np.arange(first, first + count)
        batch = np.minimum(places // each, whole)
        begin = np.where(batch < whole, self.rank * each, self.bounds(rows % self.batch_size)[0])
        return np.asarray(batch * self.batch_size + begin + places - batch * each)
