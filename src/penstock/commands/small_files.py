"""Which of many small files changed: a manifest has one fragment for 1,000 of them, and their names beside it."""

from collections.abc import Collection, Sequence

from penstock.commands.appending import NEW_FILES
from penstock.core.protocols import Source
from penstock.errors import InputError
from penstock.sources.files import unchanged
from penstock.sources.files.file_runs import FILES_PER_FRAGMENT
from penstock.storage.manifest import IS_NEW, Manifest


def find_renamed(manifest: Manifest, source: Source) -> InputError | None:
    """The error for the first file that was added or removed since a job began; None where that is not known."""
    if len(manifest.generations) > 1 or not manifest.generations[0].packed_paths:
        return None
    before, now = manifest.paths_of(0), list(source.paths)
    gone = _first_that_is_not_in(before, set(now))
    if gone is not None:
        return unchanged.changed(gone, "it is not there any more")
    new = _first_that_is_not_in(now, set(before))
    return None if new is None else unchanged.changed(new, IS_NEW, NEW_FILES)


def _first_that_is_not_in(paths: Sequence[str], others: Collection[str]) -> str | None:
    return next((path for path in paths if path not in others), None)


def of_changed_fragments(manifest: Manifest, source: Source) -> set[str]:
    """The files of fragments that are not as they were, where no file was added or removed since."""
    files: set[str] = set()
    now = source.fragments()
    for number, generation in enumerate(manifest.generations):
        if generation.packed_paths:
            paths = manifest.paths_of(number)
            for place, start in enumerate(range(0, len(paths), FILES_PER_FRAGMENT), generation.first_fragment):
                if manifest.fragments[place] != now[place]:
                    files.update(paths[start : start + FILES_PER_FRAGMENT])
    return files
