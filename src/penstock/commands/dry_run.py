"""Dry run: everything that a job does before it predicts and writes."""

import contextlib
import tempfile
from typing import Any

from penstock.commands import to_folder
from penstock.commands.folder_job import make_task
from penstock.commands.inspect import num_files
from penstock.core.figures import counted
from penstock.core.records import ModelFile
from penstock.core.stopping import StopFlag
from penstock.jobs import output_columns
from penstock.jobs.decide import Request
from penstock.jobs.reference_check import check_answers
from penstock.jobs.run_context import RunContext
from penstock.options.records import PredictOptions
from penstock.planning import start_by_plan
from penstock.storage.places import place_of
from penstock.telemetry.summary import recipe_in_words


def describe(model: Any, data: Any, output: str | None, options: PredictOptions) -> dict[str, Any]:
    """Load the model, bind the columns, compile the step and divide the input; describe what the job would do.

    Raises:
        PenstockError: Whatever the job itself would raise before it begins.
    """
    if output is not None:
        to_folder.check_place(place_of(output), overwrite=False)
    task = make_task(model, data, output or "OUT", options)
    with tempfile.TemporaryFile(buffering=0) as log:
        context = RunContext(log, StopFlag())
        started = start_by_plan.start(task.model, Request(task.source, task.options), context, may_search=False)
        with contextlib.closing(started):
            output_columns.start_finisher(started, context.meter)
            manifest = to_folder.make_manifest(task, started)
            checked = None
            if options.check and isinstance(task.model, ModelFile):
                checked = check_answers(task.model, started, context)
    return {
        "model": task.request["model"],
        "files": num_files(task.source),
        "rows": manifest.rows,
        "inputs": output_columns.describe_inputs(started),
        "outputs": {column.name: str(column) for column in manifest.schema.columns},
        "output": output,
        "format": options.format,
        "parts": len(manifest.parts),
        "spans": len(manifest.spans),
        "bytes": manifest.rows * manifest.schema.row_bytes,
        "devices": [str(device) for device in started.placement.devices],
        "recipe": manifest.recipe.as_json(),
        "checked": checked,
        "first_rows": started.prepared.first_rows,
        "first_failures": [failure.reason for failure in started.prepared.first_failures],
    }


def in_words(job: dict[str, Any]) -> str:
    """The description of a job for people."""
    failures = job["first_failures"]
    failing = f"of the first {job['first_rows']:,} rows {len(failures):,} fail, the first: " if failures else ""
    outputs = ", ".join(f"{name} {spec}" for name, spec in job["outputs"].items())
    return "\n".join(
        [
            f"would read {counted(job['rows'], 'row')} of {counted(job['files'], 'file')}",
            *([failing + failures[0]] if failures else []),
            *([job["checked"]] if job["checked"] else []),
            *(f"input: {binding}" for binding in job["inputs"]),
            f"would write {counted(job['parts'], job['format'] + ' part')}, about {job['bytes'] / 1e6:,.1f} MB, "
            f"to {job['output'] or 'the folder given by --output'}",
            f"columns: row int64[], {outputs}",
            f"on {', '.join(job['devices'])} with {recipe_in_words(job['recipe'])}",
        ]
    )
