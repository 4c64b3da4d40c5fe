"""Digests of model files and of modules: they change whenever the answers could."""

import hashlib
import importlib.util
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


def of_module(module: str) -> str | None:
    """A digest of a module's file, or of all files of a package; None where there is no such module.

    The module is not imported: it could import a framework into this process.
    """
    files = _files(module)
    return of_files(files) if files else None


def _files(module: str) -> list[tuple[str, str]]:
    source_file = find_module(module)
    if source_file is None:
        return []
    if os.path.basename(source_file) != "__init__.py":
        return [(module, source_file)]
    folder = os.path.dirname(source_file)
    paths = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names if name[-3:] == ".py"]
    return [(os.path.relpath(path, folder), path) for path in sorted(paths)]


def find_module(module: str) -> str | None:
    """The file of a module. Its package is looked through, and not imported as `find_spec` would do."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return spec.origin if spec.has_location else None
    for folder in spec.submodule_search_locations or ():
        base = os.path.join(folder, *rest)
        for path in (base + ".py", os.path.join(base, "__init__.py")):
            if os.path.isfile(path):
                return path
    return None
