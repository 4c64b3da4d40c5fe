"""The local engine: one process for each device, fed by pull, watched, and replaced when it dies."""

from __future__ import annotations

import multiprocessing.connection
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.coming import Coming
from penstock.core.events import (
    Chunk,
    Drain,
    Emptied,
    Failed,
    Loaded,
    Prepare,
    Prepared,
    Release,
    Returned,
    SpanDone,
    Work,
)
from penstock.core.ordering import InOrder
from penstock.core.preprocessing import Preprocess
from penstock.core.records import Device, Job, Placement, Result, Signature, Span, Timings
from penstock.core.scheduler import Assignment, Scheduler
from penstock.core.stopping import StopFlag
from penstock.engines.fed_by_processes import LoaderFeed
from penstock.errors import ModelError, PenstockError, WorkersDied
from penstock.pool.supervisor import Launch, ReplicaHandle

_POLL_S = 0.2
_DEATHS_IN_A_ROW = 3

Observe = Callable[[int, Device, Timings], None]


@dataclass(frozen=True)
class _Settings:
    """What a replica needs to become ready; kept, because one that is restarted needs it again."""

    job: Job
    sample: Span
    answers_rows: int = 0


class LocalEngine:
    """Replicas as processes of this machine.

    Args:
        launch: What the processes are started with.
        placement: The devices, and the threads inside each replica.
        observe: Told of every finished span: the replica's number, its device, its timings.
        stop: Begin no more spans once it is raised.
        row_timeout_s: How long loader processes may be at one row.
    """

    def __init__(
        self, launch: Launch, placement: Placement, observe: Observe, stop: StopFlag, row_timeout_s: float = 120.0
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
        self._scheduler: Scheduler | None = None
        self._order: InOrder | None = None
        self._spans: dict[int, Span] = {}
        self._deaths: Counter[Device] = Counter()
        self._stop = stop
        self._is_draining = False
        # One first: the others follow when it is known that there is work for them.
        self._start(placement.devices[0])

    def load(self) -> Signature:
        while self._signature is None:
            self._stop.check()
            self._pump()
        return self._signature

    def learn(self, source: Any, preprocess: Preprocess, sample: Span) -> Preprocess:
        """What the user's function gives, found out in the first loader process."""
        feed = self._loader_feed()
        feed.learn(source, preprocess, sample)
        while feed.pool.learnt is None:
            self._stop.check()
            self._pump()
        return feed.pool.learnt

    def prepare(self, job: Job, placement: Placement, sample: Span, answers_rows: int = 0) -> Prepared:
        self._settings = _Settings(job, sample, answers_rows)
        self._placement = placement
        if placement.has_loader_processes:
            feed = self._loader_feed()
            feed.begin(job, placement, sample)
            while feed.warm is None:
                self._stop.check()
                self._pump()
        for handle in self._replicas.values():
            self._send_prepare(handle)
        while self._prepared is None:
            self._stop.check()
            self._pump()
        return replace(self._prepared, rows_loaded_per_s=self._feed.rows_loaded_per_s if self._feed else None)

    def run(self, spans: Iterable[Span]) -> Iterator[Result]:
        assert self._settings is not None
        coming = Coming(spans)
        if coming.first is None:
            coming.check()
            return
        if self._feed is not None:
            self._feed.run_begins(self._placement)
        depth = self._depth()
        release = getattr(self._settings.job.source, "release", None)
        self._scheduler = Scheduler(
            coming,
            depth,
            window=2 * depth * self._placement.replicas,
            ahead=None if release is None else 1,
        )
        self._order = InOrder(coming.first.index)
        for number in self._replicas:
            self._assign(self._scheduler.join(number))
        most = len(spans) if isinstance(spans, Sequence) else self._placement.replicas
        for device in self._placement.devices[1 : max(1, most)]:
            self._start(device)
        while not self._scheduler.is_finished:
            if self._stop.is_raised and not self._is_draining:
                self._drain()
            self._pump()
            for result in self._order.ready():
                yield result
                if release is not None:
                    release(result.span)
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
        wanted = settings.answers_rows if self._prepared is None else 0
        prepare = Prepare(settings.job, settings.sample, self._placement.loaders, lanes, answers_rows=wanted)
        if self._placement.has_loader_processes:
            feed = self._loader_feed()
            prepare = replace(
                prepare,
                loaders=0,
                slot_bytes=feed.slot_bytes,
                slot_count=feed.slot_count,
                warm=feed.warm,
                warm_chunks=tuple(feed.warm_chunks),
            )
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
                if self._scheduler is not None:
                    self._assign(self._scheduler.join(handle.number))
            case Chunk():
                handle.assembly.add(message)
                self._send(handle, Release(message.slot))
            case Emptied(slot=slot):
                assert self._feed is not None
                self._feed.emptied(handle.number, slot)
            case SpanDone():
                self._finish(handle, message)
            case Returned(spans=spans):
                assert self._scheduler is not None
                self._scheduler.give_back(handle.number, spans)
            case Failed():
                raise message.error or PenstockError(
                    f"a replica on {handle.device} failed with {message.kind}",
                    received=message.details.strip().splitlines()[-1][:300],
                    hint="this is a bug of penstock: please report it with the stack trace from --verbose",
                )

    def _finish(self, handle: ReplicaHandle, done: SpanDone) -> None:
        assert self._scheduler is not None
        assert self._order is not None
        self._deaths[handle.device] = 0
        result = handle.assembly.finish(self._spans.pop(done.span), done)
        self._order.add(result)
        self._observe(handle.number, handle.device, done.timings)
        if self._feed is not None:
            self._feed.finish(done.span, done.timings)
        self._assign(self._scheduler.finish(handle.number, done.span))

    def _assign(self, assignments: list[Assignment]) -> None:
        for assignment in assignments:
            self._spans[assignment.span.index] = assignment.span
            self._send(self._replicas[assignment.replica], Work(assignment.span))
            if self._feed is not None and self._placement.has_loader_processes:
                self._feed.route(assignment.span, assignment.replica)

    def _lose(self, handle: ReplicaHandle) -> None:
        """A replica died: its spans go to the others, and a new one takes its place."""
        how = handle.describe_end()
        handle.close()
        del self._replicas[handle.number]
        self._deaths[handle.device] += 1
        if self._scheduler is None or self._deaths[handle.device] >= _DEATHS_IN_A_ROW:
            when = "loading the model" if self._signature is None else "predicting"
            raise WorkersDied(
                f"a replica on {handle.device} died while {when}",
                received=f"process {handle.pid} {how}; its last words: {self._launch.last_words() or 'none'}",
                hint="a smaller --batch-size needs less memory; --verbose shows what the framework says",
            )
        if self._feed is not None:
            self._feed.lose(handle.number)
        held = self._scheduler.held_by(handle.number)
        self._launch.note(f"replica {handle.number} on {handle.device} {how}; spans {held} are given out again")
        self._assign(self._scheduler.lose(handle.number))
        if not self._scheduler.is_finished and not self._stop.is_raised:
            self._start(handle.device)
