"""The step is compiled and timed on the job's own first rows."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.job import Job
from penstock.core.messages import Prepared
from penstock.core.records import Binding, Columns, Signature, Span, TensorSpec
from penstock.errors import ModelError, OutOfMemory
from penstock.pool.guard.guarded import GuardedReplica
from penstock.pool.guard.warmup import warm_lanes, warm_up
from penstock.pool.loading import load_batches
from penstock.sources.python.memory import InMemory
from tests.unit.pool.piping import TIMEOUT_S, Blocks, Doubler, X, guarded


def warmed(replica: Doubler, job: Job, rows: int) -> Prepared:
    sample = Span(0, 0, rows, ())
    return warm_up(guarded(replica), next(load_batches(job, sample)), sample)


class TestWarmUp:
    def test_outputs_are_described_as_they_come_out(self) -> None:
        replica = Doubler()
        prepared = warmed(replica, Job(Blocks([5]), (X,), (), batch_size=8), 5)
        assert prepared.outputs == (TensorSpec("y", "float32", (3,)), TensorSpec("total", "float32", ()))
        assert prepared.batch_seconds > 0
        assert replica.shapes == {(8, 3)}
        assert replica.calls == 2

    def test_model_that_sums_over_the_batch_is_refused(self) -> None:
        class Sum(Doubler):
            def predict(self, batch: Columns) -> Columns:
                return {"loss": batch["x"].sum(axis=0)}

        with pytest.raises(ModelError) as caught:
            warmed(Sum(), Job(Blocks([8]), (X,), (), batch_size=8), 8)
        assert caught.value.received == "loss: shape (3,) for a batch of 8"

    def test_model_that_gives_a_single_number_is_refused(self) -> None:
        class Mean(Doubler):
            def predict(self, batch: Columns) -> Columns:
                return {"loss": np.asarray(batch["x"].mean())}

        with pytest.raises(ModelError, match="does not have one row for each row"):
            warmed(Mean(), Job(Blocks([8]), (X,), (), batch_size=8), 8)

    def test_model_that_rejects_every_row_is_told(self) -> None:
        with pytest.raises(ModelError) as caught:
            warmed(Doubler(poison=0.5), Job(InMemory({"x": np.ones((4, 3), "f4")}), (X,), (), 4), 4)
        assert caught.value.problem == "the model rejects every one of the first rows"
        assert caught.value.received == "ValueError: poison"

    def test_one_bad_row_among_the_first_does_not_stop_the_job(self) -> None:
        x = np.zeros((4, 3), np.float32)
        x[1] = 1000
        prepared = warmed(Doubler(poison=1000), Job(InMemory({"x": x}), (X,), (), 4), 4)
        assert [spec.name for spec in prepared.outputs] == ["y", "total"]

    def test_output_that_follows_the_length_of_its_rows_is_described_as_lists(self) -> None:
        class PerToken(Doubler):
            signature = Signature((TensorSpec("x", "float32", (None,)),), (TensorSpec("y", "float32", (None,)),))

            def predict(self, batch: Columns) -> Columns:
                return {"y": batch["x"] * 2, "total": batch["x"].sum(axis=1)}

        lengths = pa.array([[1.0, 2.0], [3.0], [4.0]], pa.list_(pa.float32()))
        binding = Binding("x", ("x",), "float32", (None,))
        job = Job(InMemory({"x": lengths}), (binding,), (), 4, buckets={"x": [[8]]})
        prepared = warmed(PerToken(), job, 3)
        assert prepared.outputs == (
            TensorSpec("y", "float32", (1,), varies=True),
            TensorSpec("total", "float32", ()),
        )

    def test_outputs_follow_the_input_that_they_grow_with_though_both_are_padded_alike(self) -> None:
        class Two(Doubler):
            def predict(self, batch: Columns) -> Columns:
                question, text = batch["question"], batch["text"]
                return {"marks": question * 2, "classes": np.ones((len(text), 8), np.float32)}

        lists = pa.list_(pa.float32())
        columns = {
            "question": pa.array([[1.0], [1.0, 2.0]], lists),
            "text": pa.array([[1.0] * 6, [2.0] * 7], lists),
        }
        bindings = tuple(Binding(name, (name,), "float32", (None,)) for name in ("text", "question"))
        job = Job(InMemory(columns), bindings, (), 2, buckets={"text": [[8]], "question": [[8]]})
        prepared = warmed(Two(), job, 2)
        assert prepared.follows == {"marks": "question"}
        assert [(spec.name, spec.varies) for spec in prepared.outputs] == [("marks", True), ("classes", False)]

    def test_open_output_is_a_list_unless_an_input_fed_rows_of_one_length_explains_it(self) -> None:
        class Open(Doubler):
            def predict(self, batch: Columns) -> Columns:
                return {"y": batch["x"][:, :2], "fixed": batch["x"][:, 0], "any": batch["x"]}

        outputs = tuple(TensorSpec(*each) for each in (("y", "f4", (None,)), ("fixed", "f4", ()), ("any", "f4", None)))
        fixed, varying = np.ones((4, 3), np.float32), pa.array([[1.0] * 4, [1.0] * 3], pa.list_(pa.float32()))
        for declared, column, shape, is_list in (
            ((3,), fixed, (3,), True),
            ((None,), fixed, (3,), False),
            ((None,), varying, (None,), True),
        ):
            replica = Open()
            replica.signature = Signature((TensorSpec("x", "float32", declared),), outputs)
            binding = Binding("x", ("x",), "float32", shape)
            job = Job(
                InMemory({"x": column}), (binding,), (), len(column), buckets={"x": [[8]]} if None in shape else {}
            )
            found = {spec.name: spec.varies for spec in warmed(replica, job, len(column)).outputs}
            assert found["y"] is is_list
            assert not found["fixed"]


class TestWarmLanes:
    def test_all_lanes_are_in_a_call_at_the_same_time(self) -> None:
        class Together(Doubler):
            """Answers once three calls are under way."""

            def __init__(self) -> None:
                super().__init__()
                self.all_here = threading.Barrier(3)

            def predict(self, batch: Columns) -> Columns:
                self.all_here.wait(TIMEOUT_S)
                return super().predict(batch)

        replica, sample = Together(), Span(0, 0, 5, ())
        batch = next(load_batches(Job(Blocks([5]), (X,), (), batch_size=8), sample))
        warm_lanes(guarded(replica), batch, sample, 3)
        assert replica.calls in (3, 9)
        assert not replica.all_here.broken
        assert batch.arrays["x"].shape == (8, 3), "the batch is whole"

    def test_what_fails_is_left_to_the_job(self) -> None:
        class Broken(Doubler):
            def predict(self, batch: Columns) -> Columns:
                super().predict(batch)
                raise OutOfMemory("the device ran out of memory")

        replica, sample = Broken(), Span(0, 0, 5, ())
        batch = next(load_batches(Job(Blocks([5]), (X,), (), batch_size=8), sample))
        guard = GuardedReplica(replica, "gpu:0", lambda *shortage: None, pause=lambda seconds: None)
        warm_lanes(guard, batch, sample, 2)
        assert replica.calls >= 2
