"""A loader's notice board: which rows it works on, and since when. Read by the coordinator, also after a kill."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

from penstock.pool.slots import anonymous_memory

_ENTRY = struct.Struct("<dqq")
_SIZE = mmap.PAGESIZE


@dataclass(frozen=True)
class Notice:
    """Work on `rows` rows from `first_row` began at `since`, by the monotonic clock that all processes share."""

    since: float
    first_row: int
    rows: int


class Board:
    """One page of shared memory."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _SIZE)

    @classmethod
    def create(cls) -> Board:
        descriptor = anonymous_memory()
        os.ftruncate(descriptor, _SIZE)
        return cls(descriptor)

    def write(self, first_row: int, rows: int) -> None:
        _ENTRY.pack_into(self._memory, 0, time.monotonic(), first_row, rows)

    def clear(self) -> None:
        _ENTRY.pack_into(self._memory, 0, 0.0, 0, 0)

    def read(self) -> Notice | None:
        """What is under way; None where nothing is."""
        since, first_row, rows = _ENTRY.unpack_from(self._memory, 0)
        return Notice(since, first_row, rows) if rows > 0 else None

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)
