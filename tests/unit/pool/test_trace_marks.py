"""What a traced job notes on its way through the pipe, and that others note nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from penstock.core.job import Job
from penstock.core.messages import Chunk, SpanDone
from penstock.core.records import Columns, Result, Span, Timings
from penstock.core.tracing import (
    HAND_OVER,
    LOAD,
    NONE,
    PREDICT,
    READ,
    SLOTS_IN_USE,
    SPAN,
    WAIT_FOR_DATA,
    WAIT_FOR_SLOT,
    Level,
    Mark,
)
from penstock.pool.pipeline import Pipeline
from penstock.pool.trace_marks import MarkedSlots
from penstock.pool.transfer.results import send
from penstock.pool.transfer.slots import FreeSlots, Slots
from tests.unit.pool.piping import TIMEOUT_S, Blocks, Doubler, Outlet, X, guarded, piping, spans_of

LATE_S = 0.05


class LateSlots(FreeSlots):
    """Slots of which one is given back only while it is waited for."""

    late = 0

    def take(self) -> int:
        if not self.count:
            threading.Timer(LATE_S, self.give_back, (self.late,)).start()
        return super().take()


class LateMarkedSlots(MarkedSlots, LateSlots):
    """The same, with a note of it."""


TRACED = Job(Blocks([3, 5]), (X,), (), 4, is_traced=True)


def timings_of(job: Job, spans: list[Span]) -> list[Timings]:
    with piping(Doubler(), job, loaders=2, lanes=2) as (pipeline, outlet):
        for span in spans:
            pipeline.add(span)
        return [outlet.results.get(timeout=TIMEOUT_S)[1] for _ in spans]


def test_every_batch_of_a_traced_job_is_loaded_and_predicted_once() -> None:
    marks = [mark for timings in timings_of(TRACED, spans_of(6, 8)) for mark in timings.marks if isinstance(mark, Mark)]
    batches = {(span, batch) for span in range(6) for batch in range(2)}
    for what in (LOAD, PREDICT):
        assert Counter((mark.span, mark.batch) for mark in marks if mark.what == what) == Counter(batches)
        assert sum(mark.rows for mark in marks if mark.what == what) == 48
    assert sum(mark.rows for mark in marks if mark.what == READ) == 48
    assert Counter(mark.span for mark in marks if mark.what == SPAN) == Counter(range(6))
    assert {mark.thread.partition("-")[0] for mark in marks if mark.what == PREDICT} == {"lane"}


def test_marks_of_a_thread_lie_beside_or_inside_each_other() -> None:
    marks = [mark for timings in timings_of(TRACED, spans_of(6, 8)) for mark in timings.marks if isinstance(mark, Mark)]
    for thread in {mark.thread for mark in marks}:
        open_until: list[float] = []
        for mark in sorted((mark for mark in marks if mark.thread == thread), key=lambda mark: (mark.start, -mark.end)):
            while open_until and open_until[-1] <= mark.start:
                open_until.pop()
            assert not open_until or mark.end <= open_until[-1]
            open_until.append(mark.end)


def test_job_that_is_not_traced_notes_nothing() -> None:
    assert all(not timings.marks for timings in timings_of(replace(TRACED, is_traced=False), spans_of(3, 8)))


def test_lane_does_not_wait_for_data_before_there_is_work() -> None:
    with piping(Doubler(), TRACED) as (pipeline, outlet):
        added_at = time.perf_counter()
        pipeline.add(spans_of(1, 8)[0])
        timings = outlet.results.get(timeout=TIMEOUT_S)[1]
        ended_at = time.perf_counter()
    waits = [mark for mark in timings.marks if isinstance(mark, Mark) and mark.what == WAIT_FOR_DATA]
    assert all(added_at <= mark.start for mark in waits)
    assert timings.wait_for_data <= ended_at - added_at


def test_time_of_handing_over_and_of_waiting_for_slots_is_told_apart() -> None:
    slots, free, messages = Slots.create(1, 4096), LateSlots([0]), list[Chunk | SpanDone]()
    result = Result(Span(7, 0, 3, ()), {"y": np.zeros((3, 4096), np.uint8)})
    send(result, Timings(marks=[Level(SLOTS_IN_USE, 0.0, 0)]), slots, free, messages.append)
    done = messages[-1]
    assert isinstance(done, SpanDone)
    marks = [mark for mark in done.timings.marks if isinstance(mark, Mark)]
    (whole,) = [mark for mark in marks if mark.what == HAND_OVER]
    waits = [mark for mark in marks if mark.what == WAIT_FOR_SLOT and mark.end - mark.start > LATE_S / 2]
    assert (whole.span, whole.rows, whole.batch) == (7, 3, NONE)
    assert len(waits) == 2
    assert done.timings.wait_for_slot >= sum(wait.end - wait.start for wait in waits)
    assert done.timings.hand_over + done.timings.wait_for_slot == pytest.approx(whole.end - whole.start)
    assert all(whole.start <= wait.start <= wait.end <= whole.end for wait in waits)
    slots.close()


def test_result_of_a_job_that_is_not_traced_travels_without_marks() -> None:
    slots, messages = Slots.create(1, 4096), list[Chunk | SpanDone]()
    send(Result(Span(0, 0, 2, ()), {"y": np.zeros(2)}), Timings(), slots, FreeSlots([0]), messages.append)
    done = messages[-1]
    assert isinstance(done, SpanDone)
    assert done.timings.marks == []
    assert done.timings.hand_over > 0.0
    slots.close()


def test_slots_note_only_real_waits_and_only_where_asked() -> None:
    free = LateMarkedSlots()
    free.give_back(3)
    assert free.take() == 3
    free.span, free.marks = 5, []
    free.late = 2
    assert free.take() == 2
    waits = [mark for mark in free.marks if isinstance(mark, Mark) and mark.end - mark.start > LATE_S / 2]
    assert [(mark.what, mark.span, mark.slot) for mark in waits] == [(WAIT_FOR_SLOT, 5, 2)]


class CopiesFor(Doubler):
    """A model that says how long its copies took."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._total = 0.0

    def predict(self, batch: Columns) -> Columns:
        self._total += self._seconds
        return super().predict(batch)

    def copied_s(self) -> float:
        return self._total


def test_time_of_copying_is_told_by_a_replica_that_can() -> None:
    replica, outlet = CopiesFor(0.25), Outlet()
    pipeline = Pipeline(guarded(replica), TRACED, outlet.emit, outlet.errors.put, loaders=1, lanes=1)
    pipeline.add(spans_of(1, 8)[0])
    assert outlet.results.get(timeout=TIMEOUT_S)[1].copy == 0.5
    pipeline.close()
    assert timings_of(TRACED, spans_of(1, 8))[0].copy == 0.0
