"""A job that writes to a folder or a remote prefix: lock, compare, resume or begin, run, commit."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

from penstock.commands.folder_job import FolderJob, fingerprint, versions
from penstock.commands.interrupts import graceful
from penstock.core import division, kinds
from penstock.core.plans import Plan
from penstock.core.protocols import OfFiles
from penstock.core.records import ModelFile, Result
from penstock.core.state import VARIABLES
from penstock.core.stopping import StopFlag
from penstock.errors import InputError, Interrupted, OutputError, PenstockError, TooManyFailures
from penstock.jobs import output_columns, states, steps
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request, Resumed
from penstock.jobs.reference_check import check_answers
from penstock.jobs.run_context import RunContext
from penstock.planning import start_by_plan
from penstock.sources.files import unchanged
from penstock.storage.committer import Committer, is_finished, remove_job, whole_records
from penstock.storage.disk import output_errors
from penstock.storage.journal import PartRecord
from penstock.storage.manifest import Manifest, changed_files, describe_difference, is_fresh, load_manifest
from penstock.storage.places import Place, place_of
from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Progress
from penstock.telemetry.summary import Summary
from penstock.telemetry.trace import TraceWriter, trace_to

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
        told = "all" if not summary.rows else f"{summary.failed:,} of"
        raise _too_many(f"{told} {rows:,} rows", allowed, f"see {task.output.rstrip('/')}/_penstock/failures.jsonl")
    return summary


def _run(task: FolderJob, progress: Progress, began: float) -> Summary:
    place = place_of(task.output)
    check_place(place, overwrite=task.overwrite)
    existed = place.children() is not None
    fragments = task.source.fragments()
    mark = fingerprint(task.model_digest, fragments, task.request)
    with place.lock():
        try:
            check_place(place, overwrite=task.overwrite)
            found = load_manifest(place)
            records = whole_records(place, place.records())
            if found is not None and found.fingerprint != mark and not task.overwrite:
                _check_same_job(task, found, records)
                progress.note("the input was touched since the job began; what was read of it is the same: going on")
                found = replace(found, fragments=tuple(fragments), fingerprint=mark)
                with output_errors():
                    found.save(place)
            if found is not None and not task.overwrite and is_finished(found, records):
                place.failures().settle(records)
                return _summary_of(task.output, found, records, began)
            with (
                trace_to(task.options.trace, began) as trace,
                place.log() as log,
                graceful(progress.note) as stop,
            ):
                return _Run(task, place, progress, began, log, stop, trace).execute(found, mark)
        finally:
            _leave_no_trace(place, existed)


def _check_same_job(task: FolderJob, found: Manifest, records: list[PartRecord]) -> None:
    """See that a job differs from the one that was found only in the times of its input files.

    What was read of these is compared by its digests. What was not is read as it is now: so the answers are those of
    the input as it is.

    Raises:
        OutputError: It is another job.
        InputError: The input is another one.
    """
    is_same = fingerprint(task.model_digest, found.fragments, task.request) == found.fingerprint
    has_files = isinstance(task.source, OfFiles)
    if not is_same or not has_files:
        raise OutputError(
            "the output folder holds another job",
            received=f"{task.output}: {'other data' if is_same else describe_difference(found, task.request)}",
            hint="choose another --output, or --overwrite to remove that job",
        )
    files = changed_files(found, task.source.fragments())
    for path, how in files.items():
        if how is not None:
            raise unchanged.changed(path, how)
    digests = {span: digest for record in records for span, digest in record.digests.items()}
    committed = found.spans[: records[-1].stop_span if records else 0]
    source = steps.select_rows(task.source, task.options)
    if found.recipe.state == VARIABLES:
        source = states.in_whole_batches(source)  # its spans are whole batches
    unchanged.compare(source, committed, digests, found.columns, set(files))


def check_place(place: Place, *, overwrite: bool) -> None:
    """Refuse a place that is not ours to write to.

    Raises:
        OutputError: It is not empty and holds no job of penstock.
    """
    if not is_fresh(place) and load_manifest(place) is None:
        raise OutputError(
            "the output folder is not empty and holds no job of penstock",
            received=f"{place.address()}: {', '.join(sorted(place.children() or ())[:5])}",
            hint="choose another --output" + ("; --overwrite removes only penstock's own" if overwrite else ""),
        )


def _leave_no_trace(place: Place, existed: bool) -> None:
    """A job that never began leaves no folder behind."""
    with contextlib.suppress(OutputError):  # the error that brought us here is the one to tell
        if load_manifest(place) is None:
            place.leave_no_trace(existed=existed)


def _summary_of(output: str, manifest: Manifest, records: list[PartRecord], began: float) -> Summary:
    rows = sum(record.rows for record in records)
    return Summary(
        output=output,
        rows=rows,
        failed=sum(record.failed for record in records),
        not_finite=sum(record.not_finite for record in records),
        parts=sum(bool(record.files) for record in records),
        seconds=time.perf_counter() - began,
        start_seconds=0.0,
        run_seconds=0.0,
        rows_per_s=0.0,
        rows_before=rows,
        recipe=manifest.recipe.as_json(),
    )


class _Run:
    """One execution of a job in a place that is locked."""

    def __init__(
        self,
        task: FolderJob,
        place: Place,
        progress: Progress,
        began: float,
        log: IO[Any],
        stop: StopFlag,
        trace: TraceWriter | None,
    ) -> None:
        self._task = task
        self._place = place
        self._progress = progress
        self._began = began
        self._log = log
        self._stop = stop
        self._meter = Meter(trace)

    def execute(self, found: Manifest | None, mark: str) -> Summary:
        """Go on with the job that was found, or replace it, or begin."""
        task = self._task
        manifest = None if task.overwrite else found
        resumed = None
        if manifest is not None:
            resumed = Resumed(manifest.recipe, manifest.bindings, manifest.spans[0], manifest.weights, manifest.split)
        if found is None:
            for line in output_columns.describe_output(task.output, task.options.format):
                self._progress.note(line)
        self._progress.note(f"loading {task.request['model'] or 'the model'}")
        context = RunContext(self._log, self._stop, self._progress.note, task.is_verbose, self._meter)
        started = start_by_plan.start(task.model, Request(task.source, task.options, resumed), context)
        with contextlib.closing(started):
            for line in (*output_columns.describe_source(task.source), *output_columns.describe_feeding(started)):
                self._progress.note(line)
            if task.options.check:
                self._progress.note(self._check(started, context))
            output_columns.start_finisher(started, manifest.schema if manifest is not None else None)
            if manifest is None:
                manifest = make_manifest(task, started, mark)
                with output_errors():
                    # Only now that the new job is known to begin is the old one removed.
                    if found is not None:
                        remove_job(self._place, found)
                    manifest.save(self._place)
            elif manifest.recipe.state == VARIABLES:
                self._begin_again(manifest)
            return self._predict(started, manifest)

    def _begin_again(self, manifest: Manifest) -> None:
        """Of a model that keeps state, no row can be answered without all that came before it."""
        rows = sum(record.rows + record.failed for record in self._place.records())
        if rows:
            self._progress.note(f"beginning again, as the model keeps state: {rows:,} rows that are there are removed")
        with output_errors():
            remove_job(self._place, manifest)
            manifest.save(self._place)

    def _check(self, started: Started, context: RunContext) -> str:
        if not isinstance(self._task.model, ModelFile):
            return "a live model is its own framework: there is nothing to check"
        return check_answers(self._task.model, started, context)

    def _predict(self, started: Started, manifest: Manifest) -> Summary:
        ready = time.perf_counter()
        sink = self._meter.watched(kinds.sink(self._task.options.format))
        with output_errors():
            committer = Committer(self._place, manifest, sink, self._note_commit)
        with contextlib.closing(committer):
            before = list(committer.records)
            rows_before = sum(record.rows + record.failed for record in before)
            self._meter.failed = sum(record.failed for record in before)
            if before:
                self._progress.note(f"resuming: {rows_before:,} of {manifest.rows:,} rows are there")
            self._meter.begin()
            self._progress.begin(self._meter, manifest.rows, rows_before)
            try:
                spans = started.divide(manifest.part_rows) if started.is_streamed else committer.pending
                self._write_all(started, started.engine.run(spans), committer)
            finally:
                self._progress.end()
            if started.is_streamed:
                manifest = self._end_stream(manifest, committer)
            elif self._stop.signal_number is not None and committer.pending:
                done = manifest.rows - sum(span.rows for span in committer.pending)
                raise Interrupted.by_signal(
                    self._stop.signal_number,
                    f"stopped with {done:,} of {manifest.rows:,} rows committed",
                    hint=f"{_how_to_go_on(manifest)}: penstock resume {self._task.output}",
                )
            return self._summarise(started, manifest, committer, rows_before, ready)

    def _end_stream(self, manifest: Manifest, committer: Committer) -> Manifest:
        """What a stream had is known when it has ended, and only then is its job finished."""
        records = committer.records
        rows = sum(record.rows + record.failed for record in records)
        if self._stop.signal_number is not None:
            raise Interrupted.by_signal(
                self._stop.signal_number,
                f"stopped with {rows:,} rows committed",
                hint="a stream cannot be resumed: begin again with another output, or with --overwrite",
            )
        ended = replace(manifest, streamed=(records[-1].stop_span if records else 0, rows))
        with output_errors():
            ended.save(self._place)
        return ended

    def _write_all(self, started: Started, results: Iterator[Result], committer: Committer) -> None:
        """Commit every result. Too many failures, or an error of the input, end that; what came before stays."""
        problem: PenstockError | None = None
        digester = unchanged.Digester(started.source, started.job.columns)
        with (
            # Closed before an error is told: what runs behind the model would go on with rows that nobody takes.
            contextlib.closing(output_columns.finished(started, results)) as finished,
            contextlib.closing(_Writer(committer, self._meter, digester)) as writer,
        ):
            try:
                for result in finished:
                    writer.put(result)
                    problem = self._too_many_failures(result)
                    if problem is not None:
                        break
            except InputError as error:
                # A file that is being rewritten looks damaged: what happened to it is the better thing to tell.
                problem = unchanged.find_changed(self._task.source.fragments()) or error
            with output_errors():
                writer.finish()
        if problem is not None:
            raise problem

    def _summarise(
        self, started: Started, manifest: Manifest, committer: Committer, rows_before: int, ready: float
    ) -> Summary:
        now = time.perf_counter()
        records = committer.records
        rows = sum(record.rows for record in records)
        failed = sum(record.failed for record in records)
        short = started.engine.shortages().items()
        return Summary(
            output=self._task.output,
            rows=rows,
            failed=failed,
            not_finite=sum(record.not_finite for record in records),
            parts=sum(bool(record.files) for record in records),
            seconds=now - self._began,
            start_seconds=ready - self._began,
            search_seconds=started.search_s,
            run_seconds=now - ready,
            rows_per_s=(rows + failed - rows_before) / (now - ready),
            rows_before=rows_before,
            devices=tuple(str(device) for device in started.placement.devices),
            recipe=manifest.recipe.as_json(),
            where=self._meter.where(),
            bottleneck=self._meter.bottleneck(),
            loaders=started.engine.loaders(),
            padding=self._meter.padding(),
            plan=_told(started.plan),
            memory_events=tuple(f"{shortage} ({times}×)" if times > 1 else str(shortage) for shortage, times in short),
            trace=self._meter.traced_to(),
        )

    def _note_commit(self, record: PartRecord) -> None:
        self._meter.commit(record.rows, record.failed)

    def _too_many_failures(self, result: Result) -> TooManyFailures | None:
        self._meter.failed += len(result.failures)
        seen, allowed = result.span.stop, self._task.options.max_failures
        if not self._meter.failed or seen < _JUDGED_FROM_ROWS or self._meter.failed <= allowed * seen:
            return None
        last = f"; the last: {result.failures[-1].reason}" if result.failures else ""
        return _too_many(
            f"{self._meter.failed:,} of the first {seen:,} rows{last}",
            allowed,
            "see _penstock/failures.jsonl; raise --max-failures and run it again, or mend the input and --overwrite",
        )


def _too_many(received: str, allowed: float, hint: str) -> TooManyFailures:
    return TooManyFailures("too many rows failed", received=received, allowed=f"{100 * allowed:.3g}%", hint=hint)


def _how_to_go_on(manifest: Manifest) -> str:
    return "the model keeps state: begin again with" if manifest.recipe.state == VARIABLES else "go on with"


def _told(plan: Plan | None) -> str:
    """A plan in a line: what it chose, and how much that was worth."""
    return f"{plan.choice}; {plan.reason}" if plan is not None else ""


def make_manifest(task: FolderJob, started: Started, mark: str) -> Manifest:
    """Fix what may not change while the job lives: spans, parts, recipe, bindings, schema."""
    schema = output_columns.output_schema(started, started.options)
    kinds.sink(task.options.format).check(schema)
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
    )


class _Writer:
    """Commits on a thread of its own, so that an fsync does not keep the replicas waiting for their slots."""

    _DEPTH = 4

    def __init__(self, committer: Committer, meter: Meter, digester: unchanged.Digester) -> None:
        self._committer = committer
        self._meter = meter
        self._digester = digester
        self._queue: queue.Queue[Result | None] = queue.Queue(self._DEPTH)
        self._error: BaseException | None = None
        self._is_dropped = False
        self._thread = threading.Thread(target=self._write, name="committer", daemon=True)
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
        self._committer.finish()

    def close(self) -> None:
        """After an error: write no more."""
        self._is_dropped = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        for result in iter(self._queue.get, None):
            if self._error is not None or self._is_dropped:
                continue
            try:
                with self._meter.writing(result.span.index, result.rows):
                    self._committer.accept(replace(result, digest=self._digester.digest(result.span)))
            except OSError as error:
                self._error = OutputError("the output cannot be written", received=str(error))
            except BaseException as error:
                self._error = error
