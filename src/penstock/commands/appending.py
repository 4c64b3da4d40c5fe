"""`--append`: a finished job also predicts files that are new in its input. They are a new generation in its manifest.

The files of a job keep their order: first those with which it began, then those of each append. So the spans and parts
of an append have the next numbers, and a reader of the manifest sees one longer list. An append begins when the
manifest is replaced, in one step. Before that the job is finished, as it was; after that it is unfinished, and `resume`
goes on with it. Parts that were there before do not change.
"""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.commands.folder_job import FolderJob, fingerprint
from penstock.core import division
from penstock.core.protocols import Source
from penstock.core.records import TensorSpec
from penstock.core.state import VARIABLES
from penstock.errors import InputError, OutputError, UsageError
from penstock.jobs.settled import Settled
from penstock.options.records import PredictOptions
from penstock.sources.catalog import open_listed
from penstock.sources.derived.generations import Generations
from penstock.sources.files import unchanged
from penstock.sources.files.listing import Paths
from penstock.storage import stored_spans
from penstock.storage.journal import PartRecord
from penstock.storage.manifest import IS_NEW, Generation, Manifest, pack_paths

NEW_FILES = "--append predicts new files only, once the job is finished"
_SELECTIONS = ("limit", "skip", "sample")


@dataclass(frozen=True)
class Arranged:
    """A job with its files in the order of its manifest."""

    task: FolderJob
    """The job with the files of the manifest."""
    grown: FolderJob | None = None
    """The job with the new files, too; None where there are none."""
    num_new: int = 0


def check_request(options: PredictOptions, *, has_output: bool, overwrite: bool) -> None:
    """Refuse options that do not go with an append.

    Raises:
        UsageError: There is no output, or the options leave rows out, or would remove the job.
    """
    if not has_output:
        raise UsageError("append is for jobs with an output folder", received="append=True", hint="output=…")
    if overwrite:
        raise UsageError("a job is appended to or removed", received="--append and --overwrite", allowed="one of them")
    chosen = [name for name in _SELECTIONS if getattr(options, name) not in (None, 0)]
    if chosen:
        raise UsageError(
            "all rows of new files are appended",
            received=f"--append and {', '.join(f'--{name}' for name in chosen)}",
            hint=f"leave --append out, or --{chosen[0]}",
        )


def check_job(task: FolderJob, manifest: Manifest) -> None:
    """Refuse to append to a job that cannot grow.

    Raises:
        OutputError: Its input is no list of files, or its model keeps state.
    """
    if manifest.recipe.state == VARIABLES:
        why = "its model keeps state: what it answers depends on all rows before"
    elif manifest.part_rows is not None:
        why = "its input could be read only once"
    elif manifest.request["data"] is None or _listing(task.source) is None:
        why = "its input is not a list of files"
    else:
        return
    raise OutputError(
        "nothing can be appended to this job",
        received=f"{task.output}: {why}",
        hint="begin another job, with another --output",
    )


def arrange(task: FolderJob, manifest: Manifest) -> Arranged:
    """Put the files of a job into the order of its manifest, and find those that are new.

    If nothing was ever appended to the job and it may not grow now, its files keep the order in which they are listed.
    """
    listing = _listing(task.source)
    count = len(manifest.generations)
    may_grow = task.append or task.is_resumed
    if listing is None or manifest.request["data"] is None or not (may_grow or count > 1):
        return Arranged(task)
    request = task.request | ({"data": manifest.request["data"]} if may_grow else {})
    if count == 1 and len(listing) == (manifest.generations[0].num_packed or len(manifest.fragments)):
        return Arranged(replace(task, request=request))  # the fingerprint shows whether these are the same files
    paths = [manifest.paths_of(number) for number in range(count)]
    *known, new = listing.distributed(paths)
    _check_all_there(paths, known)
    sources = [open_listed(files, task.options.reading) for files in known]
    first_rows = [manifest.spans[generation.first_span].start for generation in manifest.generations]
    source = Generations(sources, first_rows, manifest.generations[-1].first_span)
    arranged = Arranged(replace(task, source=source, request=request))
    if not new:
        return arranged
    if not may_grow:
        raise unchanged.changed(new[0], IS_NEW, NEW_FILES)
    newest = open_listed(new, task.options.reading)
    grown = Generations([*sources, newest], [*first_rows, manifest.rows], len(manifest.spans))
    return replace(arranged, grown=replace(task, source=grown), num_new=len(new))


def _listing(source: Source) -> Paths | None:
    """The files of a source, in the order of their listing; None where the source has no list of files."""
    return source.paths if isinstance(source.paths, Paths) else None


def _check_all_there(paths: Iterable[Sequence[str]], found: Iterable[Paths]) -> None:
    for wanted, there in zip(paths, found, strict=True):
        if len(there) < len(wanted):
            known = set(there)
            missing = next(path for path in wanted if path not in known)
            raise unchanged.changed(missing, "it is not there any more, or not part of the input that was given")


def unfinished(output: str) -> OutputError:
    """The error for an append to a job that has never been finished."""
    return OutputError(
        "the job in the output folder is not finished", received=output, hint=f"first: penstock resume {output}"
    )


def reading_only(task: FolderJob, generations: Collection[int]) -> FolderJob:
    """The job for a run that reads only spans of these generations: its processes need only these files' paths."""
    source = task.source
    return replace(task, source=source.only(generations)) if isinstance(source, Generations) else task


def unfinished_generations(manifest: Manifest, records: Iterable[PartRecord]) -> set[int]:
    """The generations with spans that are not committed yet."""
    starts = [generation.first_span for generation in manifest.generations]
    committed: Counter[int] = Counter()
    for record in records:
        committed[bisect_right(starts, record.first_span) - 1] += record.stop_span - record.first_span
    sizes = [end - first for first, end in itertools.pairwise([*starts, len(manifest.spans)])]
    return {number for number, size in enumerate(sizes) if committed[number] < size}


def begin(manifest: Manifest, task: FolderJob, settled: Settled) -> Manifest:
    """The manifest of a job with its new files as one more generation, which is fixed from now on like the first one.

    Raises:
        InputError: The new files have other columns.
    """
    if settled.schema != manifest.schema:
        raise InputError(
            "the new files do not give the columns that this job writes",
            received=named(settled.schema.columns),
            allowed=named(manifest.schema.columns),
            hint="predict them in another job, with another --output",
        )
    spans = stored_spans.store(settled.source.divide(*settled.division))
    new = task.source.source.fragments()
    fragments = (*manifest.fragments, *new)
    generation = replace(
        first_generation(task.source.source, len(new), settled.division),
        first_fragment=len(manifest.fragments),
        first_span=len(manifest.spans),
        first_part=len(manifest.parts),
    )
    return replace(
        manifest,
        request=task.request,
        fingerprint=fingerprint(task.model_digest, fragments, task.request),
        fragments=fragments,
        spans=stored_spans.store(itertools.chain(manifest.spans, spans)),
        parts=(*manifest.parts, *division.divide_into_parts(spans, settled.part_rows)),
        generations=(*manifest.generations, generation),
        kinds=manifest.kinds | ({settled.kind: settled.of_kind} if settled.kind not in manifest.kinds else {}),
    )


def first_generation(source: Source, num_fragments: int, how_divided: tuple[int, int]) -> Generation:
    """The first generation of a job. It has the paths of the files if a fragment stands for several of them."""
    listing = _listing(source)
    if listing is None or len(listing) == num_fragments:
        return Generation(division=how_divided)
    return Generation(packed_paths=pack_paths(listing), num_packed=len(listing), division=how_divided)


def named(columns: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec}" for spec in columns)
