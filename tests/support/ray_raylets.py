"""A Ray cluster of several nodes on this machine: each has its own raylet, and is killed or frozen alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import psutil

TOKEN = "0123456789abcdef" * 4
_RAY = (sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block")
_TRIES = 5
_QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""So a node that is cut off is known to be dead within seconds; by default Ray takes more than a minute."""


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", **changes}


WITH_TOKEN = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)


def descendants_of(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


class RayCluster:
    """A head, which may have no CPU, and nodes with one CPU each."""

    def __init__(self, *, head_cpus: int = 0) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._frozen: list[psutil.Process] = []
        self._folder = f"/tmp/ray-{os.getpid()}-{port}"  # paths of sockets may have 107 bytes only
        self.head = self._start(
            "--head",
            f"--port={port}",
            f"--num-cpus={head_cpus}",
            f"--temp-dir={self._folder}",
            "--include-dashboard=false",
        )
        while self.head.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the head of the Ray cluster did not start")

    def add_node(self) -> subprocess.Popen[bytes]:
        """Start a node; returns when its raylet is up. One that comes before the head is ready is tried again."""
        for _ in range(_TRIES):
            node = self._start(f"--address={self.address}", "--num-cpus=1")
            self.nodes.append(node)
            while node.poll() is None:
                if any(_name_of(each) == "raylet" for each in descendants_of(node.pid)):
                    return node
                time.sleep(0.1)
        raise RuntimeError("a node of the Ray cluster did not start")

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """As when its machine loses power."""
        for each in [*descendants_of(node.pid), psutil.Process(node.pid)]:
            each.kill()
        node.wait()

    def freeze(self, node: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """As when its machine is cut off: it answers nothing. `psutil.Process.resume` brings each process back."""
        frozen = [psutil.Process(node.pid), *descendants_of(node.pid)]
        for each in frozen:
            each.suspend()
        self._frozen += frozen
        return frozen

    def close(self) -> None:
        started = [*self.nodes, self.head]
        left = [child for each in started for child in descendants_of(each.pid)]
        for each in started:
            if each.poll() is None:
                each.send_signal(signal.SIGCONT)
                each.terminate()
        for each in started:
            each.wait(60)
        for process in self._frozen:
            if process.is_running():
                process.resume()
        _, alive = psutil.wait_procs([*left, *self._frozen], timeout=20)
        for process in alive:
            process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, *flags: str) -> subprocess.Popen[bytes]:
        small = ("--node-ip-address=127.0.0.1", "--object-store-memory=100000000", "--disable-usage-stats")
        quiet = subprocess.DEVNULL
        return subprocess.Popen([*_RAY, *flags, *small], env={**WITH_TOKEN, **_QUICK}, stdout=quiet, stderr=quiet)


def actors_of(node: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes of penstock's nodes on a node of Ray."""
    found = []
    for each in descendants_of(node.pid):
        try:
            words = each.cmdline()
        except psutil.Error:
            continue
        if words and words[0].startswith("ray::RayNode"):
            found.append(each)
    return found
