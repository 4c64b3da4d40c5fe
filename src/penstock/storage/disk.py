"""The few ways in which storage touches a disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import OutputError

INTERNAL = "_penstock"
"""The folder inside the output folder that belongs to penstock."""

RESUMABLE = "what is committed stays: mend it and run the same command again"


def internal(output: str, *names: str) -> str:
    """A path inside penstock's own folder of an output folder."""
    return os.path.join(output, INTERNAL, *names)


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


def write_whole(path: str, content: bytes) -> None:
    """Write a file so that after any crash it is either the old one or the new one."""
    temporary = path + ".tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_folder(os.path.dirname(path))


def make_folders(path: str) -> None:
    """Make a folder and its parents, each of them on the disk before this returns."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_folders(parent)
    os.makedirs(path, exist_ok=True)
    fsync_folder(parent)
