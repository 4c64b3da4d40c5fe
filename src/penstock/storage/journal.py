"""The journal: one record for each committed part, each with its checksum. What it does not list does not exist."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from penstock.storage.disk import fsync_folder


@dataclass(frozen=True)
class PartRecord:
    """A committed part.

    `first_span` to `stop_span` are the spans it holds; `cut` counts how often its planned part was cut short by an
    interrupt; `files` maps names in the output folder to sizes; `failures_bytes` is the length of all recorded failures
    once this part was in. `reduced` maps spans to the batch size that they took, where that of the recipe did not fit
    into the memory: the bits are those of the recipe for all others. `digests` maps spans to the digests of the bytes
    that they were read from, where these lie in files. `not_finite` of the rows have a prediction that is NaN or
    infinite.
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

    def cut_to(self, count: int) -> None:
        """Forget all but the first `count` records: the parts after them turned out to be gone."""
        self.records = self.records[:count]
        self._file.truncate(sum(len(encode_record(record)) for record in self.records))
        os.fsync(self._file.fileno())

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


def encode_record(record: PartRecord) -> bytes:
    """A record as a line that begins with the checksum of the rest. What a record does not have is left out."""
    rare = ("reduced", "digests", "not_finite")
    told = {name: value for name, value in asdict(record).items() if name not in rare or value}
    body = json.dumps(told, sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_records(raw: bytes) -> Iterator[tuple[PartRecord, int]]:
    """Every record up to the first that is torn or altered, with the place where it ends."""
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
