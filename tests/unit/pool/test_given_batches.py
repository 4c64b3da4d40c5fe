"""Batches that loader processes send: in any order, perhaps twice, in memory that is not ours."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.records import Columns, RowFailure, Span, Timings
from penstock.pool.loading import load_batches
from penstock.pool.pipeline import Pipeline

from .piping import TIMEOUT_S, Blocks, Doubler, Outlet, Waiting, X, inputs_of, kept, piping, spans_of


class Slot:
    """Memory that is overwritten as soon as it is released."""

    def __init__(self, batch: Batch) -> None:
        self.memory = {name: array.copy() for name, array in batch.arrays.items()}
        self.batch = Batch(
            batch.index, batch.positions, batch.rows, dict(self.memory), batch.kept, batch.failures, values=batch.values
        )
        self.released = threading.Event()

    def release(self) -> None:
        assert not self.released.is_set(), "released twice"
        for array in self.memory.values():
            array[:] = -77
        self.released.set()


@contextmanager
def fed(replica: Doubler, job: Job, *, lanes: int = 2) -> Iterator[tuple[Pipeline, Outlet]]:
    with piping(replica, job, loaders=0, lanes=lanes) as (pipeline, outlet):
        yield pipeline, outlet


def job_of(sizes: list[int], failures: list[int] | None = None) -> Job:
    return Job(Blocks(sizes, failures or []), (X,), ("id",), batch_size=4)


def slots_of(job: Job, span: Span) -> list[Slot]:
    return [Slot(batch) for batch in load_batches(job, span)]


def test_batches_in_any_order_make_whole_results_and_every_slot_is_released_once() -> None:
    job = job_of([10], failures=[3, 17])
    spans = spans_of(3, 10)
    sent = [(span, slot) for span in spans for slot in slots_of(job, span)]
    random.Random(1).shuffle(sent)
    with fed(Doubler(), job) as (pipeline, outlet):
        for span, slot in sent:
            pipeline.give(span, slot.batch, slot.release)
        for span in spans:
            pipeline.end(span, 3, 0.25)
        results = outlet.take(3)
        assert all(slot.released.wait(TIMEOUT_S) for _, slot in sent)
    for span, result in zip(spans, results, strict=True):
        alive = np.array([row for row in range(span.start, span.stop) if row not in (3, 17)])
        np.testing.assert_array_equal(result.columns["y"], inputs_of(alive) * 2)
        assert kept(result, "id") == alive.tolist()
    assert [failure.row for result in results for failure in result.failures] == [3, 17]


def test_end_may_come_before_the_batches_are_predicted_or_after() -> None:
    job = job_of([8])
    (span,) = spans_of(1, 8)
    first, second = slots_of(job, span)
    with fed(Doubler(), job) as (pipeline, outlet):
        pipeline.give(span, first.batch, first.release)
        pipeline.give(span, second.batch, second.release)
        assert first.released.wait(TIMEOUT_S)
        assert second.released.wait(TIMEOUT_S)
        assert outlet.results.empty()
        pipeline.end(span, 2, 0.5)
        result, timings = outlet.results.get(timeout=TIMEOUT_S)
    assert result.rows == 8
    assert timings.read == 0.5
    assert timings.rows == 8


def test_batch_that_was_given_is_known_until_its_span_is_done() -> None:
    job = job_of([8])
    (span,) = spans_of(1, 8)
    first, second = slots_of(job, span)
    replica = Waiting()
    with fed(replica, job) as (pipeline, outlet):
        assert not pipeline.has(span, 0)
        pipeline.give(span, first.batch, first.release)
        assert pipeline.has(span, 0)
        assert not pipeline.has(span, 1)
        pipeline.give(span, second.batch, second.release)
        pipeline.end(span, 2, 0.0)
        replica.may_go.set()
        outlet.take(1)
        assert not pipeline.has(span, 0)


def test_result_comes_out_once_though_the_loader_that_sent_some_of_it_died() -> None:
    """Another loader sends the span from its beginning; what is known already is left out, as a replica does."""
    job = job_of([8])
    (span,) = spans_of(1, 8)
    before, again = slots_of(job, span), slots_of(job, span)
    with fed(Doubler(), job) as (pipeline, outlet):
        pipeline.give(span, before[0].batch, before[0].release)
        for slot in again:
            if not pipeline.has(span, slot.batch.index):
                pipeline.give(span, slot.batch, slot.release)
        pipeline.end(span, 2, 0.0)
        (result,) = outlet.take(1)
        assert outlet.results.empty()
    np.testing.assert_array_equal(result.columns["y"], inputs_of(np.arange(8)) * 2)


def test_drain_takes_back_given_spans_that_are_not_begun_and_releases_their_slots() -> None:
    job = job_of([4])
    spans = spans_of(3, 4)
    slots = [slots_of(job, span)[0] for span in spans]
    replica = Waiting()
    with fed(replica, job, lanes=1) as (pipeline, outlet):
        for span, slot in zip(spans, slots, strict=True):
            pipeline.give(span, slot.batch, slot.release)
        assert replica.has_begun.wait(TIMEOUT_S)
        awaited = Span(7, 70, 4, ())
        assert pipeline.drain([*spans, awaited]) == [*spans[1:], awaited]
        pipeline.end(spans[0], 1, 0.0)
        replica.may_go.set()
        assert [result.span for result in outlet.take(1)] == spans[:1]
        assert all(slot.released.wait(TIMEOUT_S) for slot in slots)


def test_rows_that_another_attempt_cuts_into_other_batches_are_answered_as_themselves() -> None:
    """Batches of rows of one size: the second attempt knows that a row is broken, and all rows after it move up."""
    (span,) = spans_of(1, 6)
    job = replace(job_of([6]), buckets={"x": ((3,),)})
    failure = RowFailure(1, "", "load", "LoaderDied", "broken")

    def batch(index: int, rows: list[int]) -> Batch:
        failures = (failure,) if 1 in rows and attempt == 2 else ()
        return Batch(index, np.array(rows), len(rows), {"x": inputs_of(np.array(rows))}, failures=failures)

    with fed(Doubler(), job) as (pipeline, outlet):
        for attempt, batches in ((1, [[0, 2]]), (2, [[0, 1], [2, 3], [4, 5]])):
            for index, rows in enumerate(batches):
                if not pipeline.has(span, index, attempt):
                    pipeline.give(span, batch(index, rows), lambda: None, attempt=attempt)
        pipeline.end(span, 3, 0.0, attempt)
        (result,) = outlet.take(1)
    assert [each.row for each in result.failures] == [1]
    assert result.row_numbers().tolist() == [0, 2, 3, 4, 5]
    np.testing.assert_array_equal(result.columns["y"], inputs_of(np.array([0, 2, 3, 4, 5])) * 2)


@pytest.mark.parametrize("rows", [[[0, 1], [1, 2, 3]], [[0, 1], [1, 2]], [[0, 1], [2]]], ids=["more", "twice", "lost"])
def test_rows_that_are_there_twice_or_not_at_all_end_the_run(rows: list[list[int]]) -> None:
    (span,) = spans_of(1, 4)
    with fed(Doubler(), job_of([4])) as (pipeline, outlet):
        for index, each in enumerate(rows):
            batch = Batch(index, np.array(each), len(each), {"x": inputs_of(np.array(each))})
            pipeline.give(span, batch, lambda: None)
        try:
            pipeline.end(span, 2, 0.0)
        except RuntimeError as error:
            problem: BaseException = error
        else:  # a lane has seen the last of it
            problem = outlet.errors.get(timeout=TIMEOUT_S)
        assert "of span 0" in str(problem)
        assert outlet.results.empty()


def test_model_that_hands_its_input_through_does_not_hand_out_the_slot() -> None:
    class Echo(Doubler):
        def predict(self, batch: Columns) -> Columns:
            return {"y": batch["x"], "first": batch["x"][:, 0]}

    job = job_of([4])
    (span,) = spans_of(1, 4)
    (slot,) = slots_of(job, span)
    with fed(Echo(), job) as (pipeline, outlet):
        pipeline.give(span, slot.batch, slot.release)
        pipeline.end(span, 1, 0.0)
        (result,) = outlet.take(1)
        assert slot.released.wait(TIMEOUT_S)
    np.testing.assert_array_equal(result.columns["y"], inputs_of(np.arange(4)))
    np.testing.assert_array_equal(result.columns["first"], np.arange(4))


def test_rows_that_the_model_rejects_are_named_by_their_place_in_the_span() -> None:
    x = np.ones((4, 3), np.float32)
    x[1] = 1000
    positions = np.array([2, 5, 6])
    batch = Batch(0, positions, 3, {"x": x})
    others = np.array([0, 1, 3, 4])
    (span,) = spans_of(1, 7)
    job = job_of([7])
    with fed(Doubler(poison=1000), job) as (pipeline, outlet):
        pipeline.give(span, batch, lambda: None)
        pipeline.give(span, Batch(1, others, 4, {"x": np.ones((4, 3), np.float32)}), lambda: None)
        pipeline.end(span, 2, 0.0)
        (result,) = outlet.take(1)
    assert [failure.row for failure in result.failures] == [5]
    assert result.row_numbers().tolist() == [0, 1, 2, 3, 4, 6]
    assert result.columns["total"].tolist() == [3.0] * 6


def test_padding_is_counted_in_the_timings() -> None:
    (span,) = spans_of(1, 8)
    job = job_of([8])
    with fed(Doubler(), job) as (pipeline, outlet):
        for slot in slots_of(job, span):
            slot.batch.values, slot.batch.padded = 12, 5
            pipeline.give(span, slot.batch, slot.release)
        pipeline.end(span, 2, 0.0)
        timings: Timings = outlet.results.get(timeout=TIMEOUT_S)[1]
    assert (timings.values, timings.padded) == (24, 10)


@pytest.mark.parametrize("lanes", [1, 3])
def test_batches_wait_in_line_however_many_there_are(lanes: int) -> None:
    """Slots bound what is under way: the line itself takes all that is given, and giving never waits."""
    job = job_of([400])
    (span,) = spans_of(1, 400)
    replica = Waiting()
    with fed(replica, job, lanes=lanes) as (pipeline, outlet):
        for slot in slots_of(job, span):
            pipeline.give(span, slot.batch, slot.release)
        pipeline.end(span, 100, 0.0)
        replica.may_go.set()
        (result,) = outlet.take(1)
    np.testing.assert_array_equal(result.columns["y"], inputs_of(np.arange(400)) * 2)
