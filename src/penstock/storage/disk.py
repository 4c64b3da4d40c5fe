"""The few ways in which storage touches a disk."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

import google_crc32c

from penstock.crash_points import crash_point
from penstock.errors import OutputError

INTERNAL = "_penstock"
"""The folder inside the output folder that belongs to penstock."""
_STEP_BYTES = 1 << 20

RESUMABLE = "what is committed stays: mend it and run the same command again"


def internal(output: str, *names: str) -> str:
    """A path inside penstock's own folder of an output folder."""
    return os.path.join(output, INTERNAL, *names)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFile(OutputError):
    """Something else stands where a file of the output should be: `kind` says what."""

    kind = "no regular file"


def _not_a_file(path: str, mode: int) -> NotAFile:
    kind = _KINDS.get(stat.S_IFMT(mode), NotAFile.kind)
    error = NotAFile(
        "a file of the output is not a file",
        received=f"{path}: it is {kind}",
        hint="remove it, or put the file back that penstock wrote",
    )
    error.kind = kind
    return error


def regular(path: str, flags: int) -> int:
    """Open a regular file, as the `opener` of `open`. To open or to read a FIFO might wait for ever.

    Raises:
        NotAFile: It is anything else.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.EISDIR):  # a socket, a FIFO without a reader; a folder
            raise
        raise _not_a_file(path, os.stat(path).st_mode) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise _not_a_file(path, mode)


@contextmanager
def output_errors(hint: str = RESUMABLE) -> Iterator[None]:
    """Raise what the disk refuses (no space, no permission) as an OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            "the output cannot be written",
            received=str(error),
            hint=hint,
        ) from error


def fsync_folder(path: str) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(path: str, staging: str | None = None) -> str:
    """The name that a file has until it is whole: in the folder `staging`, or beside its own."""
    return os.path.join(staging or os.path.dirname(path), os.path.basename(path) + ".tmp")


def write_whole(path: str, content: bytes, staging: str | None = None) -> None:
    """Write a file so that after any crash it is either the old one or the new one."""
    temporary = temporary_name(path, staging)
    with open(temporary, "wb", opener=regular) as file:
        crash_point("manifest_begun")
        file.write(content)
        file.flush()
        crash_point("manifest_written")
        os.fsync(file.fileno())
    crash_point("manifest_synced")
    os.replace(temporary, path)
    crash_point("manifest_renamed")
    fsync_folder(os.path.dirname(path))
    crash_point("manifest_settled")


def append_whole(file: IO[bytes], content: bytes) -> None:
    """Append to a file that has no buffer; if the disk refuses, no part of the content stays in it."""
    size = os.fstat(file.fileno()).st_size
    try:
        while content:
            content = content[file.write(content) :]
    except OSError:
        with suppress(OSError):
            file.truncate(size)
        raise


def make_folders(path: str) -> None:
    """Make a folder and its parents, each of them on the disk before this returns."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_folders(parent)
    os.makedirs(path, exist_ok=True)
    fsync_folder(parent)


def checksum_of(content: bytes) -> str:
    """The CRC32C of the content of a file, as the journal has it."""
    return f"{google_crc32c.value(content):08x}"


def checksum_of_file(path: str) -> str:
    """The CRC32C of a file, which is read in pieces: from the page cache, if it was just written."""
    value = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_STEP_BYTES):
            value = google_crc32c.extend(value, piece)
    return f"{value:08x}"
