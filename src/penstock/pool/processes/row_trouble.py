"""Rows at which worker processes die or hang: which row is to blame, and what becomes of it.

A process that dies or hangs is replaced, and the rows that it was at are handed to the next one with care: one by one,
each announced on the board. A row that kills two processes, or hangs one by itself, is a row failure.
"""

from collections import Counter
from dataclasses import dataclass, field

from penstock.core.records import RowFailure
from penstock.pool.processes.supervisor import WorkerProcess

_DEATHS_OF_A_ROW = 2
DEATHS_IN_A_ROW = 8
"""After so many deaths over the same rows without a row to blame, the run is given up."""


@dataclass(frozen=True)
class Blame:
    """How the failure of a row is described: the stage, the name of the error, and the words, with `{how}` in them."""

    stage: str
    error: str
    words: str
    timeout_s: float

    def failure(self, row: int, worker: WorkerProcess) -> RowFailure:
        if worker.hung_s is not None:
            reason = f"took longer than {self.timeout_s:g} s; raise --row-timeout if that is right"
            return RowFailure(row, "", self.stage, "TimeoutError", reason)
        return RowFailure(row, "", self.stage, self.error, self.words.format(how=worker.describe_end()))


@dataclass
class RowTrouble:
    """The deaths of processes at some rows. `poisoned` holds all rows that are to be left out."""

    poisoned: dict[int, RowFailure]
    is_careful: bool = False
    deaths: int = 0
    is_slow: bool = False
    """Whether a call for many rows took too long, and no row did: the next calls would take as long."""
    _deaths_at: Counter[int] = field(default_factory=Counter)

    def add(self, worker: WorkerProcess, blame: Blame) -> bool:
        """Another process died; returns whether a row was found that is to blame."""
        # The end of a process that was stopped (SIGSTOP) shows nothing about the row that it was at.
        notice = worker.board.read() if not worker.was_stopped else None
        was_careful, self.is_careful = self.is_careful, True
        is_one_row = notice is not None and notice.rows == 1
        self.deaths += 1
        self.is_slow = worker.hung_s is not None and notice is not None and not is_one_row
        if notice is None or not is_one_row or not was_careful:
            return False
        row = notice.first_row
        self._deaths_at[row] += 1
        is_sure = self._deaths_at[row] >= _DEATHS_OF_A_ROW or worker.hung_s is not None
        # A row that is left out already and still kills is read by a source that cannot leave it out.
        if not is_sure or row in self.poisoned:
            return False
        self.poisoned[row] = blame.failure(row, worker)
        self.deaths = 0
        return True
