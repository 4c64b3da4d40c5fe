"""Where a traced job is watched: the source, and the slots, with a note of when they were used and waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock.core.records import Block, Job, Span
from penstock.core.tracing import READ, SHORT_S, WAIT_FOR_SLOT, Level, Mark
from penstock.pool.transfer.slots import FreeSlots


def marked_source(job: Job, marks: list[Mark | Level]) -> Job:
    """The job, with a source that notes every block it reads; the job itself where nothing is traced."""
    return replace(job, source=_MarkedSource(job.source, marks)) if job.is_traced else job


class _MarkedSource:
    """A source, and when it read what. Everything else is the source's own."""

    def __init__(self, source: Any, marks: list[Mark | Level]) -> None:
        self._source = source
        self._marks = marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        thread = threading.current_thread().name
        blocks = iter(self._source.read(span, columns))
        while True:
            started = time.perf_counter()
            block = next(blocks, None)
            if block is None:
                return
            self._marks.append(Mark(READ, thread, started, time.perf_counter(), span.index, rows=block.rows))
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
