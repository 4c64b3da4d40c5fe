"""The stages of the process that trains. They are written on its board for the watchdog, and timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from penstock.core.stillness import Stillness, Timeouts
from penstock.core.tracing import NONE, SHORT_S, Mark
from penstock.pool.processes.board import Board, Notice
from penstock.pool.processes.supervisor import WorkerProcess


class Stage(StrEnum):
    """A stage of the loop, under its name in traces and in the summary."""

    START = "start"
    COMPILE = "compile"
    """The first step with so many rows."""
    WAIT = "wait for rows"
    STEP = "step"
    TEST = "validation"
    CHECKPOINT = "checkpoint"
    SAVE = "save the model"


class Pace(IntEnum):
    """The time limit of a stage. `SLOW` is for the first step with so many rows, which compiles, and for disks."""

    SLOW = 0
    READING = 1
    STEPPING = 2


_PACES = {Stage.WAIT: Pace.READING, Stage.STEP: Pace.STEPPING, Stage.TEST: Pace.STEPPING}
Enter = Callable[[Stage, int], None]
"""A function to call when a stage begins, with the rows of its batch or 0. The stage before ends with this."""


class StageClock:
    """Times the stages of this process, and writes them on its board. Only one thread enters stages.

    Args:
        board: Shows the coordinator that there is progress.
        is_traced: Whether to note when each stage began and ended.
        clock: Seconds that all processes share.
    """

    def __init__(
        self, board: Board, *, is_traced: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds: dict[Stage, float] = dict.fromkeys(Stage, 0.0)
        self._board = board
        self._is_traced = is_traced
        self._clock = clock
        self._stage, self._rows, self._since = Stage.START, 0, clock()
        self._counted_as = self._stage
        self._compiled: set[tuple[Stage, int]] = set()
        self._marks: list[Mark] = []

    def enter(self, stage: Stage, rows: int = 0) -> None:
        """Begin a stage."""
        now = self._clock()
        self._seconds[self._counted_as] += now - self._since
        if self._is_traced and now - self._since > SHORT_S:
            name = threading.current_thread().name
            self._marks.append(Mark(self._stage, name, self._since, now, rows=self._rows or NONE))
        self._stage, self._rows, self._since, self._counted_as = stage, rows, now, stage
        pace = _PACES.get(stage, Pace.SLOW)
        if rows and (stage, rows) not in self._compiled:
            self._compiled.add((stage, rows))
            pace, self._counted_as = Pace.SLOW, Stage.COMPILE
        self._board.put(Notice(now, int(pace), 1))

    @property
    def seconds(self) -> dict[Stage, float]:
        """How long each stage took in total until now."""
        running = self._counted_as
        return {**self._seconds, running: self._seconds[running] + self._clock() - self._since}

    def beat(self) -> None:
        """Show that the current stage makes progress."""
        self.enter(self._stage, self._rows)

    def take_marks(self) -> tuple[Mark, ...]:
        """The marks since the last call."""
        marks, self._marks = self._marks, []
        return tuple(marks)


@dataclass
class Watchdog:
    """Detects that a process that trains hangs: it shows no progress for longer than the limit of its stage.

    Args:
        timeouts: How long a step, the reading of a batch, and the start may take.
    """

    timeouts: Timeouts
    _still: Mapping[Pace, Stillness] = field(init=False)
    _pace: Pace = Pace.SLOW
    _limit: Pace = Pace.SLOW

    def __post_init__(self) -> None:
        self._still = {
            Pace.SLOW: Stillness(self.timeouts.start_s, times=0),
            Pace.READING: Stillness(max(self.timeouts.hang_s, self.timeouts.read_s)),
            Pace.STEPPING: Stillness(self.timeouts.hang_s),
        }

    def begin(self) -> None:
        """Begin anew for a new process."""
        self._pace = Pace.SLOW

    def look(self, process: WorkerProcess, now: float) -> float | None:
        """For how long the process has hung; None where it works."""
        notice = process.board.read()
        if notice is not None:
            self._pace = Pace(notice.first_row)
        # A process that was stopped by SIGSTOP does nothing that may take long: it gets the limit of a step.
        self._limit = Pace.STEPPING if process.is_stopped else self._pace
        hung: dict[int, float] = {}
        for pace, still in self._still.items():
            hung |= still.look(now, {process.pid: process.progress} if pace == self._limit else {})
        return hung.get(process.pid)

    @property
    def option(self) -> str:
        """The option that raises the limit of the process's last stage."""
        options = {Pace.SLOW: "--start-timeout", Pace.READING: "--row-timeout", Pace.STEPPING: "--hang-timeout"}
        return options[self._limit]
