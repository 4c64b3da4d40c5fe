"""Predicts batches that callers pass one by one, from any thread. Each call waits for the answers of its batch.

The first batch starts the job, and all others must have the same columns. The job runs on the local engine, which gets
the spans of every batch. Replicas are processes, so failed rows, memory that runs out and processes that hang are
handled as in every job.
"""

import contextlib
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.commands.gathering import Gathered, spread, to_numpy
from penstock.commands.in_memory import run_context
from penstock.core.columns import OPAQUE, join
from penstock.core.records import STRING, Array, OutputSchema, Result, Span, TensorSpec
from penstock.core.source import Source
from penstock.core.state import VARIABLES
from penstock.engines.local import LocalEngine
from penstock.engines.span_feed import SpanFeed
from penstock.errors import PenstockError, UsageError, one_line
from penstock.jobs import output_columns
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request
from penstock.jobs.open import open_model
from penstock.options.records import PredictOptions
from penstock.planning import start_by_plan
from penstock.sources.derived.wrapper import Around
from penstock.sources.images.columns import ImageColumns
from penstock.sources.python.batches import StreamPiece
from penstock.sources.python.streaming import StreamedRows

ERROR = "error"
"""The column with the reason why a row failed, if failed rows stay in their places. It is empty text for other rows and
not None: from None alone, Ray would make a column of numbers."""


_CLOSED = "the predictor is closed"


@dataclass
class _Batch:
    """A batch for whose answers a call waits."""

    first_row: int
    num_spans: int
    results: dict[int, Result] = field(default_factory=dict)
    answered: Future[list[Result]] = field(default_factory=Future)

    def add(self, result: Result) -> None:
        """Add the result of a span. The rows of its failures are then numbered from the first row of the batch."""
        failures = tuple(replace(failure, row=failure.row - self.first_row) for failure in result.failures)
        self.results[result.span.index] = replace(result, failures=failures)
        if len(self.results) == self.num_spans:
            self.answered.set_result([self.results[index] for index in sorted(self.results)])


class BatchByCall:
    """A running job that answers batches.

    Args:
        model: As in `penstock.predict`; not a live one.
        options: The options of the job.
        on_error: What happens to failed rows: `raise` an error, `skip` them, or put `nan` in their places.
        first: The first batch, with which the job starts. Its answers come only from `answer`.
    """

    def __init__(self, model: Any, options: PredictOptions, on_error: str, first: StreamPiece) -> None:
        self._on_error = on_error
        self._feed = SpanFeed()
        self._lock = threading.Lock()
        self._waiting: dict[int, _Batch] = {}
        self._num_spans = self._num_rows = 0
        self._error: PenstockError | None = None
        self._is_closed = False
        with contextlib.ExitStack() as held:
            self._started = _start(model, options, first, held)
            self._schema = output_columns.output_schema(self._started, options)
            if on_error == "nan" and any(spec.name == ERROR for spec in self._schema.columns):
                raise UsageError(
                    f"{ERROR!r} is the column of the reasons why rows failed",
                    received=f"a column {ERROR}",
                    hint=f"--rename {ERROR}=NEW",
                )
            self._kept = _kept_names(self._schema, options)
            self._held = held.pop_all()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def answer(self, piece: StreamPiece) -> dict[str, Array]:
        """The answers of a batch, as columns.

        Raises:
            PenstockError: A row failed and `on_error` is `raise`; or the engine cannot go on.
        """
        results = self._begin(piece).answered.result() if piece.rows else []
        if self._on_error == "raise":
            for result in results:
                Gathered("raise").add(result)
        columns = self._joined([result for result in results if result.columns])
        return self._in_their_places(columns, results, piece) if self._on_error == "nan" else columns

    def close(self) -> None:
        """End the processes. Calls that are waiting raise an error. It may be called twice."""
        with self._lock:
            self._is_closed = True
        self._feed.end()
        self._thread.join()
        self._held.close()

    def _begin(self, piece: StreamPiece) -> _Batch:
        """Feed a batch to the engine."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._is_closed:
                raise PenstockError(_CLOSED)
            spans = self._divide(piece)
            batch = _Batch(self._num_rows, len(spans))
            self._waiting |= dict.fromkeys((span.index for span in spans), batch)
            self._num_spans += len(spans)
            self._num_rows += piece.rows
            self._feed.add(spans)
            return batch

    def _divide(self, piece: StreamPiece) -> list[Span]:
        """The spans of a batch. If it has enough rows for whole steps, there is at least one for each replica."""
        job, replicas = self._started.job, self._started.placement.replicas
        steps = -(-piece.rows // (replicas * job.batch_size))
        rows, _ = self._started.division()
        source = _holding(self._started.source, piece)
        return [
            replace(span, index=self._num_spans + span.index, start=self._num_rows + span.start)
            for span in source.divide(min(rows, steps * job.batch_size))
        ]

    def _work(self) -> None:
        """Predict all batches that come, until the feed ends or an error ends everything."""
        engine = self._started.engine
        assert isinstance(engine, LocalEngine)
        try:
            with (
                contextlib.closing(engine.run_fed(self._feed)) as results,
                contextlib.closing(output_columns.finished(self._started, results)) as finished,
            ):
                for result in finished:
                    with self._lock:
                        batch = self._waiting.pop(result.span.index)
                    batch.add(result)
            error = PenstockError(_CLOSED)
        except PenstockError as raised:
            error = raised
        except Exception as raised:
            error = PenstockError("the predictor failed", received=one_line(raised))
        with self._lock:
            self._error = error
            waiting = {id(batch): batch for batch in self._waiting.values()}
        for batch in waiting.values():
            batch.answered.set_exception(error)

    def _joined(self, results: list[Result]) -> dict[str, Array]:
        """The rows that did not fail."""
        if not results:
            return {spec.name: _nothing(spec) for spec in self._schema.columns}
        names = [spec.name for spec in self._schema.columns]
        return {name: to_numpy(join([result.columns[name] for result in results])) for name in names}

    def _in_their_places(
        self, columns: dict[str, Array], results: list[Result], piece: StreamPiece
    ) -> dict[str, Array]:
        """All rows of a batch. Failed rows are NaN or None, with the reason. Kept columns come from the batch itself.

        Whole numbers become float64 in every batch, even without failures, so that all batches have the same types.
        """
        is_there, reasons = np.ones(piece.rows, bool), np.full(piece.rows, "", object)
        for failure in (failure for result in results for failure in result.failures):
            is_there[failure.row], reasons[failure.row] = False, failure.reason
        spread_out = {name: np.asarray(spread(column, is_there)) for name, column in columns.items()}
        own = {name: to_numpy(piece.columns[kept]) for name, kept in self._kept.items() if kept in piece.columns}
        return spread_out | own | {ERROR: reasons}


def _start(model: Any, options: PredictOptions, first: StreamPiece, held: contextlib.ExitStack) -> Started:
    """Start a job for batches like the first one; `held` closes it."""
    file, _, _ = open_model(model, options)
    source: Source = StreamedRows(iter([first]), "the batch")
    if options.reading.images:
        source = ImageColumns(source, options.reading.images, options.reading)
    context = held.enter_context(run_context(False))
    started = start_by_plan.start(file, Request(source, options), context, may_search=False)
    held.callback(started.close)
    if started.job.state == VARIABLES:
        raise UsageError(
            "a model that keeps state answers all rows in order",
            received=f"batches, and a model that changes {started.prepared.state}",
            hint="penstock.predict runs it over the whole input",
        )
    output_columns.start_finisher(started, context.meter)
    return started


def _holding(source: Source, piece: StreamPiece) -> Source:
    """The source with the rows of a batch in the place of its own."""
    if isinstance(source, Around):
        return source.around(_holding(source.source, piece))
    assert isinstance(source, StreamedRows)
    return source.holding(piece)


def _kept_names(schema: OutputSchema, options: PredictOptions) -> dict[str, str]:
    """The kept columns, by their new names."""
    written = {spec.name for spec in schema.columns[schema.num_outputs :]}
    names = {options.rename.get(name, name): name for name in options.keep}
    return {new: name for new, name in names.items() if new in written}


def _nothing(spec: TensorSpec) -> Array:
    """A column without rows."""
    shape = spec.shape or ()
    if spec.varies or None in shape or spec.dtype in (STRING, OPAQUE):
        return np.empty(0, object)
    return np.empty((0, *shape), spec.dtype)
