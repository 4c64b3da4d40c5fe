"""Checks that the job in a folder is the requested one and, if its input differs, finds what has changed."""

from collections.abc import Collection, Sequence

from penstock.commands import appending
from penstock.commands.folder_job import FolderJob, fingerprint, other_job
from penstock.core.protocols import Source
from penstock.core.state import VARIABLES
from penstock.errors import InputError, OutputError
from penstock.jobs import states, steps
from penstock.sources.files import unchanged
from penstock.sources.files.file_runs import FILES_PER_FRAGMENT
from penstock.sources.files.paths import is_url
from penstock.storage.journal import PartRecord
from penstock.storage.ledger import is_finished
from penstock.storage.manifest import ARE_OTHERS, IS_NEW, Manifest, changed_files


def check(task: FolderJob, existing: Manifest, records: list[PartRecord]) -> str:
    """Check that a job differs from the one in the folder at most in the times of its input files.

    Bytes that were read before are compared by their digests. Files that were not read yet may have changed.

    Returns:
        The fingerprint of the job. It differs from that in the folder if its input was touched.

    Raises:
        OutputError: The folder holds another job.
        InputError: The input has changed.
    """
    mark = fingerprint(task.model_digest, task.source.fragments(), task.request)
    if existing.fingerprint == mark:
        return mark
    is_same = fingerprint(task.model_digest, existing.fragments, task.request) == existing.fingerprint
    if not is_same:
        raise other_job(task.output, existing.request, task.request, "predict", is_resumed=task.is_resumed)
    if not task.source.paths:
        raise OutputError(
            "the output folder holds another job",
            received=f"{task.output}: other data",
            hint="choose another --output, or --overwrite to remove that job",
        )
    try:
        _check_input(task, existing, records)
    except InputError as error:
        if error.hint == unchanged.WHAT_TO_DO and is_finished(existing, records) and any(r.failed for r in records):
            error.hint = f"where only files of failed rows were mended: penstock retry {task.output}; else {error.hint}"
        raise
    return mark


def _check_input(task: FolderJob, existing: Manifest, records: list[PartRecord]) -> None:
    """Check that the files of a job differ from those with which it began at most in their modification times.

    Raises:
        InputError: One of them changed.
    """
    digests = {span: digest for record in records for span, digest in record.digests.items()}
    committed = (span for record in records for span in existing.spans[record.first_span : record.stop_span])
    source = steps.select_rows(task.source, task.options)
    if existing.recipe.state == VARIABLES:
        source = states.in_whole_batches(source)  # the spans of such a job are whole batches

    def compare(touched: Collection[str]) -> None:
        unchanged.compare(source, committed, digests, existing.columns, touched)

    files = changed_files(existing, task.source.fragments())
    for path, how in files.items():
        if how == ARE_OTHERS:
            other = _other_list(existing, task.source)
            if other is not None:
                raise other
            suspects = _of_changed_fragments(existing, task.source)
            if suspects and not is_url(path):
                compare(suspects)
        if how is not None:
            raise unchanged.changed(path, how, appending.NEW_FILES if how == IS_NEW else unchanged.WHAT_TO_DO)
    compare(set(files))


def _other_list(manifest: Manifest, source: Source) -> InputError | None:
    """The error for the first file that was added or removed since a job began; None where that is not known."""
    if len(manifest.generations) > 1 or not manifest.generations[0].packed_paths:
        return None
    before, now = manifest.paths_of(0), list(source.paths)
    gone = _first_that_is_not_in(before, set(now))
    if gone is not None:
        return unchanged.changed(gone, "it is not there any more")
    new = _first_that_is_not_in(now, set(before))
    return None if new is None else unchanged.changed(new, IS_NEW, appending.NEW_FILES)


def _first_that_is_not_in(paths: Sequence[str], others: Collection[str]) -> str | None:
    return next((path for path in paths if path not in others), None)


def _of_changed_fragments(manifest: Manifest, source: Source) -> set[str]:
    """The files of fragments that have changed, if no file was added or removed since the job began."""
    files: set[str] = set()
    now = source.fragments()
    for number, generation in enumerate(manifest.generations):
        if generation.packed_paths:
            paths = manifest.paths_of(number)
            for place, start in enumerate(range(0, len(paths), FILES_PER_FRAGMENT), generation.first_fragment):
                if manifest.fragments[place] != now[place]:
                    files.update(paths[start : start + FILES_PER_FRAGMENT])
    return files
