"""A worker's notice board: which rows it works on, and since when. Read by the coordinator, also after a kill."""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import NamedTuple

from penstock.pool.transfer.slots import anonymous_memory

_ENTRY = struct.Struct("<dqqqqqqq")
_COUNTER = struct.Struct("<q")
_AT = 64
_TRIES = 8
_SIZE = mmap.PAGESIZE


class Notice(NamedTuple):
    """Work on `rows` rows from `first_row` began at `since`, by the monotonic clock that all processes share.

    The rows of a replica have `row_bytes` each. `calls` batches are under way, and the notice is about the one that
    began last. It begins with the row `batch_row`; its places from `start` to `stop` hold their own rows, and other
    rows stand in at all other places. A batch that is not one of the job has no place with a row of its own.
    """

    since: float
    first_row: int
    rows: int
    row_bytes: int = 0
    calls: int = 1
    batch_row: int = 0
    start: int = 0
    stop: int = 0


_NOTHING = Notice(0.0, 0, 0)


class Board:
    """One page of shared memory: a notice, and a counter that is odd while it is written.

    Without the counter, a notice that is read while it is written could combine new rows with an old time, and a loader
    that works would seem to hang.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _SIZE)
        self._count = 0

    @classmethod
    def create(cls) -> Board:
        descriptor = anonymous_memory()
        os.ftruncate(descriptor, _SIZE)
        return cls(descriptor)

    def write(self, first_row: int, rows: int) -> None:
        self.put(Notice(time.monotonic(), first_row, rows))

    def clear(self) -> None:
        self.put(_NOTHING)

    @property
    def changes(self) -> int:
        """How often it was written: a sign of progress."""
        (count,) = _COUNTER.unpack_from(self._memory, 0)
        return int(count)

    def put(self, notice: Notice) -> None:
        _COUNTER.pack_into(self._memory, 0, self._count + 1)
        _ENTRY.pack_into(self._memory, _AT, *notice)
        self._count += 2
        _COUNTER.pack_into(self._memory, 0, self._count)

    def read(self) -> Notice | None:
        """What is under way; None where nothing is, or where it is just being written."""
        for _ in range(_TRIES):
            (before,) = _COUNTER.unpack_from(self._memory, 0)
            notice = Notice(*_ENTRY.unpack_from(self._memory, _AT))
            (after,) = _COUNTER.unpack_from(self._memory, 0)
            if before == after and before % 2 == 0:
                return notice if notice.rows > 0 else None
        return None

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)
