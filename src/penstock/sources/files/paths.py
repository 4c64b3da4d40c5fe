"""Files behind the arguments of a command, in the order of their rows; the only module that opens files.

A path may be a URL, which `remote` reads. `expand` turns `file://` URLs into paths, and copies `memory://` files.
"""

import errno
import io
import os
import stat
from collections.abc import Collection, Iterable, Sequence
from typing import BinaryIO, cast

from penstock.core.records import Fragment
from penstock.errors import InputError
from penstock.sources.files import listing, remote, remote_listing
from penstock.sources.files.listing import Group
from penstock.sources.files.listing import Paths as Paths
from penstock.sources.files.listing import suffix_of as suffix_of
from penstock.sources.files.remote import is_url as is_url

BUFFER_BYTES = 1 << 20


def expand(arguments: Sequence[str], suffixes: Collection[str], last_resort: Collection[str] = ()) -> Paths:
    """The files behind the arguments, in the order given; those of a folder or glob by relative path, bytewise.

    A file that is an argument itself may have any suffix. Of a folder, the files with a known suffix are taken, or else
    those with one of `last_resort`; names that start with a dot or an underscore are skipped, as is usual. An http URL
    is a file.

    Raises:
        InputError: An argument matches nothing.
    """
    groups: list[Group] = []
    named: list[str] = []
    for argument in map(_settled, arguments):
        kind = _kind(argument)
        if kind == "file":
            named.append(argument)
            continue
        groups += [_outright(named), _several(argument, kind, suffixes, last_resort)]
        named = []
    return Paths([*groups, _outright(named)])


def _settled(argument: str) -> str:
    if argument.startswith("file://"):
        return argument.removeprefix("file://")
    return remote_listing.bring_memory(argument) if argument.startswith("memory://") else argument


def _kind(argument: str) -> str | None:
    if is_url(argument):
        return remote_listing.kind_of(argument)
    return "directory" if os.path.isdir(argument) else "file" if os.path.exists(argument) else None


def _several(argument: str, kind: str | None, suffixes: Collection[str], last_resort: Collection[str]) -> Group:
    """The files of a folder or a glob."""
    is_remote = is_url(argument)
    if kind == "directory":
        walk = remote_listing.walk if is_remote else listing.walk
        paths = walk(argument, suffixes, last_resort)
        if not len(paths):
            allowed = ", ".join(sorted({*suffixes, *last_resort}))
            raise InputError("the folder holds no file of a known format", received=argument, allowed=allowed)
    elif listing.has_magic(argument):
        paths = remote_listing.match(argument) if is_remote else listing.match(argument)
        if not len(paths):
            raise InputError("the glob matches no file", received=argument)
    else:
        raise InputError("no such file or folder", received=argument)
    return paths


def _outright(paths: Iterable[str]) -> Group:
    """Files that are named one by one, in their order."""
    collector = listing.Collector()
    for path in paths:
        if not is_url(path):
            check_is_file(path)
        known = fragment(path if is_url(path) else os.path.abspath(path))
        collector.add(os.fsencode(known.path), known.size, known.mtime_ns, suffix_of(known.path))
    return collector.finish("", is_sorted=True)


def check_is_file(path: str) -> None:
    """Refuse what cannot be read twice and at any offset: opening a pipe waits for ever, and a device has no end.

    Raises:
        InputError: It is a pipe, a device or a socket.
    """
    _check_mode(path, os.stat(path).st_mode)


def _regular(path: str, flags: int) -> int:
    """The `opener` of `open`, which refuses pipes and devices: one may have replaced the file since it was listed."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        _check_mode(path, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_mode(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise InputError(
            f"{kind} cannot be read: the input is read more than once, by several processes",
            received=path,
            allowed="files, folders, globs and URLs",
            hint="write it to a file first; or give penstock.predict a generator, which is read once",
        )


def open_binary(path: str, buffer_bytes: int = BUFFER_BYTES) -> BinaryIO:
    """A file that is read at any offset. From a URL, at least `buffer_bytes` are fetched, and no more are kept."""
    if not is_url(path):
        return open(path, "rb", opener=_regular)
    ranged = remote.RangedFile(path)
    return cast(BinaryIO, io.BufferedReader(ranged, buffer_bytes) if buffer_bytes else ranged)


def open_as_listed(paths: Sequence[str], number: int) -> BinaryIO:
    """The file behind a URL, without a buffer, as it was when it was listed.

    Raises:
        InputError: The object changed since. (Only checked on S3: other stores may report a version in another form
            when a file is opened than when it is listed.)
    """
    file = remote.RangedFile(paths[number])
    if isinstance(paths, Paths) and file.version is not None and file.version != int(paths.mtimes[number]):
        raise remote.changed(file.url)
    return cast(BinaryIO, file)


def read_bytes(path: str, start: int = 0, nbytes: int | None = None) -> bytes:
    """A piece of a file, or all of it. Shorter than asked for where the file ends."""
    if is_url(path):
        return remote.read_bytes(path, start, nbytes)
    if nbytes is None:
        with open(path, "rb", buffering=0, opener=_regular) as file:
            file.seek(start)
            return file.readall()
    # Without Python's file objects, which cost a third of the time for 60 KB.
    descriptor = _regular(path, os.O_RDONLY)
    try:
        if start:
            os.lseek(descriptor, start, os.SEEK_SET)
        raw = more = os.read(descriptor, nbytes)
        while more and len(raw) < nbytes:  # one call reads 2 GB at most
            more = os.read(descriptor, nbytes - len(raw))
            raw += more
    finally:
        os.close(descriptor)
    return raw


def read_many(paths: Sequence[str]) -> list[bytes | Exception]:
    """Whole small files; an error stands in its file's place. From a store, many are asked for at the same time."""
    if paths and all(map(is_url, paths)):
        return remote.read_many(paths)
    return [_read_or_error(path) for path in paths]


def _read_or_error(path: str) -> bytes | Exception:
    try:
        return read_bytes(path)
    except (OSError, InputError) as error:
        return error


def size_of(path: str) -> int:
    return remote.fragment(path).size if is_url(path) else os.path.getsize(path)


def fragment(path: str) -> Fragment:
    """The entry of a file in the fingerprint: its path, size and time of change."""
    if is_url(path):
        return remote.fragment(path)
    status = os.stat(path)
    return Fragment(path, status.st_size, status.st_mtime_ns)


def fragments(paths: Sequence[str]) -> Sequence[Fragment]:
    """The entries of files in the fingerprint, from their listing if there is one."""
    return paths.fragments() if isinstance(paths, Paths) else [fragment(path) for path in paths]


def listed(paths: Sequence[str], number: int) -> Fragment:
    """The entry of one file in the fingerprint, from the listing; without a listing, from the file itself."""
    return paths.fragment(number) if isinstance(paths, Paths) else fragment(paths[number])


def fail_unreadable(path: str, error: OSError) -> InputError:
    """The error for a file that is not there any more, or may not be read."""
    return InputError("the file cannot be read", received=f"{path}: {error.strerror or error}")


class NoRows(InputError):
    """There are files, but no row in them. An append has nothing to do then."""


def fail_empty(paths: Sequence[str]) -> NoRows:
    """The error for an input that has files but no rows."""
    return NoRows("the input has no rows", received=", ".join(paths[:3]) + (" …" if len(paths) > 3 else ""))
