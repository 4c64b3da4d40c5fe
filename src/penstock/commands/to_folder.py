"""A job that writes to a folder or a remote prefix: lock, compare, resume or begin, run, commit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.commands import appending, same_job
from penstock.commands.folder_job import FolderJob, fingerprint
from penstock.commands.interrupts import graceful
from penstock.core import division, kinds
from penstock.core.failure_limit import exceeds, too_many
from penstock.core.figures import counted
from penstock.core.protocols import FileGone
from penstock.core.records import ModelFile, Result, Span
from penstock.core.state import VARIABLES
from penstock.errors import DeviceError, InputError, Interrupted, OutputError, PenstockError
from penstock.jobs import output_columns
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request
from penstock.jobs.reference_check import check_answers
from penstock.jobs.run_context import RunContext
from penstock.jobs.settled import (
    Settled,
    can_run,
    changed_versions,
    kind_for,
    kind_here,
    resumed_from,
    settled_by,
    versions_for,
)
from penstock.jobs.writing import FailureLimit, Writer
from penstock.planning import start_by_plan
from penstock.sources.files import unchanged
from penstock.sources.files.paths import NoRows
from penstock.storage import stored_spans
from penstock.storage.disk import output_errors
from penstock.storage.journal import PartRecord, failed_by_node, rows_in
from penstock.storage.ledger import (
    Ledger,
    OpenParts,
    committed_records,
    is_finished,
    planned_records,
    remove_job,
    remove_written,
    tidy,
)
from penstock.storage.manifest import (
    Manifest,
    NodeKind,
    has_job,
    is_fresh,
    load_manifest,
    older_job,
)
from penstock.storage.places import Place, place_of
from penstock.storage.verifying import altered_files
from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Progress
from penstock.telemetry.summary import Summary
from penstock.telemetry.trace import trace_to

_MOST_TOLD = 5
_NO_STREAM_GOES_ON = "a stream cannot be resumed: begin again with another output, or with --overwrite"


def run(task: FolderJob, progress: Progress, began: float, make_run: MakeRun | None = None) -> Summary:
    """Run a job to its end, or resume it, or return the summary of a finished one.

    Args:
        task: The job.
        progress: Shows the job.
        began: When the call began, by `time.perf_counter`.
        make_run: Makes the object that executes the job; None for this machine.

    Raises:
        TooManyFailures: More rows failed than the job allows, or all of them. Those that did not are written.
    """
    summary = _run(task, progress, began, make_run or Run)
    rows, allowed = summary.rows + summary.failed, task.options.max_failures
    if exceeds(summary.failed, rows, allowed, is_whole=True):
        failed = "all" if not summary.rows else f"{summary.failed:,} of"
        raise too_many(f"{failed} {rows:,} rows", allowed, f"see {task.output.rstrip('/')}/_penstock/failures.jsonl")
    return summary


def _run(task: FolderJob, progress: Progress, began: float, make_run: MakeRun) -> Summary:
    place = place_of(task.output)
    check_place(place, overwrite=task.overwrite)
    existed = place.children() is not None
    with place.lock():
        try:
            check_place(place, overwrite=task.overwrite)
            existing = load_manifest(place)
            if existing is None or task.overwrite:
                return _execute(task, place, progress, began, existing, make_run)
            summary, is_behind = _go_on(task, place, progress, began, existing, make_run)
        finally:
            _leave_no_trace(place, existed)
    # The unfinished job is finished now: new files are one more append.
    return _run(task, progress, began, make_run) if is_behind else summary


def _go_on(
    task: FolderJob, place: Place, progress: Progress, began: float, existing: Manifest, make_run: MakeRun
) -> tuple[Summary, bool]:
    """Go on with the job in a place, or append to it. Also returns whether there are files left to append now."""
    if existing.is_older:
        raise older_job(place, existing)
    altered: Collection[str] = ()
    if task.verify:
        journalled, _ = place.read_journal()
        altered = {each.name for each in altered_files(place, existing, planned_records(journalled, existing))}
    records = committed_records(place, existing, altered)
    if task.append:
        appending.check_job(task, existing)
    arranged = appending.arrange(task, existing)
    existing = _same_job(arranged.task, place, existing, records, progress)
    if arranged.grown is not None and not task.append:
        progress.note(f"{counted(arranged.num_new, 'new file')} left out: {appending.NEW_FILES}")
    if not is_finished(existing, records):
        if task.append and len(existing.generations) == 1:
            raise appending.unfinished(task.output)
        here = appending.reading_only(arranged.task, appending.unfinished_generations(existing, records))
        del records  # the ledger reads them again
        summary = _execute(here, place, progress, began, existing, make_run, altered=altered)
        return summary, task.append and arranged.grown is not None
    if task.append and arranged.grown is not None:
        progress.note(f"appending {counted(arranged.num_new, 'new file')} after {existing.rows:,} rows")
        try:
            return _execute(arranged.grown, place, progress, began, existing, make_run, is_append=True), False
        except NoRows:
            progress.note("nothing to append: the new files have no rows")
    elif task.append:
        progress.note("nothing to append: the input has no new files")
    with output_errors():
        tidy(place, existing, records, is_thorough=task.verify)
    return finished_before(task.output, existing, records, began), False


def _execute(
    task: FolderJob,
    place: Place,
    progress: Progress,
    began: float,
    existing: Manifest | None,
    make_run: MakeRun,
    *,
    is_append: bool = False,
    altered: Collection[str] = (),
) -> Summary:
    with (
        trace_to(task.options.trace, began) as trace,
        place.log() as log,
        graceful(progress.note) as stop,
    ):
        meter = Meter(trace)
        context = RunContext(log, stop, progress.note, task.is_verbose, meter, task.plan_command)
        made = make_run(task, place, progress, began, context, meter, altered)
        try:
            return made.execute(existing, is_append=is_append)
        except Interrupted as error:
            error.hint = error.hint or made.stopped_hint
            raise


def _same_job(
    task: FolderJob, place: Place, existing: Manifest, records: list[PartRecord], progress: Progress
) -> Manifest:
    """The manifest in a folder, if its job is the requested one. If the input was touched, the new times are noted.

    Raises:
        OutputError: The folder holds another job.
        InputError: The input has changed.
    """
    mark = same_job.check(task, existing, records)
    if existing.fingerprint == mark:
        return existing
    progress.note("the input was touched since the job began; what was read of it is the same: going on")
    touched = replace(existing, fragments=tuple(task.source.fragments()), fingerprint=mark)
    with output_errors():
        touched.save(place)
    return touched


def check_place(place: Place, *, overwrite: bool) -> None:
    """Refuse a place to which Penstock may not write.

    Raises:
        OutputError: The place is not empty and holds no job of Penstock.
    """
    if not is_fresh(place) and not has_job(place):
        raise OutputError(
            "the output folder is not empty and holds no job of penstock",
            received=f"{place.address()}: {', '.join(sorted(place.children() or ())[:5])}",
            hint="choose another --output" + ("; --overwrite removes only penstock's own" if overwrite else ""),
        )


def _leave_no_trace(place: Place, existed: bool) -> None:
    """Remove the folder of a job that never began."""
    with contextlib.suppress(OutputError):  # the user must see the error that ended the job, not another one
        if not has_job(place):
            place.leave_no_trace(existed=existed)


def finished_job(output: str, began: float) -> Summary | None:
    """The summary of the job in a folder; None if it is not finished, or an older Penstock wrote it."""
    place = place_of(output)
    manifest = load_manifest(place)
    if manifest is None or manifest.is_older:
        return None
    records = committed_records(place, manifest)
    return finished_before(output, manifest, records, began) if is_finished(manifest, records) else None


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
    """The figures of committed parts, for a summary."""
    return {
        "rows": sum(record.rows for record in records),
        "failed": sum(record.failed for record in records),
        "failed_on": failed_by_node(records),
        "not_finite": sum(record.not_finite for record in records),
        "parts": sum(bool(record.files) for record in records),
    }


@dataclass
class Run:
    """One execution of a job in a place that is locked."""

    task: FolderJob
    place: Place
    progress: Progress
    began: float
    context: RunContext
    meter: Meter
    altered: Collection[str] = ()
    """Files of parts whose content has changed since they were written."""
    kind: str = ""
    """The kind of machine by whose recipe parts are built; empty for the one that is nearest to this machine."""
    only: Collection[int] | None = None
    """The parts to build; None for all."""
    stopped_hint: str = "run the same command again"
    """What the user should do after an interruption. Before rows are predicted there may be no job to resume:
    `begin_progress` replaces it by the way on."""

    def execute(self, existing: Manifest | None, *, is_append: bool = False) -> Summary:
        """Go on with the job in the folder, or append to it, or replace it, or begin."""
        task = self.task
        manifest = None if task.overwrite else existing
        kind = self.kind or ("" if manifest is None else kind_for(manifest, task.options))
        if manifest is not None and len(manifest.kinds) > 1 and self.only is None:
            self._repair_by_kind(manifest, kind)
        resumed = None if manifest is None else resumed_from(manifest, kind, is_append=is_append)
        if existing is None:
            for line in output_columns.describe_output(task.output, task.options.format):
                self.progress.note(line)
        self.progress.note(f"loading {task.request['model'] or 'the model'}")
        started = start_by_plan.start(task.model, Request(task.source, task.options, resumed), self.context)
        with contextlib.closing(started):
            lines = [*output_columns.describe_source(started.source), *output_columns.describe_feeding(started)]
            for line in (*task.notes, *lines, *output_columns.describe_training(task.request["model"], started)):
                self.progress.note(line)
            if task.options.check:
                self.progress.note(self._check(started))
            output_columns.start_finisher(started, self.meter, None if manifest is None else manifest.schema)
            if manifest is None:
                manifest = make_manifest(task, settled_by(started))
                with output_errors():
                    # The old job is removed only now, when it is certain that the new one begins.
                    if existing is not None:
                        remove_job(self.place, existing)
                    manifest.save(self.place)
            elif is_append:
                manifest = appending.begin(manifest, task, settled_by(started))
                with output_errors():
                    manifest.save(self.place)
            elif manifest.recipe.state == VARIABLES:
                self._begin_again(manifest)
            if not self.kind:
                manifest = self._with_kind(manifest, started)
            return self.predict(started, manifest)

    def _with_kind(self, manifest: Manifest, started: Started) -> Manifest:
        """The manifest with the kind of this machine. Parts that are built from now on have this kind."""
        self.kind = kind_here(started) if manifest.kinds else ""
        if not self.kind or self.kind in manifest.kinds:
            return manifest
        of_kind = NodeKind(started.recipe, started.split, versions_for(started.recipe, started.source.traits.packages))
        manifest = replace(manifest, kinds=manifest.kinds | {self.kind: of_kind})
        with output_errors():
            manifest.save(self.place)
        return manifest

    def _repair_by_kind(self, manifest: Manifest, own: str) -> None:
        """Build damaged parts again by the recipe of the kind of machine that built them.

        Raises:
            DeviceError: That kind has devices that this machine does not have.
        """
        with output_errors():
            ledger = Ledger(self.place, manifest, self.altered)
        with contextlib.closing(ledger):
            pinned = ledger.pinned_pieces()
            self._note_repairs(ledger)
        self.altered = ()
        for kind, pieces in pinned.items():
            settings = manifest.kind(kind)
            if settings.recipe == manifest.kind(own).recipe:
                continue
            if not can_run(settings, self.task.options):
                raise built_elsewhere(kind, pieces[0].part)
            self.progress.note(f"{counted(len(pieces), 'part')} of {kind}: built again by its recipe")
            replace(self, kind=kind, only={piece.part for piece in pieces}).execute(manifest)

    def _begin_again(self, manifest: Manifest) -> None:
        """Remove what is written: a model that keeps state must see all rows again, from the first."""
        rows = rows_in(committed_records(self.place, manifest))
        if rows:
            self.progress.note(f"beginning again, as the model keeps state: {rows:,} rows that are there are removed")
        with output_errors():
            remove_written(self.place, manifest)

    def _check(self, started: Started) -> str:
        if not isinstance(self.task.model, ModelFile):
            return "a live model is its own framework: there is nothing to check"
        return check_answers(self.task.model, started, self.context)

    def predict(self, started: Started, manifest: Manifest) -> Summary:
        """Predict the rows that are not committed yet."""
        ready = time.perf_counter()
        with output_errors():
            ledger = Ledger(self.place, manifest, self.altered, self.kind)
        with contextlib.closing(ledger):
            before = self.note_before(ledger, manifest)
            if before and ledger.pending:
                self._note_versions(manifest.kind(self.kind))
            rows_before = rows_in(before)
            self.begin_progress(manifest, rows_before)
            try:
                pending = self._wanted(ledger)
                spans = started.divide(manifest.part_rows) if started.is_streamed else pending
                # Results of a stream must come in order, because its parts are not planned; planned parts are committed
                # in the order in which they end.
                results = started.engine.run(spans, is_ordered=started.is_streamed)
                order = None if started.is_streamed else [span.index for span in pending]
                limit = FailureLimit(self.task.options.max_failures, before, order)
                self._write_all(started, results, ledger, limit)
            except FileGone as error:
                raise self.with_way_on(error, manifest, ledger) from None
            finally:
                self.progress.end()
            if started.is_streamed:
                manifest = self._end_stream(manifest, ledger)
            else:
                self.check_stopped(manifest, ledger)
            return self.summarise(started, manifest, ledger, rows_before, ready)

    def _wanted(self, ledger: Ledger) -> Sequence[Span]:
        """The spans that this run builds."""
        if self.only is None:
            return ledger.pending
        return [span for span in ledger.pending if ledger.piece_of(span.index).part in self.only]

    def _note_repairs(self, ledger: Ledger) -> None:
        for damage in ledger.repairs[:_MOST_TOLD]:
            self.progress.note(f"{damage}: what it held is predicted again")

    def note_before(self, ledger: Ledger, manifest: Manifest) -> list[PartRecord]:
        """Tell the user how much was committed before; returns the records of it."""
        self._note_repairs(ledger)
        before = ledger.records
        self.meter.failed = sum(record.failed for record in before)
        if before:
            self.progress.note(f"resuming: {rows_in(before):,} of {manifest.rows:,} rows are there")
        return before

    def _note_versions(self, before: NodeKind) -> None:
        now = versions_for(before.recipe, before.versions)
        if changed := changed_versions(before.versions, now):
            self.progress.note(f"since the job began, {changed}: the last digits of rows to come may differ")

    def begin_progress(self, manifest: Manifest, rows_before: int) -> None:
        """Measure and show the run from now on. It is called when rows begin to be predicted."""
        self.stopped_hint = self._way_on(manifest) if self.task.source.traits.is_resumable else _NO_STREAM_GOES_ON
        self.meter.begin()
        self.progress.begin(self.meter, manifest.rows, rows_before)

    def check_stopped(self, manifest: Manifest, ledger: Ledger) -> None:
        """Raise Interrupted where the run was stopped before its end."""
        signal_number = self.context.stop.signal_number
        if signal_number is None or not ledger.pending:
            return
        raise Interrupted.by_signal(
            signal_number,
            f"stopped with {rows_in(ledger.records):,} of {manifest.rows:,} rows committed",
            hint=self._way_on(manifest),
        )

    def _way_on(self, manifest: Manifest) -> str:
        keeps_state = manifest.recipe.state == VARIABLES
        how = "the model keeps state: begin again with" if keeps_state else "go on with"
        return f"{how}: {self.task.next_step}"

    def _end_stream(self, manifest: Manifest, ledger: Ledger) -> Manifest:
        """Record how many rows a stream had: it is known only at its end, and then the job is finished."""
        records, stop = ledger.records, self.context.stop
        rows = rows_in(records)
        if stop.signal_number is not None:
            raise Interrupted.by_signal(
                stop.signal_number,
                f"stopped with {rows:,} rows committed",
                hint=_NO_STREAM_GOES_ON,
            )
        ended = replace(manifest, streamed=(records[-1].stop_span if records else 0, rows))
        with output_errors():
            ended.save(self.place)
        return ended

    def _write_all(self, started: Started, results: Iterator[Result], ledger: Ledger, limit: FailureLimit) -> None:
        """Commit every result. Too many failures or an error end this; results before them are committed."""
        problem: PenstockError | None = None
        parts = OpenParts(
            ledger,
            kinds.sink(self.task.options.format),
            lambda record: self.meter.commit(record.rows, record.failed),
            self.meter.step,
        )
        digester = unchanged.Digester(started.source, started.job.columns)
        with (
            # `finished` must be closed before an error is raised, or finishers would go on with rows for nothing.
            contextlib.closing(output_columns.finished(started, results)) as finished,
            contextlib.closing(Writer(parts, self.meter, digester)) as writer,
        ):
            try:
                for result in finished:
                    writer.put(result)
                    self.meter.failed += len(result.failures)
                    problem = limit.check(result)
                    if problem is not None:
                        break
            except (OutputError, Interrupted):
                raise
            except InputError as error:
                # A file that is being rewritten looks damaged: "it changed" is then the better error.
                problem = unchanged.find_changed(self.task.source.fragments()) or error
            except PenstockError as error:
                problem = error
            with output_errors():
                writer.finish()
                ledger.finish()
        if problem is not None:
            raise problem

    def with_way_on(self, problem: PenstockError, manifest: Manifest, ledger: Ledger) -> PenstockError:
        """The error that ended the run. If a file is gone, it gets a hint with the committed rows and the way on."""
        if isinstance(problem, FileGone):
            there = counted(rows_in(ledger.records), "row")
            problem.hint = f"{there} committed; put the file back; {self._way_on(manifest)}"
        return problem

    def summarise(
        self, started: Started, manifest: Manifest, ledger: Ledger, rows_before: int, ready: float
    ) -> Summary:
        return replace(
            self.summary(manifest, ledger, rows_before, ready),
            search_seconds=started.search_s,
            devices=tuple(str(device) for device in started.placement.devices),
            loaders=started.engine.loaders(),
            plan=started.plan_in_words,
            memory_events=started.memory_events(),
        )

    def summary(self, manifest: Manifest, ledger: Ledger, rows_before: int, ready: float) -> Summary:
        """The summary of the run, as far as it follows from the ledger and the meter."""
        now = time.perf_counter()
        records = ledger.records
        return Summary(
            output=self.task.output,
            **_counted(records),
            seconds=now - self.began,
            start_seconds=ready - self.began,
            run_seconds=now - ready,
            rows_per_s=(rows_in(records) - rows_before) / (now - ready),
            rows_before=rows_before,
            devices=tuple(dict.fromkeys(str(each.device) for each in self.meter.snapshot())),
            recipe=manifest.recipe.as_json(),
            where=self.meter.where(),
            bottleneck=self.meter.bottleneck(),
            padding=self.meter.padding(),
            trace=self.meter.traced_to(),
        )


def make_manifest(task: FolderJob, settled: Settled) -> Manifest:
    """Make the manifest. It fixes what may not change in the life of a job: spans, parts, recipe, bindings, schema."""
    sink = kinds.sink(task.options.format)
    sink.check(settled.schema)
    spans = () if settled.is_streamed else stored_spans.store(settled.source.divide(*settled.division))
    fragments = tuple(task.source.fragments())
    return Manifest(
        request=task.request,
        model_digest=task.model_digest,
        fingerprint=fingerprint(task.model_digest, fragments, task.request),
        fragments=fragments,
        recipe=settled.recipe,
        bindings=settled.bindings,
        schema=settled.schema,
        spans=spans,
        parts=tuple(division.divide_into_parts(spans, settled.part_rows)),
        versions=settled.versions,
        weights=settled.weights,
        max_failures=task.options.max_failures,
        decoder=task.options.decoder,
        part_rows=settled.part_rows if settled.is_streamed else None,
        split=settled.split,
        columns=settled.columns,
        part_suffix=sink.suffix,
        part_folders=sink.folders(settled.schema),
        generations=(appending.first_generation(task.source, len(fragments), settled.division),),
        kinds={settled.kind: settled.of_kind},
    )


def built_elsewhere(kind: str, part: int) -> DeviceError:
    """The error for a part that only another kind of machine can build again with the same bits."""
    return DeviceError(
        f"part {part} is built again on the kind of machine that built it, and this is another",
        received=f"a machine without the devices of: {kind}",
        hint="resume on such a machine, or on a cluster that has one: --engine ray",
    )


MakeRun = Callable[[FolderJob, Place, Progress, float, RunContext, Meter, Collection[str]], Run]
"""Makes the `Run` that executes a job, from its fields."""
