"""Paths that a model names: whether they stay where the model is."""

from __future__ import annotations

import os
from collections.abc import Iterator


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
    """Whether what is behind a path lies outside of `home` (a real path) and of the store that it belongs to."""
    target = os.path.realpath(path)
    return not any(_is_inside(target, place) for place in (home, *_store_of(path)))


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _store_of(path: str) -> Iterator[str]:
    """The folder of contents of a Hugging Face cache: its snapshots are made of links into it."""
    before, found, _ = os.path.abspath(path).rpartition(f"{os.sep}snapshots{os.sep}")
    if found:
        yield os.path.join(os.path.realpath(before), "blobs")
