"""Checks the links, storage and sizes of HDF5 files before they are loaded. No link out of a file is followed."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn

from penstock.errors import DeviceError
from penstock.models.facts import Malformed, shown_bytes

_LISTED = ("layer_names",)
_ATTRIBUTES = ("model_config", "keras_version", "backend", *_LISTED)
MAGIC = b"\x89HDF\r\n\x1a\n"
_BOMB_FLOOR = 64 << 20
_BOMB_FACTOR = 200
"""A file is refused if its arrays declare more bytes than the floor, and more than its own size times the factor. Keras
compresses nothing."""

LIMIT_S = 30.0
"""The processor time that the check of a file may take. A file of thousands of arrays takes about a second."""
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_FRAMEWORKS = ("jax", "tensorflow", "torch")


@dataclass
class Contents:
    """What an HDF5 file holds: the attributes of its root that describe a model, and what needs trust."""

    attributes: dict[str, Any] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    needs_trust: list[str] = field(default_factory=list)
    num_bytes: int = 0
    """The bytes of all arrays once they are loaded."""


def is_hdf5(path: str) -> bool:
    """Whether a file is HDF5: its mark is at the start, or at 512, 1024, 2048 … after a block of the user's own."""
    with open(path, "rb") as file:
        for offset in (0, 512, 1024, 2048, 4096):
            file.seek(offset)
            if file.read(len(MAGIC)) == MAGIC:
                return True
    return False


def rehearse(look_at: Callable[[], object]) -> None:
    """Check a file in a forked process first: on some damaged files HDF5 crashes, or never returns.

    A fork costs milliseconds, where a new process that imports h5py costs hundreds. Where a fork is not safe, in a
    process with other threads or a framework, nothing is rehearsed.

    Raises:
        Malformed: HDF5 did not return, or crashed. Other errors are left to the look that follows.
    """
    try:
        import h5py  # noqa: F401 - before the fork, so that h5py is imported once
    except ImportError:
        return  # `look` raises the error
    if not may_fork():
        return
    with warnings.catch_warnings():  # Python 3.12 warns of any thread; those of numpy do not matter to h5py
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        _look_and_exit(look_at)
    try:
        _, status = os.waitpid(process, 0)
    except BaseException:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if ended_by == signal.SIGPROF:
        raise Malformed(f"HDF5 does not come to an end with it: stopped after {LIMIT_S:g} s")
    if ended_by in _CRASHES:
        raise Malformed(f"HDF5 crashes on it ({signal.Signals(ended_by).name})")


def may_fork() -> bool:
    """Whether a fork of this process can check a file: no other thread may hold a lock that the fork needs."""
    return threading.active_count() == 1 and not any(name in sys.modules for name in _FRAMEWORKS)


def _look_and_exit(look_at: Callable[[], object]) -> NoReturn:
    try:
        for number in (signal.SIGPROF, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # The kernel ends this process at the limit, even if its parent is gone. Waiting for a slow disk does not count.
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        look_at()
    finally:
        os._exit(0)


def look(file: str | IO[bytes], file_bytes: int) -> Contents:
    """Walk a file without following what leads out of it.

    Raises:
        Malformed: It is damaged, or declares arrays far beyond its size.
        DeviceError: h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise DeviceError(
            "h5py is not installed", received="a model in HDF5", hint="pip install 'penstock[tensorflow]'"
        ) from error
    try:
        with h5py.File(file, "r") as opened:
            contents = Contents(_attributes(opened, file_bytes), frozenset(opened))
            for path, kind, item in _items(opened):
                _check(contents, path, kind, item)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise Malformed(f"HDF5: {error}") from None
    if contents.num_bytes > _BOMB_FLOOR and contents.num_bytes > _BOMB_FACTOR * file_bytes:
        declared, real = shown_bytes(contents.num_bytes), shown_bytes(file_bytes)
        raise Malformed(f"it declares arrays of {declared} in a file of {real}")
    return contents


def _attributes(root: Any, file_bytes: int) -> dict[str, Any]:
    """The attributes that describe a model. Others are not read: one may refer to the same text a million times."""
    import h5py

    attributes: dict[str, Any] = {}
    for name in _ATTRIBUTES:
        if name not in root.attrs:
            continue
        attribute = h5py.h5a.open(root.id, name.encode())
        if name in _LISTED:
            attributes[name] = None  # that it is there is enough
        elif attribute.shape != () or attribute.get_storage_size() > file_bytes:
            raise Malformed(f"the attribute {name} is no text")
        else:
            attributes[name] = root.attrs[name]
    return attributes


def _items(root: Any) -> Iterator[tuple[str, str, Any]]:
    """Every link and every array, each object once, as (path, kind, thing)."""
    import h5py

    pending, seen = [("", root)], set()
    while pending:
        path, group = pending.pop()
        for name in group:
            below = f"{path}/{name}"
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                yield below, "link", link
            if not isinstance(link, h5py.HardLink):
                continue  # the target of a soft link is seen under its own name, or behind an external link
            item = group[name]
            info = h5py.h5o.get_info(item.id)
            if (info.fileno, info.addr) in seen:
                continue
            seen.add((info.fileno, info.addr))
            if isinstance(item, h5py.Group):
                pending.append((below, item))
            elif isinstance(item, h5py.Dataset):
                yield below, "array", item


def _check(contents: Contents, path: str, kind: str, item: Any) -> None:
    if kind == "link":
        contents.needs_trust.append(f"{path} is a link into another file: {item.filename}:{item.path}")
        return
    contents.num_bytes += int(item.nbytes)
    if item.external:
        names = ", ".join(str(name) for name, *_ in item.external[:3])
        contents.needs_trust.append(f"{path} keeps its values in another file: {names}")
    if item.is_virtual:
        names = ", ".join(sorted({str(source.file_name) for source in item.virtual_sources()} - {"."})[:3])
        if names:
            contents.needs_trust.append(f"{path} is put together from other files: {names}")
