"""Slots: fixed buffers in memory that two processes share. Only their numbers travel.

The memory is an anonymous file that both processes hold open: there is no name in /dev/shm, so nothing is left behind
however either of them ends. The coordinator makes it; the replica inherits its descriptor.
"""

from __future__ import annotations

import mmap
import os
import queue
import tempfile
from collections.abc import Iterable

SLOT_BYTES = 4 << 20
SLOTS = 4


class Slots:
    """The slots of one replica, mapped into this process."""

    def __init__(self, descriptor: int, count: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> None:
        self.descriptor = descriptor
        self.count = count
        self.slot_bytes = slot_bytes
        self._memory = mmap.mmap(descriptor, count * slot_bytes)

    @classmethod
    def create(cls, count: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> Slots:
        """New slots. Pages are taken from the machine when they are first written."""
        descriptor = anonymous_memory()
        os.ftruncate(descriptor, count * slot_bytes)
        return cls(descriptor, count, slot_bytes)

    @property
    def memory(self) -> memoryview:
        """The memory of all slots, which stays mapped as long as this view is held."""
        return memoryview(self._memory)

    def view(self, slot: int, nbytes: int) -> memoryview:
        """The first bytes of a slot."""
        start = slot * self.slot_bytes
        return memoryview(self._memory)[start : start + nbytes]

    def close(self) -> None:
        os.close(self.descriptor)
        try:
            self._memory.close()
        except BufferError:
            pass  # a view is still alive somewhere: the mapping goes with it


def anonymous_memory() -> int:
    """The descriptor of unnamed memory of size 0. Processes that start later may inherit it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock-slots", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class NoMoreSlots(Exception):
    """No slot will be given any more."""


class FreeSlots:
    """The writer's side: which slots may be written. Taking one waits until one is given."""

    def __init__(self, slots: Iterable[int] = ()) -> None:
        self._free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        for slot in slots:
            self._free.put(slot)

    @property
    def count(self) -> int:
        """How many slots are free now."""
        return self._free.qsize()

    def take(self) -> int:
        """Wait for a free slot.

        Raises:
            NoMoreSlots: It was closed.
        """
        slot = self._free.get()
        if slot is None:
            self._free.put(None)  # for the next that waits
            raise NoMoreSlots
        return slot

    def close(self) -> None:
        """End all waiting."""
        self._free.put(None)

    def give_back(self, slot: int) -> None:
        self._free.put(slot)
