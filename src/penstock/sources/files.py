"""From arguments to files: a file, several, a folder or a glob, in the order that rows will have."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Sequence
from typing import BinaryIO

from penstock.core.records import Fragment
from penstock.errors import InputError


def expand(arguments: Sequence[str], suffixes: Collection[str]) -> list[str]:
    """The files behind the arguments: arguments as given; folders and globs by relative path, bytewise.

    A file that is named outright may have any suffix; a folder gives those with a known one. Names that start
    with a dot or an underscore are skipped in folders, as everywhere in this field.

    Raises:
        InputError: An argument matches nothing.
    """
    files: list[str] = []
    for argument in arguments:
        if os.path.isdir(argument):
            found = _walk(argument, suffixes)
            if not found:
                raise InputError(
                    "the folder holds no file of a known format",
                    received=argument,
                    allowed=", ".join(sorted(suffixes)),
                )
            files += found
        elif os.path.exists(argument):
            files.append(argument)
        elif glob.has_magic(argument):
            matches = sorted((m for m in glob.glob(argument, recursive=True) if os.path.isfile(m)), key=os.fsencode)
            if not matches:
                raise InputError("the glob matches no file", received=argument)
            files += matches
        else:
            raise InputError("no such file or folder", received=argument)
    return [os.path.abspath(path) for path in files]


def _walk(folder: str, suffixes: Collection[str]) -> list[str]:
    found: list[str] = []
    walked: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        place = os.path.realpath(parent)
        if place in walked or (parent != folder and "_penstock" in folders):
            folders[:] = []  # a link back to where we were, or an output folder of penstock: not part of the input
            continue
        walked.add(place)
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        wanted = [name for name in names if not name.startswith((".", "_")) and suffix_of(name) in suffixes]
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in wanted]
    return [os.path.join(folder, path) for path in sorted(found, key=os.fsencode)]


def _unreadable(error: OSError) -> None:
    raise InputError("a folder cannot be read", received=f"{error.filename}: {error.strerror}")


def suffix_of(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def open_binary(path: str) -> BinaryIO:
    """A file, to be read from any place in it."""
    return open(path, "rb")


def read_bytes(path: str, start: int = 0, nbytes: int | None = None) -> bytes:
    """A piece of a file, or all of it. Shorter than asked for where the file ends."""
    with open_binary(path) as file:
        if start:
            file.seek(start)
        return file.read() if nbytes is None else file.read(nbytes)


def size_of(path: str) -> int:
    return os.path.getsize(path)


def fragment(path: str) -> Fragment:
    """A file as the fingerprint sees it."""
    status = os.stat(path)
    return Fragment(path, status.st_size, status.st_mtime_ns)


def fail_empty(paths: Sequence[str]) -> InputError:
    """The error for an input that has files but no rows."""
    return InputError("the input has no rows", received=", ".join(paths[:3]) + (" …" if len(paths) > 3 else ""))
