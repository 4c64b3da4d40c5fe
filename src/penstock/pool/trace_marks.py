"""Notes of a traced job: when blocks were read, and when slots were waited for."""

import threading
import time
from collections.abc import Iterable, Iterator

from penstock.core.records import Block, Span
from penstock.core.tracing import READ, SHORT_S, WAIT_FOR_SLOT, Level, Mark
from penstock.pool.transfer.slots import FreeSlots


def marked(blocks: Iterable[Block], span: Span, marks: list[Mark | Level]) -> Iterator[Block]:
    """The blocks of a span, with a note of when each was read."""
    thread = threading.current_thread().name
    coming = iter(blocks)
    while True:
        started = time.perf_counter()
        block = next(coming, None)
        if block is None:
            return
        marks.append(Mark(READ, thread, started, time.perf_counter(), span.index, rows=block.rows))
        yield block


class MarkedSlots(FreeSlots):
    """Free slots, and when they were waited for. Only one thread takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.span = 0
        self.marks: list[Mark | Level] | None = None
        """Where to note it; None where nothing is traced."""

    def take(self) -> int:
        if self.marks is None:
            return super().take()
        started = time.perf_counter()
        slot = super().take()
        ended = time.perf_counter()
        if ended - started > SHORT_S:
            self.marks.append(
                Mark(WAIT_FOR_SLOT, threading.current_thread().name, started, ended, self.span, slot=slot)
            )
        return slot
