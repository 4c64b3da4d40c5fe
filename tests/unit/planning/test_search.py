"""A search chooses what ran each time that it was measured, and within the memory that it may take."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from penstock.core.messages import Measure, Measured
from penstock.core.records import Device, ModelFile, Placement
from penstock.core.stopping import StopFlag
from penstock.core.tuning import Ladder, Point
from penstock.errors import WorkersDied
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.options.records import PredictOptions
from penstock.planning.clock import Clock, OutOfTime
from penstock.planning.contender import Contender
from penstock.planning.search import Search, _Best

MODEL = ModelFile("keras", "model.keras", "digest", ("tensorflow",))
PLACEMENT = Placement((Device("cpu", 0),), 1, 1)


@dataclass
class Engine:
    """Processes that run so many rows a second, for so many measurements; then they raise."""

    rows_per_s: int
    lives: int = 1000
    error: Exception = field(default_factory=lambda: WorkersDied("replicas died"))
    bytes_a_row: int = 1
    is_up: bool = True

    def measure(self, order: Measure, replicas: int, stop: StopFlag) -> list[Measured]:
        self.lives -= 1
        if self.lives < 0:
            self.is_up = False
            raise self.error
        return [Measured(order.batch_size, self.rows_per_s, 1.0, self.bytes_a_row * order.batch_size)]

    def close(self) -> None:
        self.is_up = False


def searched(*entrants: tuple[str, Engine]) -> Search:
    """A search that has looked at these runtimes, of which the first is the model's own, with batches of 64 rows."""
    options = PredictOptions(threads=1)
    job = SimpleNamespace(batch_size=64)
    recipe = SimpleNamespace(device_kind="cpu", runtime=entrants[0][0])
    own = Setting(entrants[0][0], MODEL, 1, PLACEMENT)
    started: Any = SimpleNamespace(
        options=options, job=job, recipe=recipe, choice=own.choice(64, 1), start_s=1.0, rows_per_second=lambda: 1.0
    )
    search = Search("", started, 1_000_000, RunContext(io.BytesIO(), StopFlag()))
    search.clock = Clock(StopFlag(), 60.0)
    for name, engine in entrants:
        tuned: Any = engine
        one = Contender(Setting(name, MODEL, 1, PLACEMENT), tuned, 1.0, is_own=name == own.runtime, room_bytes=1000)
        ladder = Ladder(64, 64, 1000)
        ladder.add(one.measure(64, search.clock))
        search.trials += [one.trial(*point) for point in one.points]
        search._best.append(_Best(one, ladder.points[0], 1, ladder))
        search._alive.append(one)
    search._best.sort(key=lambda each: -each.rate)
    return search


def test_the_first_look_leaves_time_for_others() -> None:
    """A transformer whose batches of 8,192 rows take 3.5 s, and a job that is worth a search of 9 s."""
    search: Any = searched(("tensorflow", Engine(100)))
    search.started.job.batch_size, search.started.prepared = 8192, SimpleNamespace(batch_seconds=3.5)
    search.clock = Clock(StopFlag(), 9.0)
    assert search._measured_in_time(8192) == 1024
    search.clock = Clock(StopFlag(), 120.0)
    assert search._measured_in_time(8192) == 8192


def test_more_contenders_are_kept_where_no_job_waits_and_there_is_memory() -> None:
    search = searched(*((name, Engine(100)) for name in ("tensorflow", "onnx", "openvino", "jax")))
    assert not search._keeps_too_many()
    search.is_for_job = True
    assert search._keeps_too_many()
    search.is_for_job = False
    search._best[0].point = Point(64, 100.0, memory_bytes=1 << 60)
    assert search._keeps_too_many()


def test_runtime_that_dies_in_the_finals_is_not_chosen() -> None:
    search = searched(("tensorflow", Engine(100)), ("onnx", Engine(150, lives=4)))
    search._polish()
    found = search._result(search._alive[0])
    assert found.choice.runtime == "tensorflow"
    assert any((trial.runtime, trial.rejected) == ("onnx", "replicas died") for trial in found.trials)


def test_runtime_whose_measurement_runs_out_of_time_may_be_chosen() -> None:
    slow = Engine(150, lives=4, error=OutOfTime("the time of the search is over"))
    search = searched(("tensorflow", Engine(100)), ("onnx", slow))
    search._polish()
    assert search._result(search._alive[0]).choice.runtime == "onnx"


def test_own_framework_that_converting_ended_may_be_chosen() -> None:
    search = searched(("tensorflow", Engine(100)), ("onnx", Engine(50)))
    search._alive[0].engine.close()
    search._polish()
    assert search._result(search._alive[0]).choice.runtime == "tensorflow"


def test_where_everything_dies_the_rules_of_thumb_are_left() -> None:
    search = searched(("tensorflow", Engine(100, lives=2)))
    search._polish()
    found = search._result(search._alive[0])
    assert found.choice == search.started.choice
    assert "what ran first failed later" in found.reason


def test_size_that_took_too_much_memory_is_rejected_once_and_for_all() -> None:
    engine: Any = Engine(100, bytes_a_row=10)
    one = Contender(Setting("onnx", MODEL, 1, PLACEMENT), engine, 1.0, room_bytes=1000)
    clock = Clock(StopFlag(), 60.0)
    small, large = one.measure(64, clock), one.measure(128, clock)
    assert one.trial(small, 1).rejected is None
    assert one.trial(large, 1).rejected == "batches of 128 take more memory than --memory-fraction allows"
    # The process keeps some of it, which a size that fitted before is not charged with.
    engine.bytes_a_row = 20
    assert one.trial(one.measure(64, clock), 1).rejected is None
    assert one.problem_of(Point(64, problem="it died"), 1) == "it died"


def test_the_reason_compares_with_what_the_own_framework_did_last() -> None:
    """The machine was less busy when it was looked at first."""
    search = searched(("tensorflow", Engine(400)))
    own = search._alive[0]
    slower: Any = own.engine
    slower.rows_per_s = 100
    own.measure(64, search.clock)
    faster = _Best(Contender(own.setting, Engine(200), 1.0), Point(128, 200.0), 1, Ladder(64, 64))  # type: ignore[arg-type]
    assert search._reason(faster, own) == "200 rows/s, 2 times as fast as tensorflow with batches of 64"
