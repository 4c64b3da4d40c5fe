"""Loader processes as the reader of a row stream: they read spans side by side, and the spans come out in order."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.messages import Chunk, Filled, LoadedData, SpanLoaded
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Source
from penstock.core.records import Span
from penstock.core.stillness import DEFAULT_TIMEOUTS, Timeouts
from penstock.engines.loader_feed import slot_bytes_of
from penstock.pool.processes.loader_pool import LoaderPool
from penstock.pool.processes.supervisor import LoaderLaunch
from penstock.pool.transfer.batches import open_batch
from penstock.pool.transfer.results import Assembly
from penstock.pool.transfer.slots import Slots
from penstock.training.row_stream import READY_BATCHES, Loaded

HELD_BATCHES = 4
"""So many batches a trainer may hold at once."""
_SLOTS_OF_A_LOADER = 2
_POLL_S = 0.2
_TICK_S = 0.1


class LoaderReader:
    """Reads spans with loader processes, which are started at once.

    One thread must call all methods except `cancel`. Any thread may call `cancel` and release the memory of a batch.

    Args:
        launch: How loaders are started.
        job: What they load.
        loaders: How many loaders there are.
        slots_ahead: How many loaded batches may wait for batches before them.
        timeouts: How long a loader may take.
    """

    def __init__(
        self, launch: LoaderLaunch, job: Job, loaders: int, slots_ahead: int, timeouts: Timeouts = DEFAULT_TIMEOUTS
    ) -> None:
        self._launch = launch
        self._job = job
        self._most_spans = 2 * loaders + 2
        self._pool = LoaderPool(launch, self._take, timeouts, is_in_order=True)
        slot_bytes = slot_bytes_of(job)
        # A loader keeps slots that were granted to it also when it has nothing to load.
        slot_count = _SLOTS_OF_A_LOADER * loaders + READY_BATCHES + HELD_BATCHES + 2 + slots_ahead
        self._pool.begin(job, loaders, slot_bytes, slot_count)
        self._slots = Slots(launch.batch_slots, slot_count, slot_bytes)
        self._assembly = Assembly(self._slots)
        self._spans: Iterator[Span] = iter(())
        self._outstanding: deque[Span] = deque()
        self._next_batch = 0
        """The number of the next batch to return, within the first outstanding span."""
        self._loaded: dict[tuple[int, int], tuple[Batch, int | None]] = {}
        self._num_batches: dict[int, int] = {}
        self._freed: deque[int] = deque()
        self._wake_end, self._waking_end = os.pipe()
        os.set_blocking(self._waking_end, False)
        self._lock = threading.Lock()
        self._is_cancelled = self._is_closed = False
        self._ticked_at = 0.0

    def begin(self, spans: Iterator[Span]) -> None:
        for span in self._outstanding:
            self._pool.forget(span.index)
        for _, slot in self._loaded.values():
            if slot is not None:
                self._pool.release(slot)
        self._outstanding.clear()
        self._loaded.clear()
        self._num_batches.clear()
        self._next_batch = 0
        self._is_cancelled = False
        self._spans = spans

    def read(self) -> Loaded | None:
        while not self._is_cancelled:
            self._free()
            self._submit()
            if not self._outstanding:
                return None
            span = self._outstanding[0]
            found = self._loaded.pop((span.index, self._next_batch), None)
            if found is not None:
                self._next_batch += 1
                return span, found[0], self._release_of(found[1])
            if self._num_batches.get(span.index) == self._next_batch:
                self._end_first()
            else:
                self._pump()
        return None

    def cancel(self) -> None:
        self._is_cancelled = True
        self._wake()

    def close(self) -> None:
        """End the loaders. Batches that were not released become invalid."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._wake_end)
            os.close(self._waking_end)
        self._pool.close()
        self._launch.close()
        self._job.source.close()

    def _submit(self) -> None:
        while len(self._outstanding) < self._most_spans and (span := next(self._spans, None)) is not None:
            self._outstanding.append(span)
            self._pool.submit(span)

    def _end_first(self) -> None:
        span = self._outstanding.popleft()
        self._pool.forget(span.index)
        del self._num_batches[span.index]
        self._next_batch = 0

    def _pump(self) -> None:
        """Wait until a loader sends a message or ends, or a slot becomes free, and handle it."""
        signs = self._pool.signs
        ready = multiprocessing.connection.wait([*signs, self._wake_end], timeout=_POLL_S)
        if self._wake_end in ready:
            os.read(self._wake_end, 1024)
        for number in {signs[sign] for sign in ready if sign in signs}:
            self._pool.handle(number)
        now = time.monotonic()
        if now - self._ticked_at >= _TICK_S:
            self._ticked_at = now
            self._pool.check_time(now)

    def _take(self, message: LoadedData) -> None:
        """Keep what a loader sent. When a loader dies, its span is loaded again: no batch is kept twice."""
        match message:
            case Chunk(key=(span, index, _)):
                if message.offset == 0:
                    self._assembly.drop((span, index))
                self._assembly.add(message)
                self._pool.release(message.slot)
            case Filled(span=span, index=index, slot=slot):
                if self._is_wanted(span, index):
                    self._loaded[span, index] = open_batch(message, self._slots, self._assembly), slot
                else:
                    self._assembly.drop((span, index))
                    if slot is not None:
                        self._pool.release(slot)
            case SpanLoaded(span=span, num_batches=count):
                self._num_batches[span] = count

    def _is_wanted(self, span: int, index: int) -> bool:
        if not self._outstanding or (span, index) in self._loaded:
            return False
        first = self._outstanding[0].index
        return span > first or (span == first and index >= self._next_batch)

    def _release_of(self, slot: int | None) -> Callable[[], None]:
        def release() -> None:
            if slot is not None:
                self._freed.append(slot)
                self._wake()

        return release

    def _free(self) -> None:
        while self._freed:
            self._pool.release(self._freed.popleft())

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes the reader as well
            if not self._is_closed:
                os.write(self._waking_end, b"\0")


def learn_function(
    launch: LoaderLaunch, source: Source, function: Preprocess, sample: Span, timeouts: Timeouts
) -> Preprocess:
    """The user's function with the columns that it gives: a loader process finds them out on the rows of `sample`."""
    pool = LoaderPool(launch, lambda message: None, timeouts)
    try:
        pool.learn(source, function, sample)
        while pool.learnt is None:
            signs = pool.signs
            for number in {signs[sign] for sign in multiprocessing.connection.wait([*signs], timeout=_POLL_S)}:
                pool.handle(number)
            pool.check_time(time.monotonic())
        return pool.learnt
    finally:
        pool.close()
