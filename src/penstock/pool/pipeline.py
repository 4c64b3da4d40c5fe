"""The pipe inside a replica: batches of spans go in, lanes run the model, whole results come out.

    spans ─► loaders (threads) ─► batches, bounded ─► decoders (threads, if any) ─► lanes (threads) ─► results
    batches from loader processes, bounded by their slots ─┘

Several lanes keep several batches in flight: while one computes, the next is copied in and the last is copied out. All
of reading, copying and computing releases the GIL. The queue of batches, or the number of slots, bounds the memory.
Where a device decodes rows, two threads have it do so a few batches ahead of the lanes.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from penstock.core import tracing
from penstock.core.batching import Batch, on_the_heap
from penstock.core.job import Job
from penstock.core.protocols import Copying
from penstock.core.queues import drained
from penstock.core.records import Array, Column, Columns, Result, RowFailure, Span, TensorSpec, Timings
from penstock.core.reordering import Rows, answers, as_rows, check_one_shape, rows_of, to_result
from penstock.core.state import VARIABLES
from penstock.errors import InputError, OutOfMemory
from penstock.pool.decoding import AHEAD, THREADS, BatchDecoder, Places
from penstock.pool.guard.bisection import check_rows
from penstock.pool.guard.guarded import GuardedReplica
from penstock.pool.guard.keeping import trim
from penstock.pool.loading import load_batches
from penstock.pool.transfer.batches import SlotRoom
from penstock.pool.transfer.results import Writable
from penstock.pool.transfer.slots import NoMoreSlots

Emit = Callable[[Result, Timings], None]
Fail = Callable[[BaseException], None]
Release = Callable[[], None]


@dataclass
class _OpenSpan:
    """A span on its way through the pipe. Batches may come twice, after the loader that sent them died."""

    span: Span
    attempt: int = 0
    """The number of the attempt to load it, where loader processes do that."""
    is_begun: bool = False
    """Whether a batch of it is on the device, or was."""
    is_withdrawn: bool = False
    """Whether it was given back, so that its batches are not run."""
    seen: set[int] = field(default_factory=set)
    outputs: dict[int, Mapping[str, Column] | None] = field(default_factory=dict)
    positions: dict[int, range | Array] = field(default_factory=dict)
    kept: dict[int, Mapping[str, Column]] = field(default_factory=dict)
    failures: dict[int, RowFailure] = field(default_factory=dict)
    num_batches: int | None = None
    timings: Timings = field(default_factory=Timings)
    reduced_to: list[int] = field(default_factory=list)


_PATIENCE_S = 5.0
"""A stop waits no longer than about this for spans that are not begun."""
EVERY_OUTPUT_HAS_ONE_SHAPE: Mapping[str, str] = {}


def _nothing_to_release() -> None:
    pass


@dataclass(frozen=True)
class _Waiting:
    """A batch on its way to a lane, and the slot it lies in."""

    work: _OpenSpan
    batch: Batch
    release: Release = _nothing_to_release
    slot: int = tracing.NONE


class Pipeline:
    """Predicts spans with one replica. `emit` and `fail` are called from the pipeline's own threads.

    Args:
        replica: The live model.
        job: How spans become batches.
        emit: Takes every result, in any order.
        fail: Takes the error that stops the pipeline.
        loaders: Threads that read; none where loader processes send batches.
        lanes: Threads that run the model.
        follows: Outputs that have one value for each value of an input's row, and that input.
        outputs: What the first batch gave: every other must give rows of the same shapes.
        room: Slots that its own loaders put batches into; without them, batches lie on the heap.
        decoder: Decodes what loaders left encoded; None where they decode all rows.
        ahead: How many batches are decoded before a lane is free for them; if it is less than 0, only one batch at a
            time is on the device.
    """

    def __init__(
        self,
        replica: GuardedReplica,
        job: Job,
        emit: Emit,
        fail: Fail,
        *,
        loaders: int,
        lanes: int,
        follows: Mapping[str, str] = EVERY_OUTPUT_HAS_ONE_SHAPE,
        outputs: Sequence[TensorSpec] = (),
        room: Writable | None = None,
        decoder: BatchDecoder | None = None,
        ahead: int = AHEAD,
    ) -> None:
        self._replica = replica
        self._room = room
        self._follows = follows
        self._job = job
        self._emit = emit
        self._fail = fail
        self._spans: queue.SimpleQueue[Span | None] = queue.SimpleQueue()
        self._batches: queue.Queue[_Waiting | None] = queue.Queue(lanes + 2 if loaders else 0)
        self._sent: dict[int, _OpenSpan] = {}
        """The spans that loader processes send."""
        self._loading: dict[int, _OpenSpan] = {}
        """The spans that loaders of this pipeline read, or have read."""
        self._lock = threading.Lock()
        self._copied_s = replica.replica.copied_s if isinstance(replica.replica, Copying) else (lambda: 0.0)
        self._decoder = decoder
        self._decoded: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._decoding_turn = threading.Lock()
        self._places = Places(lanes + ahead if ahead >= 0 else 1)
        # A row that is left out, or that the user's function sees alone, may have another size at the next attempt:
        # then the same numbers of batches stand for other rows. Batches of a model that keeps state run only once.
        self._restarts = bool(job.buckets) and job.state != VARIABLES
        self._rows_run, self._run_s = 0, 0.0
        self._closed = False
        self._fed_at: float | None = None
        self._next_row: int | None = None
        self._waiting = tracing.NONE  # batches, as they were noted last
        self._shapes: dict[str, Rows] = {spec.name: as_rows(spec) for spec in outputs}
        decoders = 0 if decoder is None else 1 if job.state == VARIABLES else THREADS
        self._threads = [
            *(threading.Thread(target=self._load, name=f"loader-{i}", daemon=True) for i in range(loaders)),
            *(threading.Thread(target=self._decode, name=f"decoder-{i}", daemon=True) for i in range(decoders)),
            *(threading.Thread(target=self._run, name=f"lane-{i}", daemon=True) for i in range(lanes)),
        ]
        self._loaders, self._lanes = loaders, lanes
        for thread in self._threads:
            thread.start()

    def add(self, span: Span) -> None:
        """Queue a span for this pipeline's own loaders."""
        self._begin()
        self._spans.put(span)

    def give(self, span: Span, batch: Batch, release: Release, slot: int | None = None, attempt: int = 0) -> None:
        """Take a batch that a loader process sent. `release` is called when its memory is no longer read."""
        self._begin()
        work = self._being_sent(span, attempt)
        self._see(work, batch)
        self._batches.put(_Waiting(work, batch, release, tracing.NONE if slot is None else slot))

    def has(self, span: Span, index: int, attempt: int = 0) -> bool:
        """Whether this batch was given before: a loader that died had sent it already."""
        return index in self._being_sent(span, attempt).seen

    def end(self, span: Span, num_batches: int, read_s: float, attempt: int = 0) -> None:
        """The loader process has sent every batch of a span."""
        work = self._being_sent(span, attempt)
        work.timings.read += read_s
        self._complete(work, num_batches)

    def drain(self, expected: Sequence[Span] = ()) -> list[Span]:
        """Take back the spans that no loader has begun, and, if the device would need long for them, loaded ones.

        `expected` are the spans that loader processes send.
        """
        unbegun = [span for span in drained(self._spans) if span is not None]
        with self._lock:
            works = (self._loading, self._sent)
            waiting = [work for each in works for work in list(each.values()) if not work.is_begun]
            spans = [work.span for work in waiting]
            spans += [span for span in expected if span.index not in self._sent]
            if not self._needs_long(spans):
                return unbegun
            for work in waiting:
                work.is_withdrawn = True
                for each in works:
                    each.pop(work.span.index, None)
        return unbegun + spans

    def _needs_long(self, spans: Sequence[Span]) -> bool:
        """Whether the device would need long for these spans, as far as batches have shown how fast it is."""
        if not self._rows_run:
            return True
        rows = sum(span.rows for span in spans)
        return rows * self._run_s / (self._rows_run * self._lanes) > _PATIENCE_S

    def close(self) -> None:
        """Stop the threads; what is unfinished is dropped."""
        self._closed = True
        for _ in range(self._loaders):
            self._spans.put(None)
        if self._room is not None:
            self._room.free.close()
        drained(self._batches)
        self._places.close()
        for _ in range(self._lanes):
            self._decoded.put(None)
        for _ in range(max(self._lanes, THREADS)):
            try:
                self._batches.put_nowait(None)
            except queue.Full:
                break
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _being_sent(self, span: Span, attempt: int) -> _OpenSpan:
        """The span as this attempt sends it. What is left of an attempt before it comes to nothing."""
        work = self._sent.get(span.index)
        if work is None or (self._restarts and work.attempt != attempt):
            work = self._sent[span.index] = _OpenSpan(span, attempt)
        return work

    def _begin(self) -> None:
        """From now on an idle lane counts as waiting for data; before, there was no work to wait for."""
        if self._fed_at is None:
            self._fed_at = time.perf_counter()

    def _mark(
        self, work: _OpenSpan, what: str, start: float, end: float, batch: Batch | None = None, slot: int = tracing.NONE
    ) -> None:
        if self._job.is_traced:
            index, rows = (tracing.NONE, work.span.rows) if batch is None else (batch.index, batch.rows)
            thread = threading.current_thread().name
            work.timings.marks.append(tracing.Mark(what, thread, start, end, work.span.index, index, rows, slot))

    def _load(self) -> None:
        room = SlotRoom(self._room) if self._room is not None else None
        while (span := self._spans.get()) is not None and not self._closed:
            work = self._loading[span.index] = _OpenSpan(span)
            try:
                self._load_span(work, room)
            except NoMoreSlots:
                return
            except BaseException as error:
                self._fail(error)
                return

    def _load_span(self, work: _OpenSpan, room: SlotRoom | None) -> None:
        began = started = time.perf_counter()
        count = 0
        for batch in load_batches(self._job, work.span, room or on_the_heap, marks=work.timings.marks):
            if self._closed:
                return
            loaded = time.perf_counter()
            waited = room.take_waited() if room is not None else 0.0
            work.timings.read += loaded - started - waited
            work.timings.wait_for_room += waited
            # The loader waits for a slot before it writes the first row.
            self._mark(work, tracing.LOAD, started + waited, loaded, batch)
            if waited > tracing.SHORT_S:
                self._mark(work, tracing.WAIT_FOR_ROOM, started, started + waited, batch)
            count += 1
            self._see(work, batch)
            item = self._item(work, batch, room)
            if work.is_withdrawn:
                item.release()
                return
            self._put(item)
            started = time.perf_counter()
        ended = time.perf_counter()
        work.timings.read += ended - started
        self._mark(work, tracing.SPAN, began, ended)
        self._complete(work, count)

    def _see(self, work: _OpenSpan, batch: Batch) -> None:
        with self._lock:
            work.seen.add(batch.index)
            work.positions[batch.index] = batch.positions
            work.kept[batch.index] = batch.kept
            work.timings.values += batch.values
            work.timings.padded += batch.padded
            for failure in batch.failures:
                work.failures.setdefault(failure.row, failure)

    def _item(self, work: _OpenSpan, batch: Batch, room: SlotRoom | None) -> _Waiting:
        slot = room.let_go() if room is not None else None
        if slot is None or self._room is None:
            return _Waiting(work, batch)
        return _Waiting(work, batch, partial(self._room.free.give_back, slot), slot)

    def _put(self, item: _Waiting) -> None:
        work, batch = item.work, item.batch
        started = time.perf_counter()
        while not self._closed:
            try:
                self._batches.put(item, timeout=1.0)
                break
            except queue.Full:
                continue
        ended = time.perf_counter()
        work.timings.wait_for_room += ended - started
        if ended - started > tracing.SHORT_S:
            self._mark(work, tracing.WAIT_FOR_ROOM, started, ended, batch)

    def _complete(self, work: _OpenSpan, num_batches: int) -> None:
        with self._lock:
            work.num_batches = num_batches
            is_done = len(work.outputs) == num_batches
        if is_done:
            self._finish(work)

    def _decode(self) -> None:
        """Decode batches as they come, for lanes that will be free for them."""
        while (item := self._next_to_decode()) is not None:
            try:
                if item.batch.encoded:
                    item = self._decode_batch(item)
            except BaseException as error:
                if not self._closed:
                    self._fail(error)
                return
            self._decoded.put(item)

    def _next_to_decode(self) -> _Waiting | None:
        with self._decoding_turn:  # the batch that came first gets the place that is free first
            while (item := self._batches.get()) is not None:
                if self._begins(item):
                    return item if self._places.take() else None
            return None

    def _begins(self, item: _Waiting) -> bool:
        """Whether a batch is to be run, which then cannot be withdrawn any more."""
        with self._lock:
            item.work.is_begun |= not item.work.is_withdrawn
        if item.work.is_withdrawn:
            item.release()
        return not item.work.is_withdrawn

    def _decode_within_memory(self, batch: Batch, span_start: int) -> tuple[RowFailure, ...]:
        assert self._decoder is not None
        # The memory that other batches hold is free when they have run.
        ways_on = iter((self._places.take_alone, self._go_on_without_device))
        while True:
            try:
                return self._decoder(batch, span_start)
            except OutOfMemory as error:
                short = error.with_traceback(None)  # the traceback keeps arrays on the device alive
            if not any(way() for way in ways_on):
                raise short

    def _go_on_without_device(self) -> bool:
        if self._decoder is None or self._places.is_closed or not self._decoder.go_on_without_device():
            return False
        self._places.open_all()
        return True

    def _decode_batch(self, item: _Waiting) -> _Waiting:
        assert self._decoder is not None
        work, batch = item.work, item.batch
        started = time.perf_counter()
        is_all_encoded = batch.encoded.keys() == batch.arrays.keys()
        failures = self._decode_within_memory(batch, work.span.start)
        ended = time.perf_counter()
        self._mark(work, tracing.DECODE, started, ended, batch, item.slot)
        with self._lock:
            work.timings.decode += ended - started
            for failure in failures:
                work.failures.setdefault(failure.row, failure)
        if not is_all_encoded:
            return item
        item.release()  # nothing of the batch is in its slot any more
        return _Waiting(work, batch)

    def _run(self) -> None:
        batches = self._batches if self._decoder is None else self._decoded
        while True:
            started = time.perf_counter()
            item = batches.get()
            if item is None or self._closed:
                return
            if not self._begins(item):
                continue
            try:
                self._run_batch(item, max(started, self._fed_at or started))
            except BaseException as error:
                self._fail(error)
                return

    def _run_batch(self, item: _Waiting, idle_since: float) -> None:
        work, batch, release = item.work, item.batch, item.release
        started = time.perf_counter()
        if started - idle_since > tracing.SHORT_S:
            self._mark(work, tracing.WAIT_FOR_DATA, idle_since, started, batch)
        assert not batch.encoded, "nothing has decoded the rows of a batch"
        trim(self._job, batch)
        self._check_turn(work.span, batch)
        copied_before = self._copied_s()
        outputs, rejected = self._replica.predict(batch, work.span.start)
        copied = self._copied_s() - copied_before
        trimmed = self._trimmed(outputs, batch, release) if outputs is not None else None
        # Nothing may read the memory of the batch after this, not even a name in a frame that lives on.
        batch.arrays.clear()
        release()
        if self._decoder is not None:
            self._places.give_back()
        ended = time.perf_counter()
        self._mark(work, tracing.PREDICT, started, ended, batch, item.slot)
        if self._job.is_traced and (waiting := self._batches.qsize()) != self._waiting:
            self._waiting = waiting
            work.timings.marks.append(tracing.Level(tracing.BATCHES_WAITING, ended, waiting))
        with self._lock:
            work.timings.compute += ended - started
            work.timings.copy += copied
            work.timings.wait_for_data += started - idle_since
            work.timings.rows += batch.rows
            self._rows_run += batch.rows
            self._run_s += ended - started
            work.outputs[batch.index] = trimmed
            work.reduced_to += [] if batch.reduced_to is None else [batch.reduced_to]
            for failure in rejected:
                work.failures.setdefault(failure.row, failure)
            is_done = len(work.outputs) == work.num_batches
        if is_done:
            self._finish(work)

    def _trimmed(self, outputs: Columns, batch: Batch, release: Release) -> dict[str, Column]:
        """The answers to the real rows, which must look as those of every other batch do."""
        check_rows(outputs, batch.size)
        trimmed = {
            name: answers(self._follows, name, _own(output[: batch.rows], batch, release), batch)
            for name, output in outputs.items()
        }
        for name, column in trimmed.items():
            rows = rows_of(column)
            check_one_shape(name, rows, self._shapes.setdefault(name, rows))
        return trimmed

    def _check_turn(self, span: Span, batch: Batch) -> None:
        """Check that a model that every call changes gets its batches in the order of the input."""
        if self._job.state != VARIABLES:
            return
        row = span.start + int(batch.positions[0])
        is_whole = int(batch.positions[-1]) - int(batch.positions[0]) + 1 == batch.rows
        is_even = all(len(np.unique(sizes, axis=0)) <= 1 for sizes in batch.sizes.values())
        if not is_whole or not is_even or (self._next_row is not None and row != self._next_row):
            raise InputError(
                "the model keeps state, and rows of different lengths cannot be run in their order",
                received=f"rows {row} to {span.start + int(batch.positions[-1])}",
                hint="give it rows of one length",
            )
        self._next_row = row + batch.rows

    def _finish(self, work: _OpenSpan) -> None:
        with self._lock:
            # The loader and the last lane may both see the span complete; only one of them delivers it.
            count = work.num_batches
            if count is None or len(work.outputs) != count or self._closed:
                return
            work.num_batches = None
        rows = sum(len(positions) for positions in work.positions.values())
        if rows != work.span.rows:
            raise RuntimeError(f"the batches of span {work.span.index} have {rows} rows, and the span {work.span.rows}")
        failures = [_with_origin(self._job.source, work.span, failure) for _, failure in sorted(work.failures.items())]
        batches = [
            (work.positions[index], outputs, work.kept[index])
            for index in range(count)
            if (outputs := work.outputs[index]) is not None
        ]
        result = to_result(work.span, batches, failures)
        self._emit(replace(result, reduced_to=min(work.reduced_to, default=None)), work.timings)
        # Only now: a batch that comes a second time before this must still be recognised.
        self._sent.pop(work.span.index, None)
        self._loading.pop(work.span.index, None)


def _own(output: Array, batch: Batch, release: Release) -> Array:
    """An output that may outlive the batch: a model that hands its input through may answer with the slot itself."""
    if release is _nothing_to_release or not isinstance(output, np.ndarray):
        return output  # lists are made anew
    on_host = [array for array in batch.arrays.values() if isinstance(array, np.ndarray)]
    is_shared = any(np.may_share_memory(output, array) for array in on_host)
    return output.copy() if is_shared else output


def _with_origin(source: Any, span: Span, failure: RowFailure) -> RowFailure:
    """A failure with the file it comes from, where it was found without knowing the file."""
    if failure.origin:
        return failure
    return replace(failure, origin=source.origin(span, failure.row))
