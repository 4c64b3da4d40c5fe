"""Timings of a run: how long each activity took, and, in a traced run, when it began and ended. Pure.

Times are seconds of the machine's monotonic clock, which all processes share (`time.perf_counter` on Linux). Marks are
collected for each span where the work is done, and travel with the message that ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

START = "start"
"""From the command to the first spans; each step of the replicas in that time has its own mark."""
PROCESS = "start the process"
IMPORT = "import the framework"
GPU_CONTEXT = "make the GPU's context"
DEVICE = "find the device"
MODEL = "load the model"
REGISTER = "register memory"
DECODER = "start the decoder"
FIRST_ROWS = "read the first rows"
TRACE = "trace the step"
COMPILE = "compile the step"
FIRST_BATCHES = "run the first batches"
ANSWERS = "answer the first rows"
LANES = "run all lanes at once"
SEARCH = "search for a plan"
SPAN = "span"
"""All that a loader did for a span; the marks of its batches lie inside."""
LOAD = "load"
"""A batch was made: read, decoded, preprocessed, cut. The marks of its reading lie inside."""
READ = "read"
WAIT_FOR_ROOM = "wait for room"
WAIT_FOR_SLOT = "wait for a slot"
WAIT_FOR_DATA = "wait for data"
PREDICT = "predict"
DECODE = "decode"
"""The device decoded the rows of a batch before a lane takes it."""
HAND_OVER = "hand over"
WAIT_FOR_WRITER = "wait for the writer"
WRITE = "write"
FSYNC = "close and fsync"
CHECKSUM = "checksum"
PUBLISH = "publish"
"""Files get their names, and the journal its record: the part exists."""
ORDERING = "wait for its turn"

BATCHES_WAITING = "batches waiting"
SLOTS_IN_USE = "slots in use"
ROWS_DONE = "rows done"

COORDINATOR = "coordinator"
NONE = -1

SHORT_S = 20e-6
"""Shorter waits are not noted: they would be too many, and too short to be seen in a trace."""


class Mark(NamedTuple):
    """Something a thread did. What does not apply is NONE.

    `process` is empty for the replica itself, and names a loader process otherwise.
    """

    what: str
    thread: str
    start: float
    end: float
    span: int = NONE
    batch: int = NONE
    rows: int = NONE
    slot: int = NONE
    process: str = ""


class Level(NamedTuple):
    """How many of something there were at one time."""

    what: str
    at: float
    value: int
    process: str = ""


def moved(marks: Iterable[Mark | Level], seconds: float, first: int, node: str) -> list[Mark | Level]:
    """The marks of a node of a cluster, converted for a trace of this machine.

    Args:
        marks: The marks of the node.
        seconds: How much later this machine's clock is.
        first: The number of the node's first process among those of all nodes.
        node: Its name.

    >>> moved([Level(SLOTS_IN_USE, 2.0, 1, "loader 3")], 0.5, 100, "b")
    [Level(what='slots in use', at=2.5, value=1, process='loader 103 of b')]
    """
    made: list[Mark | Level] = []
    for mark in marks:
        kind, _, number = mark.process.partition(" ")
        process = f"{kind} {first + int(number)} of {node}" if number else mark.process
        if isinstance(mark, Level):
            made.append(mark._replace(at=mark.at + seconds, process=process))
        else:
            made.append(mark._replace(start=mark.start + seconds, end=mark.end + seconds, process=process))
    return made


@dataclass
class Timings:
    """Seconds that threads spent on a span, or a run, by what they did; sums over threads.

    Loaders `read`, or `wait_for_room`. Lanes `wait_for_data`, `compute`, and `hand_over` their results, for which they
    may have to `wait_for_slot`; threads before the lanes may `decode` rows that loaders leave to the device. `copy` is
    the part of `compute` in which rows went to the device and back, where the runtime measures it. `marks` say when
    each activity was, where the job is traced; they are not added up.
    """

    read: float = 0.0
    compute: float = 0.0
    wait_for_data: float = 0.0
    wait_for_room: float = 0.0
    rows: int = 0
    values: int = 0
    padded: int = 0
    copy: float = 0.0
    hand_over: float = 0.0
    wait_for_slot: float = 0.0
    decode: float = 0.0
    marks: list[Mark | Level] = field(default_factory=list)

    def add(self, other: Timings) -> None:
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def since(self, before: Timings) -> Timings:
        """What was added after `before`."""
        return Timings(**{name: getattr(self, name) - getattr(before, name) for name in _SUMMED})


_SUMMED = tuple(entry.name for entry in fields(Timings) if entry.name != "marks")
