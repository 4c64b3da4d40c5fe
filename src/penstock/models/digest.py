"""Digests of files: they change whenever the answers could."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

from penstock.errors import ModelError


def of_files(paths: Iterable[tuple[str, str]]) -> str:
    """The digest of files, each given as (name, path)."""
    digest = hashlib.sha256()
    for name, path in paths:
        digest.update(name.encode(errors="surrogateescape") + b"\0")
        try:
            with open(path, "rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise ModelError("the model cannot be read", received=f"{path}: {error.strerror}") from error
        digest.update(b"\0")
    return digest.hexdigest()


def of_folder(folder: str) -> str:
    """The digest of every file below a folder, by relative path."""
    names = sorted(os.path.relpath(path, folder) for path in files_below(folder))
    return of_files((name, os.path.join(folder, name)) for name in names)


def files_below(folder: str) -> Iterator[str]:
    """Every file below a folder, also behind links to folders: what is loaded is covered, wherever it lies."""
    seen = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(parent))
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(parent, name)) not in seen]
        paths = (os.path.join(parent, name) for name in files)
        yield from filter(os.path.isfile, paths)  # opening a pipe would wait for ever
