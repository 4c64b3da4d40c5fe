"""Runs that share a GPU: processes that take a lease, wait for one, and are killed. The GPU is a file with a number."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

RUN = """
import sys
from penstock.core.records import Device
from penstock.pool.devices.lease import Memory, take

folder, fraction, least = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])

def measure(device):
    return Memory(100 << 30, int(open(folder + "/free").read()) << 30)

lease = take(
    Device("gpu", 0, uuid="GPU-1"), least_bytes=least << 30, fraction=fraction, measure=measure,
    folder=folder + "/leases", say=lambda text: print(text, flush=True),
)
print("took", lease.num_bytes >> 30, flush=True)
sys.stdin.readline()
lease.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    (tmp_path / "free").write_text("100", encoding="ascii")
    return tmp_path


class Run:
    """A process that holds a lease until it is told to close it."""

    def __init__(self, gpu: Path, fraction: float, least: int = 0) -> None:
        command = [sys.executable, "-c", RUN, str(gpu), str(fraction), str(least)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def runs() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def begin(stack: ExitStack, *arguments: object) -> Run:
    run = Run(*arguments)  # type: ignore[arg-type]
    stack.callback(run.end)
    return run


def test_a_run_waits_until_the_holder_closes(gpu: Path, runs: ExitStack) -> None:
    first = begin(runs, gpu, 0.9)
    assert first.says() == "took 90"
    (gpu / "free").write_text("20", encoding="ascii")
    second = begin(runs, gpu, 0.5, 30)
    assert second.says() == f"waiting for gpu:0: 10.0 GiB are free, process {first.process.pid} holds 90.0 GiB"
    (gpu / "free").write_text("100", encoding="ascii")
    first.go_on()
    assert first.says() == "closed"
    assert second.says() == "took 50"


def test_a_run_that_was_killed_holds_nothing_and_its_neighbour_is_told(gpu: Path, runs: ExitStack) -> None:
    first = begin(runs, gpu, 0.6)
    assert first.says() == "took 60"
    second = begin(runs, gpu, 0.5)
    told = (
        f"gpu:0 is shared with process {first.process.pid}, which has reserved 60.0 GiB; this run takes up to 20.0 GiB"
    )
    assert second.says() == told
    assert second.says() == "took 20"
    third = begin(runs, gpu, 0.9, 50)
    assert third.says().startswith("waiting for gpu:0: 20.0 GiB are free")
    first.process.kill()  # not waited for: what is left of it in the process table holds nothing
    assert third.says().startswith(f"gpu:0 is shared with process {second.process.pid}")
    assert third.says() == "took 72"


def test_runs_that_start_at_once_never_take_more_than_there_is(gpu: Path, runs: ExitStack) -> None:
    together = [begin(runs, gpu, 0.5) for _ in range(4)]
    taken = []
    for run in together:
        line = run.says()
        taken.append(int((line if line.startswith("took") else run.says()).split()[1]))
    assert sorted(taken) == [6, 12, 25, 50]
