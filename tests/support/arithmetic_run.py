"""Runs of the arithmetic runtime in replica processes of the local engine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from penstock.core.job import Job
from penstock.core.records import Binding, Device, ModelFile, Placement, Result
from penstock.core.stillness import Timeouts
from penstock.core.stopping import StopFlag
from penstock.engines.local import LocalEngine
from penstock.pool.processes.supervisor import Launch
from penstock.sources.tables.npy import ArrayFiles
from tests.support.arithmetic import Arithmetic


class Ran:
    """What came out of a run."""

    def __init__(self, results: list[Result], engine: LocalEngine, log: str, said: list[str]) -> None:
        self.answers = np.concatenate([np.asarray(result.columns["y"]) for result in results])
        self.rows = [int(row) for result in results for row in result.row_numbers()]
        self.failures = [failure for result in results for failure in result.failures]
        self.reduced = [result.reduced_to for result in results]
        self.told = [str(shortage) for shortage in engine.shortages()]
        self.log = log
        self.said = said


def run_arithmetic(
    folder: Path,
    x: Any,
    runtime: Arithmetic,
    *,
    batch_size: int = 8,
    span_rows: int = 50,
    timeouts: Timeouts | None = None,
    after_each: Callable[[list[Result]], None] = lambda results: None,
    **placement: Any,
) -> Ran:
    """Predict all rows; `after_each` is called with all results so far. PYTHONPATH must have the tests."""
    np.save(folder / "x.npy", x)
    source = ArrayFiles([str(folder / "x.npy")])
    said: list[str] = []
    with engine_of(runtime, timeouts or Timeouts(), said, **placement) as (engine, log):
        engine.load()
        name = next(iter(source.schema()))
        job = Job(source, (Binding("x", (name,), "float32", (4,)),), (), batch_size)
        engine.prepare(job, engine._placement, next(iter(source.divide(batch_size))))
        results: list[Result] = []
        for result in engine.run(list(source.divide(span_rows))):
            results.append(result)
            after_each(results)
        return Ran(results, engine, Path(log.name).read_text(), said)


@contextlib.contextmanager
def engine_of(
    runtime: Any, timeouts: Timeouts, said: list[str], replicas: int = 1, **placement: Any
) -> Iterator[tuple[LocalEngine, Any]]:
    """The local engine with replicas of a runtime on CPUs, and the file of its log."""
    devices = tuple(Device("cpu", index) for index in range(replicas))
    launch_model = ModelFile("arithmetic", "", "", ())
    with tempfile.NamedTemporaryFile("ab+") as log:
        placed = Placement(devices, **{"loaders": 1, "lanes": 2, **placement})
        launch = Launch(runtime, launch_model, 1, log)
        engine = LocalEngine(launch, placed, lambda *_: None, StopFlag(), timeouts, said.append)
        with contextlib.closing(engine):
            yield engine, log


def replica_of_this_process() -> psutil.Process:
    """The one among the children of the tests, of which there are others."""
    children = psutil.Process().children()
    (replica,) = (child for child in children if "penstock.pool.processes.replica" in child.cmdline())
    return replica
