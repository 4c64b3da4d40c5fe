"""Training on several machines: one worker on each. If one is lost, all start again from the last checkpoint."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from penstock.cluster.gang_member import MemberFacts, News
from penstock.cluster.preflight import Comparison
from penstock.cluster.transport import NodeGone
from penstock.core.figures import counted
from penstock.core.node_kinds import misfits_told
from penstock.core.stillness import Stillness
from penstock.core.training import Gang
from penstock.errors import DeviceError, UsageError
from penstock.pool.processes.supervisor import LoaderLaunch
from penstock.training.fit_job import EndReport, FitJob, Report, StartReport
from penstock.training.stages import Watchdog
from penstock.training.trainer_hold import TrainerHold

_LOOK_EVERY_S = 0.2
_ASK_AGAIN_S = 2.0


class Machines(Protocol):
    """The machines of a cluster, and calls to the workers (`GangMember`) on them. A worker has a number of its own."""

    def rooms(self) -> Mapping[str, int]:
        """How many workers each machine can have, by its name.

        Raises:
            DeviceError: The cluster cannot be reached.
        """
        ...

    def others(self) -> str:
        """The machines that are there and can have no worker, in words, with what they have."""
        ...

    def start_member(self, member: int, name: str, members: int) -> None:
        """Start a worker on a machine that will have `members` of them."""
        ...

    def call(self, node: int, method: str, *arguments: Any) -> Future[Any]: ...
    def kill(self, node: int) -> None: ...
    def close(self) -> None: ...


def places_for(workers: int, rooms: Mapping[str, int]) -> list[str]:
    """The machine of every worker: one on each, and more only where there are fewer machines. Only as many as fit.

    >>> places_for(3, {"a": 4, "b": 1})
    ['a', 'b', 'a']
    """
    places: list[str] = []
    while len(places) < workers:
        more = [name for name, room in rooms.items() if places.count(name) < room]
        if not more:
            break
        places += more[: workers - len(places)]
    return places


@dataclass
class GangHold(TrainerHold):
    """Trains a job with several workers. Where one is lost, all of them start again from the last checkpoint.

    Args:
        machines: Where workers run.
        workers: How many of them; None for one on each machine.
    """

    machines: Machines = field(kw_only=True)
    workers: int | None = field(default=None, kw_only=True)
    who: ClassVar[str] = "the gang of workers"
    _started: int = 0
    _devices: tuple[str, ...] = ()
    _looked_at: float = 0.0
    _loss: str = ""
    """How the last gang ended, in words."""

    def run_once(
        self, launch: LoaderLaunch, watchdog: Watchdog, hear: Callable[[Report], None]
    ) -> tuple[EndReport | None, str]:
        """One life of all workers: how training ended, or how the first of them that was lost ended."""
        ended, self._loss = self._run_once(hear)
        return ended, self._loss

    def _run_once(self, hear: Callable[[Report], None]) -> tuple[EndReport | None, str]:
        places = self._places()
        first = self._started
        self._started += len(places)
        members = {first + rank: name for rank, name in enumerate(places)}
        try:
            for member, name in members.items():
                self.machines.start_member(member, name, places.count(name))
            self._begin(members)
            return self._hear_all(members, hear)
        except NodeGone as gone:
            return None, str(gone)
        finally:
            for member in members:
                self.machines.kill(member)

    def _places(self) -> list[str]:
        """Where workers run. After a loss, machines that come back are waited for.

        Raises:
            DeviceError: There is no room for so many workers.
        """
        deadline = time.monotonic() + (self.job.options.start_timeout if self._started else 0.0)
        while True:
            rooms = self.machines.rooms()
            self.workers = self.workers or len(rooms)
            places = places_for(self.workers, rooms)
            if self.workers and len(places) == self.workers:
                break
            self.stop.check()
            if time.monotonic() > deadline:
                raise self._no_room(rooms)
            time.sleep(_ASK_AGAIN_S)
        if not self._started and len(set(places)) < len(places):
            machines = counted(len(set(places)), "machine")
            self.say(f"{counted(len(places), 'worker')} on {machines}: these share cores or GPUs")
        return places

    def _no_room(self, rooms: Mapping[str, int]) -> DeviceError:
        asked = f"--workers {self.workers or 'of every machine'}"
        fitting = sum(rooms.values())
        there = ", ".join(f"{room} on {name}" for name, room in rooms.items() if room)
        return DeviceError(
            "the cluster has no room for so many workers",
            received=f"{asked}; the last gang {self._loss}" if self._loss else asked,
            allowed=f"at most {fitting}: {there}" if fitting else f"none: {self.machines.others() or 'no machine'}",
            hint=(f"--workers {fitting}" if fitting else "start nodes")
            + "; each worker takes a GPU, or a core on a node without GPUs, or what --resources names",
        )

    def _begin(self, members: Mapping[int, str]) -> None:
        """Check that all machines fit the job and each other, and start training on all of them."""
        comparison = Comparison()
        _check_alike(comparison, members, self._ask_all(members, "look"))
        facts: dict[int, MemberFacts] = self._ask_all(members, "check", self.job, tuple(sys.path))
        first = min(members)
        _check_alike(comparison, members, {member: each.alike for member, each in facts.items()})
        devices = sum(len(each.devices) for each in facts.values())
        _check_divided(self.job, devices)
        host = members[first].partition("#")[0]
        for member, each in facts.items():
            gang = Gang(member - first, len(members), devices, f"{host}:{facts[first].port}")
            job = replace(self.job, devices=each.devices, threads=each.threads, gang=gang if len(members) > 1 else None)
            self._answer(self.machines.call(member, "begin", job), _called(member, members))
        self._devices = tuple(
            str(replace(device, node=_called(member, members)))
            for member, each in facts.items()
            for device in each.devices
        )

    def _check_head(self) -> None:
        """Check from time to time that the head is there: the workers do not notice its loss.

        Raises:
            DeviceError: The cluster cannot be reached any more.
        """
        if time.monotonic() - self._looked_at > _ASK_AGAIN_S:
            self._looked_at = time.monotonic()
            self.machines.rooms()

    def _ask_all(self, members: Mapping[int, str], method: str, *arguments: Any) -> dict[int, Any]:
        asked = {member: self.machines.call(member, method, *arguments) for member in members}
        return {member: self._answer(future, _called(member, members)) for member, future in asked.items()}

    def _answer(self, future: Future[Any], name: str) -> Any:
        """The answer of a worker that starts.

        Raises:
            NodeGone: It is lost.
            DeviceError: There is no answer: another job may hold its CPUs or GPUs.
        """
        deadline = time.monotonic() + self.job.options.start_timeout
        while not wait([future], _LOOK_EVERY_S).done:
            self.stop.check()
            self._check_head()
            if time.monotonic() > deadline:
                raise DeviceError(
                    "a worker did not start",
                    received=f"on {name}, within {self.job.options.start_timeout:.0f} s",
                    hint="ray status shows who holds its CPUs and GPUs; --resources takes fewer; --start-timeout",
                )
        return _result(future, name)

    def _hear_all(self, members: Mapping[int, str], hear: Callable[[Report], None]) -> tuple[EndReport | None, str]:
        first = min(members)
        waiting = {self.machines.call(member, "hear"): member for member in members}
        silence = Stillness(self.job.options.hang_timeout, times=0)
        answers = dict.fromkeys(members, 0)
        is_told = False
        while True:
            self._check_head()
            if self.stop.is_raised and not is_told:
                is_told = True
                for member in members:
                    self.machines.call(member, "stop", self.stop.signal_number)
            done, _ = wait(waiting, _LOOK_EVERY_S, FIRST_COMPLETED)
            silent = silence.look(time.monotonic(), {member: answers[member] for member in waiting.values()})
            for member, seconds in silent.items():
                return None, f"lost the one on {_called(member, members)}: it gave no answer for {seconds:.0f} s"
            for future in done:
                member = waiting.pop(future)
                answers[member] += 1
                news: News = _result(future, _called(member, members))
                self.log.write(news.log)
                if news.error is not None:
                    raise news.error
                if news.death:
                    return None, f"lost the one on {_called(member, members)}: it {news.death}"
                if member == first:
                    for report in news.reports:
                        hear(replace(report, devices=self._devices) if isinstance(report, StartReport) else report)
                    if news.ended is not None:
                        return news.ended, ""
                if news.ended is None:
                    waiting[self.machines.call(member, "hear")] = member


def _called(member: int, members: Mapping[int, str]) -> str:
    """The name of a worker: that of its machine, with a number for the second worker there and later ones.

    >>> [_called(member, {4: "a", 5: "b", 6: "a"}) for member in (4, 5, 6)]
    ['a', 'b', 'a#2']
    """
    number = sum(name == members[member] for other, name in members.items() if other <= member)
    return f"{members[member]}#{number}" if number > 1 else members[member]


def _result(future: Future[Any], name: str) -> Any:
    """What a worker answered.

    Raises:
        NodeGone: It is lost; the text names its machine.
    """
    try:
        return future.result()
    except NodeGone as gone:
        raise NodeGone(f"lost the one on {name}: it {gone}") from None


def _check_alike(comparison: Comparison, members: Mapping[int, str], alike: Mapping[int, dict[str, str]]) -> None:
    """Refuse machines that are not like the driver, or would not compute the same: one table of all of it.

    Raises:
        DeviceError: They have other versions, other devices, another model or other modules of the user.
    """
    found = [(members[member], comparison.misfits(each)) for member, each in alike.items()]
    misfits = {name: some for name, some in found if some}
    if misfits:
        raise misfits_told(misfits, len(set(members.values())))


def _check_divided(job: FitJob, devices: int) -> None:
    """Refuse a batch that cannot be divided evenly over the devices of all workers: all but one would be of no use.

    Raises:
        UsageError: It cannot be divided.
    """
    pieces = devices * job.asked.accumulate
    if job.batch_size % pieces:
        of_pieces = f", in {job.asked.accumulate} pieces" if job.asked.accumulate > 1 else ""
        raise UsageError(
            "a batch is divided evenly over the devices of all workers",
            received=f"--batch-size {job.batch_size} over {devices} devices{of_pieces}",
            allowed=f"a multiple of {pieces}",
            hint=f"--batch-size {-(-job.batch_size // pieces) * pieces}",
        )
