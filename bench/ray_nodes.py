"""A Ray cluster of nodes that have one core each, which answers only to its token.

With more than one node Ray serves the address of the network card, whatever it is told (see `peers.local_ray`).
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from bench.shell import BenchError

LOOPBACK = "127.0.0.1"
STORE_BYTES = 100_000_000
TOKEN = "RAY_AUTH_TOKEN"


@dataclass(frozen=True)
class RayNodes:
    """Where the cluster is, and the variables with which a process reaches it."""

    address: str
    environment: Mapping[str, str]


@contextmanager
def ray_nodes(count: int) -> Iterator[RayNodes]:
    """Start so many nodes, all processes of each bound to a core of its own; they end with the block."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets may have 107 bytes only
    with socket.create_server((LOOPBACK, 0)) as server:
        address = f"{LOOPBACK}:{server.getsockname()[1]}"
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        TOKEN: secrets.token_hex(32),
    }
    head = ["--head", f"--port={address.split(':')[1]}", f"--temp-dir={folder}", "--include-dashboard=false"]
    try:
        for number, core in enumerate(sorted(os.sched_getaffinity(0))[:count]):
            _start(core, [f"--address={address}"] if number else head, environment)
        yield RayNodes(address, environment)
    finally:
        _end(environment[TOKEN])
        shutil.rmtree(folder, ignore_errors=True)


def _start(core: int, place: list[str], environment: Mapping[str, str]) -> None:
    """Start a node; returns when it is up. Its processes stay."""
    command = ["taskset", "-c", str(core), sys.executable, "-m", "ray.scripts.scripts", "start", *place]
    command += [f"--node-ip-address={LOOPBACK}", "--num-cpus=1", f"--object-store-memory={STORE_BYTES}"]
    with tempfile.TemporaryFile() as said:  # no pipe: the processes that stay would keep it open
        ended = subprocess.run(command, env={**os.environ, **environment}, stdout=said, stderr=said)
        said.seek(0)
        if ended.returncode != 0:
            raise BenchError(f"a node of Ray did not start:\n{said.read().decode(errors='replace')}")


def _end(token: str) -> None:
    """End every process that has the token of this cluster in its environment."""
    while there := [process for process in psutil.process_iter() if _has_token(process, token)]:
        for process in there:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(there, timeout=1)


def _has_token(process: psutil.Process, token: str) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TOKEN) == token)
    return False
