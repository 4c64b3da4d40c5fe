"""The failures of a local job: one file, whose length after each part the journal knows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.storage.disk import fsync_folder
from penstock.storage.journal import PartRecord


class FailuresFile:
    """Lines that are appended before the record of their part."""

    def __init__(self, path: str) -> None:
        self._path = path

    def append(self, number: int, lines: bytes) -> None:
        """Append the failures of the part whose record will have this number."""
        with open(self._path, "ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def count_whole(self, records: Sequence[PartRecord]) -> int:
        """How many of the records have all their failures here."""
        try:
            size = os.path.getsize(self._path)
        except FileNotFoundError:
            size = -1
        return next((count for count, record in enumerate(records) if record.failures_bytes > size), len(records))

    def cut(self, records: Sequence[PartRecord]) -> None:
        """Remove what lies beyond the records."""
        with open(self._path, "ab") as file:
            file.truncate(records[-1].failures_bytes if records else 0)
            os.fsync(file.fileno())
        fsync_folder(os.path.dirname(self._path))

    def settle(self, records: Sequence[PartRecord]) -> None:
        """The file is what people read already."""
