"""The state of the job in a folder: how far it has come, and whether it is whole. Changes nothing."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from penstock.errors import OutputError
from penstock.options.records import LOCAL, RAY, ClusterOptions
from penstock.storage.journal import PartRecord, failed_by_node
from penstock.storage.ledger import committed_records, is_finished
from penstock.storage.manifest import Manifest, load_manifest, older_job
from penstock.storage.places import Place, place_of
from penstock.storage.verifying import find_problems

_LAST_PARTS = 20


def open_job(output: str) -> tuple[Place, Manifest]:
    """The place of an output and the manifest of the job there.

    Raises:
        OutputError: There is no job, or its manifest cannot be read.
    """
    place = place_of(output)
    manifest = load_manifest(place)
    if manifest is None:
        raise no_job(place)
    return place, manifest


def no_job(place: Place) -> OutputError:
    """The error for a place without a manifest."""
    try:
        children = place.children()
        there = "it does not exist" if children is None else f"it holds {', '.join(sorted(children)[:5]) or 'nothing'}"
    except OutputError:
        there = "it is a file"
    return OutputError(
        "the folder holds no job of penstock",
        received=f"{place.address()}: {there}",
        hint="name what was given to penstock predict or penstock fit as --output",
    )


def status(output: str) -> dict[str, Any]:
    """See `penstock.status`."""
    place, manifest = open_job(output)
    records = committed_records(place, manifest)
    holder = place.holder()
    refusal = refusal_to_resume(place, manifest)
    counted = _figures_of(output, manifest, records)
    state = "running" if counted["state"] == "unfinished" and holder is not None else counted["state"]
    hint = resume_line(output, records) if refusal is None else refusal.hint
    return {
        **counted,
        "state": state,
        "left": max(0, manifest.rows - counted["committed"] - counted["failed"]),
        "rows_per_s": rows_per_s(records, 0.0 if holder is None else place.held_since()),
        "run": holder,
        "model": manifest.request.get("model"),
        "recipe": manifest.recipe.as_json(),
        "resumable": refusal is None and state != "finished",
        "hint": "the job is finished: there is nothing to do" if state == "finished" else hint,
    }


def _figures_of(output: str, manifest: Manifest, records: Sequence[PartRecord]) -> dict[str, Any]:
    """The figures of a job that both `status` and `verify` return."""
    return {
        "output": output,
        "state": "finished" if is_finished(manifest, records) else "unfinished",
        "rows": manifest.rows,
        "committed": sum(record.rows for record in records),
        "failed": sum(record.failed for record in records),
        "failed_on": failed_by_node(records),
        "parts": sum(bool(record.files) for record in records),
    }


def refusal_to_resume(place: Place, manifest: Manifest) -> OutputError | None:
    """The error for a job that `resume` cannot go on with; None for one that it can."""
    if manifest.is_older:
        return older_job(place, manifest)
    if manifest.request.get("data") is None or manifest.request.get("model") is None:
        return OutputError(
            "the model or the input of this job was in memory",
            received=place.address(),
            hint="call penstock.predict again with the same model, the same data and the same output",
        )
    return None


def resume_line(output: str, records: Sequence[PartRecord]) -> str:
    """The command that goes on with a job. It names a cluster if the newest part was built on one.

    The address of that cluster is not kept, so the command has no `--address`.
    """
    newest = max(records, key=lambda record: record.written_at, default=None)
    return ClusterOptions(RAY if newest is not None and newest.node else LOCAL).resume_line(output)


def rows_per_s(records: Sequence[PartRecord], since: float = 0.0) -> float | None:
    """The rows of the last parts over the time between them; None where there are too few to tell.

    Parts from before `since`, when the present run began, do not count: between them and the others nothing ran.
    """
    of_run = (record for record in records if record.written_at >= since)
    last = sorted(of_run, key=lambda record: record.written_at)[-_LAST_PARTS:]
    seconds = last[-1].written_at - last[0].written_at if last and last[0].written_at else 0.0
    return sum(record.rows + record.failed for record in last[1:]) / seconds if seconds > 0 else None


def verify(output: str) -> dict[str, Any]:
    """See `penstock.verify`."""
    place, manifest = open_job(output)
    if manifest.is_older:
        raise older_job(place, manifest)
    holder = place.holder()
    if holder is not None:
        raise OutputError(
            "a run is writing to the output: it cannot be verified",
            received=f"{output}, held by {holder}",
            hint=f"wait for it; penstock status {output} tells how far it is",
        )
    # A damaged part does not count: its rows are missing.
    problems, intact = find_problems(place, manifest)
    told = [asdict(problem) for problem in problems]
    return {**_figures_of(output, manifest, intact), "is_whole": not problems, "problems": told}
