"""The pool of loaders by itself, with real processes: spans that are asked for again while a loader is at them."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.core.job import Job
from penstock.core.messages import Filled, LoadedData, SpanLoaded
from penstock.core.records import Binding, ModelFile, Span
from penstock.core.stillness import DEFAULT_TIMEOUTS
from penstock.pool.devices.near import NearCores
from penstock.pool.processes.loader_pool import LoaderPool
from penstock.pool.processes.supervisor import Launch
from penstock.runtimes.onnx.runtime import OnnxRuntime
from penstock.sources.python.memory import InMemory
from tests.support.numa_machine import NEEDS_TWO_CORES, OWN_CORES

BATCHES, SLOTS, SLOT_BYTES = 12, 4, 1 << 16
SPAN = Span(0, 0, BATCHES, ())


class Pool:
    """A pool of one loader, and what it delivered."""

    def __init__(self, launch: Launch) -> None:
        self.delivered: list[LoadedData] = []
        self.pool = LoaderPool(launch, self.delivered.append, DEFAULT_TIMEOUTS)
        job = Job(InMemory({"x": np.zeros((BATCHES, 4), np.float32)}), (Binding("x", ("x",), "float32", (4,)),), (), 1)
        self.pool.begin(job, 1, SLOT_BYTES, SLOTS)

    def pump_until(self, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_there():
            assert time.monotonic() < deadline, f"nothing comes after {self.delivered}"
            signs = self.pool.signs
            for number in {signs[sign] for sign in multiprocessing.connection.wait(list(signs), 0.1)}:
                self.pool.handle(number)

    def ask(self) -> None:
        """A replica wants the span."""
        self.pool.submit(SPAN)

    def empty_slots(self) -> list[LoadedData]:
        """What came since the last time; its slots are free again."""
        came, self.delivered[:] = list(self.delivered), []
        for message in came:
            if isinstance(message, Filled) and message.slot is not None:
                self.pool.release(message.slot)
        return came

    def ask_again(self) -> None:
        """A replica asks, and dies when the loader has filled all slots; the next one asks for the same span."""
        self.ask()
        self.pump_until(lambda: len(self.delivered) == SLOTS)
        self.empty_slots()
        self.ask()

    def read_all(self) -> None:
        """Take batches until the span has come whole."""
        came: list[LoadedData] = []

        def is_whole() -> bool:
            came.extend(self.empty_slots())
            return any(isinstance(message, SpanLoaded) for message in came)

        self.pump_until(is_whole)
        assert [message.index for message in came if isinstance(message, Filled)] == list(range(BATCHES))


@pytest.fixture
def pool(tmp_path: Any) -> Iterator[Pool]:
    with (
        open(tmp_path / "log", "wb+") as log,
        contextlib.closing(Launch(OnnxRuntime(), ModelFile("onnx", "", "", ("onnx",)), 1, log)) as launch,
    ):
        started = Pool(launch)
        with contextlib.closing(started.pool):
            yield started


def test_span_that_is_asked_for_again_comes_whole(pool: Pool) -> None:
    pool.ask_again()
    pool.read_all()


def test_span_that_is_asked_for_again_comes_whole_when_its_loader_dies(pool: Pool) -> None:
    pool.ask_again()
    (loader,) = pool.pool._loaders.values()
    loader.kill()
    pool.read_all()


@NEEDS_TWO_CORES
def test_as_many_loaders_as_have_room_near_the_gpu_run_there(pool: Pool) -> None:
    near = {max(OWN_CORES)}
    pool.pool._launch.near = NearCores({}, frozenset(near), most_loaders=1)
    first, *_ = pool.pool._loaders.values()
    assert os.sched_getaffinity(first.pid) == OWN_CORES
    pool.pool.resize(3)
    _, second, third = pool.pool._loaders.values()
    assert [os.sched_getaffinity(loader.pid) for loader in (second, third)] == [near, OWN_CORES]
    second.kill()
    pool.pump_until(lambda: second not in pool.pool._loaders.values())
    _, _, fourth = pool.pool._loaders.values()
    assert os.sched_getaffinity(fourth.pid) == near
    pool.ask()
    pool.read_all()
