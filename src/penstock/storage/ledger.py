"""The ledger: which parts of a job are committed. One process owns it, and holds the lock of the place.

Finished work is a set of parts, in whatever order they became whole. Within a part, pieces that interrupts cut short
follow each other from its first span on.

The order of every commit, and what a crash after each step leaves:
1. the part's files and its failures are written and fsynced under temporary names (`PartBuilder`): the folder with them
   is removed at the next start;
2. they are renamed to their final names, the part's files first, and the folders are fsynced: no record names them, and
   the next start removes them;
3. the record is appended to the journal and fsynced: the part exists.
A part that is replaced gets other names than it had: until the record of step 3 is written, the old part is valid, and
from then on the new one is. The files of the old part are removed last, or at the next start.
`failures.jsonl` is put together from the failures of the parts when a run ends, for people to read. A crash before that
loses nothing; the next start does it. `remote_prefix` describes this for object storage, where each step is one object.
"""

import bisect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from penstock.core.protocols import Sink
from penstock.core.records import Result, Span
from penstock.core.tracing import NONE, PUBLISH
from penstock.crash_points import crash_point
from penstock.errors import OutputError
from penstock.storage.disk import INTERNAL
from penstock.storage.journal import ALL_FAILURES, FAILURES, JOURNAL, PartRecord, lean, valid_records
from penstock.storage.manifest import MANIFEST, Manifest
from penstock.storage.part_builder import PartBuilder, PartPiece, StagedPart, Step, not_traced
from penstock.storage.places import Place

MOST_OPEN_PARTS = 8
"""Each open part has open files and an unwritten row group. Results of further parts wait in memory, which the engine
bounds: it hands out no span that lies far beyond the oldest unfinished one."""


class NotAsWritten(OutputError):
    """The files of a part are not what its record says. Nothing was recorded; it can be built again."""


class Ledger:
    """Commits the parts of one job. Opening it brings the place to the state that the journal describes.

    `altered` are files of parts whose content is not what was written: they count as missing. `kind` is the kind of
    this machine; it goes into the records of parts that are built here.
    """

    def __init__(self, place: Place, manifest: Manifest, altered: Collection[str] = (), kind: str = "") -> None:
        self._place = place
        self._manifest = manifest
        self._journal = place.journal()
        self._by_part: dict[int, list[PartRecord]] = {}
        self._kind = "" if kind == manifest.first_kind else kind
        self._built_by: dict[int, str] = {}
        """By part, the kind of machine that built its damaged piece."""
        self._has_attempts = False
        self.repairs = [f"the journal: {problem}" for problem in self._journal.problems]
        """What was damaged or missing, in words, and has to be predicted again."""
        self._recover(altered)
        self.staging = place.staging()
        """Where parts are built. Another process that builds a part of a local folder needs the same file system."""

    @property
    def records(self) -> list[PartRecord]:
        """The committed parts, by number."""
        return [record for part in sorted(self._by_part) for record in self._by_part[part]]

    @property
    def pending(self) -> tuple[Span, ...]:
        """The spans that no committed part holds, in order."""
        spans = self._manifest.spans
        return tuple(span for piece in self.pending_pieces() for span in spans[piece.first_span : piece.stop_span])

    def pending_pieces(self) -> list[PartPiece]:
        """The pieces that have to be built: each may be given to another engine, or to another machine."""
        pieces = map(self.piece_of, self._manifest.parts)
        return [piece for piece in pieces if piece.first_span != piece.stop_span]

    def pinned_pieces(self) -> dict[str, list[PartPiece]]:
        """The pieces that were built before and are damaged, by the kind of machine that has to build them again."""
        pinned: dict[str, list[PartPiece]] = {}
        for piece in self.pending_pieces() if self._built_by else ():
            kind = self._built_by.get(piece.part)
            name = kind or self._manifest.first_kind
            if kind is not None and name in self._manifest.kinds:
                pinned.setdefault(name, []).append(piece)
        return pinned

    def piece_of(self, span_index: int) -> PartPiece:
        """The piece that a span belongs to: all of its part that is not committed.

        Where the input streams, parts are not planned: the next part begins with this span.
        """
        if self._manifest.part_rows is not None:
            return PartPiece(len(self._by_part), 0, span_index, None, self._manifest.part_rows)
        part = bisect.bisect_right(self._manifest.parts, span_index) - 1
        first, stop = self._planned(part)
        before = self._by_part.get(part)
        return (
            PartPiece(part, before[-1].cut + 1, before[-1].stop_span, stop)
            if before
            else PartPiece(part, 0, first, stop)
        )

    def piece_in_place_of(self, part: int) -> PartPiece:
        """A whole part that is to be built again, under a name that the part does not have now."""
        first, stop = self._planned(part)
        taken = {record.cut for record in self._by_part.get(part, ())}
        return PartPiece(part, next(cut for cut in range(len(taken) + 1) if cut not in taken), first, stop)

    def builder(self, piece: PartPiece, sink: Sink, step: Step = not_traced) -> PartBuilder:
        """Builds a piece on this machine."""
        return PartBuilder(piece, sink, self._manifest.schema, self.staging, step)

    def commit(self, staged: StagedPart) -> bool:
        """Commit a part, or the next piece of it; False where its spans are committed already: then it is dropped.

        Raises:
            NotAsWritten: Its files are not what its record says.
        """
        if staged.attempt:
            [outcome] = self.commit_delivered([staged])
            if isinstance(outcome, NotAsWritten):
                raise outcome
            return outcome
        if self._is_late(staged):
            for path in staged.paths:
                os.remove(path)
            return False
        sizes = self._place.publish(staged.paths)
        if sizes != staged.record.all_files:
            raise self._not_as_written(staged, sizes)
        self._append([replace(staged.record, kind=self._kind)])
        return True

    def commit_delivered(self, parts: Sequence[StagedPart]) -> list[bool | NotAsWritten]:
        """Commit what nodes of a cluster delivered, all of it by one append to the journal.

        Returns:
            For each part: True; False where its spans are committed already; the error where its files are not what its
            record says: that attempt has failed, and the part can be built again.
        """
        self._has_attempts = True
        outcomes: list[bool | NotAsWritten] = [False] * len(parts)
        wanted: dict[int, int] = {}
        for place, staged in enumerate(parts):
            if not self._is_late(staged):
                wanted.setdefault(staged.record.first_span, place)
        sizes = self._place.confirm([parts[place] for place in wanted.values()])
        for place, found in zip(wanted.values(), sizes, strict=True):
            is_whole = found == parts[place].record.all_files
            outcomes[place] = is_whole or self._not_as_written(parts[place], found)
        records = [parts[place].record for place in wanted.values() if outcomes[place] is True]
        if records:
            self._append(records)
        # If a piece was delivered twice, and the first attempt is not as it was written, the other attempt is taken.
        failed = {first for first, place in wanted.items() if outcomes[place] is not True}
        others = [n for n, each in enumerate(parts) if each.record.first_span in failed and n not in wanted.values()]
        if others:
            for place, outcome in zip(others, self.commit_delivered([parts[n] for n in others]), strict=True):
                outcomes[place] = outcome
        return outcomes

    def replace(self, staged: StagedPart) -> None:
        """Put a part that was built again in the place of what is committed of it. No other part is touched.

        Raises:
            ValueError: It is not the whole part, or its name was taken since `piece_in_place_of`.
        """
        record = staged.record
        if (record.first_span, record.stop_span) != self._planned(record.part):
            raise ValueError(f"part {record.part} can only be replaced as a whole")
        old = self._by_part.get(record.part, [])
        if record.cut in {each.cut for each in old}:
            raise ValueError(f"part {record.part} has a piece of the name {record.cut} already: build it again")
        sizes = self._place.publish(staged.paths)
        if sizes != record.all_files:
            raise self._not_as_written(staged, sizes)
        self._place.remove([ALL_FAILURES])
        crash_point("replace_begun")
        self._append([record])
        crash_point("replace_recorded")
        self._place.remove(name for each in old for name in each.all_files)
        crash_point("replace_done")

    def finish(self) -> None:
        """Remove what late attempts left, and write `failures.jsonl`. Nothing is built after this."""
        if self._has_attempts:
            # On object storage, attempts that came too late may have created names of their own.
            self._remove_unknown()
        put_failures_together(self._place, self.records)

    def close(self) -> None:
        self._journal.close()
        self._place.drop_staging()

    def _planned(self, part: int) -> tuple[int, int]:
        """The first span of a planned part, and the first one after it."""
        parts = self._manifest.parts
        return parts[part], parts[part + 1] if part + 1 < len(parts) else len(self._manifest.spans)

    def _is_late(self, staged: StagedPart) -> bool:
        first = staged.record.first_span
        return self._manifest.part_rows is None and self.piece_of(first).first_span != first

    def _not_as_written(self, staged: StagedPart, sizes: Mapping[str, int]) -> NotAsWritten:
        return NotAsWritten(
            "a part is not as it was written",
            received=f"{self._place.address()}: {sizes}",
            allowed=str(staged.record.all_files),
        )

    def _append(self, records: Sequence[PartRecord]) -> None:
        records = list(map(lean, records))
        self._journal.append_all(records)
        for record in records:
            self._by_part[record.part] = valid_records([*self._by_part.get(record.part, ()), record])

    def _recover(self, altered: Collection[str]) -> None:
        """Remove files that no record names, and take parts with altered or missing files out of the journal."""
        records = planned_records(self._journal.records, self._manifest)
        intact = {(record.part, record.cut) for record in intact_records(self._place, records, altered)}
        for record in records:
            self._by_part.setdefault(record.part, []).append(record)
        damaged = {record.part: record for record in reversed(records) if (record.part, record.cut) not in intact}
        last = {record.part: record for record in self._journal.records} if self._manifest.kinds else {}
        erased = (record for record in last.values() if record.stop_span == record.first_span)
        self._built_by = {record.part: record.kind for record in (*erased, *damaged.values())}
        if damaged:
            self._place.remove([ALL_FAILURES])
        self.repairs += [f"part {part} is missing or altered" for part in sorted(damaged)]
        for record in damaged.values():
            nothing = replace(record, stop_span=record.first_span, rows=0, failed=0, files={}, failures_bytes=0)
            self._append([replace(nothing, reduced={}, digests={}, not_finite=0, checksums={}, written_at=0.0)])
        self._by_part = {part: pieces for part, pieces in self._by_part.items() if pieces}
        crash_point("recovery_begun")
        self._remove_unknown()
        crash_point("recovery_removed")
        self._place.settle()
        put_failures_together(self._place, self.records)

    def _remove_unknown(self) -> None:
        """Remove files that no record names. Uploads are dropped first: one completed before that is a file then."""
        folders, name_of_part = part_folders(self._manifest), _part_name(self._manifest)

        def is_ours(name: str) -> bool:
            folder, base = os.path.split(name)
            return name.startswith(f"{INTERNAL}/") or (folder in folders and name_of_part.fullmatch(base) is not None)

        self._place.abort_uploads(is_ours)
        self._place.remove(_unknown_files(self._place, self._manifest, self.records))


class PieceDesk(Protocol):
    """Says what a span belongs to, and takes pieces that are written: the ledger, or a node that has no ledger."""

    def piece_of(self, span_index: int) -> PartPiece | None:
        """The piece that a span belongs to; None where the span is no longer needed."""
        ...

    def builder(self, piece: PartPiece, sink: Sink, step: Step = not_traced) -> PartBuilder: ...

    def commit(self, staged: StagedPart) -> bool:
        """Take a piece; False where it is no longer needed."""
        ...


class OpenParts:
    """The parts that this process builds itself. Each is committed as soon as it is whole.

    Args:
        desk: Takes the parts.
        sink: The format.
        on_commit: Called with the record of every part that was committed.
        step: Called around each step of writing.
    """

    def __init__(
        self, desk: PieceDesk, sink: Sink, on_commit: Callable[[PartRecord], None], step: Step = not_traced
    ) -> None:
        self._desk = desk
        self._sink = sink
        self._on_commit = on_commit
        self._step = step
        self._builders: dict[int, PartBuilder] = {}

    def __len__(self) -> int:
        """How many parts have open files."""
        return sum(builder.is_open for builder in self._builders.values())

    def accept(self, result: Result) -> None:
        """Take a result; commits the part that it completes."""
        piece = self._desk.piece_of(result.span.index)
        if piece is None:
            return
        if piece.part not in self._builders:
            self._builders[piece.part] = self._desk.builder(piece, self._sink, self._step)
        builder = self._builders[piece.part]
        builder.add(result)
        self._write(builder)
        if builder.has_all:
            self._finish(piece.part)
            for _, waiting in sorted(self._builders.items()):
                self._write(waiting)

    def drop(self, part: int) -> None:
        """Drop what is open of a part that is no longer needed."""
        builder = self._builders.pop(part, None)
        if builder is not None:
            builder.abandon()

    def commit_all(self) -> None:
        """Commit every open part up to its first missing span: an interrupt cuts parts short."""
        for part in sorted(self._builders):
            self._finish(part)

    def close(self) -> None:
        """Drop what is open."""
        for builder in self._builders.values():
            builder.abandon()
        self._builders.clear()

    def _write(self, builder: PartBuilder) -> None:
        if builder.is_open or builder.has_all or len(self) < MOST_OPEN_PARTS:
            builder.write()

    def _finish(self, part: int) -> None:
        staged = self._builders[part].finish()
        if staged is not None:
            with self._step(PUBLISH, NONE, staged.record.rows):
                is_committed = self._desk.commit(staged)
            if is_committed:
                self._on_commit(staged.record)
        del self._builders[part]


def committed_records(place: Place, manifest: Manifest, altered: Collection[str] = ()) -> list[PartRecord]:
    """The committed parts of a job, by number, without those that were damaged since. Touches nothing."""
    records, _ = place.read_journal()
    return intact_records(place, planned_records(records, manifest), altered, has_failures=not manifest.is_older)


def planned_records(records: Iterable[PartRecord], manifest: Manifest) -> list[PartRecord]:
    """The valid records of a journal that hold what the manifest planned for their parts.

    If a record was lost, later records of its part begin too late, and do not count either.
    """
    valid = valid_records(records)
    if manifest.part_rows is not None:
        return valid
    bounds = dict(enumerate(zip(manifest.parts, (*manifest.parts[1:], len(manifest.spans)), strict=True)))
    begun = {record.part for record in valid if record.first_span == bounds.get(record.part, (None,))[0]}
    return [record for record in valid if record.part in begun and record.stop_span <= bounds[record.part][1]]


def intact_records(
    place: Place, records: Sequence[PartRecord], altered: Collection[str] = (), *, has_failures: bool = True
) -> list[PartRecord]:
    """The records whose files are in the place as recorded, without pieces after a damaged one of their part.

    Args:
        place: Where to look.
        records: By part and piece.
        altered: Files that count as missing.
        has_failures: Whether every part has a file of failures of its own.
    """
    files = [record.all_files if has_failures else record.files for record in records]
    folders = {os.path.dirname(name) for names in files for name in names}
    there = {name: size for folder in folders for name, size in place.sizes(folder).items() if name not in altered}
    damaged: set[int] = set()
    intact = []
    for record, expected in zip(records, files, strict=True):
        if record.part in damaged or any(there.get(name) != size for name, size in expected.items()):
            damaged.add(record.part)
        else:
            intact.append(record)
    return intact


def is_finished(manifest: Manifest, records: Sequence[PartRecord]) -> bool:
    """Whether committed parts hold all spans of a job."""
    return bool(records) and sum(record.stop_span - record.first_span for record in records) == manifest.num_spans


def put_failures_together(place: Place, records: Sequence[PartRecord]) -> None:
    """Write `failures.jsonl` from the failures of the parts, unless it is there already.

    Its length shows whether it is up to date: it is removed before a record is replaced, and otherwise the journal only
    grows, or loses its end. The caller holds the lock, and builds no part.
    """
    with_failures = [record for record in records if record.failed]
    if place.sizes(INTERNAL).get(ALL_FAILURES) == sum(record.failures_bytes for record in with_failures):
        return
    crash_point("summary_begun")
    path = os.path.join(place.staging(), "failures")
    try:
        with open(path, "wb") as file:
            for _, lines in place.read_each([record.failures_file for record in with_failures]):
                file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        place.publish({path: ALL_FAILURES})
        crash_point("summary_done")
    finally:
        place.drop_staging()


def tidy(place: Place, manifest: Manifest, records: Sequence[PartRecord], *, is_thorough: bool = False) -> None:
    """Remove from a finished job what a run that was killed left there, such as the second version of a part.

    Args:
        place: Where the job is. The caller holds the lock, and builds no part.
        manifest: The job.
        records: All of its committed parts.
        is_thorough: Look at the journal, too, and put the failures together again even if they are there.
    """
    if is_thorough:
        place.remove([ALL_FAILURES])
    if is_thorough or _unknown_files(place, manifest, records):
        Ledger(place, manifest).close()
    put_failures_together(place, records)


def _unknown_files(place: Place, manifest: Manifest, records: Iterable[PartRecord]) -> list[str]:
    """Files with names of parts and of failures that no committed part has."""
    known = {name for record in records for name in record.all_files}
    there = [*part_files(place, manifest), *place.sizes(FAILURES)]
    return [name for name in there if name not in known]


def part_files(place: Place, manifest: Manifest) -> list[str]:
    """The files of parts in a place, known to the journal or not, in the folders where the sink puts them."""
    pattern = _part_name(manifest)
    return [
        name
        for folder in part_folders(manifest)
        for name in sorted(place.sizes(folder))
        if pattern.fullmatch(os.path.basename(name))
    ]


def _part_name(manifest: Manifest) -> re.Pattern[str]:
    return re.compile(rf"part-\d{{8}}(_\d+)?{re.escape(manifest.part_suffix)}")


def part_folders(manifest: Manifest) -> list[str]:
    """The folders of the sink; names that lead anywhere else are left out."""
    return [name for name in manifest.part_folders if name not in (".", "..") and os.path.basename(name) == name]


def remove_job(place: Place, manifest: Manifest) -> None:
    """Remove a job and nothing else. The caller holds the lock."""
    remove_written(place, manifest)
    place.remove([MANIFEST])
    place.settle()


def remove_written(place: Place, manifest: Manifest) -> None:
    """Remove all that a job has written, and leave the job: it begins again. The caller holds the lock.

    The journal goes first: without it the parts are unknown, and every later start removes them, so a crash at
    any point leaves a folder that is whole, or empty, or cleans itself.
    """
    # On a remote store the journal is a folder of records, which not every store could remove as an object.
    place.remove([*place.sizes(JOURNAL), *(name for name in place.sizes(INTERNAL) if name == JOURNAL)])
    place.settle()
    place.remove([*place.sizes(FAILURES), ALL_FAILURES, *part_files(place, manifest)])
    place.drop_folders([JOURNAL, FAILURES, *filter(None, part_folders(manifest))])
    place.settle()
