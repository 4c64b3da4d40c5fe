"""One living run for each remote output: on a real server, seen from real processes, and with a clock in hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from penstock.errors import OutputError
from penstock.storage.lease import LOCK, STALE_S, WATCH_S, LockHolder, OutputLease, holder_of
from penstock.storage.objects import Objects
from tests.support import s3_server

HOLD = """
import sys
from penstock.storage.places import place_of

with place_of(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    with s3_server.start_s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment(endpoint).items():
            patch.setenv(name, value)
        store = s3_server.filesystem(endpoint)
        store.mkdir("bucket")
        yield store


@pytest.fixture(params=["s3", "memory"])
def objects(request: pytest.FixtureRequest, store: Any) -> Objects:
    """An empty prefix on a store with conditional puts, and on one where we look and then write."""
    MemoryFileSystem.store.clear()
    return Objects(f"{request.param}://bucket/{request.node.name.replace('[', '-').replace(']', '')}")


@contextmanager
def holder(objects: Objects) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, objects.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        process.wait(timeout=20)


def elsewhere(time: float) -> LockHolder:
    """A holder on another machine, which renewed its lock at `time`."""
    return replace(LockHolder.this_process(time), host="elsewhere", token="theirs")


def lease(objects: Objects, now: float = 1000.0, sleep: Callable[[float], object] | None = None) -> OutputLease:
    def no_waiting(seconds: float) -> None:
        raise AssertionError("nothing to wait for")

    return OutputLease(objects, clock=lambda: now, sleep=sleep or no_waiting, renew_s=3600)


def test_prefix_that_a_living_process_holds_is_refused_and_the_holder_is_named(store: Any) -> None:
    objects = Objects("s3://bucket/living")
    with holder(objects) as process:
        assert holder_of(objects)
        with pytest.raises(OutputError) as caught, OutputLease(objects):
            pass
        assert caught.value.exit_code == 7
        assert "s3://bucket/living" in (caught.value.received or "")
        assert f"process {process.pid} on" in (caught.value.received or "")
        assert holder_of(objects), "a refusal must not take the lock away"
    assert objects.read(LOCK) is None, "a run that ends removes its lock"


def test_lock_of_a_killed_process_is_taken_over_at_once(store: Any) -> None:
    objects = Objects("s3://bucket/killed")
    with holder(objects) as process:
        process.kill()
        process.wait(timeout=20)
        assert objects.read(LOCK) is not None
        assert not holder_of(objects)
        with lease(objects):
            assert json.loads(objects.read(LOCK) or b"")["pid"] == os.getpid()


def test_of_many_who_want_the_lock_one_gets_it(store: Any) -> None:
    objects = Objects("s3://bucket/many")
    objects.write(LOCK, replace(LockHolder.this_process(0.0), pid=1 << 22, token="dead").encode())
    start, outcomes = threading.Barrier(8), []

    def contend() -> None:
        mine = OutputLease(objects)
        start.wait()
        try:
            mine._take()
            outcomes.append("held")
        except OutputError:
            outcomes.append("refused")

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held", *["refused"] * 7]


def test_lock_is_free_after_use_and_after_an_error(objects: Objects) -> None:
    with lease(objects):
        assert holder_of(objects)
    assert objects.read(LOCK) is None
    with pytest.raises(RuntimeError), lease(objects):
        raise RuntimeError("inside")
    assert objects.read(LOCK) is None


def test_second_lock_of_the_same_process_is_refused_too(objects: Objects) -> None:
    with lease(objects), pytest.raises(OutputError, match="locked by a run that is alive"), lease(objects):
        pass


def test_process_that_is_here_and_alive_keeps_its_lock_however_long_it_sleeps(objects: Objects) -> None:
    with lease(objects, now=0.0), pytest.raises(OutputError), lease(objects, now=1e9):
        pass


@pytest.mark.parametrize("change", [{"pid": 1 << 22}, {"started": 1.0}], ids=["no such process", "another process"])
def test_lock_of_a_process_that_is_gone_here_is_taken_over_at_once(objects: Objects, change: dict[str, Any]) -> None:
    objects.write(LOCK, replace(LockHolder.this_process(1000.0), token="dead", **change).encode())
    with lease(objects) as mine:
        mine.check()


@pytest.mark.parametrize("name", ["host", "boot", "processes"])
def test_holder_that_is_not_here_is_not_looked_for_here(objects: Objects, name: str) -> None:
    """Another machine, another boot, or another container, where process numbers mean something else."""
    there = LockHolder(**{**asdict(LockHolder.this_process(990.0)), name: "another", "pid": 1 << 22})
    objects.write(LOCK, there.encode())
    with pytest.raises(OutputError), lease(objects, now=990.0 + STALE_S - 1):
        pass


def test_lock_that_was_not_renewed_for_long_is_taken_over_after_watching_it(objects: Objects) -> None:
    objects.write(LOCK, elsewhere(1000.0 - STALE_S).encode())
    watched: list[float] = []
    with lease(objects, sleep=watched.append) as mine:
        mine.check()
    assert watched == [WATCH_S]


def test_lock_that_is_renewed_while_it_is_watched_is_alive_whatever_its_clock_says(objects: Objects) -> None:
    objects.write(LOCK, elsewhere(0.0).encode())
    with (
        pytest.raises(OutputError, match="locked by a run that is alive"),
        lease(objects, sleep=lambda seconds: objects.write(LOCK, elsewhere(10.0).encode())),
    ):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host": 1}'])
def test_lock_that_cannot_be_read_is_taken_over_after_watching_it(objects: Objects, content: bytes) -> None:
    objects.write(LOCK, content)
    watched: list[float] = []
    with lease(objects, sleep=watched.append) as mine:
        mine.check()
    assert watched == [WATCH_S]


def test_renewing_keeps_the_lock_and_tells_the_time(objects: Objects) -> None:
    now = 1000.0
    mine = OutputLease(objects, clock=lambda: now, renew_s=3600)
    with mine:
        now = 2000.0
        assert mine.renew()
        assert mine.renew()
        assert LockHolder.decode(objects.read(LOCK) or b"").time == 2000.0
        mine.check()


def test_holder_renews_by_itself(objects: Objects) -> None:
    renewed = threading.Event()
    ticks = iter(range(1000, 1_000_000))

    def clock() -> float:
        tick = next(ticks)
        if tick > 1004:
            renewed.set()
        return float(tick)

    with OutputLease(objects, clock=clock, renew_s=0.01):
        assert renewed.wait(60)


def test_holder_whose_lock_was_taken_over_notices_and_does_not_take_it_back(objects: Objects) -> None:
    with lease(objects) as mine:
        objects.write(LOCK, elsewhere(1000.0).encode())
        assert not mine.renew()
        with pytest.raises(OutputError) as caught:
            mine.check()
        assert "elsewhere" in (caught.value.received or "")
    assert objects.read(LOCK) == elsewhere(1000.0).encode(), "a lock that is not ours is not removed"


def test_holder_whose_lock_was_removed_notices(objects: Objects) -> None:
    with lease(objects) as mine:
        objects.remove([LOCK])
        assert not mine.renew()
        with pytest.raises(OutputError, match="lost the lock"):
            mine.check()


def test_looking_makes_no_lock(objects: Objects) -> None:
    assert not holder_of(objects)
    assert objects.read(LOCK) is None
