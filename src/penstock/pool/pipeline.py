"""The pipe inside a replica: loaders read and batch spans, lanes run the model, whole results come out.

    spans ─► loaders (threads) ─► batches, bounded ─► lanes (threads) ─► results

Several lanes keep several batches in flight: while one computes, the next is copied in and the last is copied out. All
of reading, copying and computing releases the GIL. The queue of batches bounds the memory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.core.batching import Batch, cut
from penstock.core.columns import join, take_rows, to_array
from penstock.core.protocols import Replica
from penstock.core.records import (
    KEPT,
    Array,
    Binding,
    Block,
    Column,
    Columns,
    Job,
    Result,
    RowFailure,
    Span,
    Timings,
)
from penstock.errors import InputError, ModelError, PenstockError, one_line

_FILL_CANDIDATES = 8

Emit = Callable[[Result, Timings], None]
Fail = Callable[[BaseException], None]


@dataclass
class _OpenSpan:
    """A span on its way through the pipe."""

    span: Span
    outputs: dict[int, Columns] = field(default_factory=dict)
    kept: list[Mapping[str, Column]] = field(default_factory=list)
    failures: dict[int, RowFailure] = field(default_factory=dict)
    num_batches: int | None = None
    timings: Timings = field(default_factory=Timings)


class Pipeline:
    """Predicts spans with one replica. `emit` and `fail` are called from the pipeline's own threads.

    Args:
        replica: The live model.
        job: How spans become batches.
        emit: Takes every result, in any order.
        fail: Takes the error that stops the pipeline.
        loaders: Threads that read.
        lanes: Threads that run the model.
    """

    def __init__(self, replica: Replica, job: Job, emit: Emit, fail: Fail, *, loaders: int, lanes: int) -> None:
        self._replica = replica
        self._job = job
        self._emit = emit
        self._fail = fail
        self._spans: queue.SimpleQueue[Span | None] = queue.SimpleQueue()
        self._batches: queue.Queue[tuple[_OpenSpan, Batch] | None] = queue.Queue(maxsize=lanes + 2)
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [
            *(threading.Thread(target=self._load, name=f"loader-{i}", daemon=True) for i in range(loaders)),
            *(threading.Thread(target=self._run, name=f"lane-{i}", daemon=True) for i in range(lanes)),
        ]
        self._loaders, self._lanes = loaders, lanes
        for thread in self._threads:
            thread.start()

    def add(self, span: Span) -> None:
        """Queue a span."""
        self._spans.put(span)

    def drain(self) -> list[Span]:
        """Take back the spans that no loader has begun."""
        unbegun: list[Span] = []
        while True:
            try:
                span = self._spans.get_nowait()
            except queue.Empty:
                return unbegun
            if span is not None:
                unbegun.append(span)

    def close(self) -> None:
        """Stop the threads; what is unfinished is dropped."""
        self._closed = True
        for _ in range(self._loaders):
            self._spans.put(None)
        while True:
            try:
                self._batches.get_nowait()
            except queue.Empty:
                break
        for _ in range(self._lanes):
            try:
                self._batches.put_nowait(None)
            except queue.Full:
                break
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _load(self) -> None:
        while (span := self._spans.get()) is not None and not self._closed:
            try:
                self._load_span(_OpenSpan(span))
            except BaseException as error:
                self._fail(error)
                return

    def _load_span(self, work: _OpenSpan) -> None:
        started = time.perf_counter()
        count = 0
        for batch in cut(read_inputs(self._job, work.span, work.kept, work.failures), self._job.batch_size):
            work.timings.read += time.perf_counter() - started
            count += 1
            self._put(work, batch)
            started = time.perf_counter()
        work.timings.read += time.perf_counter() - started
        with self._lock:
            work.num_batches = count
            is_done = len(work.outputs) == count
        if is_done:
            self._finish(work)

    def _put(self, work: _OpenSpan, batch: Batch) -> None:
        started = time.perf_counter()
        while not self._closed:
            try:
                self._batches.put((work, batch), timeout=1.0)
                break
            except queue.Full:
                continue
        work.timings.wait_for_room += time.perf_counter() - started

    def _run(self) -> None:
        while True:
            started = time.perf_counter()
            item = self._batches.get()
            if item is None or self._closed:
                return
            work, batch = item
            waited = time.perf_counter() - started
            try:
                self._run_batch(work, batch, waited)
            except BaseException as error:
                self._fail(error)
                return

    def _run_batch(self, work: _OpenSpan, batch: Batch, waited: float) -> None:
        started = time.perf_counter()
        first_row = work.span.start + batch.offset
        outputs, rejected = predict_surviving(self._replica, batch, first_row)
        check_rows(outputs, self._job.batch_size)
        trimmed = {name: output[: batch.rows] for name, output in outputs.items()}
        with self._lock:
            work.timings.compute += time.perf_counter() - started
            work.timings.wait_for_data += waited
            work.timings.rows += batch.rows
            work.outputs[batch.index] = trimmed
            for failure in rejected:
                work.failures.setdefault(failure.row, failure)
            is_done = len(work.outputs) == work.num_batches
        if is_done:
            self._finish(work)

    def _finish(self, work: _OpenSpan) -> None:
        with self._lock:
            # The loader and the last lane may both see the span complete; only one of them delivers it.
            count = work.num_batches
            if count is None or len(work.outputs) != count:
                return
            work.num_batches = None
        work.failures = {
            row: _with_origin(self._job.source, work.span, failure) for row, failure in work.failures.items()
        }
        self._emit(_to_result(work, count, self._job.keep), work.timings)


def _to_result(work: _OpenSpan, num_batches: int, keep: tuple[str, ...]) -> Result:
    ordered = [work.outputs[index] for index in range(num_batches)]
    columns: dict[str, Column] = {
        name: join([outputs[name] for outputs in ordered]) for name in (ordered[0] if ordered else {})
    }
    columns |= {KEPT + name: join([piece[name] for piece in work.kept]) for name in keep}
    if work.failures:
        alive = np.ones(work.span.rows, dtype=bool)
        alive[[row - work.span.start for row in work.failures]] = False
        columns = {name: take_rows(column, alive) for name, column in columns.items()}
    return Result(work.span, columns, tuple(failure for _, failure in sorted(work.failures.items())))


def _with_origin(source: Any, span: Span, failure: RowFailure) -> RowFailure:
    """A failure with the file it comes from, where the one who found it did not know."""
    if failure.origin:
        return failure
    return replace(failure, origin=source.origin(span, failure.row))


def read_inputs(
    job: Job, span: Span, kept: list[Mapping[str, Column]], failures: dict[int, RowFailure]
) -> Iterator[Columns]:
    """The inputs of a span, block by block. Kept columns and rows that cannot be fed are gathered on the way."""
    rows = 0
    for block in job.source.read(span, job.columns):
        for failure in block.failures:
            failures.setdefault(failure.row, failure)
        if job.keep:
            kept.append({name: block.columns[name] for name in job.keep})
        yield {binding.input: _feed(binding, block, failures) for binding in job.bindings}
        rows += block.rows
    if rows != span.rows:
        raise InputError(
            "the input changed while it was read",
            received=f"{rows} rows",
            allowed=f"{span.rows} rows from row {span.start}",
        )


def _feed(binding: Binding, block: Block, failures: dict[int, RowFailure]) -> Array:
    if len(binding.columns) == 1:
        array, bad = to_array(block.columns[binding.columns[0]], binding.dtype, binding.shape)
        _note(bad, binding.columns[0], block, failures)
        return array
    stacked = np.empty((block.rows, len(binding.columns)), dtype=binding.dtype)
    for position, name in enumerate(binding.columns):
        values, bad = to_array(block.columns[name], binding.dtype, ())
        stacked[:, position] = values
        _note(bad, name, block, failures)
    return stacked.reshape(block.rows, *(length or 1 for length in binding.shape))


def _note(bad: Mapping[int, str], column: str, block: Block, failures: dict[int, RowFailure]) -> None:
    for position, reason in bad.items():
        row = block.start + position
        failures.setdefault(row, RowFailure(row, "", "load", "BadValue", f"column {column!r} {reason}"))


def predict_surviving(replica: Replica, batch: Batch, first_row: int) -> tuple[Columns, list[RowFailure]]:
    """The model's answers; where it rejects the batch, the rows at fault are found by bisection and named.

    Rows are masked and the shape stays, so that the other rows get the bits they always get.

    Raises:
        PenstockError: Not a matter of rows: out of memory, or the model rejects even an empty batch.
    """
    try:
        return replica.predict(batch.arrays), []
    except PenstockError:
        raise
    except Exception as error:
        return _bisect(replica, batch, first_row, error)


def _bisect(replica: Replica, batch: Batch, first_row: int, error: Exception) -> tuple[Columns, list[RowFailure]]:
    fill = _find_fill(replica, batch, error)
    alive = np.zeros(len(next(iter(batch.arrays.values()))), dtype=bool)
    failures: list[RowFailure] = []
    suspects = [(0, batch.rows)]
    while suspects:
        start, stop = suspects.pop()
        alive[start:stop] = True
        rejected = _reject(replica, _masked(batch.arrays, alive, fill))
        if rejected is None:
            continue
        alive[start:stop] = False
        if stop - start == 1:
            failures.append(RowFailure(first_row + start, "", "predict", type(rejected).__name__, one_line(rejected)))
            continue
        middle = (start + stop) // 2
        suspects += [(middle, stop), (start, middle)]
    return replica.predict(_masked(batch.arrays, alive, fill)), failures


def _find_fill(replica: Replica, batch: Batch, error: Exception) -> int | None:
    """What can stand in the place of a rejected row: zeros (None), or a real row of the batch where zeros will not do.

    Raises:
        ModelError: Nothing can: the model rejects this shape, not these rows.
    """
    nobody = np.zeros(len(next(iter(batch.arrays.values()))), dtype=bool)
    candidates: list[int] = np.unique(np.linspace(0, batch.rows - 1, _FILL_CANDIDATES, dtype=int)).tolist()
    for fill in (None, *candidates):
        if (problem := _reject(replica, _masked(batch.arrays, nobody, fill))) is None:
            return fill
    raise ModelError(
        "the model rejects these rows, and every other that was tried",
        received=one_line(error),
        hint="are these the columns it was trained on? `penstock inspect` shows what it takes",
    ) from problem


def _reject(replica: Replica, arrays: Columns) -> Exception | None:
    try:
        replica.predict(arrays)
    except PenstockError:
        raise
    except Exception as error:
        return error
    return None


def _masked(arrays: Columns, alive: Array, fill: int | None) -> Columns:
    """The batch with every row that is not alive replaced by row `fill`, or by zeros."""
    masked = {name: array.copy() for name, array in arrays.items()}
    for name, array in masked.items():
        nothing = b"" if array.dtype == object else 0
        array[~alive] = nothing if fill is None else arrays[name][fill]
    return masked


def check_rows(outputs: Columns, batch_size: int) -> None:
    """Refuse outputs that cannot be divided into rows.

    Raises:
        ModelError: An output does not have one row for each row of the batch.
    """
    for name, output in outputs.items():
        if output.ndim == 0 or len(output) != batch_size:
            raise ModelError(
                "an output of the model does not have one row for each row of the input",
                received=f"{name}: shape {output.shape} for a batch of {batch_size}",
                allowed=f"({batch_size}, …)",
                hint="outputs that sum over the batch cannot be divided among devices",
            )
