"""One living run for each output folder."""

import contextlib
import fcntl
import os
import secrets
import socket
import time
from types import TracebackType
from typing import Self

from penstock.crash_points import crash_point
from penstock.errors import OutputError
from penstock.storage.disk import internal, make_folders, output_errors, regular

_LOOKS, _A_LOOK_S = 500, 0.01
_WORD = secrets.token_hex(16)
"""A word that no other process on any machine has: by it, nodes of a cluster check that they see the same folder."""


class OutputLock:
    """A lock that the kernel releases when its process ends, however it ends."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._path = internal(output, "lock")
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        with output_errors(
            "free space, or choose an --output where this user may make files; what was committed there before stays"
        ):
            return self._take()

    def _take(self) -> Self:
        make_folders(internal(self._output))
        descriptor = regular(self._path, os.O_RDWR | os.O_CREAT)
        crash_point("lock_opened")
        try:
            _lock_unless_held(descriptor)
            if not self._is_still_there(descriptor):
                os.close(descriptor)
                return self._take()
        except BlockingIOError:
            holder = _first_line(descriptor)
            os.close(descriptor)
            raise OutputError(
                "the output folder is locked by a run that is alive",
                received=f"{self._output}, held by {holder or 'an unknown process'}",
                hint="wait for it, stop it, or choose another --output",
            ) from None
        crash_point("lock_taken")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n{_WORD}\n".encode())
        os.fsync(descriptor)  # other machines see what is in a file of NFS once it is closed or synced
        self._descriptor = descriptor
        return self

    def _is_still_there(self, descriptor: int) -> bool:
        """Whether the lock file still exists: a job that never began removes it, and the lock on it is then void."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock_unless_held(descriptor: int) -> None:
    """Take the lock.

    Raises:
        BlockingIOError: A run holds it. Others may share it for a moment, as `holder_of` does.
    """
    for _ in range(_LOOKS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_A_LOOK_S)
    raise BlockingIOError


def holder_of(output: str) -> str | None:
    """The living run that holds the folder; None where none does. Takes nothing and changes nothing."""
    try:
        descriptor = regular(internal(output, "lock"), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _first_line(descriptor) or "an unknown process"
    finally:
        os.close(descriptor)
    return None


def _first_line(descriptor: int) -> str:
    return os.read(descriptor, 200).decode(errors="replace").partition("\n")[0].strip()
