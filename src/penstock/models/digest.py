"""Digests of model files and of modules: they change whenever what a job reads of them does."""

import ast
import contextlib
import csv
import glob
import hashlib
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator

from penstock.errors import ModelError

_INSTALLED = {"site-packages", "dist-packages", "lib-dynload"}
_OURS = __name__.partition(".")[0]
_IMPORTING = ("import_module", "__import__")


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


def files_below(folder: str, *, hidden: bool = True) -> Iterator[str]:
    """Every file below a folder, also behind links to folders: what is loaded is covered, wherever it lies."""
    seen = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(parent))
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(parent, name)) not in seen]
        folders[:] = [name for name in folders if hidden or not name.startswith(".")]
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
    """The packages and files that a module needs, by the names that they have below the folder they are imported from:
    its own whole package, or its file, and what these import of the user's own code. What is installed is taken alone.
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
    folders = _user_folders(folder)
    if _is_installed(folder) or _file_of(path, folder) in folders.get(folder, ()):
        folders = {}  # it is taken alone
    named = _mention_of(_names_there(folders) - ({top} if spec.has_location else set()))  # all of top is covered
    found, new = dict[str, str](), [(path, folder)]
    while new:
        part, folder = new.pop()
        name = os.path.relpath(part, folder)
        if name not in found:
            found[name] = part
            new += _imported(part, folder, folders, named)
    return dict(sorted(found.items()))


def _is_installed(folder: str) -> bool:
    """Whether only installed modules are imported from a folder; packages bring others along inside of them."""
    return not _INSTALLED.isdisjoint(folder.split(os.sep)) or folder in sysconfig.get_paths().values()


def _user_folders(own: str) -> dict[str, set[str]]:
    """The folders that the user's own code is imported from, in Python's order, each with what was installed into it;
    that of a module is among them. Python imports nothing from a folder that it cannot list."""
    folders = dict.fromkeys([*map(os.path.abspath, sys.path), own])
    listed = (each for each in folders if os.path.isdir(each) and os.access(each, os.R_OK))
    return {folder: _installed_into(folder) for folder in listed if not _is_installed(folder)}


def _installed_into(folder: str) -> set[str]:
    """The files that an installer has put into a folder of any name, as `pip install --target` does, by their paths."""
    files = set[str]()
    for record in glob.iglob(os.path.join(glob.escape(folder), "*.dist-info", "RECORD")):
        with contextlib.suppress(OSError, ValueError, csv.Error), open(record, encoding="utf-8", newline="") as lines:
            files.update(os.path.normpath(row[0]) for row in csv.reader(lines) if row)
    return files


def _names_there(folders: dict[str, set[str]]) -> set[str]:
    """The names of the user's own modules and packages in these folders."""
    there = ((entry, folder) for folder in folders for entry in os.scandir(folder))
    own = (entry for entry, folder in there if _file_of(entry.path, folder) not in folders[folder])
    names = (entry.name.removesuffix(".py") for entry in own if entry.is_dir() or entry.name.endswith(".py"))
    return {name for name in names if name.isidentifier() and name != _OURS}


def _mention_of(names: set[str]) -> re.Pattern[bytes]:
    """What finds one of these names in a source; nothing where there is none."""
    return re.compile(rb"(?<!\w)(?:%s)(?!\w)" % ("|".join(names) or "(?!)").encode())


def _file_of(part: str, folder: str) -> str:
    """The path below a folder of what is read when a package, or a file, is imported from there."""
    return os.path.relpath(part if os.path.isfile(part) else os.path.join(part, "__init__.py"), folder)


def _sources(part: str) -> list[str]:
    if os.path.isfile(part):
        return [part]
    return sorted(path for path in files_below(part, hidden=False) if path.endswith(".py"))


def _imported(part: str, folder: str, folders: dict[str, set[str]], named: re.Pattern[bytes]) -> list[tuple[str, str]]:
    """What a file, or the files of a package, import of the user's own code: packages, and files that are in none.

    `named` finds what may be such a name.
    """
    found = set[tuple[str, str] | None]()
    for path in _sources(part):
        package = os.path.relpath(os.path.dirname(path), folder).split(os.sep)
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # what cannot be read cannot be imported
            with open(path, "rb") as file:
                content = file.read()
            if part != path and not named.search(content):
                continue  # a large package is not parsed for nothing
            nodes = ast.walk(ast.parse(content))
            found.update(_located(name, folders) for node in nodes for name in _names(node, package))
    return sorted(each for each in found if each is not None)


def _names(node: ast.AST, package: list[str]) -> list[str]:
    """The modules that a statement or a call may import, where it names them; `package` is the one that it is in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        name = node.args[0].value
        if called not in _IMPORTING or not isinstance(name, str):
            return []
        return [_absolute(name.lstrip("."), len(name) - len(name.lstrip(".")), package)]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = _absolute(node.module or "", node.level, package)
    return [module, *(f"{module}.{alias.name}".removeprefix(".") for alias in node.names)]


def _absolute(module: str, level: int, package: list[str]) -> str:
    """The name of a module that is named from inside a package, by so many dots."""
    start = package[: len(package) + 1 - level] if level else []
    return ".".join(filter(None, [*(name for name in start if name != "."), module]))


def _located(name: str, folders: dict[str, set[str]]) -> tuple[str, str] | None:
    """The package that a module is in, or its file where it is in none, and the folder it is imported from; None for
    what is installed there."""
    pieces = list(filter(None, name.split(".")))
    if pieces[:1] == [_OURS]:
        return None
    for folder, installed in folders.items():
        path = folder
        for piece in pieces:
            path = os.path.join(path, piece)
            for part in (path, path + ".py"):
                if os.path.isfile(os.path.join(folder, file := _file_of(part, folder))):
                    return None if file in installed else (part, folder)
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
