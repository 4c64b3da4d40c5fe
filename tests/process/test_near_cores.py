"""Real processes are bound to the cores near their GPU. The GPU is a fake: core 1 of this machine is near it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from penstock.core import kinds
from penstock.core.job import Job
from penstock.core.records import Binding, ModelFile, Placement
from penstock.core.stopping import StopFlag
from penstock.jobs.bring_up import open_engine
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.sources.tables.npy import ArrayFiles
from tests.support.arithmetic import Arithmetic
from tests.support.numa_machine import NEEDS_TWO_CORES, OWN_CORES, NumaMachine, gpu

REPOSITORY = Path(__file__).parents[2]
NEAR = max(OWN_CORES, default=0)
ROWS = 400

pytestmark = NEEDS_TWO_CORES


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NumaMachine:
    """The last core of this machine is a node of its own, and card `a` is on it; card `b` is with the other cores."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
    monkeypatch.setattr(kinds, "runtime", lambda name: SimpleNamespace(make=Arithmetic))
    return NumaMachine(monkeypatch, tmp_path / "sys", {0: f"0-{NEAR - 1}", 1: str(NEAR)}, {"a": "1", "b": "0"})


@contextlib.contextmanager
def answered_on(folder: Path, *letters: str, loaders: int) -> Iterator[None]:
    """The processes, a replica on each of these cards and loaders, that have answered all rows are still there."""
    np.save(folder / "x.npy", np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    source = ArrayFiles([str(folder / "x.npy")])
    devices = tuple(gpu(letter, index) for index, letter in enumerate(letters))
    placement = Placement(devices, loaders, lanes=2, has_loader_processes=True, most_loaders=loaders)
    with open(folder / "log", "ab+") as log:
        setting = Setting("arithmetic", ModelFile("arithmetic", "", "", ()), 2, placement)
        engine, launch = open_engine(setting, RunContext(log, StopFlag()))
        with contextlib.closing(launch), contextlib.closing(engine):
            engine.load()
            job = Job(source, (Binding("x", (next(iter(source.schema())),), "float32", (4,)),), (), 8)
            engine.prepare(job, placement, next(iter(source.divide(8))))
            results = list(engine.run(list(source.divide(20))))
            answers = np.concatenate([np.asarray(result.columns["y"]) for result in results])
            np.testing.assert_array_equal(answers, 2 * np.load(folder / "x.npy"))
            yield


def cores_of(kind: str) -> list[set[int]]:
    """The cores of all threads of every process of a kind that this one has started."""
    module = f"penstock.pool.processes.{kind}"
    found = [child for child in psutil.Process().children() if module in child.cmdline()]
    return [
        set().union(*(os.sched_getaffinity(int(thread)) for thread in os.listdir(f"/proc/{child.pid}/task")))
        for child in sorted(found, key=lambda child: child.pid)
    ]


@pytest.mark.usefixtures("machine")
def test_replica_runs_near_its_card_and_loaders_that_have_no_room_there_run_anywhere(tmp_path: Path) -> None:
    with answered_on(tmp_path, "a", loaders=1):
        assert cores_of("replica") == [{NEAR}]
        assert cores_of("loader") == [OWN_CORES]
        assert os.sched_getaffinity(0) == OWN_CORES


@pytest.mark.usefixtures("machine")
def test_replicas_on_cards_of_two_nodes_run_each_near_its_own(tmp_path: Path) -> None:
    with answered_on(tmp_path, "a", "b", loaders=2):
        assert cores_of("replica") == [{NEAR}, OWN_CORES - {NEAR}]
        assert cores_of("loader") == [OWN_CORES, OWN_CORES]
