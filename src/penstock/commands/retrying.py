"""Retry: predicts the failed rows of a finished job again, after the data or the function was mended.

The spans with failed rows run in the same way as before, with the recipe of the job, so that a row has its old place in
its batch. Only the rows that had failed are taken from their results. The ledger replaces a part so that after a crash
it is either the old one or the new one. A part whose rows all failed in the same way as before is not changed: so a
retry that was killed and runs again ends like one that was not killed.
"""

import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.commands import appending
from penstock.commands.folder_job import FolderJob, fingerprint
from penstock.commands.folder_state import no_job
from penstock.commands.interrupts import graceful
from penstock.commands.to_folder import Run, built_elsewhere, finished_before
from penstock.core import kinds
from penstock.core.columns import take_rows
from penstock.core.figures import counted, on_nodes
from penstock.core.protocols import Merges, Source
from penstock.core.records import Result, Span
from penstock.core.state import VARIABLES
from penstock.errors import InputError, Interrupted, OutputError
from penstock.jobs import output_columns, steps
from penstock.jobs.bring_up import Started
from penstock.jobs.run_context import RunContext
from penstock.jobs.settled import can_run
from penstock.sources.derived.generations import Generations
from penstock.sources.derived.selection import to_runs
from penstock.sources.files import unchanged
from penstock.storage.disk import output_errors
from penstock.storage.journal import PartRecord, failed_by_node
from penstock.storage.ledger import Ledger, committed_records, is_finished, tidy
from penstock.storage.manifest import Manifest, changed_files, describe_difference, load_manifest
from penstock.storage.places import place_of
from penstock.storage.retried import failed_as_before, failed_rows, stage_retried
from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Progress
from penstock.telemetry.summary import Summary
from penstock.telemetry.trace import trace_to

_MAY_CHANGE = ("preprocess", "preprocess_row")
_GROUP = re.compile(r" and \d+ more(: [0-9a-f]{32})?$")
"""The end of a fragment's name, if it stands for many small files."""


def run(task: FolderJob, progress: Progress, began: float) -> Summary:
    """Predict the failed rows of the job in a folder again.

    Raises:
        OutputError: There is no finished job, or it cannot be retried.
        InputError: A file without failed rows has changed, or the input has another number of rows.
    """
    place = place_of(task.output)
    with place.lock():
        manifest = load_manifest(place)
        if manifest is None:
            raise no_job(place)
        records = committed_records(place, manifest)
        _check_retryable(task, manifest, records)
        failed = {row: origin for record in records for row, origin in failed_rows(place, record).items()}
        if not failed:
            with output_errors():
                tidy(place, manifest, records)
            progress.note("no row failed: there is nothing to retry")
            return finished_before(task.output, manifest, records, began)
        if there := failed_by_node(records):
            progress.note(f"rows that failed on nodes of a cluster: {on_nodes(there)}; they are retried here")
        task = appending.arrange(task, manifest).task
        manifest = _accepted(task, manifest, records, failed)
        with (
            trace_to(task.options.trace, began) as trace,
            place.log() as log,
            graceful(progress.note) as stop,
        ):
            meter = Meter(trace)
            context = RunContext(log, stop, progress.note, task.is_verbose, meter)
            try:
                for kind, some in _by_kind(task, manifest, records, failed).items():
                    retried = _Retry(task, place, progress, began, context, meter, kind=kind, only=(), failed=some)
                    summary = retried.execute(manifest)
                return replace(summary, retried=len(failed))
            except Interrupted as error:
                error.hint = f"go on with: penstock retry {task.output}"
                raise


def _by_kind(
    task: FolderJob, manifest: Manifest, records: list[PartRecord], failed: Mapping[int, str]
) -> dict[str, Mapping[int, str]]:
    """Failed rows by the kind of machine with whose recipe they ran. Kinds with the same recipe count as one.

    Raises:
        DeviceError: A recipe is for devices that this machine does not have.
    """
    if len(manifest.kinds) < 2:
        return {"": failed}
    by_kind: dict[str, dict[int, str]] = {}
    for record in records:
        recipe = manifest.kind(record.kind).recipe
        kind = next(name for name, each in manifest.kinds.items() if each.recipe == recipe)
        spans = manifest.spans[record.first_span : record.stop_span]
        rows = [row for span in spans for row in _rows_of(span, failed)]
        if rows and not can_run(manifest.kind(kind), task.options):
            raise built_elsewhere(kind, record.part)
        by_kind.setdefault(kind, {}).update({row: failed[row] for row in rows})
    return {kind: rows for kind, rows in by_kind.items() if rows}


def _rows_of(span: Span, failed: Mapping[int, str]) -> list[int]:
    """The rows of a span that are retried."""
    runs = span.numbers or ((span.start, span.rows),)
    return [row for first, rows in runs for row in range(first, first + rows) if row in failed]


def _check_retryable(task: FolderJob, manifest: Manifest, records: list[PartRecord]) -> None:
    if manifest.recipe.state == VARIABLES:
        raise OutputError(
            "the model keeps state: a row cannot be answered without all that came before it",
            received=task.output,
            hint="begin again: with another --output, or with --overwrite",
        )
    if manifest.part_rows is not None:
        raise OutputError("the rows of a stream cannot be read again", received=task.output)
    if not is_finished(manifest, records):
        raise OutputError(
            "the job is not finished, or parts of it are damaged",
            received=task.output,
            hint=f"finish it first: penstock resume {task.output}",
        )
    if not isinstance(kinds.sink(task.options.format), Merges):
        raise OutputError("rows cannot be put into parts of this format", received=f"--format {task.options.format}")


def _accepted(task: FolderJob, manifest: Manifest, records: list[PartRecord], failed: Mapping[int, str]) -> Manifest:
    """The manifest of the job with its current input and function, if only files with failed rows have changed.

    Raises:
        OutputError: It is another job.
        InputError: Another file of the input has changed, or the input has another number of rows.
    """
    fragments = tuple(task.source.fragments())
    mark = fingerprint(task.model_digest, fragments, task.request)
    if mark == manifest.fingerprint:
        return manifest
    same = task.request | {name: manifest.request.get(name) for name in _MAY_CHANGE}
    if task.model_digest != manifest.model_digest or same != manifest.request:
        raise OutputError(
            "the output folder holds another job",
            received=f"{task.output}: {describe_difference(manifest.request, same)}",
            hint="a retry takes changes of the input and of the preprocessing function only",
        )
    changed = changed_files(manifest, fragments)
    origins = set(failed.values())
    elsewhere = {path: how for path, how in changed.items() if not any(_is_in(path, origin) for origin in origins)}
    for path, how in elsewhere.items():
        if how is not None and not _GROUP.search(path):
            raise unchanged.changed(path, f"{how}, and none of its rows had failed")
    source = steps.select_rows(task.source, task.options)
    spans = _divided_again(task, source, manifest, next(iter(changed))) if changed else manifest.spans
    if elsewhere:
        digests = {span: digest for record in records for span, digest in record.digests.items()}
        unchanged.compare(source, spans, digests, manifest.columns, set(elsewhere), origins)
    return replace(manifest, request=task.request, fragments=fragments, fingerprint=mark, spans=spans)


def _is_in(path: str, origin: str) -> bool:
    """Whether a row comes from a file (`1.csv, bytes 9 to 30`, `photos.tar/0.jpg`), or is one."""
    return origin == path or origin.startswith((f"{path}, ", f"{path}/"))


def _divided_again(task: FolderJob, source: Source, manifest: Manifest, changed: str) -> tuple[Span, ...]:
    """The spans of the changed input: the same rows as before, at other places in its files."""
    divisions = [each.division for each in manifest.generations]
    if isinstance(task.source, Generations):
        spans = tuple(task.source.divide_all(divisions, [each.first_span for each in manifest.generations]))
    else:
        spans = tuple(source.divide(*divisions[0]))
    before = {span.index: (span.start, span.rows, span.numbers) for span in manifest.spans}
    after = {span.index: (span.start, span.rows, _nested(span.numbers)) for span in spans}
    for index in sorted(before.keys() | after.keys()):
        if before.get(index) != after.get(index):
            raise InputError(
                f"the input has other rows than when the job began: {changed}",
                received=f"{sum(span.rows for span in spans):,} rows; the first that differ are in span {index}",
                allowed=f"{manifest.rows:,} rows, in every file and row group as many as before",
                hint="begin again: with another --output, or with --overwrite",
            )
    return spans


def _nested(numbers: tuple[tuple[int, int], ...] | None) -> tuple[tuple[int, int], ...] | None:
    return None if numbers is None else tuple((first, rows) for first, rows in numbers)


def _check_kept(started: Started, manifest: Manifest) -> None:
    """Check the types of kept columns: rows that are put into a part must have the same types as its other rows.

    Raises:
        InputError: The mended input has other types.
    """
    before, now = manifest.schema, output_columns.output_schema(started, started.options)
    if now.columns[now.num_outputs :] != before.columns[before.num_outputs :]:
        raise InputError(
            "the input has kept columns of other types than when the job began",
            received=appending.named(now.columns[now.num_outputs :]),
            allowed=appending.named(before.columns[before.num_outputs :]),
            hint="mend the values, or begin again: with another --output, or with --overwrite",
        )


@dataclass
class _Retry(Run):
    """Runs the spans with failed rows, and replaces their parts."""

    failed: Mapping[int, str] = field(default_factory=dict)

    def predict(self, started: Started, manifest: Manifest) -> Summary:
        ready = time.perf_counter()
        _check_kept(started, manifest)
        with output_errors():
            manifest.save(self.place)
            ledger = Ledger(self.place, manifest)
        with contextlib.closing(ledger):
            spans = [span for span in manifest.spans if _rows_of(span, self.failed)]
            run_again = sum(span.rows for span in spans)
            self.progress.note(
                f"retrying {counted(len(self.failed), 'row')}: the spans that they are in have {run_again:,}"
            )
            self.meter.begin()
            self.progress.begin(self.meter, self.meter.done_rows + run_again, 0)  # those of other kinds are done
            try:
                is_whole = self._replace_parts(started, manifest, ledger, spans)
            finally:
                self.progress.end()
                with output_errors():
                    ledger.finish()
            if not is_whole and self.context.stop.signal_number is not None:
                raise Interrupted.by_signal(
                    self.context.stop.signal_number,
                    f"stopped with {sum(record.failed for record in ledger.records):,} failed rows left",
                )
            return self.summarise(started, manifest, ledger, manifest.rows - len(self.failed), ready)

    def _replace_parts(self, started: Started, manifest: Manifest, ledger: Ledger, spans: list[Span]) -> bool:
        """Replace every part with failed rows; returns whether all were, or a stop came before."""
        sink = kinds.sink(self.task.options.format)
        assert isinstance(sink, Merges)
        parts = {each: record.part for record in ledger.records for each in range(record.first_span, record.stop_span)}
        expected = Counter(parts[span.index] for span in spans)
        rows: Counter[int] = Counter()
        for span in spans:
            rows[parts[span.index]] += span.rows
        results = started.engine.run(spans)
        with contextlib.closing(output_columns.finished(started, results)) as finished:
            picked = self._picked(started, finished)
            for part, group in itertools.groupby(picked, key=lambda result: parts[result.span.index]):
                retried = list(group)
                if len(retried) < expected.pop(part):
                    return False  # the part stays as it is
                with output_errors():
                    if not failed_as_before(self.place, ledger, part, retried):
                        ledger.replace(stage_retried(self.place, manifest, ledger, sink, part, retried))
                self.meter.commit(rows[part], 0)
        return not expected

    def _picked(self, started: Started, results: Iterator[Result]) -> Iterator[Result]:
        """From every result, only the rows that are retried."""
        digester = unchanged.Digester(started.source, started.job.columns)
        for result in results:
            rows = np.array(_rows_of(result.span, self.failed), np.int64)
            keep = np.isin(result.row_numbers(), rows)
            yield replace(
                result,
                span=replace(result.span, rows=len(rows), numbers=tuple(to_runs(rows))),
                columns={name: take_rows(column, keep) for name, column in result.columns.items()},
                failures=tuple(failure for failure in result.failures if failure.row in self.failed),
                digest=digester.digest(result.span),
            )
