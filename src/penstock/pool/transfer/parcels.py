"""Columns from one process to another through memory that both hold open. Only their structure is pickled."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Mapping

from penstock.core.messages import Parcel
from penstock.core.records import Column
from penstock.pool.transfer.slots import anonymous_memory


class Mailbox:
    """Memory for one parcel at a time, as large as the largest so far. One process puts, the other takes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> Mailbox:
        return cls(anonymous_memory())

    def put(self, columns: Mapping[str, Column]) -> Parcel:
        """Write columns. They replace the ones before."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(dict(columns), protocol=5, buffer_callback=buffers.append)
        raw = [buffer.raw() for buffer in buffers]
        sizes = tuple(len(view) for view in raw)
        total = sum(sizes)
        if total > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, total)
        if total:
            with mmap.mmap(self.descriptor, total) as memory:
                place = 0
                for view in raw:
                    memory[place : place + len(view)] = view
                    place += len(view)
        return Parcel(head, sizes)

    def take(self, parcel: Parcel) -> dict[str, Column]:
        """A copy of the columns of a parcel: it may be changed, and the next parcel may be written."""
        total = sum(parcel.sizes)
        content = bytearray(total)
        if total:
            with mmap.mmap(self.descriptor, total) as memory:
                content[:] = memory
        views, place = [], 0
        for size in parcel.sizes:
            views.append(memoryview(content)[place : place + size])
            place += size
        columns: dict[str, Column] = pickle.loads(parcel.head, buffers=views)
        return columns

    def close(self) -> None:
        os.close(self.descriptor)
