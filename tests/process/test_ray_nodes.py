"""What the tests of a cluster stand on: nodes of a real Ray cluster are killed, cut off, and come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ENVIRONMENT
from tests.support import ray_cluster
from tests.support.process_holder import ProcessHolder
from tests.support.processes import wait_until
from tests.support.ray_cluster import RayCluster

_WHY_NOT = ray_cluster.why_not()
needs_cluster = pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))


class _Driver:
    """The driver of `ray_writers`, and what it has said so far."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.support.ray_writers", cluster.address, str(folder)]
        self.process = subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True)
        self._folder = folder

    def wait_for(self, **news: Any) -> dict[str, Any]:
        """Read on until a line says this; returns the line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line) if line.startswith("{") else {}  # Ray writes there, too
            if said and news.items() <= said.items():
                return said
        raise AssertionError(f"the driver ended before it said {news}")

    def written(self, address: str) -> list[int]:
        """The sizes of the files of that node's actors, the oldest first."""
        paths = sorted(self._folder.glob(f"{address}-*"), key=lambda path: path.stat().st_ctime)
        return [path.stat().st_size for path in paths]

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    with ray_cluster.ray_cluster(nodes=3) as started:
        yield started


@pytest.fixture
def driver(cluster: RayCluster, tmp_path: Path) -> Iterator[_Driver]:
    started = _Driver(cluster, tmp_path)
    yield started
    started.close()


@needs_cluster
@pytest.mark.slow
def test_nodes_are_killed_and_cut_off_and_come_back(cluster: RayCluster, driver: _Driver) -> None:
    head, second, third = (node.address for node in cluster.nodes)
    for _ in cluster.nodes:
        driver.wait_for()  # alive, then one line for each writer; in any order
    driver.wait_for()
    wait_until(lambda: all(driver.written(address) for address in (head, second, third)))

    cluster.cut_off(cluster.nodes[2])
    assert driver.wait_for(lost=third)["error"] in ("ActorDiedError", "ActorUnavailableError")
    (before,) = driver.written(third)
    wait_until(lambda: driver.written(third)[0] > before + 20)  # it was given up, and writes on

    cluster.bring_back(cluster.nodes[2])
    driver.wait_for(writes=third)  # as a new node, with an actor of its own
    wait_until(lambda: len(driver.written(third)) == 2)
    wait_until(lambda: not _grows(driver, third, 0), 60)
    assert _grows(driver, third, 1)

    cluster.kill_node(cluster.nodes[1])
    assert driver.wait_for(lost=second)["error"] in ("ActorDiedError", "ActorUnavailableError")
    assert not cluster.nodes[1].holder.processes()
    assert not _grows(driver, second, 0)

    fourth = cluster.add_node().address
    driver.wait_for(writes=fourth)
    assert _grows(driver, head, 0)


def _grows(driver: _Driver, address: str, actor: int) -> bool:
    before = driver.written(address)[actor]
    time.sleep(0.5)  # ten writes
    return driver.written(address)[actor] > before


def test_holder_ends_daemons_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The second sleep has left its parent and its session, as Ray's daemons do."""
    folder = tmp_path / "of the holder"
    folder.mkdir()
    script = (
        "import os, sys, time; from pathlib import Path; from tests.support.process_holder import ProcessHolder\n"
        "holder = ProcessHolder(folder=Path(sys.argv[1]))\n"
        "holder.run(['sh', '-c', 'setsid sleep 1000 & sleep 1000 &'], os.environ)\n"
        "print(holder.pid, *(process.pid for process in holder.processes()), flush=True)\n"
        "time.sleep(1000)\n"
    )
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], cwd=root, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.stdout.close()
    assert len(pids) == 3
    assert all(psutil.pid_exists(pid) for pid in pids)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids) and not folder.exists())


def test_holder_tells_what_a_failed_command_wrote() -> None:
    holder = ProcessHolder()
    with pytest.raises(RuntimeError, match="ended with 3:\nit is so"):
        holder.run(["sh", "-c", "echo it is so; exit 3"], os.environ)
    holder.close()
    assert not psutil.pid_exists(holder.pid)
