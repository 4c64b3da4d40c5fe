"""A model that changes when it is called, in the pipe inside a replica."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.protocols import Replica, Stateful
from penstock.core.records import Columns, Result, Span
from penstock.core.state import NONE, SEEDS, VARIABLES, State
from penstock.errors import InputError, ModelError, PenstockError
from penstock.pool.guard.keeping import Keeper, trim
from penstock.pool.guard.warmup import warm_up
from penstock.pool.loading import load_batches
from penstock.pool.pipeline import Pipeline
from tests.unit.pool.piping import TIMEOUT_S, Blocks, Doubler, X, guarded, spans_of


class Counting(Doubler):
    """Answers with the number of the call, and with the row that its turn is for."""

    def __init__(self, *, poison: float | None = None) -> None:
        super().__init__(poison=poison)
        self.count = 0
        self.sizes: list[int] = []
        self._held = 0
        self._row = 0
        self.seed: int | None = None

    def look(self, batch: Columns) -> State:
        return State(VARIABLES, ("count",))

    def hold(self, seed: int | None) -> None:
        self._held, self.seed = self.count, seed

    def restore(self) -> None:
        self.count = self._held

    def turn(self, row: int) -> None:
        self._row = row

    def predict(self, batch: Columns) -> Columns:
        super().predict(batch)
        self.count += 1
        self.sizes.append(len(batch["x"]))
        return {"y": np.full(len(batch["x"]), self.count), "turn": np.full(len(batch["x"]), self._row)}


def job_of(source: Blocks, state: str = VARIABLES, *, is_trimmed: bool = True) -> Job:
    return Job(source, (X,), (), batch_size=8, state=state, seed=3, is_trimmed=is_trimmed)


def run(replica: Replica, job: Job, spans: Sequence[Span]) -> list[Result] | BaseException:
    ended: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    pipeline = Pipeline(guarded(replica, job), job, lambda result, _: ended.put(result), ended.put, loaders=1, lanes=1)
    with contextlib.closing(pipeline):
        for span in spans:
            pipeline.add(span)
        results: list[Result] = []
        while len(results) < len(spans):
            found = ended.get(timeout=TIMEOUT_S)
            if isinstance(found, BaseException):
                return found
            results.append(found)
        return results


def first_batch(job: Job) -> Batch:
    batch = next(load_batches(job, Span(0, 0, 20, ())))
    trim(job, batch)
    return batch


def test_every_batch_runs_once_and_the_last_one_is_as_short_as_it_is() -> None:
    replica = Counting()
    results = run(replica, job_of(Blocks([20])), spans_of(1, 20))
    assert not isinstance(results, BaseException)
    assert results[0].columns["y"].tolist() == [1] * 8 + [2] * 8 + [3] * 4
    assert replica.sizes == [8, 8, 4]


def test_model_that_insists_on_a_size_gets_it() -> None:
    replica = Counting()
    results = run(replica, job_of(Blocks([20]), is_trimmed=False), spans_of(1, 20))
    assert not isinstance(results, BaseException)
    assert replica.sizes == [8, 8, 8]
    assert results[0].columns["y"].tolist() == [1] * 8 + [2] * 8 + [3] * 4


def test_batches_that_do_not_follow_each_other_are_refused() -> None:
    first, second = spans_of(2, 16)
    error = run(Counting(), job_of(Blocks([16])), [second, first])
    assert isinstance(error, InputError)
    assert "keeps state" in error.problem


def test_every_batch_of_a_random_model_knows_its_first_row() -> None:
    replica = Counting()
    results = run(replica, job_of(Blocks([20]), SEEDS, is_trimmed=False), spans_of(2, 20))
    assert not isinstance(results, BaseException)
    turns = [result.columns["turn"].tolist() for result in results]
    assert turns == [[0] * 8 + [8] * 8 + [16] * 4, [20] * 8 + [28] * 8 + [36] * 4]


@pytest.mark.parametrize(
    ("source", "replica", "kind", "told"),
    [
        (Blocks([20], failures=[11]), Counting(), InputError, "row 11: broken"),
        (Blocks([20]), Counting(poison=12), ModelError, "poison"),
    ],
    ids=["a row cannot be fed", "the model rejects a batch"],
)
def test_row_without_an_answer_ends_what_all_others_depend_on(
    source: Blocks, replica: Counting, kind: type[PenstockError], told: str
) -> None:
    error = run(replica, job_of(source), spans_of(1, 20))
    assert isinstance(error, kind)
    assert told in str(error.received)
    assert replica.sizes == [8], "nothing was tried out on the model"


def test_model_is_as_it_was_when_it_has_warmed_up() -> None:
    replica, job = Counting(), job_of(Blocks([20]))
    assert isinstance(replica, Stateful)
    keeper = Keeper(replica)
    assert keeper.look(first_batch(job)) == State(VARIABLES, ("count",))
    keeper.hold(job)
    warm_up(guarded(replica, job), first_batch(job), Span(0, 0, 20, ()), job.bindings)
    assert replica.count == 2
    keeper.hold(job)  # a second preparation does not take what the first one left for the beginning
    keeper.restore()
    assert (replica.count, replica.seed) == (0, 3)


def test_what_a_run_changed_stays_and_seeds_that_were_lent_do_not() -> None:
    for state, left in ((VARIABLES, 3), (SEEDS, 0)):
        replica, job = Counting(), job_of(Blocks([20]), state, is_trimmed=False)
        keeper = Keeper(replica)
        keeper.hold(job)
        run(replica, job, spans_of(1, 20))
        keeper.let_go(job)
        assert replica.count == left


def test_model_that_cannot_change_is_left_alone() -> None:
    replica, job = Doubler(), replace(job_of(Blocks([20])), state=NONE, is_trimmed=False)
    keeper = Keeper(replica)
    assert keeper.look(first_batch(job)).kind == NONE
    keeper.hold(job)
    keeper.restore()
    keeper.let_go(job)
    assert len(first_batch(job).arrays["x"]) == 8
