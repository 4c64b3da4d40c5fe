"""Compares an output with its journal, byte for byte, and says what is wrong. Changes nothing."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.storage.disk import NotAFile, checksum_of
from penstock.storage.journal import ALL_FAILURES, FAILURES, JOURNAL, PartRecord
from penstock.storage.ledger import intact_records, is_finished, part_folders, planned_records
from penstock.storage.manifest import Manifest
from penstock.storage.places import Place


@dataclass(frozen=True)
class Problem:
    """Something that is not as the journal says: the file, and what is wrong with it."""

    name: str
    problem: str


def find_problems(place: Place, manifest: Manifest) -> tuple[list[Problem], list[PartRecord]]:
    """Everything that is wrong with an output that no run writes to: its journal, its parts, unknown files.

    Returns:
        The problems, and the records of the parts that have none.
    """
    everything, damage = place.read_journal()
    records = planned_records(everything, manifest)
    problems = [Problem(JOURNAL, each) for each in damage]
    problems += _out_of_plan(everything, records, manifest)
    altered = list(altered_files(place, manifest, records))
    problems += altered
    known = {name for record in records for name in record.all_files}
    unknown = (name for name in _files_of_parts(place, manifest) if name not in known)
    problems += [Problem(name, "no record knows it: it is no part of the output") for name in unknown]
    if is_finished(manifest, records):
        problem = _wrong_summary(place, [record for record in records if record.failed])
        problems += [Problem(ALL_FAILURES, problem)] if problem is not None else []
    return problems, intact_records(place, records, {each.name for each in altered})


def altered_files(place: Place, manifest: Manifest, records: Iterable[PartRecord]) -> Iterator[Problem]:
    """The files of parts that are not as they were written. Reads every one of them once, one at a time."""
    for record in records:
        for name in record.all_files:
            try:
                content = place.read(name)
            except NotAFile as error:
                yield Problem(name, f"it is {error.kind}")
                continue
            problem = what_is_wrong(record, name, content)
            if problem is None and content is not None and name == record.failures_file:
                problem = _wrong_failures(record, content, manifest)
            if problem is not None:
                yield Problem(name, problem)


def what_is_wrong(record: PartRecord, name: str, content: bytes | None) -> str | None:
    """How the content of a part's file differs from what was written, in words; None where it does not."""
    size = record.all_files[name]
    if content is None or len(content) != size:
        return f"{_bytes(None if content is None else len(content))}; {size:,} were written"
    written, there = record.checksums.get(name), checksum_of(content)
    return None if there == written else f"CRC32C {there}; {written} was written"


def _bytes(size: int | None) -> str:
    return "it is missing" if size is None else f"it has {size:,} bytes"


def _out_of_plan(
    everything: Sequence[PartRecord], records: Sequence[PartRecord], manifest: Manifest
) -> Iterator[Problem]:
    """Records that do not belong to this job, or follow one that was lost; and parts with other rows than planned."""
    planned = {record.part for record in records}
    for part in sorted({record.part for record in everything if record.stop_span > record.first_span} - planned):
        yield Problem(JOURNAL, f"no valid record is left of part {part}")
    for record in records:
        expected = sum(span.rows for span in manifest.spans[record.first_span : record.stop_span])
        if manifest.part_rows is None and record.rows + record.failed != expected:
            found = f"{record.rows:,} rows and {record.failed:,} failures"
            yield Problem(JOURNAL, f"part {record.part} has {found}, of {expected:,} rows")


def _wrong_failures(record: PartRecord, content: bytes, manifest: Manifest) -> str | None:
    """What is wrong with a file of failures that does not have one line for each failed row of its part, in order."""
    rows = [_row_of(line) for line in content.splitlines()]
    spans = manifest.spans[record.first_span : record.stop_span]
    numbers = {number for span in spans for number in _numbers_of(span.numbers or ((span.start, span.rows),))}
    if len(rows) != record.failed or rows != sorted(set(rows)) or (spans and not numbers.issuperset(rows)):
        return f"{len(rows):,} lines; {record.failed:,} rows of part {record.part} failed"
    return None


def _wrong_summary(place: Place, records: Sequence[PartRecord]) -> str | None:
    """What is wrong with the file of all failures: it has those of the parts, one after the other."""
    try:
        content = place.read(ALL_FAILURES)
    except NotAFile as error:
        return f"it is {error.kind}"
    expected = sum(record.failures_bytes for record in records)
    if content is None or len(content) != expected:
        return f"{_bytes(None if content is None else len(content))}, not the {expected:,} of all parts"
    stop = 0
    for record in records:
        start, stop = stop, stop + record.failures_bytes
        if checksum_of(content[start:stop]) != record.checksums.get(record.failures_file):
            return f"it has other failures of part {record.part} than were written"
    return None


def _numbers_of(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    for first, rows in runs:
        yield from range(first, first + rows)


def _row_of(line: bytes) -> int:
    """The row that a line of failures is about; -1 where it cannot be read."""
    try:
        document: Any = json.loads(line)
        return int(document["row"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1


def _files_of_parts(place: Place, manifest: Manifest) -> Iterator[str]:
    """All files where the sink puts parts, with the suffix of parts, and all files of failures."""
    for folder in part_folders(manifest):
        yield from sorted(name for name in place.sizes(folder) if name.endswith(manifest.part_suffix))
    yield from sorted(name for name in place.sizes(FAILURES) if os.path.dirname(name) == FAILURES)
