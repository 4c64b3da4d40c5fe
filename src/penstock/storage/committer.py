"""The committer: results in, in order; whole parts out, each committed once.

The order of every commit, and what a crash after each step leaves:
1. the part's files are written and fsynced under temporary names: swept away at the next start;
2. they are renamed into the output folder, and the folder is fsynced: unknown to the journal, removed at the next
   start;
3. the part's failures are appended to failures.jsonl and fsynced: beyond the journal's mark, cut at the next start;
4. the record is appended to the journal and fsynced: the part exists.
`remote_prefix` says the same of object storage, where each step is one object.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict

from penstock.core.columns import count_not_finite
from penstock.core.protocols import PartWriter, Sink
from penstock.core.records import Result, Span
from penstock.storage.journal import PartRecord
from penstock.storage.manifest import MANIFEST, Manifest
from penstock.storage.places import Place

_PART_NAME = re.compile(r"part-\d{8}(_\d+)?\.(parquet|npy|jsonl|csv)")


class Committer:
    """Writes the parts of one job. The caller holds the lock of the place."""

    def __init__(self, place: Place, manifest: Manifest, sink: Sink, on_commit: Callable[[PartRecord], None]) -> None:
        self._place = place
        self._manifest = manifest
        self._sink = sink
        self._on_commit = on_commit
        self._part_starts = set(manifest.parts)
        self._journal = place.journal()
        self._recorded_failures = place.failures()
        self._writer: PartWriter | None = None
        self._spans: list[Span] = []
        self._failures: list[str] = []
        self._reduced: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._rows = 0
        self._not_finite = 0
        self._recover()
        self._staging = place.staging()

    @property
    def records(self) -> list[PartRecord]:
        return self._journal.records

    @property
    def pending(self) -> tuple[Span, ...]:
        """The spans that no committed part holds."""
        return self._manifest.spans[self._next_span() :]

    def accept(self, result: Result) -> None:
        """Take the next result in order; commits when it ends a planned part."""
        if self._writer is None:
            self._writer = self._sink.open_part(self._name(result.span.index), self._staging, self._manifest.schema)
        if result.rows:
            self._writer.write(result)
            outputs = itertools.islice(result.columns.values(), self._manifest.schema.num_outputs)
            self._not_finite += count_not_finite(outputs)
        self._spans.append(result.span)
        self._rows += result.rows
        self._failures += [json.dumps(asdict(failure)) for failure in result.failures]
        if result.reduced_to is not None:
            self._reduced[str(result.span.index)] = result.reduced_to
        if result.digest:
            self._digests[str(result.span.index)] = result.digest
        if self._ends_a_part(result.span.index + 1):
            self.commit()

    def _ends_a_part(self, next_span: int) -> bool:
        if self._manifest.part_rows is not None:
            return self._rows + len(self._failures) >= self._manifest.part_rows
        return next_span == len(self._manifest.spans) or next_span in self._part_starts

    def commit(self) -> None:
        """Commit the open part, whole or cut short by an interrupt. Does nothing where no part is open."""
        if self._writer is None:
            return
        staged = self._writer.finish() if self._rows else {}
        if not self._rows:
            self._writer.abandon()  # every row failed: there is nothing to read, only failures to record
        files = self._place.publish(staged)
        first = self._spans[0].index
        part, cut = self._part_of(first)
        record = PartRecord(
            part=part,
            cut=cut,
            first_span=first,
            stop_span=self._spans[-1].index + 1,
            rows=self._rows,
            failed=len(self._failures),
            files=files,
            failures_bytes=self._append_failures(),
            reduced=self._reduced,
            digests=self._digests,
            not_finite=self._not_finite,
        )
        self._journal.append(record)
        self._writer, self._spans, self._failures = None, [], []
        self._reduced, self._digests = {}, {}
        self._rows = self._not_finite = 0
        self._on_commit(record)

    def finish(self) -> None:
        """Commit the open part, and leave everything as people read it."""
        self.commit()
        self._recorded_failures.settle(self.records)

    def close(self) -> None:
        """Leave the place resumable: an open part is dropped."""
        self._journal.close()
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self._place.drop_staging()

    def _append_failures(self) -> int:
        """Record the failures of the open part; returns the length of all of them."""
        before = self.records[-1].failures_bytes if self.records else 0
        if not self._failures:
            return before
        lines = ("\n".join(self._failures) + "\n").encode()
        self._recorded_failures.append(len(self.records), lines)
        return before + len(lines)

    def _next_span(self) -> int:
        return self.records[-1].stop_span if self.records else 0

    def _part_of(self, span_index: int) -> tuple[int, int]:
        """The planned part that a span belongs to, and how many committed pieces of it there are already.

        Where the input streams, nothing is planned: parts are counted.
        """
        if self._manifest.part_rows is not None:
            return len(self.records), 0
        part = bisect.bisect_right(self._manifest.parts, span_index) - 1
        return part, sum(record.part == part for record in self.records)

    def _name(self, span_index: int) -> str:
        """`part-00000003`; the rest of a part that an interrupt cut is `part-00000003_0001`, which sorts after it."""
        part, cut = self._part_of(span_index)
        return f"part-{part:08d}" + (f"_{cut:04d}" if cut else "")

    def _recover(self) -> None:
        """Bring the place to the state that the journal describes."""
        whole = whole_records(self._place, self.records)
        if len(whole) < len(self.records):
            self._journal.cut_to(len(whole))
        known = {name for record in self.records for name in record.files}
        self._place.remove([name for name in part_files(self._place, self._manifest) if name not in known])
        self._recorded_failures.cut(self.records)
        self._place.settle()


def whole_records(place: Place, records: Sequence[PartRecord]) -> list[PartRecord]:
    """The records up to the first whose files, or failures, are not in the place as it says."""
    whole = list(records[: place.failures().count_whole(records)])
    folders = {os.path.dirname(name) for record in whole for name in record.files}
    there = {name: size for folder in folders for name, size in place.sizes(folder).items()}
    for count, record in enumerate(whole):
        if any(there.get(name) != size for name, size in record.files.items()):
            return whole[:count]
    return whole


def is_finished(manifest: Manifest, records: Sequence[PartRecord]) -> bool:
    return bool(records) and records[-1].stop_span == manifest.num_spans


def part_files(place: Place, manifest: Manifest) -> list[str]:
    """The parts of a job in its place, known to the journal or not: `part-…`, or `<column>/part-…` for npy."""
    suffix = "." + manifest.request["format"]
    return [
        name
        for folder in _part_folders(manifest)
        for name in sorted(place.sizes(folder))
        if _PART_NAME.fullmatch(os.path.basename(name)) and name.endswith(suffix)
    ]


def _part_folders(manifest: Manifest) -> list[str]:
    if manifest.request["format"] != "npy":
        return [""]
    plain = [name for name in ("row", *manifest.schema.names) if name and os.path.basename(name) == name]
    return [name for name in plain if name not in (".", "..")]


def remove_job(place: Place, manifest: Manifest) -> None:
    """Remove a job and nothing else. The caller holds the lock.

    The journal goes first: without it the parts are unknown, and every later start removes them, so a crash at
    any point leaves a folder that is whole, or empty, or cleans itself.
    """
    place.forget()
    place.remove(part_files(place, manifest))
    place.drop_folders(filter(None, _part_folders(manifest)))
    place.settle()
    place.remove([MANIFEST])
    place.settle()
