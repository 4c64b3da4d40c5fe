"""Machines of this computer: workers that train together, each in a process of its own, without a cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.managers import BaseManager
from typing import Any

from penstock.cluster.gang_member import GangMember, MemberFacts
from penstock.cluster.transport import NodeGone
from penstock.training.fit_job import FitJob


class OlderMember(GangMember):
    """A worker on a machine with another penstock: nothing else may be asked of it."""

    def look(self) -> dict[str, str]:
        return super().look() | {"penstock": "0.0.1"}

    def check(self, job: FitJob, sys_path: Sequence[str]) -> MemberFacts:
        raise AssertionError("a job was sent to another penstock")


class OtherMember(GangMember):
    """A worker on a machine that would not compute the same."""

    def check(self, job: FitJob, sys_path: Sequence[str]) -> MemberFacts:
        facts = super().check(job, sys_path)
        return replace(facts, alike=facts.alike | {"jax": "not installed", "devices": "2 gpu"})


class _Process(BaseManager):
    """The process of a worker, as an actor's is: it ends by SIGKILL, and what it holds ends with it."""


for _class in (GangMember, OlderMember, OtherMember):
    _Process.register(_class.__name__, _class)


def _look_first(folder: str | None) -> None:
    if folder is not None:
        sys.path.insert(0, folder)


class PlainMachines:
    """Machines by name, with room for so many workers (`cluster.gang.Machines`)."""

    def __init__(self, **rooms: int) -> None:
        self.room_of = rooms
        self.members_of: dict[str, type[GangMember]] = {}
        """What workers are on a machine, where they are no ordinary ones."""
        self.folders: dict[str, str] = {}
        """By machine, where it looks for modules first."""
        self.started: list[str] = []
        self._processes: dict[int, _Process] = {}
        self._members: dict[int, Any] = {}

    def rooms(self) -> Mapping[str, int]:
        # Workers meet at the address that their machine is called by.
        return {f"127.0.0.1#{name}": room for name, room in self.room_of.items()}

    def others(self) -> str:
        return ""

    def start_member(self, member: int, name: str, members: int) -> None:
        machine = name.partition("#")[2]
        self.started.append(machine)
        self._processes[member] = process = _Process(ctx=multiprocessing.get_context("spawn"))
        process.start(_look_first, (self.folders.get(machine),))
        self._members[member] = getattr(process, self.members_of.get(machine, GangMember).__name__)(name)

    def call(self, node: int, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        threading.Thread(target=self._run, args=(node, answer, method, arguments), daemon=True).start()
        return answer

    def _run(self, node: int, answer: Future[Any], method: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer.set_result(getattr(self._members[node], method)(*arguments))
        except (EOFError, ConnectionError, KeyError):
            answer.set_exception(NodeGone("was killed"))
        except Exception as error:
            answer.set_exception(error)

    def kill(self, node: int) -> None:
        self.end(node)
        del self._processes[node]

    def end(self, node: int) -> None:
        """Have the process of a worker be gone, as when its machine fails."""
        process = self._processes[node]._process  # type: ignore[attr-defined]
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()

    def freeze(self, node: int) -> None:
        """SIGSTOP for its process; what it has started goes on."""
        os.kill(self._processes[node]._process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Whoever started workers has killed them by now."""
        assert not self._processes
