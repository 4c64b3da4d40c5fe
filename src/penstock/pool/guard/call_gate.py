"""Calls of the model on one device: how many run at once, with how many rows each, and what the board says of them.

When a batch does not fit into the memory, either too many are in flight together, or it is too large by itself. At the
batch size of the job, fewer batches are let in at once first, so that the answers keep their bits. A batch that does
not fit alone is cut in half, and that half is the ceiling for rows of its size from then on. Below the batch size of
the job the bits differ anyway, and smaller batches in all lanes are faster than a larger one alone.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.core.memory import Ceilings
from penstock.core.protocols import Replica
from penstock.core.records import Shortage
from penstock.pool.processes.board import Board, Notice

_SMALL_BATCH = 32
"""Below this, one batch alone is faster than two halves at once."""

Report = Callable[[Shortage, Mapping[int, int]], None]
"""Takes every shortage of memory, and the ceilings that are known after it."""


@dataclass(eq=False)
class Call:
    """One call of the model. `company` is the most that were under way at once while it ran, itself included."""

    notice: Notice
    is_alone: bool
    generation: int
    company: int = 1


@dataclass(eq=False)
class CallGate:
    """Lets calls in, from several threads: at most `most_at_once`, and fewer once memory ran short."""

    replica: Replica
    device: str
    report: Report
    ceilings: Ceilings
    most_at_once: int | None
    board: Board | None

    def __post_init__(self) -> None:
        self._at_once = self.most_at_once
        self._generation = 0
        self._calls: list[Call] = []
        self._waiting_alone = 0
        self._changed = threading.Condition()

    def limit(self, ceilings: Mapping[int, int]) -> None:
        """Lower the ceilings to these, too."""
        with self._changed:
            for row_bytes, most in ceilings.items():
                self.ceilings.lower(row_bytes, most)

    def most(self, row_bytes: int, size: int) -> int:
        """The most rows of a batch of `size` that may run at once."""
        return self.ceilings.most(row_bytes, size) if self._is_divisible else size

    def enter(self, notice: Notice, *, is_alone: bool) -> Call:
        """Wait for a turn to run a batch. The notice of the call says how many of its rows may run."""
        with self._changed:
            self._waiting_alone += is_alone
            while self._must_wait(is_alone):
                self._changed.wait()
            self._waiting_alone -= is_alone
            rows = self.most(notice.row_bytes, notice.rows)
            notice = notice._replace(rows=rows, stop=min(notice.stop, notice.start + rows))
            call = Call(notice, is_alone, self._generation)
            self._calls.append(call)
            for each in self._calls:
                each.company = max(each.company, len(self._calls))
            self._announce()
            return call

    def leave(self, call: Call) -> None:
        """The call has ended."""
        with self._changed:
            self._calls.remove(call)
            self._announce()
            self._changed.notify_all()

    def make_room(self, call: Call, size: int) -> bool:
        """After a call that did not fit: let fewer in at once, or cut smaller. False if it was a single row, alone."""
        with self._changed:
            if call.generation != self._generation:
                return True  # another lane has made room since this call began
            rows = call.notice.rows
            can_be_cut = rows > 1 and self._is_divisible
            keeps_size = not can_be_cut or rows == size or rows <= _SMALL_BATCH
            if call.company > 1 and keeps_size:
                self._at_once = call.company - 1
                shortage = Shortage(self.device, rows, rows, self._at_once)
            elif can_be_cut:
                self.ceilings.lower(call.notice.row_bytes, rows // 2)
                self._at_once = self.most_at_once
                shortage = Shortage(self.device, rows, rows // 2)
            else:
                return False
            self._generation += 1
            self._changed.notify_all()
            known = dict(self.ceilings.known)
        self.report(shortage, known)
        return True

    def put_back(self, row_bytes: int, before: int | None, shortage: Shortage) -> None:
        """Undo what was found for rows of this size since their ceiling was `before`."""
        with self._changed:
            self.ceilings.put_back(row_bytes, before)
            known = dict(self.ceilings.known)
        self.report(shortage, known)

    @property
    def _is_divisible(self) -> bool:
        return self.replica.signature.fixed_batch is None

    def _must_wait(self, is_alone: bool) -> bool:
        if is_alone:
            return bool(self._calls)
        if self._waiting_alone or any(call.is_alone for call in self._calls):
            return True
        return self._at_once is not None and len(self._calls) >= self._at_once

    def _announce(self) -> None:
        if self.board is None:
            return
        if self._calls:
            last = self._calls[-1].notice
            self.board.put(last._replace(since=time.monotonic(), calls=len(self._calls)))
        else:
            self.board.clear()
