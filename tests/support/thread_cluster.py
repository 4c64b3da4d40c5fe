"""A cluster of threads: nodes of this process behind the driver's transport, with the faults of real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock.cluster.node import Node
from penstock.cluster.transport import NodeGone
from penstock.telemetry.progress import Progress


class Shown(Progress):
    """Keeps the lines that people would see."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


class _Life:
    """One node, and the calls that wait for it."""

    def __init__(self, node: Node) -> None:
        name = node.name
        self.node = node
        self.threads = ThreadPoolExecutor(16, f"calls of {name}")
        self.waiting: set[Future[Any]] = set()
        self.is_over = False
        self.ending = threading.Thread(target=self._end)

    def _end(self) -> None:
        self.node.stop(9)
        self.threads.shutdown(cancel_futures=True)
        self.node.close()


class ThreadCluster:
    """Machines by name. A test adds and removes them, kills their nodes and cuts them off."""

    def __init__(self, *names: str) -> None:
        self.machines = dict.fromkeys(names)
        self.started: list[tuple[int, str]] = []
        self.cut_off: set[str] = set()
        """Machines whose answers get lost, while their nodes work on."""
        self.before_build: Callable[[str], object] = lambda name: None
        """Called with the machine's name before a piece is built: a test makes nodes wait there."""
        self.make_node: Callable[[str], Node] = Node
        """A test makes nodes that find something else than the driver has."""
        self._lives: dict[int, _Life] = {}
        self._lock = threading.Lock()

    def names(self) -> Collection[str]:
        return list(self.machines)

    def others(self) -> str:
        return "one machine without a GPU"

    def is_there(self, node: int) -> bool:
        return self._lives[node].node.name in self.machines

    def start(self, node: int, name: str) -> None:
        self.started.append((node, name))
        self._lives[node] = _Life(self.make_node(name))

    def share(self, content: Any) -> Any:
        return content

    def call(self, node: int, method: str, *arguments: Any) -> Future[Any]:
        life, answer = self._lives[node], Future[Any]()
        with self._lock:
            if life.is_over:
                answer.set_exception(NodeGone("was killed"))
                return answer
            life.waiting.add(answer)
            life.threads.submit(self._run, life, answer, method, arguments)
        return answer

    def kill(self, node: int) -> None:
        """End a node as the driver, or a fault, does: its calls never return."""
        life = self._lives[node]
        with self._lock:
            if life.is_over:
                return
            life.is_over = True
            waiting, life.waiting = life.waiting, set()
        life.ending.start()
        for answer in waiting:
            answer.set_exception(NodeGone("was killed"))

    def lives_of(self, name: str) -> list[int]:
        return [node for node, life in self._lives.items() if life.node.name == name and not life.is_over]

    def close(self) -> None:
        for node in self._lives:
            self.kill(node)

    def join(self) -> None:
        """Wait until nothing runs any more."""
        self.close()
        for life in self._lives.values():
            life.ending.join()

    def _run(self, life: _Life, answer: Future[Any], method: str, arguments: tuple[Any, ...]) -> None:
        try:
            if method == "build":
                self.before_build(life.node.name)
            result, error = getattr(life.node, method)(*arguments), None
        except Exception as raised:
            result, error = None, raised
        with self._lock:
            if answer not in life.waiting or life.node.name in self.cut_off:
                return
            life.waiting.discard(answer)
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
