"""Digests of model files and of modules: they change whenever what a job reads of them does."""

import ast
import contextlib
import hashlib
import importlib.util
import os
import sysconfig
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
    """A digest of a module and of the user's own code that it imports; None where there is no such module.

    The module is not imported: it could import a framework into this process.
    """
    parts = parts_of_module(module)
    sources = [(path.replace(part, name, 1), path) for name, part in parts.items() for path in _sources(part)]
    return of_files(sources) if sources else None


def parts_of_module(module: str) -> dict[str, str]:
    """The packages and files that a module needs, by the names that they have below the folder of all: its own whole
    package, or its file, and what these import from that folder. What is installed is taken alone.
    """
    path = find_module(module)
    if path is None:
        return {}
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    assert spec is not None
    if spec.has_location:
        path, rest = str(spec.origin), []
    path = os.path.dirname(path) if os.path.basename(path) == "__init__.py" else path
    folder = os.path.normpath(os.path.join(os.path.dirname(path), *[".."] * len(rest)))
    is_installed = folder in sysconfig.get_paths().values()
    found, new = dict[str, str](), [path]
    while new:
        part = new.pop()
        found[os.path.relpath(part, folder)] = part
        others = [] if is_installed else sorted(_imported(part, folder))
        new += [other for other in others if other not in (*found.values(), *new)]
    return dict(sorted(found.items()))


def _sources(part: str) -> list[str]:
    if os.path.isfile(part):
        return [part]
    found = []
    for parent, folders, names in os.walk(part):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(parent, name) for name in names if name.endswith(".py")]
    return sorted(found)


def _imported(part: str, folder: str) -> set[str]:
    """What a file, or the files of a package, import from a folder: packages, and files that are in none."""
    beside = [name.removesuffix(".py").encode() for name in os.listdir(folder)]
    found = set[str | None]()
    for path in _sources(part):
        package = os.path.relpath(os.path.dirname(path), folder).split(os.sep)
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # what cannot be read cannot be imported
            with open(path, "rb") as file:
                content = file.read()
            if part != path and not any(name in content for name in beside):
                continue  # a large package is not parsed for nothing
            nodes = ast.walk(ast.parse(content))
            found.update(_located(name, folder) for node in nodes for name in _names(node, package))
    return {path for path in found if path is not None}


def _names(node: ast.AST, package: list[str]) -> list[str]:
    """The modules that a statement may import; `package` is the one that the statement is in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    start = package[: len(package) + 1 - node.level] if node.level else []
    module = ".".join([*(name for name in start if name != "."), *filter(None, [node.module])])
    return [module, *(f"{module}.{alias.name}".removeprefix(".") for alias in node.names)]


def _located(name: str, folder: str) -> str | None:
    """The package that a module is in, or its file where it is in none."""
    path = folder
    for piece in filter(None, name.split(".")):
        path = os.path.join(path, piece)
        if os.path.isfile(os.path.join(path, "__init__.py")):
            return path
        if os.path.isfile(path + ".py"):
            return path + ".py"
    return None


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
