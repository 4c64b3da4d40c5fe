"""The journal: one record for each committed part, each with its checksum. What it does not list does not exist.

Records are only ever appended, in the order of the commits, which need not be the order of the parts. A later record
of a part replaces what earlier records of that part hold from its first span on. So a record without spans takes spans
back, and a record of the whole part takes the place of all its pieces; no other part is touched by either.

A local journal is a file of lines. An object cannot be appended to: a remote journal is one numbered object for each
record.
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from penstock.errors import OutputError
from penstock.storage.disk import INTERNAL, RESUMABLE, fsync_folder
from penstock.storage.objects import Objects

JOURNAL = f"{INTERNAL}/journal"
FAILURES = f"{INTERNAL}/failures"
ALL_FAILURES = f"{INTERNAL}/failures.jsonl"
"""The failures of all parts in one file, for people to read."""


@dataclass(frozen=True)
class PartRecord:
    """A committed part, or a piece of one that an interrupt cut short.

    `first_span` to `stop_span` are the spans it holds; `cut` tells pieces of one part apart, and orders them; `files`
    maps names in the output folder to sizes; `failures_bytes` is the size of its file of failures. `reduced` maps spans
    to the batch size that they took, where that of the recipe did not fit into the memory: the bits are those of the
    recipe for all others. `digests` maps spans to the digests of the bytes that they were read from, where these lie in
    files. `not_finite` of the rows have a prediction that is NaN or infinite.
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

    @property
    def failures_file(self) -> str:
        """Where the failures of this part are."""
        return failures_file(self.part, self.cut)

    @property
    def all_files(self) -> dict[str, int]:
        """Names and sizes of the part's files, and of its failures where there are any."""
        return {**self.files, **({self.failures_file: self.failures_bytes} if self.failed else {})}


def piece_number(part: int, cut: int) -> str:
    """`00000003`; what follows a piece that an interrupt cut short is `00000003_0001`, which sorts after it."""
    return f"{part:08d}" + (f"_{cut:04d}" if cut else "")


def failures_file(part: int, cut: int) -> str:
    return f"{FAILURES}/{piece_number(part, cut)}.jsonl"


def valid_records(records: Iterable[PartRecord]) -> list[PartRecord]:
    """The records that no later one replaces, in the order of the parts and of their pieces."""
    by_part: dict[int, list[PartRecord]] = {}
    for record in records:
        before = [other for other in by_part.get(record.part, ()) if other.stop_span <= record.first_span]
        by_part[record.part] = [*before, record] if record.stop_span > record.first_span else before
    return [record for part in sorted(by_part) for record in by_part[part]]


class Journal:
    """An append-only file of records. Opening it cuts a torn tail."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.records: list[PartRecord] = []
        is_new = not os.path.exists(path)
        self._file = open(path, "ab+")  # noqa: SIM115 - lives as long as the run
        if is_new:
            fsync_folder(os.path.dirname(path))
        self._recover()

    def append(self, record: PartRecord) -> None:
        """Make a part exist: when this returns, the record is on the disk."""
        self._file.write(encode_record(record))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)

    def close(self) -> None:
        self._file.close()

    def _recover(self) -> None:
        self._file.seek(0)
        good = 0
        for record, end in decode_records(self._file.read()):
            self.records.append(record)
            good = end
        if good < os.path.getsize(self._path):
            self._file.truncate(good)
            os.fsync(self._file.fileno())
        self._file.seek(0, os.SEEK_END)


def read_records(path: str) -> list[PartRecord]:
    """The whole records of a journal, without touching it."""
    try:
        with open(path, "rb") as file:
            return [record for record, _ in decode_records(file.read())]
    except FileNotFoundError:
        return []


class NumberedJournal:
    """Records as numbered objects. Opening it removes what lies beyond the first gap or altered record.

    A record is created only where there is none: two runs can never both write number 12, whatever became of the lock
    between them. It carries the token of its run, by which a run whose answer was lost recognizes its own record.
    """

    def __init__(self, objects: Objects, token: str, fence: Callable[[], None]) -> None:
        self._objects = objects
        self._token = token
        self._fence = fence
        self.records, beyond = read_numbered(objects)
        if beyond:
            # A crash in the middle leaves a gap, and what is beyond a gap is removed before anything is appended.
            fence()
            objects.remove(beyond)

    def append(self, record: PartRecord) -> None:
        """Make a part exist: when this returns, the store has the record.

        Raises:
            OutputError: The lock was lost, or another run wrote this record.
        """
        self._fence()
        name = _record_name(len(self.records))
        if not self._objects.create(name, encode_record(record) + f"run {self._token}\n".encode()):
            raise OutputError("another run writes to this output", received=self._objects.address(name), hint=RESUMABLE)
        self.records.append(record)

    def close(self) -> None:
        """Nothing is open."""


def read_numbered(objects: Objects) -> tuple[list[PartRecord], Sequence[str]]:
    """The records up to the first gap or altered one, and the names of those beyond. Touches nothing."""
    there = sorted(name for name in objects.sizes(JOURNAL) if re.fullmatch(r"\d{8}", name.rpartition("/")[2]))
    unbroken = [name for number, name in enumerate(there) if name == _record_name(number)]
    records: list[PartRecord] = []
    for name, content in objects.read_each(unbroken):
        decoded = [record for record, _ in decode_records(content[: content.find(b"\n") + 1])]
        if not decoded or name != _record_name(len(records)):
            break
        records += decoded
    return records, there[len(records) :]


def _record_name(number: int) -> str:
    return f"{JOURNAL}/{number:08d}"


def encode_record(record: PartRecord) -> bytes:
    """A record as a line that begins with the checksum of the rest. Rare fields are left out where they are empty."""
    rare = ("reduced", "digests", "not_finite")
    fields = {name: value for name, value in asdict(record).items() if name not in rare or value}
    body = json.dumps(fields, sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_records(raw: bytes) -> Iterator[tuple[PartRecord, int]]:
    """Every record up to the first that is torn or altered, with the position where it ends."""
    position = 0
    while (end := raw.find(b"\n", position)) >= 0:
        checksum, _, body = raw[position:end].partition(b" ")
        if checksum != b"%08x" % zlib.crc32(body):
            return
        try:
            record = PartRecord(**json.loads(body))
        except (ValueError, TypeError):
            return  # the checksum of nothing is right for nothing
        yield record, end + 1
        position = end + 1
