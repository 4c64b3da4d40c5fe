"""The embedded engine: a live model on all its devices, with threads of this process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.job import Job
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import SourceTraits
from penstock.core.records import Binding, Block, Columns, Device, Placement, Result, Span, TensorSpec, Timings
from penstock.core.stopping import StopFlag
from penstock.engines.embedded import EmbeddedEngine
from penstock.errors import InputError, Interrupted, ModelError
from penstock.sources.python.memory import InMemory
from tests.unit.pool.piping import Blocks, Doubler, X, inputs_of, kept, spans_of


class Seen:
    """What an engine tells of."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def __call__(self, replica: int, device: Device, timings: Timings) -> None:
        self.rows[str(device)] = self.rows.get(str(device), 0) + timings.rows


def engine_of(
    *replicas: Doubler, stop: StopFlag | None = None, loaders: int = 1, lanes: int = 1
) -> tuple[EmbeddedEngine, Seen]:
    seen = Seen()
    devices = tuple(Device("cpu", index) for index in range(len(replicas)))
    return EmbeddedEngine(replicas, Placement(devices, loaders, lanes), seen, stop or StopFlag()), seen


def run(engine: EmbeddedEngine, job: Job, spans: Sequence[Span] | Iterator[Span]) -> list[Result]:
    engine.take(job)
    try:
        return list(engine.run(spans))
    finally:
        engine.close()


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(("loaders", "lanes"), [(1, 1), (2, 3)])
def test_results_of_every_span_leave_in_order_on_any_number_of_devices(replicas: int, loaders: int, lanes: int) -> None:
    engine, seen = engine_of(*(Doubler() for _ in range(replicas)), loaders=loaders, lanes=lanes)
    results = run(engine, Job(Blocks([4, 3]), (X,), ("id",), batch_size=4), spans_of(20, 7))
    assert [result.span.index for result in results] == list(range(20))
    for result in results:
        rows = np.arange(result.span.start, result.span.stop)
        np.testing.assert_array_equal(result.columns["y"], inputs_of(rows) * 2)
        assert kept(result, "id") == rows.tolist()
    assert sum(seen.rows.values()) == 140


def test_spans_that_are_left_of_a_job_leave_in_order_too() -> None:
    engine, _ = engine_of(Doubler(), Doubler())
    results = run(engine, Job(Blocks([2]), (X,), (), batch_size=2), spans_of(9, 2)[4:])
    assert [result.span.index for result in results] == [4, 5, 6, 7, 8]


def test_results_leave_as_they_are_finished_where_that_is_asked() -> None:
    engine, _ = engine_of(Doubler(), Doubler())
    engine.take(Job(Blocks([2]), (X,), (), batch_size=2))
    with contextlib.closing(engine):
        results = list(engine.run(spans_of(9, 2), is_ordered=False))
    assert sorted(result.span.index for result in results) == list(range(9))


def test_nothing_to_predict_is_nothing() -> None:
    engine, _ = engine_of(Doubler())
    assert run(engine, Job(Blocks([2]), (X,), (), batch_size=2), []) == []


def test_error_among_the_spans_is_raised_after_everything_before_it_has_left() -> None:
    def coming() -> Iterator[Span]:
        yield from spans_of(3, 2)
        raise InputError("the stream is broken")

    engine, _ = engine_of(Doubler())
    engine.take(Job(Blocks([2]), (X,), (), batch_size=2))
    left: list[int] = []
    with pytest.raises(InputError, match="the stream is broken"):
        left.extend(result.span.index for result in engine.run(coming()))
    assert left == [0, 1, 2]


def test_error_before_the_first_span_is_raised_at_once() -> None:
    def coming() -> Iterator[Span]:
        raise InputError("no such file")
        yield

    engine, _ = engine_of(Doubler())
    with pytest.raises(InputError, match="no such file"):
        run(engine, Job(Blocks([2]), (X,), (), batch_size=2), coming())


def test_error_of_the_model_ends_the_run_and_its_threads() -> None:
    class Broken(Doubler):
        def predict(self, batch: Columns) -> Columns:
            raise ModelError("it is broken")

    engine, _ = engine_of(Doubler(), Broken())
    with pytest.raises(ModelError, match="it is broken"):
        run(engine, Job(Blocks([2]), (X,), (), batch_size=2), spans_of(50, 2))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("loader-", "lane-"))]


def test_stop_finishes_what_is_held_and_begins_no_more() -> None:
    stop = StopFlag()
    engine, _ = engine_of(Doubler(), stop=stop)
    engine.take(Job(Blocks([2]), (X,), (), batch_size=2))
    left: list[int] = []
    for result in engine.run(spans_of(100, 2)):
        left.append(result.span.index)
        stop.signal_number = signal.SIGINT
    engine.close()
    assert left == list(range(len(left)))
    assert 1 <= len(left) < 100


def test_stop_before_the_first_row_ends_at_once() -> None:
    stop = StopFlag(signal.SIGTERM)
    engine, _ = engine_of(Doubler(), stop=stop)
    job = Job(Blocks([2]), (X,), (), batch_size=2)
    with pytest.raises(Interrupted):
        engine.prepare(job, Placement((Device("cpu", 0),), 1, 1), Span(0, 0, 2, ()))


class Released(Blocks):
    """A source that streams: spans cost memory until they are released."""

    traits = SourceTraits(is_resumable=False)

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(sizes)
        self.made: list[int] = []
        self.released: list[int] = []

    def spans(self, count: int, rows: int) -> Iterator[Span]:
        for span in spans_of(count, rows):
            self.made.append(span.index)
            assert len(self.made) - len(self.released) <= 8, "more is held than the pipeline can use"
            yield span

    def release(self, span: Span) -> None:
        self.released.append(span.index)

    def close(self) -> None: ...


def test_spans_of_a_stream_are_made_as_they_are_wanted_and_released_when_they_have_left() -> None:
    source = Released([2])
    engine, _ = engine_of(Doubler(), loaders=1, lanes=1)
    results = run(engine, Job(source, (X,), (), batch_size=2), source.spans(200, 2))
    assert len(results) == 200
    assert source.released == list(range(200))


def test_first_batch_says_what_comes_out() -> None:
    engine, _ = engine_of(Doubler())
    assert engine.load() == Doubler.signature
    job = Job(InMemory({"x": np.ones((5, 3), np.float32)}), (X,), (), batch_size=8)
    prepared = engine.prepare(job, Placement((Device("cpu", 0),), 1, 1), Span(0, 0, 5, ()))
    assert [spec.name for spec in prepared.outputs] == ["y", "total"]
    assert engine.loaders() is None
    engine.close()


def test_function_is_learnt_here() -> None:
    source = InMemory({"t": pa.array(["a", "bc"])})
    takes = {"t": TensorSpec("t", "string", ())}
    function = replace(Preprocess.of(lambda c: {"n": [len(t) for t in c["t"]]}, is_by_row=False), takes=takes)
    engine, _ = engine_of(Doubler())
    assert dict(engine.learn(source, function, Span(0, 0, 2, ())).gives) == {"n": TensorSpec("n", "int64", ())}


def test_function_of_the_user_runs_on_the_way_to_the_model() -> None:
    def shift(columns: dict[str, Any]) -> dict[str, Any]:
        if 5 in columns["n"]:
            raise ValueError("five")
        return {"v": columns["n"][:, None] + np.array([0.0, 0.5, 1.0])}

    source = InMemory({"n": np.arange(10)})
    takes = {"n": TensorSpec("n", "int64", ())}
    engine, _ = engine_of(Doubler())
    ready = engine.learn(source, replace(Preprocess.of(shift, is_by_row=False), takes=takes), Span(0, 0, 3, ()))
    job = Job(source, (Binding("x", ("v",), "float64", (3,)),), ("n",), 4, ready)
    (result,) = run(engine, job, [Span(0, 0, 10, ())])
    assert kept(result, "n") == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [(failure.row, failure.stage, failure.origin) for failure in result.failures] == [
        (5, "preprocess", "memory")
    ]
    assert np.asarray(result.columns["y"])[5].tolist() == [12.0, 13.0, 14.0]


def test_rows_of_different_lengths_come_out_in_their_order() -> None:
    class Sum(Doubler):
        def predict(self, batch: Columns) -> Columns:
            self.shapes.add(batch["x"].shape)
            return {"total": batch["x"].sum(axis=1)}

    lengths = np.random.default_rng(0).integers(0, 60, 100)
    column = pa.array([[1.0] * length for length in lengths], pa.list_(pa.float32()))
    binding = Binding("x", ("x",), "float32", (None,))
    job = Job(InMemory({"x": column, "id": np.arange(100)}), (binding,), ("id",), 8, buckets={"x": [[16, 32, 64]]})
    replica = Sum()
    engine, _ = engine_of(replica)
    results = run(engine, job, spans_of(4, 25))
    totals = np.concatenate([np.asarray(result.columns["total"]) for result in results])
    assert totals.tolist() == lengths.tolist()
    assert [row for result in results for row in kept(result, "id")] == list(range(100))
    assert replica.shapes <= {(8, 16), (8, 32), (8, 64)}


def test_source_may_be_read_by_name_of_column_only() -> None:
    class Strict(Blocks):
        def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
            assert tuple(columns) == ("x",)
            yield Block(span.start, span.rows, {"x": np.ones((span.rows, 3), np.float32)})

    engine, _ = engine_of(Doubler())
    (result,) = run(engine, Job(Strict([4]), (X,), (), 4), [Span(0, 0, 4, ())])
    assert result.rows == 4
