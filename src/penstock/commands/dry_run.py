"""Dry run: does everything that a job does before it predicts and writes."""

import contextlib
import tempfile
from dataclasses import replace
from typing import Any

from penstock.commands import appending, same_job, to_folder
from penstock.commands.folder_job import FolderJob, make_task
from penstock.commands.inspect import num_files
from penstock.core.figures import counted
from penstock.core.records import ModelFile
from penstock.core.stopping import StopFlag
from penstock.jobs import output_columns
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request
from penstock.jobs.reference_check import check_answers
from penstock.jobs.run_context import RunContext
from penstock.jobs.settled import resumed_from, settled_by
from penstock.options.records import PredictOptions
from penstock.planning import start_by_plan
from penstock.sources.files.paths import NoRows
from penstock.storage.ledger import committed_records, is_finished
from penstock.storage.manifest import Manifest, load_manifest, older_job
from penstock.storage.places import Place, place_of
from penstock.telemetry.summary import recipe_in_words

_MAY_SEARCH = "a long job searches first: a faster runtime with the same answers may run it"


def describe(
    model: Any, data: Any, output: str | None, options: PredictOptions, *, append: bool = False
) -> dict[str, Any]:
    """Load the model, bind the columns, compile the step and divide the input; describe what the job would do.

    For an append to an existing job, only what would be appended is described.

    Raises:
        PenstockError: Any error that the job itself would raise before it begins.
    """
    before = None
    if output is not None:
        place = place_of(output)
        to_folder.check_place(place, overwrite=False)
        before = load_manifest(place) if append else None
    task = replace(make_task(model, data, output or "OUT", options), append=append)
    num_new, rows_left = num_files(task.source), 0
    if before is not None:
        arranged, rows_left = _grown(task, place_of(task.output), before)
        if arranged.grown is None:
            return _nothing_new(task, before, rows_left)
        task, num_new = arranged.grown, arranged.num_new
    try:
        started, manifest, checked = _tried(task, before)
    except NoRows:
        if before is None:
            raise
        return _nothing_new(task, before, rows_left)
    rows_before, parts_before, spans_before = (
        (before.rows, len(before.parts), len(before.spans)) if before is not None else (0, 0, 0)
    )
    return {
        "model": task.request["model"],
        "files": num_new,
        "rows": manifest.rows - rows_before,
        "rows_before": rows_before,
        "inputs": output_columns.describe_inputs(started),
        "outputs": {column.name: str(column) for column in manifest.schema.columns},
        "output": output,
        "format": options.format,
        "parts": len(manifest.parts) - parts_before,
        "spans": len(manifest.spans) - spans_before,
        "bytes": (manifest.rows - rows_before) * manifest.schema.row_bytes,
        "devices": [str(device) for device in started.placement.devices],
        "recipe": manifest.recipe.as_json(),
        "may_search": before is None and isinstance(task.model, ModelFile) and start_by_plan.can_search(started),
        "checked": checked,
        "first_rows": started.prepared.first_rows,
        "first_failures": [failure.reason for failure in started.prepared.first_failures],
    }


def _tried(task: FolderJob, before: Manifest | None) -> tuple[Started, Manifest, str | None]:
    """Do all that comes before the first span; returns the closed engine, the manifest, and the text of `--check`."""
    resumed = None if before is None else resumed_from(before, is_append=True)
    with tempfile.TemporaryFile(buffering=0) as log:
        context = RunContext(log, StopFlag())
        request = Request(task.source, task.options, resumed)
        started = start_by_plan.start(task.model, request, context, may_search=False)
        with contextlib.closing(started):
            output_columns.start_finisher(started, context.meter, None if before is None else before.schema)
            settled = settled_by(started)
            manifest = (
                to_folder.make_manifest(task, settled) if before is None else appending.begin(before, task, settled)
            )
            checked = None
            if task.options.check and isinstance(task.model, ModelFile):
                checked = check_answers(task.model, started, context)
    return started, manifest, checked


def _grown(task: FolderJob, place: Place, before: Manifest) -> tuple[appending.Arranged, int]:
    """The existing job with its new files, and how many of its rows are left to do. Changes nothing.

    Raises:
        PenstockError: Nothing can be appended to the job; `to_folder` raises the same errors.
    """
    if before.is_older:
        raise older_job(place, before)
    records = committed_records(place, before)
    appending.check_job(task, before)
    arranged = appending.arrange(task, before)
    same_job.check(arranged.task, before, records)
    if not is_finished(before, records) and len(before.generations) == 1:
        raise appending.unfinished(task.output)
    return arranged, before.rows - sum(record.rows + record.failed for record in records)


def _nothing_new(task: FolderJob, before: Manifest, rows_left: int) -> dict[str, Any]:
    return {
        "model": task.request["model"],
        "files": 0,
        "rows": 0,
        "rows_before": before.rows,
        "rows_left": rows_left,
        "inputs": [],
        "outputs": {column.name: str(column) for column in before.schema.columns},
        "output": task.output,
        "format": task.options.format,
        "parts": 0,
        "spans": 0,
        "bytes": 0,
        "devices": [],
        "recipe": before.recipe.as_json(),
        "may_search": False,
        "checked": None,
        "first_rows": 0,
        "first_failures": [],
    }


def in_words(job: dict[str, Any]) -> str:
    """The description of a job for people."""
    if not job["files"] and job["rows_before"]:
        rows = counted(job["rows_before"], "row")
        if job["rows_left"]:
            left = counted(job["rows_left"], "row")
            return f"no new files; would go on with the job in {job['output']}: {left} of {rows} are left"
        return f"nothing to append: the input has no new files; the job in {job['output']} has {rows}"
    failures = job["first_failures"]
    failing = f"of the first {job['first_rows']:,} rows {len(failures):,} fail, the first: " if failures else ""
    outputs = ", ".join(f"{name} {spec}" for name, spec in job["outputs"].items())
    return "\n".join(
        [
            f"would read {counted(job['rows'], 'row')} of {counted(job['files'], 'file')}"
            if not job["rows_before"]
            else f"would append {counted(job['rows'], 'row')} of {counted(job['files'], 'new file')}, from row "
            f"{job['rows_before']} on",
            *([failing + failures[0]] if failures else []),
            *([job["checked"]] if job["checked"] else []),
            *(f"input: {binding}" for binding in job["inputs"]),
            f"would write {counted(job['parts'], job['format'] + ' part')}, about {job['bytes'] / 1e6:,.1f} MB, "
            f"to {job['output'] or 'the folder given by --output'}",
            f"columns: row int64[], {outputs}",
            f"on {', '.join(job['devices'])} with {recipe_in_words(job['recipe'])}",
            *([_MAY_SEARCH] if job["may_search"] else []),
        ]
    )
