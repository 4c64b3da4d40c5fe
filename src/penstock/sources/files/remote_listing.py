"""Lists of the objects behind URLs, fetched in pages, as compact as those of local files."""

import atexit
import contextlib
import fnmatch
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator
from typing import Any

from penstock.errors import InputError
from penstock.sources.files.listing import Collector, Group, as_prefix, suffix_of
from penstock.sources.files.remote import file_system, is_web, key_of, protocol_of, trying, version_of

PAGE_OBJECTS = 1000
"""The most objects that S3 lists in one answer."""


def kind_of(url: str) -> str | None:
    """`file`, `directory`, or None where there is nothing."""
    if is_web(url):
        return "file"
    system, key = file_system(url), key_of(url)
    try:
        info = trying(url, lambda: system.info(key))
    except FileNotFoundError:
        return None
    return "file" if info["type"] == "file" and not url.endswith("/") else "directory"


def walk(url: str, suffixes: Collection[str], last_resort: Collection[str] = ()) -> Group:
    """The objects below a prefix, as `listing.walk` gives the files below a folder."""
    matching, spare = Collector(), Collector()
    outputs: set[bytes] = set()
    for name, size, version in _list(url):
        folder, _, last = name.rpartition("/")
        if "_penstock" in folder.split("/")[1:]:
            outputs.add(folder[: folder.index("/_penstock")].encode())
        if any(part.startswith((".", "_")) for part in name.split("/")):
            continue
        suffix = suffix_of(last)
        wanted = matching if suffix in suffixes else spare if suffix in last_resort else None
        if wanted is not None:
            wanted.add(os.fsencode(name), size, version, suffix)

    def is_input(name: bytes) -> bool:
        return not any(name.startswith(output + b"/") for output in outputs)

    keep = is_input if outputs else None
    groups = (collected.finish(as_prefix(url), is_sorted=False, keep=keep) for collected in (matching, spare))
    return next((group for group in groups if len(group)), spare.finish(as_prefix(url), is_sorted=False))


def match(pattern: str) -> Group:
    """The objects that a glob matches, bytewise; stars and question marks mean what they mean for files."""
    literal = pattern[: re.search(r"[*?\[]", pattern).start()]  # type: ignore[union-attr]
    root = literal.rpartition("/")[0]
    parts = pattern[len(root) + 1 :].split("/")
    matching = Collector()
    for name, size, version in _list(root):
        if _matches(name.split("/"), parts):
            matching.add(os.fsencode(name), size, version, suffix_of(name))
    return matching.finish(as_prefix(root), is_sorted=False)


def _matches(name: list[str], pattern: list[str]) -> bool:
    """As Python's glob: a star stays inside its folder and matches no leading dot; two stars are any folders."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        rest = pattern[1:] or ["*"]
        return _matches(name, rest) or (len(name) > 1 and not name[0].startswith(".") and _matches(name[1:], pattern))
    if not name or (name[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


def _list(root: str) -> Iterator[tuple[str, int, int]]:
    """(name below the root, size, version) of every object."""
    system, key = file_system(root), key_of(root).rstrip("/")
    entries = _list_s3(root, system, key) if protocol_of(root) in ("s3", "s3a") else _list_other(root, system, key)
    for path, info in entries:
        name = path[len(key) + 1 :] if key else path
        if name and not name.endswith("/"):
            yield name, int(info.get("size", info.get("Size")) or 0), version_of(info)


def _list_other(root: str, system: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from trying(root, lambda: system.find(key, detail=True)).items()


def _list_s3(root: str, system: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects, page by page: the dictionaries of a million objects would take more than a gigabyte."""
    bucket, _, inside = key.partition("/")
    query = {"Bucket": bucket, "Prefix": as_prefix(inside) if inside else "", "MaxKeys": PAGE_OBJECTS}
    while True:
        page = trying(root, lambda asked=dict(query): system.call_s3("list_objects_v2", **asked))  # type: ignore[misc]
        for entry in page.get("Contents", ()):
            yield f"{bucket}/{entry['Key']}", entry
        if not page.get("IsTruncated"):
            return
        query["ContinuationToken"] = page["NextContinuationToken"]


_memory_folders: dict[int, str] = {}
_lock = threading.Lock()


def bring_memory(url: str) -> str:
    """Copy `memory://` files, which only this process can read, into a folder that is removed when the process ends.

    Returns:
        The path of the copy; a folder or a glob stays one.
    """
    system = file_system(url)
    with _lock:
        if os.getpid() not in _memory_folders:
            _memory_folders[os.getpid()] = tempfile.mkdtemp(prefix="penstock-memory-")
            atexit.register(_remove_copies, os.getpid())
    folder = _memory_folders[os.getpid()]
    key = key_of(url).strip("/")
    magic = re.search(r"[*?\[]", key)
    literal = key[: magic.start()].rpartition("/")[0] if magic and not system.exists("/" + key) else key
    paths = system.find("/" + literal)
    if not paths:
        hint = "memory:// files exist only in the process that made them"
        raise InputError("no such file or folder", received=url, hint=hint)
    for path in paths:
        if ".." in path.split("/"):
            raise InputError("the path of a memory:// file leads out of its folder", received=f"memory:/{path}")
        _copy_if_new(system.cat_file(path), os.path.join(folder, path.lstrip("/")))
    return os.path.join(folder, key)


def _copy_if_new(data: bytes, copy: str) -> None:
    with contextlib.suppress(OSError), open(copy, "rb") as file:
        if file.read() == data:
            return  # the copy keeps its time, so the same job is recognised
    os.makedirs(os.path.dirname(copy), exist_ok=True)
    with open(copy, "wb") as file:
        file.write(data)


def _remove_copies(process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(_memory_folders.pop(process), ignore_errors=True)
