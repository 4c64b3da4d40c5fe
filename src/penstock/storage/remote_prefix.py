"""A prefix of a remote store as the place of an output.

The order of every commit is that of `ledger`, with one object for each step, and this is what a crash leaves:
1. a part's files and its failures are written to a local folder of this run: removed with it, or by the next run here;
2. each is uploaded, and appears when its upload is complete: unknown to the journal, removed at the next start, as is
   what an upload in pieces has sent by then;
3. the lock is looked at, and the record is created under its number, where there is none: the part exists.
At the end `failures.jsonl` is put together, and the log is uploaded: a crash before that loses the log of that run and
nothing else.

A run that was cut off, and whose lock another took over, may still be at any of these steps. It cannot write a record
(3); it does not overwrite a part that is there (2: it creates, and overwrites only with the lock in hand); and a
part that it creates where no record is, is overwritten by the run that has the lock, or removed at the next start.
"""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from penstock.crash_points import crash_point
from penstock.errors import OutputError
from penstock.storage.disk import INTERNAL
from penstock.storage.journal import NumberedJournal, PartRecord, read_numbered
from penstock.storage.lease import LOCK, LockHolder, OutputLease, holder_of
from penstock.storage.objects import Objects
from penstock.storage.part_builder import StagedPart
from penstock.storage.scratch import Scratch

_LOG = f"{INTERNAL}/log.txt"


class RemotePrefix:
    """See `places.Place`."""

    def __init__(self, url: str) -> None:
        self._objects = Objects(url)
        self._lease: OutputLease | None = None
        self._scratch: Scratch | None = None

    def address(self, name: str = "") -> str:
        return self._objects.address(name)

    def lock(self) -> OutputLease:
        self._lease = OutputLease(self._objects)
        return self._lease

    def holder(self) -> str | None:
        holder = holder_of(self._objects)
        return None if holder is None else str(holder)

    def held_since(self) -> float:
        return LockHolder.decode(self._objects.read(LOCK) or b"").started

    def mark(self) -> str:
        return LockHolder.decode(self._objects.read(LOCK) or b"").token

    def children(self) -> list[str] | None:
        # The first contact with the store: a wrong address should be reported in seconds.
        kinds = self._objects.hasty().children()
        if kinds is not None and kinds.get("") == "file":
            raise OutputError("the output is not a folder", received=self.address())
        return None if kinds is None else list(kinds)

    def read(self, name: str) -> bytes | None:
        return self._objects.read(name)

    def read_each(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        return self._objects.read_each(names)

    def write(self, name: str, content: bytes) -> None:
        self._fence()
        crash_point("manifest_begun")
        self._objects.write(name, content)
        crash_point("manifest_settled")

    def sizes(self, folder: str = "") -> dict[str, int]:
        return self._objects.sizes(folder)

    def remove(self, names: Iterable[str]) -> None:
        self._fence()
        self._objects.remove(names)

    def drop_folders(self, names: Iterable[str]) -> None:
        for name in names:
            self._objects.drop_folder(name)

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> None:
        self._fence()
        self._objects.hasty().abort_uploads(is_ours)

    def staging(self) -> str:
        self.drop_staging()
        self._scratch = Scratch()
        return self._scratch.path

    def drop_staging(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def publish(self, staged: Mapping[str, str]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for temporary, name in staged.items():
            sizes[name] = os.path.getsize(temporary)
            crash_point("publish_begun")
            if not self._objects.upload(temporary, name, only_new=True):
                # No record names it: another run left it after we had looked, or the answer was lost.
                self._fence()
                self._objects.upload(temporary, name, only_new=False)
            crash_point("publish_renamed")
            os.remove(temporary)
        crash_point("publish_settled")
        return sizes

    def open_attempts(self, run: str) -> None:
        """Nodes build in folders of their own."""

    def drop_attempt(self, run: str, attempt: str) -> None:
        """Nothing is removed yet: another attempt may deliver the same objects. The end of the run removes the rest."""

    def confirm(self, parts: Sequence[StagedPart]) -> list[dict[str, int]]:
        sizes = self._objects.sizes_of({name: value for part in parts for name, value in part.record.checksums.items()})
        crash_point("attempt_confirmed")
        return [{name: sizes[name] for name in part.paths.values()} for part in parts]

    def settle(self) -> None:
        """Nothing to wait for: when the store has answered, the removal is done."""

    def journal(self) -> NumberedJournal:
        token = secrets.token_hex(16) if self._lease is None else self._lease.token
        return NumberedJournal(self._objects, token, self._fence)

    def read_journal(self) -> tuple[list[PartRecord], list[str]]:
        return read_numbered(self._objects)

    @contextlib.contextmanager
    def log(self) -> Iterator[IO[Any]]:
        """A local file without a name, uploaded at the end, also after an error; it begins with earlier logs."""
        with tempfile.TemporaryFile(prefix="penstock-log-", buffering=0) as log:
            log.write(self._objects.read(_LOG) or b"")
            try:
                yield log
            finally:
                with contextlib.suppress(OutputError):
                    log.seek(0)
                    self._objects.hasty().write(_LOG, log.read())

    def leave_no_trace(self, *, existed: bool) -> None:
        with contextlib.suppress(OutputError):
            self.remove([_LOG])

    def _fence(self) -> None:
        """Raise OutputError unless this run still holds the lock."""
        if self._lease is not None:
            self._lease.check()
