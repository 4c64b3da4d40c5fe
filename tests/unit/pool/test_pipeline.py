"""The pipe inside a replica, with real threads and a small real model."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.job import Job
from penstock.core.records import Binding, Block, Columns, Result, Span, TensorSpec, Timings
from penstock.errors import DeviceError, InputError, ModelError, PenstockError
from penstock.pool.pipeline import Pipeline
from penstock.pool.transfer.results import Writable
from penstock.pool.transfer.slots import FreeSlots, Slots
from penstock.sources.python.memory import InMemory

from .piping import (
    TIMEOUT_S,
    Blocks,
    Doubler,
    Outlet,
    Rejecting,
    Waiting,
    X,
    guarded,
    inputs_of,
    kept,
    piping,
    predict_all,
    spans_of,
    values,
)


@pytest.mark.parametrize("loaders", [1, 3])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("sizes", [[30], [7, 1, 16, 6], [1] * 30, [8, 8, 8, 6]], ids=str)
def test_rows_of_every_span_come_out_in_order(sizes: list[int], lanes: int, loaders: int) -> None:
    job = Job(Blocks(sizes), (X,), ("id", "name"), batch_size=8)
    results = predict_all(Doubler(), job, spans_of(10, 30), loaders=loaders, lanes=lanes)
    for index, result in enumerate(results):
        rows = np.arange(index * 30, (index + 1) * 30)
        np.testing.assert_array_equal(result.columns["y"], inputs_of(rows) * 2)
        np.testing.assert_array_equal(result.columns["total"], inputs_of(rows).sum(axis=1))
        assert kept(result, "id") == rows.tolist()
        assert kept(result, "name") == [f"r{row}" for row in rows]
        assert result.failures == ()


def test_rows_that_are_not_as_those_of_the_first_batch_end_the_job_with_both_shapes() -> None:
    class Widest(Doubler):
        """As wide as the largest value of the batch."""

        def predict(self, batch: Columns) -> Columns:
            return {"y": np.zeros((len(batch["x"]), int(batch["x"].max())))}

    job = Job(Blocks([4]), (X,), (), batch_size=4)
    outlet = Outlet()
    described = (TensorSpec("y", "float64", (3,)),)
    pipeline = Pipeline(
        guarded(Widest(), job), job, outlet.emit, outlet.errors.put, loaders=1, lanes=1, outputs=described
    )
    with contextlib.closing(pipeline):
        for span in spans_of(2, 4):
            pipeline.add(span)
        error = outlet.errors.get(timeout=TIMEOUT_S)
    assert isinstance(error, ModelError)
    assert error.received == "y: rows of (3,), then of (7,)"
    assert outlet.results.qsize() == 1


def test_batches_that_are_ready_out_of_order_come_out_in_order() -> None:
    class FirstLast(Doubler):
        """Answers the first batch only when the second is answered."""

        def __init__(self) -> None:
            super().__init__()
            self.second_is_done = threading.Event()

        def predict(self, batch: Columns) -> Columns:
            if batch["x"][0, 0] == 0:
                assert self.second_is_done.wait(TIMEOUT_S)
            outputs = super().predict(batch)
            if batch["x"][0, 0] == 4:
                self.second_is_done.set()
            return outputs

    (result,) = predict_all(FirstLast(), Job(Blocks([10]), (X,), (), batch_size=4), spans_of(1, 10), lanes=2)
    np.testing.assert_array_equal(result.columns["y"], inputs_of(np.arange(10)) * 2)


def test_every_span_comes_out_once_however_the_threads_interleave() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        job = Job(Blocks([2]), (X,), ("id",), batch_size=2)
        with piping(Doubler(), job, loaders=3, lanes=3) as (pipeline, outlet):
            for span in spans_of(400, 2):
                pipeline.add(span)
            results = outlet.take(400)
        assert outlet.results.empty()
    finally:
        sys.setswitchinterval(interval)
    assert [result.span.index for result in results] == list(range(400))


def test_model_sees_one_shape_only_and_pads_do_not_come_out() -> None:
    replica = Doubler()
    (result,) = predict_all(replica, Job(Blocks([13]), (X,), (), batch_size=8), spans_of(1, 13))
    assert replica.shapes == {(8, 3)}
    assert len(result.columns["y"]) == 13


def test_outputs_come_first_and_kept_columns_after_under_names_that_cannot_clash() -> None:
    source = InMemory({"x": np.ones((4, 3), np.float32), "y": np.arange(4)})
    (result,) = predict_all(Doubler(), Job(source, (X,), ("y", "x"), batch_size=4), spans_of(1, 4))
    assert list(result.columns) == ["y", "total", "kept:y", "kept:x"]
    assert kept(result, "y") == [0, 1, 2, 3]
    assert values(result, "y") == [[2.0, 2.0, 2.0]] * 4


def test_rows_that_the_source_could_not_read_are_left_out_and_named() -> None:
    job = Job(Blocks([5, 5], failures=[2, 7]), (X,), ("id", "name"), batch_size=4)
    (result,) = predict_all(Doubler(), job, spans_of(1, 10))
    survivors = [row for row in range(10) if row not in (2, 7)]
    assert kept(result, "id") == survivors
    assert kept(result, "name") == [f"r{row}" for row in survivors]
    np.testing.assert_array_equal(result.columns["y"], inputs_of(np.array(survivors)) * 2)
    assert [(f.row, f.origin, f.stage) for f in result.failures] == [(2, "a.csv", "read"), (7, "a.csv", "read")]


def test_rows_that_cannot_be_fed_are_left_out_and_named() -> None:
    column = pa.array([[1.0, 2, 3], None, [4, 5], [7, 8, 9], [1, None, 3]], pa.list_(pa.float32()))
    source = InMemory({"x": column, "id": np.arange(5)})
    (result,) = predict_all(Doubler(), Job(source, (X,), ("id",), batch_size=8), spans_of(1, 5))
    assert kept(result, "id") == [0, 3]
    assert values(result, "y") == [[2, 4, 6], [14, 16, 18]]
    assert [(f.row, f.origin, f.stage, f.reason) for f in result.failures] == [
        (1, "memory", "load", "column 'x' is null"),
        (2, "memory", "load", "column 'x' has 2 values, not 3"),
        (4, "memory", "load", "column 'x' holds a null"),
    ]


def test_row_that_failed_twice_is_named_once_with_its_first_reason() -> None:
    source = Blocks([4], failures=[1])
    job = Job(source, (X, Binding("x2", ("x",), "float32", (3,))), (), batch_size=4)
    (result,) = predict_all(Doubler(), job, spans_of(1, 4))
    assert [(f.row, f.reason) for f in result.failures] == [(1, "broken")]


def test_span_whose_rows_all_failed_still_comes_out() -> None:
    job = Job(Blocks([4], failures=[0, 1, 2, 3]), (X,), ("id",), batch_size=4)
    (result,) = predict_all(Doubler(), job, spans_of(1, 4))
    assert result.rows == 0
    assert [f.row for f in result.failures] == [0, 1, 2, 3]
    assert kept(result, "id") == []


def test_columns_of_numbers_are_stacked() -> None:
    source = InMemory({"a": np.array([1, 2], "uint8"), "b": pa.array([3, None]), "c": np.array([5.5, 6.5])})
    job = Job(source, (Binding("x", ("a", "b", "c"), "float32", (3,)),), (), batch_size=2)
    (result,) = predict_all(Doubler(), job, spans_of(1, 2))
    assert values(result, "y") == [[2, 6, 11]]
    assert [(f.row, f.reason) for f in result.failures] == [(1, "column 'b' is null")]


@pytest.mark.parametrize("poisoned", [[0], [7], [3, 4], [0, 1, 2, 3, 4, 5, 6, 7], [9], [1, 5, 8, 12]], ids=str)
def test_rows_that_the_model_rejects_are_found_and_the_others_keep_their_bits(poisoned: list[int]) -> None:
    clean = np.random.default_rng(0).normal(size=(13, 3)).astype(np.float32)
    dirty = clean.copy()
    dirty[poisoned, 1] = 1000
    replica = Doubler(poison=1000)
    job = Job(InMemory({"x": dirty, "id": np.arange(13)}), (X,), ("id",), batch_size=8)
    (result,) = predict_all(replica, job, spans_of(1, 13))
    survivors = [row for row in range(13) if row not in poisoned]
    assert kept(result, "id") == survivors
    assert result.columns["y"].tobytes() == (clean[survivors] * 2).tobytes()
    assert result.columns["total"].tobytes() == clean.sum(axis=1)[survivors].tobytes()
    assert [f.row for f in result.failures] == poisoned
    assert {(f.stage, f.error, f.reason) for f in result.failures} == {("predict", "ValueError", "ValueError: poison")}
    assert replica.shapes == {(8, 3)}


def test_rejected_rows_are_numbered_in_the_whole_input() -> None:
    x = np.zeros((30, 3), np.float32)
    x[23] = 1000
    job = Job(InMemory({"x": x}), (X,), (), batch_size=4)
    result = predict_all(Doubler(poison=1000), job, spans_of(3, 10))[2]
    assert [f.row for f in result.failures] == [23]
    assert result.row_numbers().tolist() == [20, 21, 22, 24, 25, 26, 27, 28, 29]


def test_failures_of_every_kind_are_named_in_the_order_of_their_rows() -> None:
    column = pa.array([[1, 1, 1], [1000, 0, 0], [1, 1, 1], None, [1000, 0, 0], [1, 1, 1]], pa.list_(pa.float32()))
    job = Job(InMemory({"x": column, "id": np.arange(6)}), (X,), ("id",), batch_size=8)
    (result,) = predict_all(Doubler(poison=1000), job, spans_of(1, 6))
    assert [(failure.row, failure.stage) for failure in result.failures] == [
        (1, "predict"),
        (3, "load"),
        (4, "predict"),
    ]
    assert kept(result, "id") == [0, 2, 5]


def test_rejected_rows_say_where_they_came_from() -> None:
    x = np.zeros((4, 3), np.float32)
    x[2] = 1000
    (result,) = predict_all(Doubler(poison=1000), Job(InMemory({"x": x}), (X,), (), 4), spans_of(1, 4))
    assert result.failures[0].origin == "memory"
    (result,) = predict_all(Doubler(poison=2), Job(Blocks([4]), (X,), (), 4), spans_of(1, 4))
    assert [failure.origin for failure in result.failures] == ["blocks, row 2 of span 0", "blocks, row 3 of span 0"]


def test_rejected_text_is_found_and_left_out() -> None:
    class Lengths(Doubler):
        def predict(self, batch: Columns) -> Columns:
            if b"bad" in batch["text"].tolist():
                raise ValueError("bad text")
            return {"length": np.array([len(text) for text in batch["text"]])}

    source = InMemory({"text": np.array(["a", "bad", "ccc"], dtype=object)})
    job = Job(source, (Binding("text", ("text",), "string", ()),), ("text",), batch_size=4)
    (result,) = predict_all(Lengths(), job, spans_of(1, 3))
    assert values(result, "length") == [1, 3]
    assert kept(result, "text") == ["a", "ccc"]
    assert [f.row for f in result.failures] == [1]


def first_error(replica: Doubler, job: Job, spans: Sequence[Span]) -> BaseException:
    with piping(replica, job) as (pipeline, outlet):
        for span in spans:
            pipeline.add(span)
        return outlet.errors.get(timeout=TIMEOUT_S)


def test_model_that_rejects_whatever_it_is_given_is_a_model_error() -> None:
    error = first_error(Rejecting(ValueError("wrong shape\ndetails")), Job(Blocks([4]), (X,), (), 4), spans_of(1, 4))
    assert isinstance(error, ModelError)
    assert error.received == "ValueError: wrong shape"
    assert "penstock inspect" in (error.hint or "")


class NoZeros(Doubler):
    """A model that rejects rows of zeros and rows of a thousand."""

    def predict(self, batch: Columns) -> Columns:
        if (batch["x"] == 0).all(axis=1).any() or (batch["x"] >= 1000).any():
            raise ValueError("nothing but real rows")
        return super().predict(batch)


@pytest.mark.parametrize("poisoned", [[0], [3], [0, 1, 2], [6]], ids=str)
def test_rows_are_found_in_a_model_that_rejects_zeros_too(poisoned: list[int]) -> None:
    x = np.random.default_rng(1).uniform(1, 2, size=(7, 3)).astype(np.float32)
    dirty = x.copy()
    dirty[poisoned] = 1000
    job = Job(InMemory({"x": dirty, "id": np.arange(7)}), (X,), ("id",), batch_size=8)
    (result,) = predict_all(NoZeros(), job, spans_of(1, 7))
    survivors = [row for row in range(7) if row not in poisoned]
    assert kept(result, "id") == survivors
    assert result.columns["y"].tobytes() == (x[survivors] * 2).tobytes()
    assert [failure.row for failure in result.failures] == poisoned


def test_row_that_the_source_could_not_read_takes_no_other_down_in_a_model_that_rejects_zeros() -> None:
    column = pa.array([[1.0, 1, 1], None, [2, 2, 2]], pa.list_(pa.float32()))
    job = Job(InMemory({"x": column, "id": np.arange(3)}), (X,), ("id",), batch_size=4)
    (result,) = predict_all(NoZeros(), job, spans_of(1, 3))
    assert kept(result, "id") == [0, 2]
    assert values(result, "y") == [[2, 2, 2], [4, 4, 4]]
    assert [(failure.row, failure.reason) for failure in result.failures] == [(1, "column 'x' is null")]


def test_batch_without_one_row_for_each_row_is_a_model_error() -> None:
    class Dropping(Doubler):
        """Gives a row less than it was given, but only once it has seen a large value."""

        def predict(self, batch: Columns) -> Columns:
            outputs = super().predict(batch)
            return {name: output[:-1] for name, output in outputs.items()} if (batch["x"] > 6).any() else outputs

    error = first_error(Dropping(), Job(Blocks([4, 4]), (X,), (), 4), spans_of(1, 8))
    assert isinstance(error, ModelError)
    assert "does not have one row for each row" in error.problem


def test_device_that_runs_out_of_memory_is_not_blamed_on_rows() -> None:
    raised = DeviceError("the device ran out of memory")
    assert first_error(Rejecting(raised), Job(Blocks([4]), (X,), (), 4), spans_of(1, 4)) is raised


class Broken(Blocks):
    def __init__(self, error: Exception) -> None:
        super().__init__([4])
        self._error = error

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        yield from super().read(span, columns)
        raise self._error


@pytest.mark.parametrize("error", [InputError("the file is damaged"), RuntimeError("our bug")], ids=repr)
def test_error_of_the_source_reaches_fail(error: Exception) -> None:
    assert first_error(Doubler(), Job(Broken(error), (X,), (), 4), spans_of(1, 8)) is error


@pytest.mark.parametrize("rows", [3, 5])
def test_source_that_gives_another_number_of_rows_is_an_input_error(rows: int) -> None:
    error = first_error(Doubler(), Job(Blocks([rows]), (X,), (), 4), spans_of(1, 4))
    assert isinstance(error, InputError)
    assert error.problem == "the input changed while it was read"
    assert error.received == f"{rows} rows"


def test_error_while_delivering_reaches_fail() -> None:
    def emit(result: Result, timings: Timings) -> None:
        raise OSError("the line is closed")

    with piping(Doubler(), Job(Blocks([4]), (X,), (), 4), emit=emit) as (pipeline, outlet):
        pipeline.add(spans_of(1, 4)[0])
        error = outlet.errors.get(timeout=TIMEOUT_S)
    assert isinstance(error, OSError)


def test_nothing_comes_out_of_a_span_that_failed() -> None:
    with piping(Rejecting(DeviceError("no memory")), Job(Blocks([4]), (X,), (), 4)) as (pipeline, outlet):
        pipeline.add(spans_of(1, 4)[0])
        assert isinstance(outlet.errors.get(timeout=TIMEOUT_S), PenstockError)
        assert outlet.results.empty()


@pytest.mark.parametrize(("loaders", "lanes"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_queue_of_batches_bounds_what_is_read_ahead(loaders: int, lanes: int) -> None:
    source, replica = Blocks([4] * 100), Waiting()
    bound = lanes + (lanes + 2) + loaders  # computing, queued, and in the hands of the loaders
    with piping(replica, Job(source, (X,), (), batch_size=4), loaders=loaders, lanes=lanes) as (pipeline, outlet):
        for span in spans_of(loaders, 400):
            pipeline.add(span)
        with source.changed:
            assert source.changed.wait_for(lambda: source.read_blocks >= bound, TIMEOUT_S)
            assert not source.changed.wait_for(lambda: source.read_blocks > bound, timeout=0.1)
        replica.may_go.set()
        assert [len(result.columns["y"]) for result in outlet.take(loaders)] == [400] * loaders


def test_drain_takes_back_the_spans_that_are_loaded_and_not_begun() -> None:
    source, replica = Blocks([4]), Waiting()
    with piping(replica, Job(source, (X,), (), batch_size=4), loaders=1) as (pipeline, outlet):
        for span in spans_of(10, 4):
            pipeline.add(span)
        with source.changed:  # one is run, three wait for a lane, and one for its place among those
            assert source.changed.wait_for(lambda: source.read_blocks >= 5, TIMEOUT_S)
        assert replica.has_begun.wait(TIMEOUT_S)
        assert sorted(span.index for span in pipeline.drain()) == list(range(1, 10))
        assert pipeline.drain() == []
        replica.may_go.set()
        assert [result.span.index for result in outlet.take(1)] == [0]
        pipeline.add(again := spans_of(10, 4)[7])
        assert [result.span for result in outlet.take(1)] == [again]
    assert source.read_blocks == 6


def test_drain_leaves_what_is_loaded_to_a_device_that_is_fast() -> None:
    source, replica = Blocks([4]), Waiting()
    with piping(replica, Job(source, (X,), (), batch_size=4), loaders=1) as (pipeline, outlet):
        first, *others = spans_of(10, 4)
        replica.may_go.set()
        pipeline.add(first)
        assert len(outlet.take(1)) == 1
        replica.may_go.clear()
        replica.has_begun.clear()
        pipeline._run_s = 1e-6
        for span in others:
            pipeline.add(span)
        with source.changed:  # one is run, three wait for a lane, and one for its place among those
            assert source.changed.wait_for(lambda: source.read_blocks >= 6, TIMEOUT_S)
        assert replica.has_begun.wait(TIMEOUT_S)
        given_back = pipeline.drain()
        assert 4 <= len(given_back) < 9
        replica.may_go.set()
        assert len(outlet.take(9 - len(given_back))) == 9 - len(given_back)


def test_drain_takes_back_the_spans_that_no_loader_has_begun() -> None:
    source, replica = Blocks([4] * 20), Waiting()
    with piping(replica, Job(source, (X,), (), batch_size=4)) as (pipeline, outlet):
        for span in spans_of(4, 80):
            pipeline.add(span)
        with source.changed:
            assert source.changed.wait_for(lambda: source.read_blocks >= 3, TIMEOUT_S)
        assert replica.has_begun.wait(TIMEOUT_S)
        assert [span.index for span in pipeline.drain()] == [1, 2, 3]
        assert pipeline.drain() == []
        replica.may_go.set()
        assert [result.span.index for result in outlet.take(1)] == [0]


def test_drained_pipeline_takes_new_spans() -> None:
    job = Job(Blocks([4]), (X,), (), batch_size=4)
    with piping(Doubler(), job) as (pipeline, outlet):
        pipeline.drain()
        pipeline.add(spans_of(1, 4)[0])
        assert len(outlet.take(1)) == 1


def pipeline_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("loader-", "lane-"))]


def test_closing_ends_every_thread_even_with_work_under_way() -> None:
    replica = Waiting()
    with piping(replica, Job(Blocks([4] * 50), (X,), (), 4), loaders=2, lanes=2) as (pipeline, _):
        for span in spans_of(5, 200):
            pipeline.add(span)
        replica.may_go.set()
    assert pipeline_threads() == []


def test_timings_count_rows_and_seconds() -> None:
    with piping(Doubler(), Job(Blocks([10, 3]), (X,), (), 4)) as (pipeline, outlet):
        pipeline.add(spans_of(1, 13)[0])
        _, timings = outlet.results.get(timeout=TIMEOUT_S)
    assert timings.rows == 13
    assert timings.read > 0
    assert timings.compute > 0
    assert timings.wait_for_data >= 0
    assert timings.wait_for_room >= 0


def slots_of(count: int, slot_bytes: int) -> Writable:
    return Writable(Slots.create(count, slot_bytes), FreeSlots(range(count)), lambda message: None)


class HandsThrough(Doubler):
    """Answers with the very memory that it was given, and notes where that is."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[int] = set()

    def predict(self, batch: Columns) -> Columns:
        self.addresses.add(batch["x"].ctypes.data)
        return {"y": batch["x"]}


@pytest.mark.parametrize(("count", "loaders"), [(1, 1), (2, 3), (5, 2)])
def test_own_loaders_share_slots_and_what_comes_out_is_no_longer_in_them(count: int, loaders: int) -> None:
    room = slots_of(count, 4096)
    replica = HandsThrough()
    job = Job(Blocks([7, 1, 16, 6]), (X,), ("id",), batch_size=8)
    with piping(replica, job, loaders=loaders, lanes=2, room=room) as (pipeline, outlet):
        for span in spans_of(20, 30):
            pipeline.add(span)
        results = outlet.take(20)
        assert room.free.count == count
    starts = {np.frombuffer(room.slots.view(slot, 1), np.uint8).ctypes.data for slot in range(count)}
    assert replica.addresses <= starts
    for result in results:
        rows = np.arange(result.span.index * 30, (result.span.index + 1) * 30)
        np.testing.assert_array_equal(result.columns["y"], inputs_of(rows))
        assert kept(result, "id") == rows.tolist()


def test_batch_that_is_too_large_for_a_slot_lies_on_the_heap() -> None:
    room = slots_of(1, 8)
    job = Job(Blocks([30]), (X,), (), batch_size=8)
    with piping(Doubler(), job, room=room) as (pipeline, outlet):
        pipeline.add(spans_of(1, 30)[0])
        (result,) = outlet.take(1)
    np.testing.assert_array_equal(result.columns["y"], inputs_of(np.arange(30)) * 2)
    assert room.free.count > 0


def test_pipeline_ends_although_a_loader_waits_for_a_slot() -> None:
    class Watched(FreeSlots):
        """Tells when the second slot is asked for."""

        def __init__(self) -> None:
            super().__init__([0])
            self.taken = 0
            self.is_awaited = threading.Event()

        def take(self) -> int:
            self.taken += 1
            if self.taken == 2:
                self.is_awaited.set()
            return super().take()

    replica, free = Waiting(), Watched()
    job = Job(Blocks([30]), (X,), (), batch_size=8)
    with piping(replica, job, room=Writable(Slots.create(1, 4096), free, lambda message: None)) as (pipeline, outlet):
        pipeline.add(spans_of(1, 30)[0])
        assert free.is_awaited.wait(TIMEOUT_S)
        closing = threading.Thread(target=pipeline.close)
        closing.start()
        loader = pipeline._threads[0]
        loader.join(TIMEOUT_S)
        assert not loader.is_alive()
        replica.may_go.set()
        closing.join(TIMEOUT_S)
        assert not closing.is_alive()
    assert outlet.results.empty()
