"""The journal and the failures of a remote job. An object cannot be appended to, so each part has objects of its own.

`_penstock/failures/00000012.jsonl` holds the failures of the part whose record is `_penstock/journal/00000012`, and is
written before it. A record is created only where there is none: two runs can never both write number 12, whatever
became of the lock between them. It carries the token of its run, by which a run whose answer was lost knows its own.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence

from penstock.errors import OutputError
from penstock.storage.disk import INTERNAL
from penstock.storage.journal import PartRecord, decode_records, encode_record
from penstock.storage.objects import Objects
from penstock.storage.store_errors import RESUMABLE

JOURNAL = f"{INTERNAL}/journal"
FAILURES = f"{INTERNAL}/failures"
ALL_FAILURES = f"{INTERNAL}/failures.jsonl"


class NumberedJournal:
    """Records as numbered objects. Opening it removes what lies beyond the first gap or altered record."""

    def __init__(self, objects: Objects, token: str, fence: Callable[[], None]) -> None:
        self._objects = objects
        self._token = token
        self._fence = fence
        self.records, beyond = read_numbered(objects)
        self._remove(beyond)

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

    def cut_to(self, count: int) -> None:
        """Forget all but the first `count` records: the parts after them turned out to be gone."""
        self._remove([_record_name(number) for number in range(count, len(self.records))])
        self.records = self.records[:count]

    def close(self) -> None:
        """Nothing is open."""

    def _remove(self, names: Sequence[str]) -> None:
        """A crash in the middle leaves a gap, and what is beyond a gap is removed before anything is appended."""
        if names:
            self._fence()
            self._objects.remove(names)


class NumberedFailures:
    """The failures of each part as an object of its own; `settle` puts them together for people to read."""

    def __init__(self, objects: Objects, fence: Callable[[], None]) -> None:
        self._objects = objects
        self._fence = fence

    def append(self, number: int, lines: bytes) -> None:
        """Write the failures of the part whose record will have this number."""
        if not self._objects.create(_failures_name(number), lines):
            # No record knows what is there: a run that was cut off wrote it after we had looked.
            self._fence()
            self._objects.write(_failures_name(number), lines)

    def count_whole(self, records: Sequence[PartRecord]) -> int:
        """How many of the records, up to the first that has not, have their failures here."""
        sizes = self._objects.sizes(FAILURES)
        before = 0
        for number, record in enumerate(records):
            if record.failed and sizes.get(_failures_name(number)) != record.failures_bytes - before:
                return number
            before = record.failures_bytes
        return len(records)

    def cut(self, records: Sequence[PartRecord]) -> None:
        """Remove what lies beyond the records, and the file for people, which is put together again at the end."""
        beyond = [name for name in self._objects.sizes(FAILURES) if _number(name) >= len(records)]
        self._fence()
        self._objects.remove([*beyond, ALL_FAILURES])

    def settle(self, records: Sequence[PartRecord]) -> None:
        """Put `failures.jsonl` together. A crash before it loses nothing; the next run does it."""
        length = records[-1].failures_bytes if records else 0
        if self._objects.sizes(INTERNAL).get(ALL_FAILURES) == length:
            return
        names = [_failures_name(number) for number, record in enumerate(records) if record.failed]
        self._fence()
        with tempfile.NamedTemporaryFile(prefix="penstock-failures-") as file:
            for _, lines in self._objects.read_each(names):
                file.write(lines)
            file.flush()
            self._objects.upload(file.name, ALL_FAILURES, only_new=False)


def read_numbered(objects: Objects) -> tuple[list[PartRecord], list[str]]:
    """The records up to the first gap or altered one, and the names of those beyond. Touches nothing."""
    there = sorted(name for name in objects.sizes(JOURNAL) if _number(name) >= 0)
    unbroken = [name for number, name in enumerate(there) if name == _record_name(number)]
    records: list[PartRecord] = []
    for name, content in objects.read_each(unbroken):
        found = [record for record, _ in decode_records(content[: content.find(b"\n") + 1])]
        if not found or name != _record_name(len(records)):
            break
        records += found
    return records, there[len(records) :]


def _record_name(number: int) -> str:
    return f"{JOURNAL}/{number:08d}"


def _failures_name(number: int) -> str:
    return f"{FAILURES}/{number:08d}.jsonl"


def _number(name: str) -> int:
    """The number of an object of ours; -1 for anything else."""
    found = re.fullmatch(r"(\d{8})(\.jsonl)?", name.rpartition("/")[2])
    return int(found[1]) if found else -1
