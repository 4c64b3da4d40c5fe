"""The journal: one record for each committed part, each with its checksum. What it does not list does not exist.

Records are only ever appended, in the order of the commits, which need not be the order of the parts. A later record
of a part replaces what earlier records of that part hold from its first span on. So a record without spans takes spans
back, and a record of the whole part takes the place of all its pieces; no other part is touched by either.

A local journal is a file of lines. A line that is torn or altered counts as never written: its part is predicted again,
and all others stay. An object cannot be appended to: a remote journal is one numbered object for each record, or for
records that were committed together, and ends before the first that is altered.
"""

import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.core.typed import check_types
from penstock.crash_points import crash_point
from penstock.errors import OutputError
from penstock.storage.disk import INTERNAL, RESUMABLE, fsync_folder, regular, write_whole
from penstock.storage.objects import Objects

JOURNAL = f"{INTERNAL}/journal"
SEGMENT_OBJECTS = 1000
_OBJECT = re.compile(rf"{JOURNAL}/\d{{8}}")
_SEGMENT = re.compile(rf"{JOURNAL}/segment-\d{{8}}")
FAILURES = f"{INTERNAL}/failures"
ALL_FAILURES = f"{INTERNAL}/failures.jsonl"
"""The failures of all parts in one file, for people to read."""


@dataclass(frozen=True)
class PartRecord:
    """A committed part, or a piece of one that an interrupt cut short.

    `first_span` to `stop_span` are the spans it holds; `cut` numbers the pieces of one part; `files` maps names in the
    output folder to sizes; `failures_bytes` is the size of its file of failures. `reduced` maps spans to the batch size
    that they took, where that of the recipe did not fit into the memory: the bits are those of the recipe for all
    others. `digests` maps spans to the digests of the bytes that they were read from, where these lie in files.
    `not_finite` of the rows have a prediction that is NaN or infinite. `checksums` maps the names of all files, that of
    the failures too, to the CRC32C of their content; it is empty in records of an older penstock. `written_at` is the
    time of the clock when it was written, which only `penstock status` uses. `kind` is the kind of node that it was
    built on, and so its recipe in the manifest; empty for the first kind. `node` is the name of that node; empty for a
    machine that had no cluster.
    """

    part: int
    cut: int
    first_span: int
    stop_span: int
    rows: int
    failed: int
    files: Mapping[str, int]
    failures_bytes: int
    reduced: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    not_finite: int = 0
    checksums: Mapping[str, str] = field(default_factory=dict)
    written_at: float = 0.0
    kind: str = ""
    node: str = ""

    @property
    def failures_file(self) -> str:
        """Where the failures of this part are."""
        return failures_file(self.part, self.cut)

    @property
    def all_files(self) -> dict[str, int]:
        """Names and sizes of the part's files, and of its failures where there are any."""
        return {**self.files, **({self.failures_file: self.failures_bytes} if self.failed else {})}


class _SpanDigests(Mapping[str, str]):
    """The digests of spans that follow each other, in a few bytes each: a job has millions of them."""

    def __init__(self, first: int, count: int, joined: str) -> None:
        self._first = first
        self._count = count
        self._joined = joined

    def __getitem__(self, span: str) -> str:
        place = int(span) - self._first if span.isdecimal() else -1
        if not 0 <= place < self._count:
            raise KeyError(span)
        width = len(self._joined) // self._count
        return self._joined[place * width : (place + 1) * width]

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self._first, self._first + self._count))

    def __len__(self) -> int:
        return self._count


def lean(record: PartRecord) -> PartRecord:
    """The same record in less memory."""
    digests = record.digests
    spans = [str(span) for span in range(record.first_span, record.first_span + len(digests))]
    if not digests or list(digests) != spans or len(set(map(len, digests.values()))) != 1:
        return record
    return replace(record, digests=_SpanDigests(record.first_span, len(digests), "".join(digests.values())))


def rows_in(records: Sequence[PartRecord]) -> int:
    """All rows that committed parts account for, also those that failed."""
    return sum(record.rows + record.failed for record in records)


def failed_by_node(records: Iterable[PartRecord]) -> dict[str, int]:
    """The nodes of a cluster on which rows failed, with how many; those with the most first."""
    failed: Counter[str] = Counter()
    for record in records:
        if record.node and record.failed:
            failed[record.node] += record.failed
    return dict(failed.most_common())


def piece_number(part: int, cut: int) -> str:
    """`00000003`; what follows a piece that an interrupt cut short is `00000003_0001`, which sorts after it."""
    return f"{part:08d}" + (f"_{cut:04d}" if cut else "")


def failures_file(part: int, cut: int) -> str:
    return f"{FAILURES}/{piece_number(part, cut)}.jsonl"


def valid_records(records: Iterable[PartRecord]) -> list[PartRecord]:
    """The records that no later one replaces, in the order of the parts and of their pieces.

    A piece that does not begin where the one before it ends is left out: the record between them was lost.
    """
    by_part: dict[int, list[PartRecord]] = {}
    for record in records:
        before = [other for other in by_part.get(record.part, ()) if other.stop_span <= record.first_span]
        if before and before[-1].stop_span != record.first_span:
            continue
        by_part[record.part] = [*before, record] if record.stop_span > record.first_span else before
    return [record for part in sorted(by_part) for record in by_part[part]]


class Journal:
    """An append-only file of records. Opening it removes torn and altered ones."""

    def __init__(self, path: str) -> None:
        is_new = not os.path.exists(path)
        lines = _lines(path)
        records = list(map(decode_record, lines))
        kept = [line for line, record in zip(lines, records, strict=True) if record is not None]
        self.records = [record for record in records if record is not None]
        self.problems = _damage(lines, records)
        if kept != lines[: len(kept)]:
            write_whole(path, b"".join(kept))
        # Without a buffer: what a full disk refused would be written again when the file is closed.
        self._file = open(path, "ab+", buffering=0, opener=regular)  # noqa: SIM115 - lives as long as the run
        if is_new:
            fsync_folder(os.path.dirname(path))
        elif len(kept) < len(lines):
            # Where only the end is torn it is cut off, which needs no space on the disk.
            self._file.truncate(sum(map(len, kept)))
            os.fsync(self._file.fileno())

    def append_all(self, records: Sequence[PartRecord]) -> None:
        """Make parts exist: when this returns, their records are on the disk, by one write and one fsync."""
        crash_point("journal_begun")
        raw = memoryview(b"".join(map(encode_record, records)))
        while raw:
            raw = raw[self._file.write(raw) :]
        crash_point("journal_written")
        os.fsync(self._file.fileno())
        crash_point("journal_synced")
        self.records.extend(records)

    def close(self) -> None:
        self._file.close()


def read_journal(path: str) -> tuple[list[PartRecord], list[str]]:
    """The whole records of a journal, and what is wrong with it, in words. Touches nothing."""
    lines = _lines(path)
    records = list(map(decode_record, lines))
    return [record for record in records if record is not None], _damage(lines, records)


def _damage(lines: Sequence[bytes], records: Iterable[PartRecord | None]) -> list[str]:
    problems = [
        f"record {number} is altered"
        for number, (line, record) in enumerate(zip(lines, records, strict=True))
        if line.endswith(b"\n") and record is None
    ]
    return [*problems, *(["its last record is torn"] if lines and not lines[-1].endswith(b"\n") else [])]


def _lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb", opener=regular) as file:
            return file.readlines()
    except FileNotFoundError:
        return []


class NumberedJournal:
    """Records as numbered objects, each of one record or of several that were committed together.

    Opening it removes what lies beyond the first gap or altered record. An object is created only where there is none:
    two runs can never both write number 12, whatever became of the lock between them. It carries the token of its run,
    by which a run whose answer was lost recognizes its own record.

    A thousand objects are put together into a segment, which takes their place: a long journal is read in few requests.
    """

    def __init__(self, objects: Objects, token: str, fence: Callable[[], None]) -> None:
        self._objects = objects
        self._token = token
        self._fence = fence
        read = _read_numbered(objects)
        self.records = read.records
        self.problems = read.problems
        self._number = read.number
        self._unsealed = read.unsealed
        if read.beyond or read.sealed:
            # A crash in the middle of this leaves a gap: what is beyond a gap is removed before anything is appended.
            fence()
            objects.remove([*read.beyond, *read.sealed])

    def append_all(self, records: Sequence[PartRecord]) -> None:
        """Make parts exist: when this returns, the store has all of their records.

        Raises:
            OutputError: The lock was lost, or another run wrote this record.
        """
        self._fence()
        crash_point("journal_begun")
        lines = b"".join(map(encode_record, records))
        self._create(_object_name(self._number), lines + f"run {self._token}\n".encode())
        crash_point("journal_synced")
        self.records.extend(records)
        self._number += 1
        self._unsealed.append(lines)
        while len(self._unsealed) >= SEGMENT_OBJECTS:
            self._seal()

    def close(self) -> None:
        """Nothing is open."""

    def _seal(self) -> None:
        first = self._number - len(self._unsealed)
        self._create(_segment_name(first // SEGMENT_OBJECTS), b"".join(self._unsealed[:SEGMENT_OBJECTS]))
        crash_point("segment_written")
        self._objects.remove(map(_object_name, range(first, first + SEGMENT_OBJECTS)))
        del self._unsealed[:SEGMENT_OBJECTS]

    def _create(self, name: str, content: bytes) -> None:
        if not self._objects.create(name, content):
            raise OutputError("another run writes to this output", received=self._objects.address(name), hint=RESUMABLE)


@dataclass
class _Numbered:
    """What is in a journal of objects.

    `number` is the number of the first object that does not exist; `unsealed` holds the lines of the objects that are
    in no segment; `sealed` names objects that a segment holds, too, because a crash came before they were removed.
    """

    records: list[PartRecord]
    number: int
    unsealed: list[bytes]
    sealed: list[str]
    beyond: list[str]

    @property
    def problems(self) -> list[str]:
        """What is wrong, in words."""
        if not self.beyond:
            return []
        return [f"record {len(self.records)} is missing or altered: {len(self.beyond)} records do not count"]


def read_numbered(objects: Objects) -> tuple[list[PartRecord], list[str]]:
    """The records up to the first gap or altered one, and what is wrong, in words. Touches nothing."""
    read = _read_numbered(objects)
    return read.records, read.problems


def _read_numbered(objects: Objects) -> _Numbered:
    there = objects.sizes(JOURNAL)
    read = _Numbered([], 0, [], [], [])
    segments = sorted(name for name in there if _SEGMENT.fullmatch(name))
    for name, content in objects.read_each(segments):
        records = _decoded(content)
        if records is None or name != _segment_name(read.number // SEGMENT_OBJECTS):
            break
        read.records += records
        read.number += SEGMENT_OBJECTS
    used = segments[: read.number // SEGMENT_OBJECTS]
    single = sorted(name for name in there if _OBJECT.fullmatch(name))
    read.sealed = [name for name in single if name < _object_name(read.number)]
    rest = single[len(read.sealed) :]
    unbroken = [name for number, name in enumerate(rest, read.number) if name == _object_name(number)]
    for name, content in objects.read_each(unbroken):
        lines = content[: content.rfind(b"\nrun ") + 1]
        records = _decoded(lines)
        if not records or name != _object_name(read.number):
            break
        read.records += records
        read.number += 1
        read.unsealed.append(lines)
    read.beyond = [name for name in (*segments, *rest) if name not in used and name >= _object_name(read.number)]
    return read


def _decoded(lines: bytes) -> list[PartRecord] | None:
    """The records of lines; None where one is torn or altered."""
    records = list(map(decode_record, lines.splitlines(keepends=True)))
    whole = [record for record in records if record is not None]
    return whole if len(whole) == len(records) else None


def _object_name(number: int) -> str:
    return f"{JOURNAL}/{number:08d}"


def _segment_name(number: int) -> str:
    return f"{JOURNAL}/segment-{number:08d}"


def encode_record(record: PartRecord) -> bytes:
    """A record as a line that begins with the checksum of the rest. Rare fields are left out where they are empty."""
    rare = ("reduced", "digests", "not_finite", "checksums", "written_at", "kind", "node")
    fields = {name: value for name, value in vars(record).items() if name not in rare or value}
    body = json.dumps(fields | {"digests": dict(record.digests)} if record.digests else fields, sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_record(line: bytes) -> PartRecord | None:
    """The record in a line with its end; None where the line is torn or altered."""
    checksum, _, body = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        fields = json.loads(body)
        shared = {name: sys.intern(fields[name]) for name in ("kind", "node") if name in fields}
        record = PartRecord(**fields | shared)
        check_types(record)
    except (ValueError, TypeError, RecursionError):
        return None  # an empty record may have the right checksum
    return lean(record)
