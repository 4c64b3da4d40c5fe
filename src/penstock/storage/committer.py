"""The committer: results in, in order; whole parts out, each committed once.

The order of every commit, and what a crash after each step leaves:
1. the part's files are written and fsynced under temporary names: swept away at the next start;
2. they are renamed into the output folder, and the folder is fsynced: unknown to the journal, removed at the next
   start;
3. the part's failures are appended to failures.jsonl and fsynced: beyond the journal's mark, cut at the next start;
4. the record is appended to the journal and fsynced: the part exists.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict

from penstock.core.protocols import PartWriter, Sink
from penstock.core.records import Result, Span
from penstock.storage.disk import fsync_folder, internal, make_folders
from penstock.storage.journal import Journal, PartRecord
from penstock.storage.manifest import Manifest

_PART_NAME = re.compile(r"part-\d{8}(_\d+)?\.(parquet|npy|jsonl)")


class Committer:
    """Writes the parts of one job. The caller holds the lock of the folder."""

    def __init__(self, output: str, manifest: Manifest, sink: Sink, on_commit: Callable[[PartRecord], None]) -> None:
        self._output = output
        self._manifest = manifest
        self._sink = sink
        self._on_commit = on_commit
        self._staging = internal(output, "staging")
        self._part_starts = set(manifest.parts)
        self._journal = Journal(internal(output, "journal"))
        self._failures_path = internal(output, "failures.jsonl")
        self._writer: PartWriter | None = None
        self._spans: list[Span] = []
        self._failures: list[str] = []
        self._rows = 0
        self._recover()

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
        self._spans.append(result.span)
        self._rows += result.rows
        self._failures += [json.dumps(asdict(failure)) for failure in result.failures]
        next_span = result.span.index + 1
        if next_span == len(self._manifest.spans) or next_span in self._part_starts:
            self.commit()

    def commit(self) -> None:
        """Commit the open part, whole or cut short by an interrupt. Does nothing where no part is open."""
        if self._writer is None:
            return
        staged = self._writer.finish() if self._rows else {}
        if not self._rows:
            self._writer.abandon()  # every row failed: there is nothing to read, only failures to record
        files: dict[str, int] = {}
        for temporary, name in staged.items():
            files[name] = os.path.getsize(temporary)
            final = os.path.join(self._output, name)
            make_folders(os.path.dirname(final))
            os.replace(temporary, final)
        for folder in sorted({os.path.dirname(os.path.join(self._output, name)) for name in files}):
            fsync_folder(folder)
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
        )
        self._journal.append(record)
        self._writer, self._spans, self._failures, self._rows = None, [], [], 0
        self._on_commit(record)

    def close(self) -> None:
        """Leave the folder resumable: an open part is dropped."""
        self._journal.close()
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        shutil.rmtree(self._staging, ignore_errors=True)

    def _append_failures(self) -> int:
        if not self._failures:
            return _size(self._failures_path)
        with open(self._failures_path, "ab") as file:
            file.write(("\n".join(self._failures) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def _next_span(self) -> int:
        return self.records[-1].stop_span if self.records else 0

    def _part_of(self, span_index: int) -> tuple[int, int]:
        """The planned part that a span belongs to, and how many committed pieces of it there are already."""
        part = bisect.bisect_right(self._manifest.parts, span_index) - 1
        return part, sum(record.part == part for record in self.records)

    def _name(self, span_index: int) -> str:
        """`part-00000003`; the rest of a part that an interrupt cut is `part-00000003_0001`, which sorts after it."""
        part, cut = self._part_of(span_index)
        return f"part-{part:08d}" + (f"_{cut:04d}" if cut else "")

    def _recover(self) -> None:
        """Bring the folder to the state that the journal describes."""
        shutil.rmtree(self._staging, ignore_errors=True)
        os.makedirs(self._staging)
        whole = whole_records(self._output, self.records)
        if len(whole) < len(self.records):
            self._journal.cut_to(len(whole))
        known = {name for record in self.records for name in record.files}
        for name in part_files(self._output, self._manifest):
            if name not in known:
                os.remove(os.path.join(self._output, name))
        mark = self.records[-1].failures_bytes if self.records else 0
        with open(self._failures_path, "ab") as file:
            file.truncate(mark)
            os.fsync(file.fileno())
        fsync_folder(internal(self._output))
        fsync_folder(self._output)


def whole_records(output: str, records: Sequence[PartRecord]) -> list[PartRecord]:
    """The records up to the first whose files, or failures, are not on the disk as it says."""
    failures_bytes = _size(internal(output, "failures.jsonl"))
    for count, record in enumerate(records):
        are_whole = all(_size(os.path.join(output, name)) == size for name, size in record.files.items())
        if not are_whole or record.failures_bytes > failures_bytes:
            return list(records[:count])
    return list(records)


def is_finished(manifest: Manifest, records: Sequence[PartRecord]) -> bool:
    return bool(records) and records[-1].stop_span == len(manifest.spans)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return -1


def part_files(output: str, manifest: Manifest) -> list[str]:
    """The parts of a job in its folder, known to the journal or not: `part-…`, or `<column>/part-…` for npy."""
    suffix = "." + manifest.request["format"]
    return [
        os.path.join(folder, name)
        for folder in _part_folders(output, manifest)
        for name in sorted(os.listdir(os.path.join(output, folder)))
        if _PART_NAME.fullmatch(name) and name.endswith(suffix) and os.path.isfile(os.path.join(output, folder, name))
    ]


def _part_folders(output: str, manifest: Manifest) -> list[str]:
    if manifest.request["format"] != "npy":
        return [""]
    plain = [name for name in ("row", *manifest.schema.names) if name and os.path.basename(name) == name]
    return [name for name in plain if name not in (".", "..") and os.path.isdir(os.path.join(output, name))]


def remove_job(output: str, manifest: Manifest) -> None:
    """Remove a job and nothing else. The caller holds the lock.

    The journal goes first: without it the parts are unknown, and every later start removes them, so a crash at
    any point leaves a folder that is whole, or empty, or cleans itself.
    """
    for name in ("journal", "failures.jsonl"):
        _remove(internal(output, name))
    fsync_folder(internal(output))
    for name in part_files(output, manifest):
        _remove(os.path.join(output, name))
    for folder in filter(None, _part_folders(output, manifest)):
        if not os.listdir(os.path.join(output, folder)):
            os.rmdir(os.path.join(output, folder))
    fsync_folder(output)
    _remove(internal(output, "manifest.json"))
    fsync_folder(internal(output))


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
