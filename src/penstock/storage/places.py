"""Where the output of a job is kept: what storage asks of a place, and the place behind `--output`.

There are two kinds, a folder of this machine and a prefix of a remote store. Names are relative to the place, with
slashes. Only the run that holds its lock uses a place, except for `read`, `sizes`, `children`, `read_journal` and
`holder`, which change nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, Protocol

from penstock.errors import UsageError
from penstock.storage.journal import PartRecord
from penstock.storage.local_folder import LocalFolder
from penstock.storage.part_builder import StagedPart
from penstock.storage.remote_prefix import RemotePrefix

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Records(Protocol):
    """A journal that is open."""

    @property
    def records(self) -> list[PartRecord]:
        """Every record, in the order in which they were appended."""
        ...

    @property
    def problems(self) -> list[str]:
        """What was wrong with it when it was opened, in words."""
        ...

    def append_all(self, records: Sequence[PartRecord]) -> None:
        """Append records; after any crash there are none of them, or some from the first on, or all."""
        ...

    def close(self) -> None: ...


class Place(Protocol):
    """Where the output of one job is kept."""

    def address(self, name: str = "") -> str:
        """The place, or something in it, as a person would write it."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """A lock that one living run holds; OutputError where another run holds it."""
        ...

    def holder(self) -> str | None:
        """The living run that holds the lock, in words; None where none does."""
        ...

    def held_since(self) -> float:
        """When the run that holds the lock, or held it last, began, by the clock."""
        ...

    def mark(self) -> str:
        """A text in the lock. While a run holds it, no other place on any machine has the same one."""
        ...

    def children(self) -> list[str] | None:
        """What lies directly in the place; None where it does not exist."""
        ...

    def read(self, name: str) -> bytes | None: ...

    def read_each(self, names: Sequence[str]) -> Iterable[tuple[str, bytes]]:
        """The content of files in their order; those that are not there are left out."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """After any crash there is the old content or the new."""
        ...

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The files directly in a folder, by name relative to the place."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. What is not there is as good as removed."""
        ...

    def drop_folders(self, names: Iterable[str]) -> None:
        """Remove those of the folders that are empty."""
        ...

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> None:
        """Drop what a store holds of uploads that were never completed, where the name is ours."""
        ...

    def staging(self) -> str:
        """An empty local folder for parts that are being written, made anew."""
        ...

    def drop_staging(self) -> None: ...

    def publish(self, staged: Mapping[str, str]) -> dict[str, int]:
        """Bring local files under their final names, each whole or not at all; returns the sizes by name."""
        ...

    def open_attempts(self, run: str) -> None:
        """Let the nodes of a run on a cluster deliver parts (`attempts.node_output`)."""
        ...

    def drop_attempt(self, run: str, attempt: str) -> None:
        """Remove what an attempt has written, where no other attempt can share it."""
        ...

    def confirm(self, parts: Sequence[StagedPart]) -> list[dict[str, int]]:
        """Bring what attempts delivered under final names; gives the sizes by name, -1 of what is not there or altered.

        Nothing that differs from its record comes under a final name by this.
        """
        ...

    def settle(self) -> None:
        """Wait until every removal is as lasting as a commit."""
        ...

    def journal(self) -> Records:
        """Open the journal; a torn tail is cut."""
        ...

    def read_journal(self) -> tuple[list[PartRecord], list[str]]:
        """The whole records of the journal, in the order in which they were appended; and what is wrong with it."""
        ...

    def log(self) -> AbstractContextManager[IO[Any]]:
        """The log of the run, open for appending, with a descriptor."""
        ...

    def leave_no_trace(self, *, existed: bool) -> None:
        """Remove what a job that never began has left."""
        ...


def place_of(output: str) -> Place:
    """The place that an output names: a folder, or a URL.

    Raises:
        UsageError: The name is empty.
    """
    if not output.strip():
        raise UsageError(
            "the name of the output is empty", received=f"--output {output!r}", allowed="a folder or a URL"
        )
    scheme = _URL.match(output)
    if scheme is None:
        return LocalFolder(output)
    if scheme[1] in ("file", "local"):
        return LocalFolder(output[scheme.end() :])
    return RemotePrefix(output)
