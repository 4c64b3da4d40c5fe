"""Digests of modules change with every piece of the user's code that they import."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path

import pytest

from penstock.models.digest import of_module, parts_of_module

_NUMBERS = itertools.count()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that no other test has."""
    folder = tmp_path / f"code{next(_NUMBERS)}"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return folder


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def is_covered(module: str, path: Path) -> bool:
    """Whether a change of a file changes the digest of a module."""
    before, text = of_module(module), path.read_text()
    path.write_text(text + "# changed\n")
    after = of_module(module)
    path.write_text(text)
    assert before is not None
    assert of_module(module) == before
    return after != before


def test_module_of_a_package_is_covered_with_the_whole_package(code: Path) -> None:
    write(code / "own_package" / "__init__.py")
    layers = write(code / "own_package" / "layers.py", "from .maths import scale\n")
    maths = write(code / "own_package" / "maths.py")
    other = write(code / "other.py")
    assert is_covered("own_package.layers", layers)
    assert is_covered("own_package.layers", maths)
    assert not is_covered("own_package.layers", other)


def test_folder_without_init_is_a_package_too(code: Path) -> None:
    write(code / "own_folder" / "layers.py", "import own_folder.maths\n")
    assert is_covered("own_folder.layers", write(code / "own_folder" / "maths.py"))


@pytest.mark.parametrize(
    "line",
    [
        "import own_maths",
        "import os, own_maths as m",
        "from own_maths import scale",
        "def f():\n\tfrom own_maths import x",
    ],
)
def test_what_a_module_imports_from_its_folder_is_covered(code: Path, line: str) -> None:
    write(code / "own_layers.py", "import between\n")
    write(code / "between" / "__init__.py", f"import own_layers\n{line}\n")
    maths = write(code / "own_maths.py")
    assert is_covered("own_layers", maths)
    assert is_covered("own_layers", code / "between" / "__init__.py")
    assert not is_covered("own_layers", write(code / "unused.py"))


def test_digest_does_not_tell_where_the_code_lies(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(code / "moved_layers.py", "import moved_maths\n")
    write(code / "moved_maths.py")
    before = of_module("moved_layers")
    code.rename(tmp_path / "elsewhere")
    importlib.invalidate_caches()
    assert of_module("moved_layers") is None
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert of_module("moved_layers") == before


def test_installed_packages_are_taken_alone() -> None:
    (part,) = parts_of_module("pyarrow.parquet")
    assert Path(part).name == "pyarrow"
    (part,) = parts_of_module("json")
    assert Path(part).name == "json"


def test_unknown_module_has_no_digest() -> None:
    assert of_module("no_such_module_of_anyone") is None
    assert of_module("json.nothing") is None
