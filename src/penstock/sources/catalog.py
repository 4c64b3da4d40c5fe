"""Opens files by their format, which is recognised by the suffix, or else by the content."""

import os
from collections.abc import Sequence

from penstock.core.kinds import SourceFormat, source_formats
from penstock.core.protocols import Source
from penstock.errors import InputError
from penstock.options.records import ReadOptions
from penstock.plugins import BUILT_IN, SOURCES
from penstock.sources.derived.plugin import PluginSource, plugin_errors
from penstock.sources.files.listing import NUMBERED
from penstock.sources.files.paths import Paths, expand, is_url
from penstock.sources.images.columns import ImageColumns

FEW_FILES, FEW_SHARE = 3, 10


def open_files(arguments: Sequence[str], reading: ReadOptions | None = None) -> Source:
    """The source behind files, folders, globs and URLs, which must all be of one format.

    Args:
        arguments: Paths or URLs.
        reading: Options for what files do not say themselves; each source uses those that concern it.

    Raises:
        InputError: Nothing matches, the format is unknown, or there are several.
    """
    reading = reading or ReadOptions()
    formats = list(source_formats().values())
    suffixes = [suffix for each in formats if not each.is_last_resort for suffix in each.suffixes]
    last_resort = [suffix for each in formats if each.is_last_resort for suffix in each.suffixes]
    return open_listed(expand(arguments, suffixes, (*last_resort, NUMBERED)), reading)


def open_listed(paths: Paths, reading: ReadOptions) -> Source:
    """The source behind files that are listed already."""
    source = _open(paths, list(source_formats().values()), reading)
    return ImageColumns(source, reading.images, reading) if reading.images else source


def _open(paths: Paths, formats: Sequence[SourceFormat], reading: ReadOptions) -> Source:
    for each in formats:
        if each.open_beside is not None:
            own, others = _without_few_others(paths, each.suffixes)
            if others:
                return each.open_beside(own, reading, others)
    chosen = _format_of(paths, formats)
    if not chosen.is_row_per_file:
        _check_access(paths)
    name = next(name for name, each in source_formats().items() if each is chosen)
    if name in BUILT_IN[SOURCES]:
        return chosen.open(paths, reading)
    with plugin_errors(name, paths):
        return PluginSource(chosen.open(paths, reading), name)


def _without_few_others(paths: Paths, suffixes: Sequence[str]) -> tuple[Paths, list[str]]:
    """Split off a few files of another kind that lie in the same folders, such as a table of labels beside photos.

    Few means at most three, or one for every ten photos, and fewer than the photos.
    """
    if paths.examples().keys().isdisjoint(suffixes):
        return paths, []
    own, others = paths.split(suffixes)
    is_few = len(others) <= max(FEW_FILES, len(own) // FEW_SHARE) and len(others) < len(own)
    return (own, others) if is_few else (paths, [])


def _format_of(paths: Paths, formats: Sequence[SourceFormat]) -> SourceFormat:
    examples: dict[int, str] = {}
    for suffix, path in paths.examples().items():
        named = (number for number, each in enumerate(formats) if suffix in each.suffixes)
        recognised = (number for number, each in enumerate(formats) if each.recognises and each.recognises(path))
        number = next(named, None)
        number = next(recognised, None) if number is None else number
        if number is None:
            known = ", ".join(suffix for each in formats for suffix in each.suffixes)
            raise InputError("unknown format", received=path, allowed=known)
        examples.setdefault(number, path)
    if len(examples) > 1:
        raise InputError(
            "the input mixes formats",
            received=", ".join(examples.values()),
            hint="give the files of one format only, for example with a glob: 'folder/*.parquet'",
        )
    return formats[next(iter(examples))]


def _check_access(paths: Paths) -> None:
    for path in paths:
        if not is_url(path) and not os.access(path, os.R_OK):
            why = "permission denied" if os.path.exists(path) else "the link leads nowhere"
            raise InputError("the file cannot be read", received=f"{path}: {why}")
