"""Small real models and sources, and a pipeline around them, for the tests of what happens inside a replica."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from penstock.core.job import Job
from penstock.core.protocols import Replica, Source
from penstock.core.records import (
    KEPT,
    STRING,
    Array,
    Binding,
    Block,
    Column,
    Columns,
    Fragment,
    Result,
    RowFailure,
    Signature,
    Span,
    TensorSpec,
    Timings,
)
from penstock.pool.decoding import AHEAD, BatchDecoder
from penstock.pool.guard.guarded import GuardedReplica
from penstock.pool.pipeline import Pipeline
from penstock.pool.transfer.results import Writable

TIMEOUT_S = 20
X = Binding("x", ("x",), "float32", (3,))


class Doubler:
    """A model that doubles its input, sums each row, and rejects any batch in which a poisoned value stands."""

    signature = Signature((TensorSpec("x", "float32", (3,)),), (TensorSpec("y", "float32", (3,)),))

    def __init__(self, *, poison: float | None = None) -> None:
        self._poison = poison
        self.shapes: set[tuple[int, ...]] = set()
        self.calls = 0

    def predict(self, batch: Columns) -> Columns:
        x = batch["x"]
        self.calls += 1
        self.shapes.add(x.shape)
        if self._poison is not None and (x >= self._poison).any():
            raise ValueError("poison\nin the batch")
        return {"y": x * 2, "total": x.sum(axis=1)}

    def close(self) -> None:
        pass


class Rejecting(Doubler):
    """A model that raises the same error for everything."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def predict(self, batch: Columns) -> Columns:
        raise self._error


class Waiting(Doubler):
    """A model that computes nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def predict(self, batch: Columns) -> Columns:
        self.has_begun.set()
        assert self.may_go.wait(TIMEOUT_S)
        return super().predict(batch)


KINDS: dict[str, tuple[str, tuple[int, ...]]] = {"x": ("float32", (3,)), "id": ("int64", ()), "name": (STRING, ())}


class Blocks(Source):
    """A source of blocks of given sizes, the same for every span; counts what was read."""

    def __init__(self, sizes: Sequence[int], failures: Sequence[int] = ()) -> None:
        self.sizes = list(sizes)
        self.failures = set(failures)
        self.read_blocks = 0
        self.changed = threading.Condition()

    def fragments(self) -> Sequence[Fragment]:
        return [Fragment("blocks", 0, 0)]

    def schema(self) -> dict[str, TensorSpec]:
        return {name: TensorSpec(name, *kind) for name, kind in KINDS.items()}

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        yield from spans_of(1, sum(self.sizes))

    def origin(self, span: Span, row: int) -> str:
        return f"blocks, row {row} of span {span.index}"

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        start = span.start
        for size in self.sizes:
            rows = np.arange(start, start + size)
            lost = tuple(
                RowFailure(int(r), "a.csv", "read", "ValueError", "broken") for r in rows if r in self.failures
            )
            every: dict[str, Column] = {"x": inputs_of(rows), "id": rows, "name": pa.array([f"r{r}" for r in rows])}
            with self.changed:
                self.read_blocks += 1
                self.changed.notify_all()
            yield Block(start, size, {name: every[name] for name in columns}, lost)
            start += size


def inputs_of(rows: Array) -> Array:
    return np.stack([rows, rows + 0.5, -rows], axis=1).astype(np.float32)


class Outlet:
    """Where results and errors come out."""

    def __init__(self) -> None:
        self.results: queue.Queue[tuple[Result, Timings]] = queue.Queue()
        self.errors: queue.Queue[BaseException] = queue.Queue()

    def emit(self, result: Result, timings: Timings) -> None:
        self.results.put((result, timings))

    def take(self, count: int) -> list[Result]:
        """So many results, in the order of their spans."""
        found = [self.results.get(timeout=TIMEOUT_S)[0] for _ in range(count)]
        assert self.errors.empty(), self.errors.get()
        return sorted(found, key=lambda result: result.span.index)


def guarded(replica: Replica | GuardedReplica, job: Job | None = None) -> GuardedReplica:
    """A guard around a replica, for the batches of a job."""
    guard = replica if isinstance(replica, GuardedReplica) else GuardedReplica(replica, "cpu:0", lambda *shortage: None)
    if job is not None:
        guard.take(job)
    return guard


@contextmanager
def piping(
    replica: Doubler | GuardedReplica,
    job: Job,
    *,
    loaders: int = 1,
    lanes: int = 1,
    emit: Callable[[Result, Timings], None] | None = None,
    room: Writable | None = None,
    decoder: BatchDecoder | None = None,
    ahead: int = AHEAD,
) -> Iterator[tuple[Pipeline, Outlet]]:
    outlet = Outlet()
    pipeline = Pipeline(
        guarded(replica, job),
        job,
        emit or outlet.emit,
        outlet.errors.put,
        loaders=loaders,
        lanes=lanes,
        room=room,
        decoder=decoder,
        ahead=ahead,
    )
    try:
        yield pipeline, outlet
    finally:
        pipeline.close()


def spans_of(count: int, rows: int) -> list[Span]:
    return [Span(index, index * rows, rows, ()) for index in range(count)]


def predict_all(
    replica: Doubler | GuardedReplica, job: Job, spans: Sequence[Span], *, loaders: int = 1, lanes: int = 1
) -> list[Result]:
    with piping(replica, job, loaders=loaders, lanes=lanes) as (pipeline, outlet):
        for span in spans:
            pipeline.add(span)
        return outlet.take(len(spans))


def kept(result: Result, name: str) -> list[object]:
    return values(result, KEPT + name)


def values(result: Result, name: str) -> list[object]:
    column = result.columns[name]
    return list(column.tolist() if isinstance(column, np.ndarray) else column.to_pylist())
