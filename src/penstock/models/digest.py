"""Digests of model files and of modules: a digest changes whenever something that a job reads of them changes."""

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
from collections.abc import Iterable, Iterator, Mapping

from penstock.errors import ModelError

_INSTALLED = {"site-packages", "dist-packages", "lib-dynload"}
_OURS = __name__.partition(".")[0]
_IMPORTING = ("import_module", "__import__")
_RECORDED = 3
"""The number of fields in a line of RECORD: path, digest and size of a file."""
_WORD = re.compile(rb"[\w\x80-\xff]+")


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
    """Every file below a folder, also behind links to folders, as a model may load files through links."""
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
    """The packages and files that a module needs, by their paths relative to the folder they are imported from.

    These are the module's whole package, or its file, and the user's own code that they import. An installed module is
    taken without its imports.
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
    if rest:  # folders without `__init__.py` come first: the first real package on the way to the module is taken whole
        path, _ = _located(module, {folder: {}}) or (path, folder)
    folders = _user_folders(folder)
    if _is_installed(folder) or _was_installed(_imported_file(path), folder, folders.get(folder, {})):
        folders = {}  # an installed module is taken without its imports
    names = _names_there(folders) - ({os.fsencode(top)} if spec.has_location else set())  # top is taken whole already
    found, new = dict[str, str](), [(path, folder)]
    while new:
        part, folder = new.pop()
        name = os.path.relpath(part, folder)
        if name not in found:
            found[name] = part
            new += _imported(part, folder, folders, names)
    return dict(sorted(found.items()))


def _is_installed(folder: str) -> bool:
    """Whether a folder holds only installed modules. It may lie inside of a package that brings modules of its own."""
    return not _INSTALLED.isdisjoint(folder.split(os.sep)) or folder in sysconfig.get_paths().values()


def _user_folders(own: str) -> dict[str, dict[str, str]]:
    """The folders that the user's own code is imported from, in Python's order, each with the files installed into it.

    `own`, the folder of a module, is one of them. Folders that cannot be listed are left out: Python imports nothing
    from them.
    """
    folders = dict.fromkeys([*map(os.path.abspath, sys.path), own])
    listed = (each for each in folders if os.path.isdir(each) and os.access(each, os.R_OK))
    return {folder: _installed_into(folder) for folder in listed if not _is_installed(folder)}


def _installed_into(folder: str) -> dict[str, str]:
    """The sizes of files that an installer put into a folder of any name (`pip install --target`), by relative path."""
    sizes = dict[str, str]()
    for record in glob.iglob(os.path.join(glob.escape(folder), "*.dist-info", "RECORD")):
        with contextlib.suppress(OSError, ValueError, csv.Error), open(record, encoding="utf-8", newline="") as lines:
            sizes.update([(os.path.normpath(row[0]), row[2]) for row in csv.reader(lines) if len(row) == _RECORDED])
    return sizes


def _was_installed(file: str, folder: str, installed: Mapping[str, str]) -> bool:
    """Whether a file is still as it was installed into a folder: a file whose size changed counts as the user's."""
    size = installed.get(os.path.relpath(file, folder))
    return size is not None and os.path.isfile(file) and size == str(os.path.getsize(file))


def _names_there(folders: Iterable[str]) -> set[bytes]:
    """The names of the modules and packages in these folders."""
    names = set[str]()
    for folder in folders:
        with contextlib.suppress(OSError):  # it is gone
            for entry in os.listdir(folder):
                name, dot, suffix = entry.partition(".")
                if suffix == "py" or (not dot and os.path.isdir(os.path.join(folder, entry))):
                    names.add(name)
    return set(map(os.fsencode, names - {_OURS, "__pycache__"}))


def _imported_file(part: str) -> str:
    """The file that Python reads first when it imports a package or a file."""
    return os.path.join(part, "__init__.py") if os.path.isdir(part) else part


def _sources(part: str) -> list[str]:
    if os.path.isfile(part):
        return [part]
    return sorted(path for path in files_below(part, hidden=False) if path.endswith(".py"))


def _imported(
    part: str, folder: str, folders: Mapping[str, Mapping[str, str]], names: set[bytes]
) -> list[tuple[str, str]]:
    """The user's own packages, and files outside of packages, that a file or the files of a package import.

    `names` has the names of all modules and packages in `folders`.
    """
    found = set[tuple[str, str] | None]()
    is_package = os.path.isdir(part) and os.path.dirname(part) == folder
    for path in _sources(part):
        package = os.path.relpath(os.path.dirname(path), folder).split(os.sep)
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # what cannot be read cannot be imported
            with open(path, "rb") as file:
                content = file.read()
            if is_package and not _mentions(content, names):
                continue  # parsing a large package is slow, and this file imports nothing from `folders`
            nodes = ast.walk(ast.parse(content))
            found.update(_located(name, folders) for node in nodes for name in _names(node, package))
    return sorted(each for each in found if each is not None)


def _mentions(content: bytes, names: set[bytes]) -> bool:
    """Whether a source contains one of these names, also one that is no identifier: `import_module` takes any name."""
    odd = (name for name in names if not _WORD.fullmatch(name))
    return not names.isdisjoint(_WORD.findall(content)) or any(name in content for name in odd)


def _names(node: ast.AST, package: list[str]) -> list[str]:
    """The modules that an import statement, or a call of `import_module`, names; `package` is the package around it."""
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
    """The absolute name of a module that is imported inside of `package` with `level` leading dots."""
    start = package[: len(package) + 1 - level] if level else []
    return ".".join(filter(None, [*(name for name in start if name != "."), module]))


def _located(name: str, folders: Mapping[str, Mapping[str, str]]) -> tuple[str, str] | None:
    """The package that holds a module, or its file if no package does, and the folder that it is imported from.

    Installed packages and files are passed over for the first one inside of them that is the user's; None if there is
    none.
    """
    pieces = list(filter(None, name.split(".")))
    if pieces[:1] == [_OURS]:
        return None
    for folder, installed in folders.items():
        path, is_there = folder, False
        for piece in pieces:
            path = os.path.join(path, piece)
            for part, file in ((path, os.path.join(path, "__init__.py")), (path + ".py", path + ".py")):
                if os.path.isfile(file):
                    if not _was_installed(file, folder, installed):
                        return part, folder
                    is_there = True
        if is_there:
            return None
    return None


def find_module(module: str) -> str | None:
    """The file of a module. `find_spec` would import the module's package; here its folders are only searched."""
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
