"""The main of a loader process: `python -m penstock.pool.processes.loader CHANNEL BOARD SLOTS`.

It reads, decodes and preprocesses spans, straight into slots that the coordinator grants, until its line is closed.
What the user's function prints goes to the log.
"""

import sys
import threading
import time

import pyarrow as pa

from penstock.core.job import Job
from penstock.core.messages import Begin, Grant, Learn, Learnt, LoadSpan, SpanLoaded
from penstock.core.tracing import LOAD, NONE, SPAN, Level, Mark
from penstock.pool.loading import load_batches
from penstock.pool.processes.board import Board
from penstock.pool.processes.channel import Channel
from penstock.pool.processes.serving import BoardWatch, Serving
from penstock.pool.trace_marks import MarkedSlots
from penstock.pool.transfer.batches import SlotRoom
from penstock.pool.transfer.results import Writable
from penstock.pool.transfer.slots import Slots


class LoaderProcess:
    """One loader's side of the conversation."""

    def __init__(self, channel: Channel, slots_descriptor: int, board: Board) -> None:
        self._channel = channel
        self._slots_descriptor = slots_descriptor
        self._watch = BoardWatch(board)
        self._granted = MarkedSlots()
        self._serving = Serving(channel, self._handle, self._take_at_once)
        self._job: Job | None = None
        self._room: SlotRoom | None = None

    def serve(self) -> None:
        self._serving.serve()

    def _take_at_once(self, message: object) -> bool:
        if isinstance(message, Grant):
            self._granted.give_back(message.slot)
            return True
        return False

    def _handle(self, message: object) -> None:
        match message:
            case Begin(job=job, slot_bytes=slot_bytes, slot_count=count):
                slots = Slots(self._slots_descriptor, count, slot_bytes)
                self._job = job
                self._room = SlotRoom(Writable(slots, self._granted, self._channel.send), self._watch)
            case Learn(source=source, preprocess=preprocess, sample=sample, poisoned=poisoned):
                self._watch.take(poisoned, is_careful=True)
                blocks = list(source.read(sample, tuple(preprocess.takes)))
                self._channel.send(Learnt(preprocess.learn(blocks, self._watch)))
            case LoadSpan():
                self._load(message)

    def _load(self, order: LoadSpan) -> None:
        assert self._job is not None
        assert self._room is not None
        self._watch.take(order.poisoned, is_careful=order.is_careful)
        self._room.attempt = order.attempt
        began, waited_before = time.perf_counter(), self._room.waited_s
        marks: list[Mark | Level] = []
        self._granted.span, self._granted.marks = order.span.index, marks if self._job.is_traced else None
        count, started = 0, began
        for batch in load_batches(self._job, order.span, self._room, self._watch, marks):
            self._watch.end()
            filled = self._room.seal(order.span.index, batch)
            self._channel.send(filled)
            count += 1
            if self._job.is_traced:
                now = time.perf_counter()
                marks.append(_mark(LOAD, started, now, order.span.index, batch.index, batch.rows, filled.slot))
                started = now
        ended = time.perf_counter()
        if self._job.is_traced:
            marks.append(_mark(SPAN, began, ended, order.span.index, rows=order.span.rows))
        waited = self._room.waited_s - waited_before
        read = ended - began - waited
        self._channel.send(SpanLoaded(order.span.index, count, read, waited, order.attempt, tuple(marks)))


def _mark(
    what: str, start: float, end: float, span: int, batch: int = NONE, rows: int = NONE, slot: int | None = None
) -> Mark:
    return Mark(what, threading.current_thread().name, start, end, span, batch, rows, NONE if slot is None else slot)


def main() -> None:
    channel_descriptor, board_descriptor, slots_descriptor = map(int, sys.argv[1:4])
    sys.path += [entry for entry in sys.argv[4:] if entry not in sys.path]
    # A loader is one core's worth of work: libraries must not start a thread for each core.
    pa.set_cpu_count(1)
    LoaderProcess(Channel.inherited(channel_descriptor), slots_descriptor, Board(board_descriptor)).serve()


if __name__ == "__main__":
    main()
