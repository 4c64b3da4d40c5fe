"""The local engine: one process for each device, fed by pull, watched, and replaced when it dies."""

from __future__ import annotations

import multiprocessing.connection
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.events import (
    NOTHING_ASKED,
    Asked,
    Chunk,
    Convert,
    Converted,
    Drain,
    Emptied,
    Failed,
    Limit,
    Loaded,
    Measure,
    Measured,
    Prepare,
    Prepared,
    RanShort,
    Release,
    Returned,
    SpanDone,
    Work,
)
from penstock.core.job import Job
from penstock.core.memory import speaks_of_memory
from penstock.core.ordering import AsFinished, InOrder
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Releases
from penstock.core.records import Device, Placement, Result, Shortage, Signature, Span, Timings
from penstock.core.scheduler import Assignment, Scheduler
from penstock.core.span_feed import SpanFeed
from penstock.core.state import VARIABLES
from penstock.core.stopping import StopFlag
from penstock.engines.loader_feed import LoaderFeed
from penstock.engines.memory_watch import Death, MemoryWatch, Tell, Verdict, quietly
from penstock.errors import ModelError, PenstockError
from penstock.pool.processes.supervisor import Launch, ReplicaHandle

_POLL_S = 0.2
_DEATHS_IN_A_ROW = 3

Observe = Callable[[int, Device, Timings], None]


@dataclass(frozen=True)
class _Settings:
    """What a replica needs to become ready; kept, because one that is restarted needs it again."""

    job: Job
    sample: Span
    asked: Asked = NOTHING_ASKED


class LocalEngine:
    """Replicas as processes of this machine.

    Args:
        launch: What the processes are started with.
        placement: The devices, and the threads inside each replica.
        observe: Told of every finished span: the replica's number, its device, its timings.
        stop: Begin no more spans once it is raised.
        row_timeout_s: How long loader processes may be at one row.
        tell: Says a line to people, when a device runs out of memory and the run goes on with less.
    """

    def __init__(
        self,
        launch: Launch,
        placement: Placement,
        observe: Observe,
        stop: StopFlag,
        row_timeout_s: float = 120.0,
        tell: Tell = quietly,
    ) -> None:
        self._launch = launch
        self._row_timeout_s = row_timeout_s
        self._feed: LoaderFeed | None = None
        self._placement = placement
        self._observe = observe
        self._replicas: dict[int, ReplicaHandle] = {}
        self._next_number = 0
        self._signature: Signature | None = None
        self._prepared: Prepared | None = None
        self._settings: _Settings | None = None
        self._ready: set[int] = set()
        self._measured: list[Measured] = []
        self._converted: Converted | None = None
        self._is_probed = False
        """Whether a replica is at something that no other one could go on with."""
        self._scheduler: Scheduler | None = None
        self._order: InOrder | None = None
        self._spans: dict[int, Span] = {}
        self._deaths: Counter[Device] = Counter()
        self._memory = MemoryWatch(launch.note, tell)
        self._stop = stop
        self._is_draining = False
        # One first: the others follow when it is known that there is work for them.
        self._start(placement.devices[0])

    def load(self) -> Signature:
        self._pump_until(lambda: self._signature is not None, self._stop)
        assert self._signature is not None
        return self._signature

    def learn(self, source: Any, preprocess: Preprocess, sample: Span) -> Preprocess:
        """What the user's function gives, found out in the first loader process."""
        feed = self._loader_feed()
        feed.learn(source, preprocess, sample)
        self._pump_until(lambda: feed.pool.learnt is not None, self._stop)
        assert feed.pool.learnt is not None
        return feed.pool.learnt

    def prepare(self, job: Job, placement: Placement, sample: Span, asked: Asked = NOTHING_ASKED) -> Prepared:
        self._settings, self._prepared, self._placement = _Settings(job, sample, asked), None, placement
        if placement.has_loader_processes:
            feed = self._loader_feed()
            feed.begin(job, placement, sample, is_timed=asked.answers_rows > 0)
            self._pump_until(lambda: feed.rows_loaded_per_s is not None, self._stop)
        for handle in self._replicas.values():
            self._send_prepare(handle)
        self._pump_until(lambda: self._prepared is not None, self._stop)
        assert self._prepared is not None
        return replace(self._prepared, rows_loaded_per_s=self._feed.rows_loaded_per_s if self._feed else None)

    def measure(self, order: Measure, replicas: int, stop: StopFlag) -> list[Measured]:
        """How fast the step is at one batch size, on so many replicas of the placement at once. After `prepare`."""
        for device in self._placement.devices[len(self._replicas) : replicas]:
            self._start(device)
        self._wait_for(lambda: len(self._ready) >= len(self._replicas), stop)
        self._measured.clear()
        for handle in self._replicas.values():
            self._send(handle, order)
        self._wait_for(lambda: len(self._measured) >= len(self._replicas), stop)
        return list(self._measured)

    def convert(self, folder: str, stop: StopFlag) -> str | None:
        """Have the first replica write its whole step to `folder`; returns why it cannot, in words."""
        self._converted = None
        self._send(next(iter(self._replicas.values())), Convert(folder))
        self._wait_for(lambda: self._converted is not None, stop)
        assert self._converted is not None
        return self._converted.problem

    def _wait_for(self, is_there: Callable[[], bool], stop: StopFlag) -> None:
        """Wait for what no other replica could go on with: if one dies, or the time is over, all are given up."""
        self._is_probed = True
        try:
            self._pump_until(is_there, stop)
        except BaseException:
            self.close()
            raise
        self._is_probed = False

    def _pump_until(self, is_there: Callable[[], bool], stop: StopFlag) -> None:
        while not is_there():
            stop.check()
            self._pump()

    @property
    def is_up(self) -> bool:
        """Whether it has a replica that could run."""
        return bool(self._replicas)

    def run(self, spans: Iterable[Span], *, is_ordered: bool = True) -> Iterator[Result]:
        assert self._settings is not None
        coming = SpanFeed(spans)
        if coming.first is None:
            coming.check()
            return
        if self._feed is not None:
            self._feed.run_begins(self._placement)
        depth = self._depth()
        source = self._settings.job.source
        self._scheduler = Scheduler(
            coming,
            depth,
            window=2 * depth * self._placement.replicas,
            ahead=None if source.traits.is_resumable else 1,
        )
        self._order = InOrder(coming.order) if is_ordered else AsFinished(coming.order)
        for number in self._replicas:
            self._assign(self._scheduler.join(number))
        most = len(spans) if isinstance(spans, Sequence) else self._placement.replicas
        for device in self._placement.devices[len(self._replicas) : most]:
            self._start(device)
        while not self._scheduler.is_finished:
            if self._stop.is_raised and not self._is_draining:
                self._drain()
            self._pump()
            for result in self._order.ready():
                yield result
                if isinstance(source, Releases):
                    source.release(result.span)
        coming.check()

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        for handle in self._replicas.values():
            handle.close()
        self._replicas.clear()
        self._launch.close()

    def loaders(self) -> str | None:
        """How many loader processes there were, in words; None where threads of the replicas read."""
        return self._feed.describe() if self._feed is not None and self._placement.has_loader_processes else None

    def shortages(self) -> Mapping[Shortage, int]:
        """How the devices ran out of memory and went on, and how often."""
        return self._memory.shortages

    def _loader_feed(self) -> LoaderFeed:
        if self._feed is None:
            self._feed = LoaderFeed(self._launch, self._send_to, self._row_timeout_s)
        return self._feed

    def _depth(self) -> int:
        """How many spans a replica holds: enough for every loader that reads for it, and the batches in flight."""
        placement = self._placement
        if not placement.has_loader_processes:
            return placement.loaders + 1
        return -(-3 * placement.most_loaders // (2 * placement.replicas)) + placement.lanes + 1

    def _start(self, device: Device) -> None:
        self._replicas[self._next_number] = ReplicaHandle.start(self._next_number, self._launch, device)
        self._next_number += 1

    def _send_prepare(self, handle: ReplicaHandle) -> None:
        assert self._settings is not None
        settings, lanes = self._settings, self._placement.lanes
        asked = settings.asked if self._prepared is None else NOTHING_ASKED
        prepare = Prepare(
            settings.job,
            settings.sample,
            self._placement.loaders,
            lanes,
            asked=asked,
            ceilings=self._memory.ceilings(handle.device),
            is_alone=self._memory.is_alone(handle.device),
            poisoned=self._memory.poisoned(settings.sample),
        )
        if self._placement.has_loader_processes:
            prepare = self._loader_feed().with_first_batch(prepare)
        self._send(handle, prepare)

    def _send_to(self, number: int, message: object) -> bool:
        return number in self._replicas and self._send(self._replicas[number], message)

    def _send(self, handle: ReplicaHandle, message: object) -> bool:
        try:
            handle.channel.send(message)
        except OSError:
            return False  # it is gone: the end of its line is read next, and that is where the loss is dealt with
        return True

    def _drain(self) -> None:
        assert self._scheduler is not None
        self._is_draining = True
        self._scheduler.stop()
        for replica, spans in (self._feed.withdraw() if self._feed is not None else {}).items():
            self._scheduler.give_back(replica, spans)
        for handle in self._replicas.values():
            self._send(handle, Drain())

    def _pump(self) -> None:
        """Wait for something to happen, and deal with it."""
        by_connection: dict[Any, ReplicaHandle] = {
            handle.channel.connection: handle for handle in self._replicas.values()
        }
        loaders = self._feed.pool.connections if self._feed is not None else {}
        for ready in multiprocessing.connection.wait([*by_connection, *loaders], timeout=_POLL_S):
            if ready in loaders:
                assert self._feed is not None
                self._feed.pool.handle(loaders[ready])
                continue
            handle = by_connection[ready]
            if handle.number not in self._replicas:
                continue
            try:
                message = handle.channel.receive()
            except (EOFError, OSError):
                self._lose(handle)
                continue
            self._handle(handle, message)
        if self._feed is not None:
            self._feed.tick()

    def _handle(self, handle: ReplicaHandle, message: object) -> None:
        match message:
            case Loaded(signature=signature):
                self._signature = self._signature or signature
                if signature.weights != self._signature.weights:
                    raise ModelError(
                        "the function builds another model each time it is called",
                        received=f"weights {signature.weights} on {handle.device}",
                        allowed=f"weights {self._signature.weights}, as on the first device",
                        hint="load the weights from a file, or call keras.utils.set_random_seed in it",
                    )
                if self._settings is not None:
                    self._send_prepare(handle)
            case Prepared():
                self._prepared = self._prepared or message
                self._ready.add(handle.number)
                if self._scheduler is not None:
                    self._assign(self._scheduler.join(handle.number))
            case Measured():
                self._measured.append(message)
            case Converted():
                self._converted = message
            case Chunk():
                handle.assembly.add(message)
                self._send(handle, Release(message.slot))
            case Emptied(slot=slot):
                assert self._feed is not None
                self._feed.emptied(handle.number, slot)
            case SpanDone():
                self._finish(handle, message)
            case RanShort(shortage=shortage, ceilings=ceilings):
                self._memory.told(handle.device, shortage, ceilings)
                self._limit_others(handle)
            case Returned(spans=spans):
                assert self._scheduler is not None
                self._scheduler.give_back(handle.number, spans)
            case Failed(error=None) if speaks_of_memory(message.last_line):
                self._lose(handle, gave_up=message.last_line)
            case Failed():
                raise message.error or PenstockError(
                    f"a replica on {handle.device} failed with {message.kind}",
                    received=message.last_line,
                    hint="this is a bug of penstock: please report it with the stack trace from --verbose",
                )

    def _finish(self, handle: ReplicaHandle, done: SpanDone) -> None:
        assert self._scheduler is not None
        assert self._order is not None
        self._deaths[handle.device] = 0
        self._memory.finished(done.span)
        result = handle.assembly.finish(self._spans.pop(done.span), done)
        self._order.add(result)
        if self._feed is not None:
            self._feed.finish(done.span, done.timings)
        self._observe(handle.number, handle.device, done.timings)
        self._assign(self._scheduler.finish(handle.number, done.span))

    def _assign(self, assignments: list[Assignment]) -> None:
        for assignment in assignments:
            self._spans[assignment.span.index] = assignment.span
            work = Work(assignment.span, self._memory.poisoned(assignment.span))
            self._send(self._replicas[assignment.replica], work)
            if self._feed is not None and self._placement.has_loader_processes:
                self._feed.route(assignment.span, assignment.replica)

    def _lose(self, handle: ReplicaHandle, gave_up: str | None = None) -> None:
        """A replica died: its spans go to the others, and a new one takes its place."""
        held = self._scheduler.held_by(handle.number) if self._scheduler is not None else []
        death = Death.of(
            handle,
            gave_up,
            words="\n".join(self._launch.last_lines()),
            spans=[self._spans[index] for index in held],
            batch_size=self._settings.job.batch_size if self._settings is not None else 1,
            is_prepared=handle.number in self._ready,
        )
        handle.close()
        del self._replicas[handle.number]
        self._ready.discard(handle.number)
        verdict = self._memory.judge(death)
        self._deaths[handle.device] = 0 if verdict is Verdict.LESS_WAS_TRIED else self._deaths[handle.device] + 1
        is_final = self._is_probed or (self._scheduler is None and verdict is Verdict.ORDINARY) or self._has_lost_state
        if is_final or self._deaths[handle.device] >= _DEATHS_IN_A_ROW:
            raise death.as_error(self._doing())
        self._give_out_again(handle, death.how)
        if verdict is Verdict.LESS_WAS_TRIED:
            self._limit_others(handle)
        is_done = self._scheduler is not None and self._scheduler.is_finished
        if not is_done and not self._stop.is_raised:
            self._start(handle.device)

    @property
    def _has_lost_state(self) -> bool:
        """Whether a replica that dies takes with it what the answers of all other rows depend on."""
        is_kept = self._settings is not None and self._settings.job.state == VARIABLES
        return is_kept and self._scheduler is not None

    def _doing(self) -> str:
        return "loading the model" if self._signature is None else "it was tried" if self._is_probed else "predicting"

    def _limit_others(self, handle: ReplicaHandle) -> None:
        """What one found out about a memory holds for all that share it."""
        for other in self._replicas.values():
            if other is not handle and self._memory.shares_memory(handle.device, other.device):
                self._send(other, Limit(self._memory.ceilings(other.device)))

    def _give_out_again(self, handle: ReplicaHandle, how: str) -> None:
        if self._scheduler is None:
            self._launch.note(f"replica {handle.number} on {handle.device} {how} at the first batch")
            return
        if self._feed is not None:
            self._feed.lose(handle.number)
        held = self._scheduler.held_by(handle.number)
        self._launch.note(f"replica {handle.number} on {handle.device} {how}; spans {held} are given out again")
        self._assign(self._scheduler.lose(handle.number))
