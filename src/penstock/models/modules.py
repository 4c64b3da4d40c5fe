"""Modules that are named and not yet imported: importing one could import a framework into this process."""

from __future__ import annotations

import importlib.util
import os

from penstock.models import digest


def digest_of_module(module: str) -> str | None:
    """A digest of a module's file, or of all files of a package; None where there is no such module."""
    files = _files(module)
    return digest.of_files(files) if files else None


def _files(module: str) -> list[tuple[str, str]]:
    found = _find(module)
    if found is None:
        return []
    if os.path.basename(found) != "__init__.py":
        return [(module, found)]
    folder = os.path.dirname(found)
    paths = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names if name[-3:] == ".py"]
    return [(os.path.relpath(path, folder), path) for path in sorted(paths)]


def _find(module: str) -> str | None:
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
