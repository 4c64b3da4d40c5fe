"""The side of the local engine that loader processes feed: who gets which batch, and who holds which slot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.core.division import SPAN_BATCHES
from penstock.core.events import Chunk, Filled, Prepare, SpanLoaded
from penstock.core.job import Job
from penstock.core.loader_count import WINDOW_S, LoaderCount, Observation
from penstock.core.preprocessing import Preprocess
from penstock.core.records import STRING, Placement, Span, Timings
from penstock.pool.processes.loader_pool import LoaderPool
from penstock.pool.processes.supervisor import Launch
from penstock.pool.transfer.batches import bytes_needed
from penstock.pool.transfer.slots import Slots

_WARM = -1
_SLOTS_OF_A_LOADER = 2
_SPANS_AHEAD = 2
_SLOW_S = 1.0
_AHEAD_BYTES = 64 << 20
_KEPT_ROW_BYTES = 512
_LEAST_SLOT_BYTES = 1 << 20

Send = Callable[[int, object], bool]
"""Sends a message to a replica; False where it is gone."""


class LoaderFeed:
    """Loader processes, and the way of their batches to the replicas.

    Args:
        launch: What processes are started with.
        send: Sends to a replica.
        timeout_s: How long a row may take.
    """

    def __init__(self, launch: Launch, send: Send, timeout_s: float) -> None:
        self._launch = launch
        self._send = send
        self.pool = LoaderPool(launch, self._deliver, timeout_s)
        self._routes: dict[int, int] = {}
        self._held: dict[int, set[int]] = {}
        self.warm: Filled | None = None
        self.rows_loaded_per_s: float | None = None
        """What one loader reads; known once the first rows are all there."""
        self.warm_chunks: list[tuple[Chunk, bytes]] = []
        self._slots: Slots | None = None
        self._sample: Span | None = None
        self._is_timed = False
        self.slot_bytes = self.slot_count = 0
        self._policy: LoaderCount | None = None
        self._seen_at = time.monotonic()
        self._seen = Timings()
        self._loaders_seen = (0.0, 0.0)
        self._waited: dict[int, float] = {}

    def learn(self, source: Any, preprocess: Preprocess, sample: Span) -> None:
        self.pool.learn(source, preprocess, sample)

    def begin(self, job: Job, placement: Placement, sample: Span, *, is_timed: bool = False) -> None:
        """Start the loaders, and have the first batch read, with which every replica warms up; and time it if asked."""
        self.warm, self.warm_chunks, self.rows_loaded_per_s = None, [], None
        self.slot_bytes = slot_bytes_of(job)
        self.slot_count = _slots_for(placement, self.slot_bytes)
        may_grow = placement.loaders < placement.most_loaders
        self._policy = LoaderCount(placement.loaders, placement.most_loaders) if may_grow else None
        self.pool.begin(job, placement.loaders, self.slot_bytes, self.slot_count)
        self._slots = Slots(self._launch.batch_slots, self.slot_count, self.slot_bytes)
        self._sample, self._is_timed = replace(sample, index=_WARM), is_timed
        self.pool.submit(self._sample)

    def with_first_batch(self, prepare: Prepare) -> Prepare:
        """What a replica needs to take batches from loader processes, and to warm up with the first of them."""
        return replace(
            prepare,
            loaders=0,
            slot_bytes=self.slot_bytes,
            slot_count=self.slot_count,
            warm=self.warm,
            warm_chunks=tuple(self.warm_chunks),
        )

    def run_begins(self, placement: Placement) -> None:
        """A GPU is faster than any loader: the cores that its start left alone are taken now."""
        if self._policy is not None and placement.devices[0].kind == "gpu":
            self._policy.count = placement.most_loaders
            self.pool.resize(placement.most_loaders)

    def route(self, span: Span, replica: int) -> None:
        """This span is for that replica: load it."""
        self._routes[span.index] = replica
        self.pool.submit(span)

    def withdraw(self) -> dict[int, list[int]]:
        """Replica to the spans that it was promised and no loader has begun."""
        unbegun: dict[int, list[int]] = {}
        for span in self.pool.withdraw():
            if span.index in self._routes:
                unbegun.setdefault(self._routes.pop(span.index), []).append(span.index)
        return unbegun

    def emptied(self, replica: int, slot: int) -> None:
        self._held.get(replica, set()).discard(slot)
        self.pool.release(slot)

    def lose(self, replica: int) -> None:
        """A replica is gone, and with it whatever it held."""
        self._routes = {span: held_by for span, held_by in self._routes.items() if held_by != replica}
        for slot in self._held.pop(replica, set()):
            self.pool.release(slot)

    def finish(self, span: int, timings: Timings) -> None:
        """A replica has delivered a span; its timings get what only the loaders know."""
        self._routes.pop(span, None)
        self.pool.forget(span)
        timings.wait_for_room += self._waited.pop(span, 0.0)
        timings.marks += self.pool.take_marks()
        self._seen.add(timings)

    def tick(self) -> None:
        """Now and then: end what hangs, and have more loaders or fewer."""
        self.pool.check_time()
        now = time.monotonic()
        if self._policy is None or now - self._seen_at < WINDOW_S or not self._seen.rows:
            return
        if self.pool.has_newcomers:
            self._look_again(now)
            return
        busy, waited = self.pool.busy_s, self.pool.wait_s
        seen = Observation(
            now - self._seen_at,
            self._seen.rows,
            self._seen.compute,
            self._seen.wait_for_data,
            busy - self._loaders_seen[0],
            waited - self._loaders_seen[1],
        )
        self._look_again(now)
        self.pool.resize(self._policy.decide(seen))

    def _look_again(self, now: float) -> None:
        self._seen_at, self._seen = now, Timings()
        self._loaders_seen = (self.pool.busy_s, self.pool.wait_s)

    def describe(self) -> str:
        """How many loaders there were, in words."""
        if self._policy is None or self._policy.highest == self._policy.start == self.pool.count:
            return str(self.pool.count)
        return f"{self.pool.count} (began with {self._policy.start}, up to {self._policy.highest})"

    def close(self) -> None:
        self.pool.close()

    def _deliver(self, message: Chunk | Filled | SpanLoaded) -> None:
        span = message.key[0] if isinstance(message, Chunk) else message.span
        slot = None if isinstance(message, SpanLoaded) else message.slot
        if span == _WARM:
            self._keep_warm(message, slot)
            return
        if isinstance(message, SpanLoaded):
            self._waited[span] = message.waited_s
        replica = self._routes.get(span)
        if replica is None or not self._send(replica, message):
            if slot is not None:
                self.pool.release(slot)
            return
        if slot is not None:
            self._held.setdefault(replica, set()).add(slot)

    def _keep_warm(self, message: Chunk | Filled | SpanLoaded, slot: int | None) -> None:
        """The first batch stays in its slot: replicas that start later warm up with it, too.

        What it sent ahead is copied out: there may be more of it than there are slots.
        """
        if isinstance(message, Chunk):
            if self.warm is None and message.key[1] == 0:
                assert self._slots is not None
                self.warm_chunks.append((message, bytes(self._slots.view(message.slot, message.nbytes))))
            self.pool.release(message.slot)
        elif isinstance(message, SpanLoaded):
            self._time(message.read_s)
        elif self.warm is None:
            self.warm = message
        elif slot is not None:
            self.pool.release(slot)

    def _time(self, read_s: float) -> None:
        """How fast one loader reads: the first time it also imports what it needs, so the same rows are read again."""
        assert self._sample is not None
        if read_s < _SLOW_S and self._is_timed:
            self._is_timed = False
            self.pool.submit(self._sample)
        else:
            self.rows_loaded_per_s = self._sample.rows / max(read_s, 1e-6)


def _slots_for(placement: Placement, slot_bytes: int) -> int:
    """Those that loaders fill and replicas empty, one for the first batch, and some that hold what was read ahead.

    A loader reads span by span. Without room for whole spans, replicas would wait for each other: MobileNetV2 from
    photos on two cores, 12 % of the time of two replicas.
    """
    in_use = _SLOTS_OF_A_LOADER * placement.most_loaders + placement.replicas * (placement.lanes + 2) + 1
    return in_use + min(_SPANS_AHEAD * SPAN_BATCHES * placement.replicas, _AHEAD_BYTES // slot_bytes)


def slot_bytes_of(job: Job) -> int:
    """A slot holds one batch of inputs, at the largest size that was planned for, and what is kept of a few columns."""
    shapes = {}
    for binding in job.bindings:
        sizes = iter(job.buckets.get(binding.mask_of or binding.input, ()))
        shape = tuple(next(sizes)[-1] if length is None else length for length in binding.shape)
        shapes[binding.input] = ((job.batch_size, *shape), object if binding.dtype == STRING else binding.dtype)
    kept = _KEPT_ROW_BYTES * job.batch_size * len(job.keep)
    page = 1 << 16
    return math.ceil(max(_LEAST_SLOT_BYTES, bytes_needed(shapes) + kept) / page) * page
