"""A real Ray cluster on this machine: a head, and nodes in network namespaces of their own that can be cut off.

All nodes see the same file system, so any folder is a disk that they share; one may have a small disk of its own for
its temporary files. The head, and so every driver, is in the namespace of the tests, on a bridge to which the nodes'
links lead. A token guards the cluster. All processes of a node are below a holder (`process_holder`), which ends them
with the tests, also when the tests are killed.
"""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.process_holder import ProcessHolder
from tests.support.processes import wait_until

_REPOSITORY = Path(__file__).parents[2]
_SMALLEST_OBJECT_STORE = 80_000_000
# The head notices within seconds that a node is gone; with Ray's defaults it takes a minute and more.
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
_EVERYWHERE = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_start_wait_time_s": "120",
}
_clusters = itertools.count()


def why_not() -> str | None:
    """Why no cluster can be made here; None where it can. For `pytest.mark.skipif`."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces need the commands ip and unshare"
    tried = ["unshare", "--net", "ip", "link", "add", "tried", "type", "bridge"]
    ended = subprocess.run(tried, capture_output=True, text=True)
    return f"no network namespaces here: {ended.stderr.strip()}" if ended.returncode else None


@dataclass
class RayNode:
    """One machine of the cluster: a raylet and its workers.

    Args:
        address: Its own; Ray calls it `NodeManagerAddress`.
        resources: What Ray knows of it beside its CPUs.
        link: The bridge's end of its link.
    """

    address: str
    cpus: int
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    holder: ProcessHolder
    link: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def raylets(self) -> list[psutil.Process]:
        """Its raylet; for a moment two after it came back."""
        return [process for process in self.holder.processes() if _name(process) == "raylet"]

    def actors(self) -> list[psutil.Process]:
        """The processes in which penstock's nodes run there."""
        return [process for process in self.holder.processes() if _name(process).startswith("ray::RayNode")]

    @property
    def scratch(self) -> Path:
        """Its own disk for temporary files (`add_node(scratch_bytes=…)`), as the tests see it."""
        return Path(f"/proc/{self.holder.pid}/root{self.environment['TMPDIR']}")

    def put_own_disk(self, folder: Path) -> None:
        """From now on, a folder is on this node a disk of its own, which nobody else sees, and which is empty."""
        self.holder.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], os.environ)

    @contextmanager
    def full_scratch(self) -> Iterator[None]:
        """Leave no byte on its own disk, and none that is given back: a part that ends would make room for the next."""
        is_over = threading.Event()

        def fill() -> None:
            with open(self.scratch / "filled", "wb", buffering=0) as file:
                while not is_over.is_set():
                    try:
                        file.write(bytes(1 << 12))
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                        is_over.wait(0.001)

        filling = threading.Thread(target=fill)
        filling.start()
        try:
            yield
        finally:
            is_over.set()
            filling.join()


class RayCluster:
    """See above. Made by `ray_cluster`."""

    def __init__(self, cleaner: ExitStack) -> None:
        self._cleaner = cleaner
        self._prefix = f"ps{os.getpid()}{chr(ord('a') + next(_clusters) % 26)}"
        self._subnet = _free_subnet()
        self._port = _free_port()
        self._client_port = _free_port()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self._prefix}-", dir="/tmp"))  # sockets' paths are short
        paths = [str(_REPOSITORY / "src"), str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **os.environ,
            **_EVERYWHERE,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        """With these variables, a process is a driver of the cluster."""
        self.nodes: list[RayNode] = []

        holder = ProcessHolder(clean_up=[["ip", "link", "delete", self._prefix]], folder=self._folder)
        cleaner.callback(holder.close)
        _ip("link", "add", self._prefix, "type", "bridge")
        _ip("address", "add", f"{self.host}/24", "dev", self._prefix)
        _ip("link", "set", self._prefix, "up")
        self._head_holder = holder

    @property
    def host(self) -> str:
        """This machine as the nodes see it: what is to be reached by them is served there."""
        return f"{self._subnet}.1"

    @property
    def address(self) -> str:
        return f"{self.host}:{self._port}"

    @property
    def client_address(self) -> str:
        """For drivers that are no part of the cluster."""
        return f"ray://{self.host}:{self._client_port}"

    @property
    def head(self) -> RayNode:
        return self.nodes[0]

    def start(self, nodes: int) -> None:
        """Start so many nodes, the head first."""
        for number in range(nodes):
            # One by one: raylets that start at once take the same names for their sockets.
            self.add_node() if number else self.start_head()

    def start_head(self, cpus: int = 1) -> RayNode:
        node = RayNode(self.host, cpus, {"head": 1.0}, {"place": "head"}, self._head_holder)
        self.nodes.append(node)
        self._start_ray(node)
        return node

    def add_node(self, cpus: int = 1, scratch_bytes: int = 0) -> RayNode:
        """A further node, called by its number: its resource `node2` and its label `place=node2`, for example.

        With `scratch_bytes` it has a disk of this size for its temporary files, which nobody else sees.
        """
        number = len(self.nodes) + 1
        link = f"{self._prefix}{number}"
        holder = ProcessHolder(["unshare", "--net", "--mount"])  # these and the link end with its last process
        self._cleaner.callback(holder.close)
        node = RayNode(
            f"{self._subnet}.{number}", cpus, {f"node{number}": 1.0}, {"place": f"node{number}"}, holder, link
        )
        if scratch_bytes:
            scratch = self._folder / f"scratch{number}"
            scratch.mkdir()
            holder.run(["mount", "-t", "tmpfs", "-o", f"size={scratch_bytes}", "tmpfs", str(scratch)], os.environ)
            node.environment = {"TMPDIR": str(scratch)}
        self.nodes.append(node)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _ip("link", "set", link, "master", self._prefix, "up")
        for command in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "address", "add", f"{node.address}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            ["ip", "route", "add", "default", "via", self.host],
        ):
            holder.run(command, os.environ)
        self._start_ray(node)
        return node

    def kill_node(self, node: RayNode) -> None:
        """SIGKILL for its raylet, its workers and all that they started, as when its power fails."""
        node.holder.kill_all()

    def restart_node(self, node: RayNode) -> None:
        """A new raylet on that machine: for Ray a new node."""
        self._start_ray(node)

    def cut_off(self, node: RayNode) -> None:
        """Take its link down: its processes go on, and nobody hears from them."""
        _ip("link", "set", node.link, "down")

    def reconnect(self, node: RayNode) -> None:
        _ip("link", "set", node.link, "up")

    def bring_back(self, node: RayNode) -> None:
        """Bring its link up: its raylet hears that it was given up, and ends. A new one starts. Actors may live on."""
        before = node.raylets()
        self.reconnect(node)
        wait_until(lambda: not any(raylet in node.raylets() for raylet in before))
        self.restart_node(node)

    def freeze(self, node: RayNode) -> None:
        """SIGSTOP for its workers and all that they started; its raylet goes on and says that all is well."""
        self._signal_workers(node, signal.SIGSTOP)

    def thaw(self, node: RayNode) -> None:
        self._signal_workers(node, signal.SIGCONT)

    def _signal_workers(self, node: RayNode, number: signal.Signals) -> None:
        for worker in node.holder.processes():
            if _name(worker).startswith("ray::"):
                try:
                    for process in (worker, *worker.children(recursive=True)):
                        process.send_signal(number)
                except psutil.NoSuchProcess:
                    continue  # it ended meanwhile

    def _start_ray(self, node: RayNode) -> None:
        if node is self.head:
            ports = [f"--port={self._port}", f"--ray-client-server-port={self._client_port}"]
            place = [
                "--head",
                *ports,
                f"--temp-dir={self._folder}",
                "--include-dashboard=false",
                "--disable-usage-stats",
            ]
        else:
            place = [f"--address={self.address}"]
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *place),
            f"--node-ip-address={node.address}",
            f"--num-cpus={node.cpus}",
            f"--resources={json.dumps(node.resources)}",
            f"--labels={','.join(f'{key}={value}' for key, value in node.labels.items())}",
            f"--object-store-memory={_SMALLEST_OBJECT_STORE}",
            "--log-color=false",
        ]
        node.holder.run(command, {**self.environment, **_HEALTH, **node.environment})


@contextmanager
def ray_cluster(nodes: int = 3) -> Iterator[RayCluster]:
    """Start a cluster of so many nodes, the head among them; its processes, links and files end with the block.

    With no nodes there is the bridge alone: a test serves something there, changes the environment, and calls `start`.
    """
    with ExitStack() as cleaner:
        cluster = RayCluster(cleaner)
        cluster.start(nodes)
        yield cluster


def _name(process: psutil.Process) -> str:
    """What it is: the first word of its command, without its folder."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    return os.path.basename(words[0]) if words else ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _free_subnet() -> str:
    """The first three numbers of addresses that no link of this machine has."""
    taken = subprocess.run(["ip", "-4", "-o", "address"], check=True, capture_output=True, text=True).stdout
    numbers = (f"10.77.{(os.getpid() + offset) % 256}" for offset in range(256))
    return next(subnet for subnet in numbers if f" {subnet}." not in taken)


def _free_port() -> int:
    """Outside of Ray's own range for workers, which begins at 10002 and ends at 19999."""
    while True:
        with socket.socket() as tried:
            tried.bind(("", 0))
            port = int(tried.getsockname()[1])
        if not 10_000 <= port < 20_000:
            return port
