"""Digests of files: they change whenever the answers could."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from penstock.errors import ModelError


def of_files(paths: Iterable[tuple[str, str]]) -> str:
    """The digest of files, each given as (name, path)."""
    digest = hashlib.sha256()
    for name, path in paths:
        digest.update(name.encode() + b"\0")
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
    names = sorted(
        os.path.relpath(os.path.join(parent, name), folder) for parent, _, files in os.walk(folder) for name in files
    )
    return of_files((name, os.path.join(folder, name)) for name in names)
