"""The cache folder of the user: what is in it can be made anew, and nobody else may put anything into it."""

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Any

PLANS, CONVERTED, COMPILED = "plans", "converted", "compiled"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> str:
    """`$PENSTOCK_CACHE`, or `penstock` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("PENSTOCK_CACHE") or os.path.join(base, "penstock")


def own_folder(*names: str) -> str | None:
    """A folder in the cache to which only this user can write, made if it is missing; None if that is not possible.

    Penstock runs what is kept there, so a folder that another user made, or may write to, is not used.
    """
    folder = cache_folder()
    try:
        os.makedirs(folder, exist_ok=True)
        for name in names:
            folder = os.path.join(folder, name)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not is_own(folder):
                return None
    except OSError:
        return None
    return folder if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else None


def is_own(path: str) -> bool:
    """Whether a path is a file or folder (not a link) that this user owns and that others cannot write to."""
    found = os.lstat(path)
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not found.st_mode & _WRITABLE_BY_OTHERS


def as_json() -> dict[str, Any]:
    """The cache and the kinds of things in it: plain JSON."""
    kept = {
        entry.name: {"entries": len(os.listdir(entry.path)), "bytes": bytes_in(entry.path)}
        for entry in sorted(_folders(), key=lambda entry: entry.name)
    }
    return {"folder": cache_folder(), "kept": kept}


def in_words() -> str:
    """What `as_json` says, in lines."""
    kept = as_json()["kept"]
    lines = [f"  {name:<12}{each['entries']:>6,}  {each['bytes'] / 1e6:,.1f} MB" for name, each in kept.items()]
    return "\n".join([cache_folder() + ("" if kept else ": nothing is kept"), *lines])


def clear() -> None:
    """Empty the cache, except for what a running job needs; what cannot be removed stays."""
    for kind in _folders():
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(kind.path)):
                if not is_in_use(entry.path):
                    _remove(entry)
            os.rmdir(kind.path)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        os.remove(entry.path)


@contextlib.contextmanager
def in_use(path: str) -> Iterator[None]:
    """Lock a folder of the cache against removal: a job reads its model again when a replica restarts.

    `path` is the folder, or lies in it. Nothing is locked for a path outside of the cache.
    """
    cache = os.path.join(cache_folder(), "")
    inside = path.removeprefix(cache).split(os.sep)
    with contextlib.ExitStack() as held:
        if path.startswith(cache) and len(inside) > 1:
            with contextlib.suppress(OSError):
                descriptor = _open_folder(os.path.join(cache, *inside[:2]))
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def is_in_use(folder: str) -> bool:
    """Whether a job needs this folder of the cache."""
    try:
        descriptor = _open_folder(folder)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no locks on this disk
    finally:
        os.close(descriptor)
    return False


def _open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def bytes_in(folder: str) -> int:
    """The size of all files in a folder and below."""
    sizes = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                sizes += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue  # another run has just removed it
    return sizes


def _folders() -> Iterator[os.DirEntry[str]]:
    try:
        yield from (entry for entry in os.scandir(cache_folder()) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
