"""Compares an output with its journal, byte for byte, and says what is wrong. Changes nothing."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.storage.disk import INTERNAL, checksum_of
from penstock.storage.journal import ALL_FAILURES, FAILURES, JOURNAL, PartRecord
from penstock.storage.ledger import is_finished, part_folders, planned_records
from penstock.storage.manifest import Manifest
from penstock.storage.places import Place


@dataclass(frozen=True)
class Problem:
    """Something that is not as the journal says: the file, and what is wrong with it."""

    name: str
    problem: str


def find_problems(place: Place, manifest: Manifest) -> Iterator[Problem]:
    """Everything that is wrong with an output to which nobody writes: its journal, its parts, files nobody knows."""
    for problem in place.journal_damage():
        yield Problem(JOURNAL, problem)
    everything = place.records()
    records = planned_records(everything, manifest)
    yield from _out_of_plan(everything, records, manifest)
    yield from altered_files(place, records)
    yield from _wrong_failures(place, records, manifest)
    known = {name for record in records for name in record.all_files}
    for name in _files_of_parts(place, manifest):
        if name not in known:
            yield Problem(name, "no record knows it: it is no part of the output")
    if is_finished(manifest, records):
        expected = sum(record.failures_bytes for record in records)
        size = place.sizes(INTERNAL).get(ALL_FAILURES)
        if size != expected:
            yield Problem(ALL_FAILURES, f"{_bytes(size)}, not the {expected:,} of all parts")


def altered_files(place: Place, records: Iterable[PartRecord]) -> Iterator[Problem]:
    """The files of parts that are not as they were written. Reads every one of them, one at a time."""
    for record in records:
        for name, size in record.all_files.items():
            content = place.read(name)
            if content is None or len(content) != size:
                yield Problem(name, f"{_bytes(None if content is None else len(content))}; {size:,} were written")
            elif record.checksums.get(name, checksum := checksum_of(content)) != checksum:
                yield Problem(name, f"CRC32C {checksum}; {record.checksums[name]} was written")


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


def _wrong_failures(place: Place, records: Iterable[PartRecord], manifest: Manifest) -> Iterator[Problem]:
    """Files of failures that do not have one line for each failed row, in order, each of a row of its part."""
    for record in records:
        content = place.read(record.failures_file) if record.failed else None
        if content is None:
            continue
        rows = [_row_of(line) for line in content.splitlines()]
        spans = manifest.spans[record.first_span : record.stop_span]
        numbers = {number for span in spans for number in _numbers_of(span.numbers or ((span.start, span.rows),))}
        if len(rows) != record.failed or rows != sorted(set(rows)) or (spans and not numbers.issuperset(rows)):
            yield Problem(
                record.failures_file, f"{len(rows):,} lines; {record.failed:,} rows of part {record.part} failed"
            )


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
