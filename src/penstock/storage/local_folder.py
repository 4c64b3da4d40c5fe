"""A folder of this machine as the place of an output: temporary names, fsync, rename, and locks of the kernel."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from penstock.crash_points import crash_point
from penstock.errors import OutputError
from penstock.storage.disk import INTERNAL, fsync_folder, internal, make_folders, output_errors, regular, write_whole
from penstock.storage.journal import Journal, PartRecord, read_journal
from penstock.storage.lock import OutputLock, holder_of
from penstock.storage.part_builder import StagedPart


def attempt_folder(run: str, attempt: str = "") -> str:
    """Where nodes of a cluster build parts, relative to the output: a folder for the run, with one for each attempt."""
    return os.path.join(INTERNAL, "staging", run, attempt)


class LocalFolder:
    """See `places.Place`."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._shown = path

    @property
    def path(self) -> str:
        return self._path

    def address(self, name: str = "") -> str:
        return os.path.join(self._shown, name) if name else self._shown

    def lock(self) -> OutputLock:
        return OutputLock(self._path)

    def holder(self) -> str | None:
        return holder_of(self._path)

    def held_since(self) -> float:
        try:
            return os.stat(internal(self._path, "lock")).st_mtime  # the lock is written once, when it is taken
        except FileNotFoundError:
            return 0.0

    def mark(self) -> str:
        return (self.read(os.path.join(INTERNAL, "lock")) or b"").decode(errors="replace")

    def children(self) -> list[str] | None:
        if not os.path.exists(self._path):
            return None
        if not os.path.isdir(self._path):
            raise OutputError(
                "the output is not a folder",
                received=f"{self._shown}, which is a file",
                hint="name a folder: predictions are written as files in it, so that a run can be resumed",
            )
        return os.listdir(self._path)

    def read(self, name: str) -> bytes | None:
        try:
            with open(self._at(name), "rb", opener=regular) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_each(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            content = self.read(name)
            if content is not None:
                yield name, content

    def write(self, name: str, content: bytes) -> None:
        write_whole(self._at(name), content)

    def sizes(self, folder: str = "") -> dict[str, int]:
        try:
            entries = os.scandir(self._at(folder))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        sizes: dict[str, int] = {}
        with entries as listed:
            for entry in listed:
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed, and nothing of the others
                    if entry.is_file():
                        sizes[os.path.join(folder, entry.name)] = entry.stat().st_size
        return sizes

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._at(name))

    def drop_folders(self, names: Iterable[str]) -> None:
        for name in names:
            if os.path.isdir(self._at(name)) and not os.listdir(self._at(name)):
                os.rmdir(self._at(name))

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> None:
        """Nothing is uploaded."""

    def staging(self) -> str:
        self.drop_staging()
        # A late node of a cluster may still write into its folder in there, which cannot be removed then.
        os.makedirs(internal(self._path, "staging"), exist_ok=True)
        return internal(self._path, "staging")

    def drop_staging(self) -> None:
        shutil.rmtree(internal(self._path, "staging"), ignore_errors=True)

    def publish(self, staged: Mapping[str, str]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for temporary, name in staged.items():
            sizes[name] = os.path.getsize(temporary)
            make_folders(os.path.dirname(self._at(name)))
            crash_point("publish_begun")
            os.replace(temporary, self._at(name))
            crash_point("publish_renamed")
        crash_point("publish_unsettled")
        for folder in sorted({os.path.dirname(self._at(name)) for name in sizes}):
            fsync_folder(folder)
        crash_point("publish_settled")
        return sizes

    def open_attempts(self, run: str) -> None:
        os.makedirs(self._at(attempt_folder(run)))

    def drop_attempt(self, run: str, attempt: str) -> None:
        shutil.rmtree(self._at(attempt_folder(run, attempt)), ignore_errors=True)

    def confirm(self, parts: Sequence[StagedPart]) -> list[dict[str, int]]:
        sizes = [{name: _size(self._at(path)) for path, name in part.paths.items()} for part in parts]
        crash_point("attempt_confirmed")
        # A part that differs from its record stays where it is: files with final names are always whole.
        whole = [part for part, found in zip(parts, sizes, strict=True) if found == part.record.all_files]
        paths = {self._at(path): name for part in whole for path, name in part.paths.items()}
        self.publish(paths)
        for folder in {os.path.dirname(path) for path in paths}:
            shutil.rmtree(folder, ignore_errors=True)
        return sizes

    def settle(self) -> None:
        fsync_folder(internal(self._path))
        fsync_folder(self._path)

    def journal(self) -> Journal:
        return Journal(internal(self._path, "journal"))

    def read_journal(self) -> tuple[list[PartRecord], list[str]]:
        return read_journal(internal(self._path, "journal"))

    @contextlib.contextmanager
    def log(self) -> Iterator[IO[Any]]:
        with output_errors():
            path = internal(self._path, "log.txt")
            log = open(path, "ab+", buffering=0, opener=regular)  # noqa: SIM115 - closed just below
        with log:
            yield log

    def leave_no_trace(self, *, existed: bool) -> None:
        for name in ("log.txt", "lock"):
            with contextlib.suppress(OSError):
                os.remove(internal(self._path, name))
        with contextlib.suppress(OSError):
            os.rmdir(internal(self._path))
            if not existed:
                os.rmdir(self._path)

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)


def _size(path: str) -> int:
    """The size of a file that another machine wrote; -1 where there is none. Opening it refreshes a shared disk."""
    try:
        with open(path, "rb", opener=regular) as file:
            return os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        return -1
