"""Paths that a model names, or that an archive holds: whether they stay where the model is."""

import os
import stat
import zipfile
from collections.abc import Iterator

from penstock.models.facts import Malformed, shown_bytes


def climbs(name: str) -> bool:
    """Whether a name that should lie in the model's own folder is absolute or leads out of it."""
    parts = name.replace("\\", "/").split("/")
    is_absolute = name.startswith(("/", "\\", "~")) or (len(name) > 1 and name[1] == ":") or "://" in name
    return is_absolute or ".." in parts


def links_out(folder: str) -> Iterator[str]:
    """The links in a folder that lead out of it, as `name → where`."""
    home = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(parent, name)
            if os.path.islink(path) and leads_out(path, home):
                yield f"{os.path.relpath(path, folder)} → {os.path.realpath(path)}"


def leads_out(path: str, home: str) -> bool:
    """Whether a path leads out of `home` (a real path) and, in a Hugging Face cache, out of the cache's store, too."""
    target = os.path.realpath(path)
    return not any(_is_inside(target, place) for place in (home, *_store_of(path)))


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _store_of(path: str) -> Iterator[str]:
    """The folder with the contents of a Hugging Face cache, into which the links of its snapshots lead."""
    before, separator, _ = os.path.abspath(path).rpartition(f"{os.sep}snapshots{os.sep}")
    if separator:
        yield os.path.join(os.path.realpath(before), "blobs")


_BOMB_FLOOR = 256 << 20
_BOMB_FACTOR = 200


def check_archive(archive: zipfile.ZipFile) -> None:
    """Refuse an archive that is made to do harm.

    Raises:
        Malformed: A member climbs out of the folder it is unpacked to, is a link, comes twice, or grows beyond measure.
    """
    names = set()
    for member in archive.infolist():
        if climbs(member.filename) or climbs(member.orig_filename):
            raise Malformed(f"the member {member.filename!r} leads out of the archive")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise Malformed(f"the member {member.filename!r} is a link")
        if member.filename in names:
            raise Malformed(f"the member {member.filename!r} comes twice")
        names.add(member.filename)
        if member.file_size > _BOMB_FLOOR and member.file_size > _BOMB_FACTOR * max(member.compress_size, 1):
            raise Malformed(
                f"the member {member.filename!r} grows from {shown_bytes(member.compress_size)}"
                f" to {shown_bytes(member.file_size)}"
            )
