"""A Ray cluster behind the driver's transport: one actor on each machine, which takes what Ray says the machine has.

Workers that train together are actors, too: one on each machine, or several that share what it has.
"""

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any

from penstock.cluster.gang_member import GangMember
from penstock.cluster.node import Node
from penstock.cluster.transport import ClusterLost, NodeGone
from penstock.errors import PenstockError, UsageError, one_line
from penstock.options.value_kinds import is_amount
from penstock.pool.devices.inventory import CORES

_AT_ONCE = 16
"""How many calls to one node run at once: the pieces that it builds, beats, withdrawals, a stop."""
_A_MOMENT_S = 0.2
_LAST_CHANCE_S = 1.0
_HEAD_S = 30.0
_RAY_ENDS_AFTER = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Seconds that Ray waits for its head before it ends the process; 60 where it is not set."""
_CPU, _GPU, _MEMORY = "CPU", "GPU", "memory"
_RAYS_OWN = (_MEMORY, "object_store_memory")
"""Resources that Ray has by itself."""
_HAS_LEFT = "ActorUnschedulableError"
"""Ray's error for an actor that was to be started on a machine which is not there any more."""

_NOT_IMPORTED = re.compile(r"(ModuleNotFoundError|ImportError): [^\n]*")


class RayNode(Node):
    """A node in the process of an actor."""

    def __init__(self, name: str, cores: int) -> None:
        _take_cores(cores)
        super().__init__(name)


class RayMember(GangMember):
    """A worker of a gang in the process of an actor."""

    def __init__(self, name: str, cores: int) -> None:
        _take_cores(cores)
        super().__init__(name)


def _take_cores(cores: int) -> None:
    # Ray sets this for its own tasks; penstock decides itself how many threads a process has.
    os.environ.pop("OMP_NUM_THREADS", None)
    if cores:
        os.environ[CORES] = str(cores)


class Head:
    """The head of a cluster, which lists the machines. If it is gone, Ray's call does not return.

    Args:
        ask: Ray's call.
        limit_s: How long the head may be silent.
        last_chance_s: How long to wait after that: if this process was stopped meanwhile, as by Ctrl-Z, the answer may
            be on its way.
    """

    def __init__(
        self, ask: Callable[[], list[dict[str, Any]]], limit_s: float, last_chance_s: float = _LAST_CHANCE_S
    ) -> None:
        self._ask = ask
        self._limit_s = limit_s
        self._last_chance_s = last_chance_s
        self._asked: Future[list[dict[str, Any]]] | None = None
        self._asked_at = 0.0
        self._last: list[dict[str, Any]] | None = None

    def nodes(self) -> list[dict[str, Any]]:
        """The answer of the head or, if it does not answer in a moment, its last answer.

        Raises:
            ClusterLost: It cannot be reached, or has been silent for too long.
        """
        while True:
            if self._asked is None:
                self._asked, self._asked_at = Future(), time.monotonic()
                threading.Thread(target=_answer, args=(self._ask, self._asked), daemon=True, name="head").start()
            is_late = time.monotonic() - self._asked_at > self._limit_s
            if wait([self._asked], self._last_chance_s if is_late else _A_MOMENT_S).done:
                break
            if is_late:
                raise _unreachable(f"its head has not answered for {self._limit_s:.0f} s")
            if self._last is not None:
                return self._last
        asked, self._asked = self._asked, None
        try:
            self._last = asked.result()
        except Exception as error:
            raise _unreachable(one_line(error)) from error
        return self._last


def head_limit_s() -> float:
    """How long a head may be silent: half of the time after which Ray ends the process, without a word."""
    try:
        ends_after_s = float(os.environ[_RAY_ENDS_AFTER])
    except (KeyError, ValueError):
        return _HEAD_S
    return ends_after_s / 2 if math.isfinite(ends_after_s) else _HEAD_S


def _answer(ask: Callable[[], Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:
        answer.set_exception(error)


def _unreachable(received: str) -> ClusterLost:
    return ClusterLost(
        "the Ray cluster cannot be reached any more",
        received=received,
        hint="what is written stays: the job goes on when its head is there again, or on another cluster",
    )


class RayTransport:
    """See `cluster.transport.Transport`.

    Args:
        ray: The module, connected.
        disconnect: Called at the end.
        resources: What a machine must have, as `--resources` says: an amount of a resource, which the node takes, or
            the value of a label. CPUs and GPUs that are not named are taken whole.
    """

    def __init__(self, ray: Any, disconnect: Callable[[], None], resources: Mapping[str, str]) -> None:
        self._ray = ray
        self._head = Head(ray.nodes, head_limit_s())
        self._disconnect = disconnect
        self._amounts = {name: float(value) for name, value in resources.items() if is_amount(value)}
        self._labels = {name: value for name, value in resources.items() if not is_amount(value)}
        self._machines: dict[str, dict[str, Any]] = {}
        self._named: dict[str, str] = {}
        self._ids: dict[int, str] = {}
        """Ray's name of the machine of each node: a machine that was away and is back has another one."""
        self._left: set[str] = set()
        """Machines that take no actor any more, before Ray lists them as dead."""
        self._actors: dict[int, Any] = {}
        self._is_closed = False

    def names(self) -> Collection[str]:
        there = [node for node in self._head.nodes() if node["Alive"] and node["NodeID"] not in self._left]
        self._machines = {self._name(node): node for node in there if self._fits(node)}
        return list(self._machines)

    def others(self) -> str:
        there = [node for node in self._head.nodes() if node["Alive"] and not self._fits(node)]
        return "; ".join(f"{self._name(node)} has {_has(node)}" for node in there)

    def is_there(self, node: int) -> bool:
        return any(machine["NodeID"] == self._ids[node] for machine in self._machines.values())

    def rooms(self) -> Mapping[str, int]:
        """How many training workers fit on each machine: by `--resources`, or one for each GPU, or else each core."""
        self.names()
        return {name: self._room(machine["Resources"]) for name, machine in self._machines.items()}

    def start(self, node: int, name: str) -> None:
        self._start(RayNode, node, name, 1)

    def start_member(self, member: int, name: str, members: int) -> None:
        """Start a worker on a machine whose CPUs and GPUs so many workers share."""
        self._start(RayMember, member, name, members)

    def _start(self, actor_class: type, node: int, name: str, sharing: int) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        machine = self._machines.get(name)
        if machine is None:  # a spare one that left since it was listed
            self._ids[node] = ""
            return
        self._ids[node] = machine["NodeID"]
        there = machine["Resources"]
        wanted = {name: there.get(name, 0.0) // sharing for name in (_CPU, _GPU)} | self._amounts
        cores = wanted.pop(_CPU)
        try:
            actor = self._ray.remote(actor_class).options(
                num_cpus=cores,
                num_gpus=wanted.pop(_GPU),
                memory=wanted.pop(_MEMORY, None),
                resources=wanted,
                max_concurrency=_AT_ONCE,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(machine["NodeID"], soft=False),
            )
            self._actors[node] = actor.remote(name, int(cores))
        except ValueError as error:
            raise UsageError("Ray refuses such an amount in --resources", received=one_line(error)) from error

    def share(self, content: Any) -> Any:
        # In Ray's memory: a list of a million files is not sent with every call.
        return self._ray.put(content)

    def call(self, node: int, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if not self._ids[node]:
            answer.set_exception(NodeGone("left the cluster", has_left=True))
            return answer
        try:
            reference = getattr(self._actors[node], method).remote(*arguments)
            reference.future().add_done_callback(lambda done: self._pass_on(node, done, answer))
        except Exception as error:  # Ray refuses calls to an actor that it has found dead
            answer.set_exception(NodeGone(_how(error)))
        return answer

    def _pass_on(self, node: int, done: Future[Any], answer: Future[Any]) -> None:
        """Give an answer of Ray to the driver, with the errors that the driver expects. Runs on a thread of Ray."""
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
            return
        cause = error.__dict__.get("cause")  # of Ray's RayTaskError: what the method raised
        raised = next((each for each in (cause, error) if isinstance(each, PenstockError)), None)
        has_left = type(error).__name__ == _HAS_LEFT
        if has_left:
            self._left.add(self._ids[node])
        answer.set_exception(raised or NodeGone(_how(error), has_left=has_left))

    def kill(self, node: int) -> None:
        actor = self._actors.pop(node, None)
        if actor is not None:
            with contextlib.suppress(Exception):  # where the cluster cannot be reached, it ends its actors itself
                self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for node in list(self._actors):
            self.kill(node)
        self._disconnect()

    def _name(self, node: Mapping[str, Any]) -> str:
        """The address of a machine, which people know; with the beginning of Ray's name where another had it first.

        A machine keeps its name: under a new one, a second node would be started there.
        """
        address, identity = str(node["NodeManagerAddress"]), str(node["NodeID"])
        if identity not in self._named:
            is_taken = address in self._named.values()
            self._named[identity] = f"{address}#{identity[:6]}" if is_taken else address
        return self._named[identity]

    def _room(self, there: Mapping[str, float]) -> int:
        by_amounts = [int(there.get(name, 0.0) // amount) for name, amount in self._amounts.items() if amount]
        return min(by_amounts, default=int(there.get(_GPU, 0.0) or there.get(_CPU, 0.0)))

    def _fits(self, node: Mapping[str, Any]) -> bool:
        there, labels = node["Resources"], node.get("Labels", {})
        if not there.get(_CPU, 0.0) and not there.get(_GPU, 0.0) and not self._amounts:
            return False  # a head that is to do no work
        has_amounts = all(there.get(name, 0.0) >= amount for name, amount in self._amounts.items())
        return has_amounts and all(labels.get(name) == value for name, value in self._labels.items())


def _has(node: Mapping[str, Any]) -> str:
    """What a machine has, as `--resources` would name it."""
    own = {name: amount for name, amount in node["Resources"].items() if ":" not in name and name not in _RAYS_OWN}
    amounts = {name: f"{amount:g}" for name, amount in own.items()}
    labels = {name: value for name, value in node.get("Labels", {}).items() if not name.startswith("ray.io/")}
    return ", ".join(f"{name}={value}" for name, value in (amounts | labels).items()) or "no resources"


def _how(error: BaseException) -> str:
    """How a node ended, in words, from Ray's error."""
    words = {
        "ActorDiedError": "died",
        "ActorUnavailableError": "cannot be reached",
        "OutOfMemoryError": "was killed by Ray, as its machine ran out of memory",
        "NodeDiedError": "died with its machine",
        _HAS_LEFT: "left the cluster",
    }
    name = type(error).__name__
    missing = _NOT_IMPORTED.search(str(error))
    if missing is not None:  # the actor was never made, because penstock or a package of it is missing
        return f"could not start: {missing[0]}"
    return words.get(name) or f"failed: {one_line(error)}"
