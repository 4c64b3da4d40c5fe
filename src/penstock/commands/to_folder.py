"""A job that writes to a folder or a remote prefix: lock, compare, resume or begin, run, commit."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.commands.folder_job import FolderJob, fingerprint, versions
from penstock.commands.interrupts import graceful
from penstock.core import division, kinds
from penstock.core.records import ModelFile, Result, Span
from penstock.core.state import VARIABLES
from penstock.errors import InputError, Interrupted, OutputError, PenstockError, TooManyFailures
from penstock.jobs import output_columns, states, steps
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request, Resumed
from penstock.jobs.reference_check import check_answers
from penstock.jobs.run_context import RunContext
from penstock.planning import start_by_plan
from penstock.sources.files import unchanged
from penstock.storage.disk import output_errors
from penstock.storage.journal import PartRecord
from penstock.storage.ledger import (
    Ledger,
    OpenParts,
    committed_records,
    is_finished,
    put_failures_together,
    remove_job,
)
from penstock.storage.manifest import (
    Manifest,
    changed_files,
    describe_difference,
    is_fresh,
    load_manifest,
    older_job,
)
from penstock.storage.places import Place, place_of
from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Progress
from penstock.telemetry.summary import Summary
from penstock.telemetry.trace import trace_to

_JUDGED_FROM_ROWS = 100


def run(task: FolderJob, progress: Progress, began: float) -> Summary:
    """Run a job to its end, or resume it, or find that it is finished.

    Args:
        task: The job.
        progress: Where it is shown.
        began: When the call began, by `time.perf_counter`.

    Raises:
        TooManyFailures: More rows failed than the job allows, or all of them. Those that did not are written.
    """
    summary = _run(task, progress, began)
    rows, allowed = summary.rows + summary.failed, task.options.max_failures
    # While it ran, few rows were not judged; now these are all there are.
    if summary.failed and (not summary.rows or summary.failed > allowed * rows):
        failed = "all" if not summary.rows else f"{summary.failed:,} of"
        raise _too_many(f"{failed} {rows:,} rows", allowed, f"see {task.output.rstrip('/')}/_penstock/failures.jsonl")
    return summary


def _run(task: FolderJob, progress: Progress, began: float) -> Summary:
    place = place_of(task.output)
    check_place(place, overwrite=task.overwrite)
    existed = place.children() is not None
    fragments = task.source.fragments()
    mark = fingerprint(task.model_digest, fragments, task.request)
    with place.lock():
        try:
            existing = check_place(place, overwrite=task.overwrite)
            if existing is not None and not task.overwrite:
                records = committed_records(place, existing)
                existing = _same_job(task, place, existing, records, mark, progress)
                if is_finished(existing, records):
                    put_failures_together(place, records)
                    return finished_before(task.output, existing, records, began)
            with (
                trace_to(task.options.trace, began) as trace,
                place.log() as log,
                graceful(progress.note) as stop,
            ):
                meter = Meter(trace)
                context = RunContext(log, stop, progress.note, task.is_verbose, meter)
                return _Run(task, place, progress, began, context, meter).execute(existing, mark)
        finally:
            _leave_no_trace(place, existed)


def _same_job(
    task: FolderJob, place: Place, existing: Manifest, records: list[PartRecord], mark: str, progress: Progress
) -> Manifest:
    """The job in a folder, where it is the one that is asked for. Where its input was touched, the new times are noted.

    Raises:
        OutputError: It is another job, or an older penstock wrote it.
        InputError: The input is another one.
    """
    if existing.is_older:
        raise older_job(place, existing)
    if existing.fingerprint == mark:
        return existing
    _check_only_touched(task, existing, records)
    progress.note("the input was touched since the job began; what was read of it is the same: going on")
    touched = replace(existing, fragments=tuple(task.source.fragments()), fingerprint=mark)
    with output_errors():
        touched.save(place)
    return touched


def _check_only_touched(task: FolderJob, existing: Manifest, records: list[PartRecord]) -> None:
    """Check that a job differs from the one in the folder only in the times of its input files.

    The bytes that were read are compared by their digests. The rest is read as it is now.

    Raises:
        OutputError: It is another job.
        InputError: The input is another one.
    """
    is_same = fingerprint(task.model_digest, existing.fragments, task.request) == existing.fingerprint
    if not is_same or not task.source.paths:
        raise OutputError(
            "the output folder holds another job",
            received=f"{task.output}: {'other data' if is_same else describe_difference(existing, task.request)}",
            hint="choose another --output, or --overwrite to remove that job",
        )
    files = changed_files(existing, task.source.fragments())
    for path, how in files.items():
        if how is not None:
            raise unchanged.changed(path, how)
    digests = {span: digest for record in records for span, digest in record.digests.items()}
    committed = [span for record in records for span in existing.spans[record.first_span : record.stop_span]]
    source = steps.select_rows(task.source, task.options)
    if existing.recipe.state == VARIABLES:
        source = states.in_whole_batches(source)  # its spans are whole batches
    unchanged.compare(source, committed, digests, existing.columns, set(files))


def check_place(place: Place, *, overwrite: bool) -> Manifest | None:
    """Refuse a place that is not ours to write to; returns the manifest of the job that it holds, if any.

    Raises:
        OutputError: It is not empty and holds no job of penstock.
    """
    if is_fresh(place):
        return None
    manifest = load_manifest(place)
    if manifest is None:
        raise OutputError(
            "the output folder is not empty and holds no job of penstock",
            received=f"{place.address()}: {', '.join(sorted(place.children() or ())[:5])}",
            hint="choose another --output" + ("; --overwrite removes only penstock's own" if overwrite else ""),
        )
    return manifest


def _leave_no_trace(place: Place, existed: bool) -> None:
    """A job that never began leaves no folder behind."""
    with contextlib.suppress(OutputError):  # the error that brought us here is the one to tell
        if load_manifest(place) is None:
            place.leave_no_trace(existed=existed)


def finished_before(output: str, manifest: Manifest, records: list[PartRecord], began: float) -> Summary:
    """The summary of a job that was finished before."""
    return Summary(
        output=output,
        **_counted(records),
        seconds=time.perf_counter() - began,
        start_seconds=0.0,
        run_seconds=0.0,
        rows_per_s=0.0,
        rows_before=sum(record.rows for record in records),
        recipe=manifest.recipe.as_json(),
    )


def _counted(records: Sequence[PartRecord]) -> dict[str, Any]:
    """What committed parts hold, as a summary has it."""
    return {
        "rows": sum(record.rows for record in records),
        "failed": sum(record.failed for record in records),
        "not_finite": sum(record.not_finite for record in records),
        "parts": sum(bool(record.files) for record in records),
    }


def _rows_in(records: Sequence[PartRecord]) -> int:
    """All rows that committed parts account for, also those that failed."""
    return sum(record.rows + record.failed for record in records)


@dataclass
class _Run:
    """One execution of a job in a place that is locked."""

    _task: FolderJob
    _place: Place
    _progress: Progress
    _began: float
    _context: RunContext
    _meter: Meter

    def execute(self, existing: Manifest | None, mark: str) -> Summary:
        """Go on with the job in the folder, or replace it, or begin."""
        task = self._task
        manifest = None if task.overwrite else existing
        resumed = None
        if manifest is not None:
            resumed = Resumed(manifest.recipe, manifest.bindings, manifest.spans[0], manifest.weights, manifest.split)
        if existing is None:
            for line in output_columns.describe_output(task.output, task.options.format):
                self._progress.note(line)
        self._progress.note(f"loading {task.request['model'] or 'the model'}")
        started = start_by_plan.start(task.model, Request(task.source, task.options, resumed), self._context)
        with contextlib.closing(started):
            for line in (*output_columns.describe_source(started.source), *output_columns.describe_feeding(started)):
                self._progress.note(line)
            if task.options.check:
                self._progress.note(self._check(started))
            output_columns.start_finisher(started, manifest.schema if manifest is not None else None)
            if manifest is None:
                manifest = make_manifest(task, started, mark)
                with output_errors():
                    # Only now that the new job is known to begin is the old one removed.
                    if existing is not None:
                        remove_job(self._place, existing)
                    manifest.save(self._place)
            elif manifest.recipe.state == VARIABLES:
                self._begin_again(manifest)
            return self._predict(started, manifest)

    def _begin_again(self, manifest: Manifest) -> None:
        """Remove what is written: a model that keeps state must see all rows again, from the first."""
        rows = _rows_in(committed_records(self._place, manifest))
        if rows:
            self._progress.note(f"beginning again, as the model keeps state: {rows:,} rows that are there are removed")
        with output_errors():
            remove_job(self._place, manifest)
            manifest.save(self._place)

    def _check(self, started: Started) -> str:
        if not isinstance(self._task.model, ModelFile):
            return "a live model is its own framework: there is nothing to check"
        return check_answers(self._task.model, started, self._context)

    def _predict(self, started: Started, manifest: Manifest) -> Summary:
        ready, stop = time.perf_counter(), self._context.stop
        with output_errors():
            ledger = Ledger(self._place, manifest)
        with contextlib.closing(ledger):
            before = ledger.records
            rows_before = _rows_in(before)
            self._meter.failed = sum(record.failed for record in before)
            if before:
                self._progress.note(f"resuming: {rows_before:,} of {manifest.rows:,} rows are there")
            self._meter.begin()
            self._progress.begin(self._meter, manifest.rows, rows_before)
            try:
                spans = started.divide(manifest.part_rows) if started.is_streamed else ledger.pending
                # Parts of a stream are counted as they come; planned ones are committed in whatever order they end.
                results = started.engine.run(spans, is_ordered=started.is_streamed)
                order = None if started.is_streamed else ledger.pending
                limit = _FailureLimit(self._task.options.max_failures, before, order)
                self._write_all(started, results, ledger, limit)
            finally:
                self._progress.end()
            if started.is_streamed:
                manifest = self._end_stream(manifest, ledger)
            elif stop.signal_number is not None and ledger.pending:
                keeps_state = manifest.recipe.state == VARIABLES
                how = "the model keeps state: begin again with" if keeps_state else "go on with"
                raise Interrupted.by_signal(
                    stop.signal_number,
                    f"stopped with {_rows_in(ledger.records):,} of {manifest.rows:,} rows committed",
                    hint=f"{how}: penstock resume {self._task.output}",
                )
            return self._summarise(started, manifest, ledger, rows_before, ready)

    def _end_stream(self, manifest: Manifest, ledger: Ledger) -> Manifest:
        """Record how many rows a stream had: it is known only at its end, and then the job is finished."""
        records, stop = ledger.records, self._context.stop
        rows = _rows_in(records)
        if stop.signal_number is not None:
            raise Interrupted.by_signal(
                stop.signal_number,
                f"stopped with {rows:,} rows committed",
                hint="a stream cannot be resumed: begin again with another output, or with --overwrite",
            )
        ended = replace(manifest, streamed=(records[-1].stop_span if records else 0, rows))
        with output_errors():
            ended.save(self._place)
        return ended

    def _write_all(self, started: Started, results: Iterator[Result], ledger: Ledger, limit: _FailureLimit) -> None:
        """Commit every result. Too many failures, or an error of the run, end that; what came before stays."""
        problem: PenstockError | None = None
        parts = OpenParts(
            ledger,
            kinds.sink(self._task.options.format),
            lambda record: self._meter.commit(record.rows, record.failed),
            self._meter.step,
        )
        digester = unchanged.Digester(started.source, started.job.columns)
        with (
            # Closed before an error is raised: finishers would go on with rows that nobody takes.
            contextlib.closing(output_columns.finished(started, results)) as finished,
            contextlib.closing(_Writer(parts, self._meter, digester)) as writer,
        ):
            try:
                for result in finished:
                    writer.put(result)
                    self._meter.failed += len(result.failures)
                    problem = limit.check(result)
                    if problem is not None:
                        break
            except (OutputError, Interrupted):
                raise
            except InputError as error:
                # A file that is being rewritten looks damaged: what happened to it is the better thing to tell.
                problem = unchanged.find_changed(self._task.source.fragments()) or error
            except PenstockError as error:
                problem = error
            with output_errors():
                writer.finish()
                ledger.finish()
        if problem is not None:
            raise problem

    def _summarise(
        self, started: Started, manifest: Manifest, ledger: Ledger, rows_before: int, ready: float
    ) -> Summary:
        now = time.perf_counter()
        records = ledger.records
        short = started.engine.shortages().items()
        return Summary(
            output=self._task.output,
            **_counted(records),
            seconds=now - self._began,
            start_seconds=ready - self._began,
            search_seconds=started.search_s,
            run_seconds=now - ready,
            rows_per_s=(_rows_in(records) - rows_before) / (now - ready),
            rows_before=rows_before,
            devices=tuple(str(device) for device in started.placement.devices),
            recipe=manifest.recipe.as_json(),
            where=self._meter.where(),
            bottleneck=self._meter.bottleneck(),
            loaders=started.engine.loaders(),
            padding=self._meter.padding(),
            plan=f"{started.plan.choice}; {started.plan.reason}" if started.plan is not None else "",
            memory_events=tuple(f"{shortage} ({times}×)" if times > 1 else str(shortage) for shortage, times in short),
            trace=self._meter.traced_to(),
        )


class _FailureLimit:
    """Counts failed rows in the order of the input: a job ends at the same row in whatever order its spans finish.

    Args:
        allowed: The share of rows that may fail.
        records: What was committed before.
        order: The spans in their order; None where results come in order.
    """

    def __init__(self, allowed: float, records: Sequence[PartRecord], order: Sequence[Span] | None) -> None:
        self._allowed = allowed
        self._rows = _rows_in(records)
        self._failed = sum(record.failed for record in records)
        self._is_streamed = order is None
        self._order = deque(span.index for span in order or ())
        self._waiting: dict[int, Result] = {}

    def check(self, result: Result) -> TooManyFailures | None:
        """The error with which the job ends, once too many rows failed."""
        if self._is_streamed:
            self._order.append(result.span.index)
        self._waiting[result.span.index] = replace(result, columns={})
        while self._order and self._order[0] in self._waiting:
            each = self._waiting.pop(self._order.popleft())
            self._rows += each.span.rows
            self._failed += len(each.failures)
            if self._rows >= _JUDGED_FROM_ROWS and self._failed > self._allowed * self._rows:
                last = f"; the last: {each.failures[-1].reason}" if each.failures else ""
                return _too_many(
                    f"{self._failed:,} of the first {self._rows:,} rows{last}",
                    self._allowed,
                    "see _penstock/failures.jsonl; raise --max-failures and run it again, or mend the input and "
                    "--overwrite",
                )
        return None


def _too_many(received: str, allowed: float, hint: str) -> TooManyFailures:
    return TooManyFailures("too many rows failed", received=received, allowed=f"{100 * allowed:.3g}%", hint=hint)


def make_manifest(task: FolderJob, started: Started, mark: str) -> Manifest:
    """Fix what may not change while the job lives: spans, parts, recipe, bindings, schema."""
    schema = output_columns.output_schema(started, started.options)
    sink = kinds.sink(task.options.format)
    sink.check(schema)
    spans = [] if started.is_streamed else list(started.divide(task.options.part_rows))
    part_rows = task.options.part_rows or division.rows_per_part(schema.row_bytes, started.rows_per_second())
    return Manifest(
        request=task.request,
        model_digest=task.model_digest,
        fingerprint=mark,
        fragments=tuple(task.source.fragments()),
        recipe=started.recipe,
        bindings=started.job.bindings,
        schema=schema,
        spans=tuple(spans),
        parts=tuple(division.divide_into_parts(spans, part_rows)),
        versions=versions(started.recipe.runtime),
        weights=started.signature.weights,
        max_failures=task.options.max_failures,
        part_rows=part_rows if started.is_streamed else None,
        split=started.split,
        columns=started.job.columns,
        part_suffix=sink.suffix,
        part_folders=sink.folders(schema),
    )


class _Writer:
    """Commits on a thread of its own, so that an fsync does not keep the replicas waiting for their slots."""

    _DEPTH = 4

    def __init__(self, parts: OpenParts, meter: Meter, digester: unchanged.Digester) -> None:
        self._parts = parts
        self._meter = meter
        self._digester = digester
        self._queue: queue.Queue[Result | None] = queue.Queue(self._DEPTH)
        self._error: BaseException | None = None
        self._is_dropped = False
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()

    def put(self, result: Result) -> None:
        self._raise()
        with self._meter.waiting_for_writer(result.span.index):
            self._queue.put(result)

    def finish(self) -> None:
        """Commit everything that was put, also a part that an interrupt cut short."""
        with self._meter.waiting_for_writer():
            self._queue.put(None)
            self._thread.join()
        self._raise()
        self._parts.commit_all()

    def close(self) -> None:
        """After an error: write no more."""
        self._is_dropped = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._parts.close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        for result in iter(self._queue.get, None):
            if self._error is not None or self._is_dropped:
                continue
            try:
                with self._meter.writing(result.span.index, result.rows):
                    self._parts.accept(replace(result, digest=self._digester.digest(result.span)))
            except OSError as error:
                self._error = OutputError("the output cannot be written", received=str(error))
            except BaseException as error:
                self._error = error
