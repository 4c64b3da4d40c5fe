"""Digests of model files and of modules: they change whenever what a job reads of them does."""

import hashlib
import importlib.util
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator

from penstock.errors import ModelError

_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([\w., \t]+))", re.MULTILINE | re.ASCII)


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
    """A digest of a module and of the user's own code that it imports; None where there is no such module.

    The module is not imported: it could import a framework into this process.
    """
    sources = [(os.path.relpath(path, os.path.dirname(part)), path) for part in parts_of_module(module)
               for path in _sources(part)]  # fmt: skip
    return of_files(sources) if sources else None


def parts_of_module(module: str) -> list[str]:
    """The files and packages that a module needs, found by name: its own whole package, or its file, and what these
    import from the folder that they are in. What is installed changes with its version, and is taken alone.
    """
    if find_module(module) is None:
        return []
    spec = importlib.util.find_spec(module.partition(".")[0])
    assert spec is not None
    parts = list(spec.submodule_search_locations or [str(spec.origin)])
    folder = os.path.dirname(parts[0])
    if folder in sysconfig.get_paths().values():
        return parts
    for part in parts:  # which grows
        for name in sorted(set().union(*map(_imported, _sources(part)))):
            path = os.path.join(folder, name)
            found = path + ".py" if os.path.isfile(path + ".py") else path
            is_code = found != path or os.path.isfile(os.path.join(path, "__init__.py"))
            if is_code and found not in parts:
                parts.append(found)
    return parts


def _sources(part: str) -> list[str]:
    if os.path.isfile(part):
        return [part]
    paths = (os.path.join(parent, name) for parent, _, names in os.walk(part) for name in names)
    return sorted(path for path in paths if path.endswith(".py"))


def _imported(path: str) -> set[str]:
    """The first names of what a file imports; also of a line of text that reads like it."""
    with open(path, "rb") as file:
        found = _IMPORT.findall(file.read())
    names = (name for one, several in found for name in (one, *several.split(b",")))
    return {name.split()[0].partition(b".")[0].decode() for name in names if name.strip()}


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
