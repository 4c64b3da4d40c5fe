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


@pytest.mark.parametrize("line", ["import own_folder.maths", "from own_folder import maths", "from . import maths"])
def test_files_of_folders_without_init_are_covered_where_they_are_imported(code: Path, line: str) -> None:
    write(code / "own_folder" / "layers.py", line)
    maths = write(code / "own_folder" / "maths.py")
    unused = write(code / "own_folder" / "unused.py")
    write(code / "own_model.py", "from own_folder.layers import layer\n")
    for module in ("own_folder.layers", "own_model"):
        assert is_covered(module, maths)
        assert not is_covered(module, unused)


def test_package_in_a_folder_without_init_is_covered_whole(code: Path) -> None:
    write(code / "own_folder" / "unused.py")
    (code / "own_folder" / "inner").mkdir()
    write(code / "own_folder" / "inner" / "__init__.py")
    maths = write(code / "own_folder" / "inner" / "maths.py")
    assert list(parts_of_module("own_folder.inner")) == [str(Path("own_folder", "inner"))]
    assert is_covered("own_folder.inner", maths)


@pytest.mark.parametrize("line", ["from own_folder import maths", "from .. import maths"])
@pytest.mark.parametrize("module", ["own_folder.inner", "own_folder.inner.layers"])
def test_package_in_a_folder_without_init_may_import_from_that_folder(code: Path, module: str, line: str) -> None:
    maths = write(code / "own_folder" / "maths.py")
    (code / "own_folder" / "inner").mkdir()
    init = write(code / "own_folder" / "inner" / "__init__.py")
    write(code / "own_folder" / "inner" / "layers.py", f"{line}\n")
    assert is_covered(module, maths)
    assert is_covered(module, init)


def test_module_is_told_from_a_file_of_its_name_without_a_suffix(code: Path) -> None:
    script, data = write(code / "own_maths"), write(code / "json")
    maths = write(code / "own_maths.py")
    write(code / "own_layers.py", "import json, own_maths\n")
    assert is_covered("own_layers", maths)
    assert not is_covered("own_layers", script)
    assert not is_covered("own_layers", data)


@pytest.mark.parametrize("name", ["01-maths", "2024_maths"])
def test_module_whose_name_is_no_word_of_python_is_covered(code: Path, name: str) -> None:
    write(code / "own_package" / "__init__.py", f"import importlib\nm = importlib.import_module('{name}')\n")
    assert is_covered("own_package", write(code / f"{name}.py"))


def test_links_that_lead_nowhere_are_passed_over(code: Path) -> None:
    (code / "round").symlink_to("round")
    (code / "gone").symlink_to("nowhere")
    write(code / "own_layers.py", "import round, gone, own_maths\n")
    assert is_covered("own_layers", write(code / "own_maths.py"))


def test_hidden_folders_of_a_package_are_left_out(code: Path) -> None:
    write(code / "own_package" / "__init__.py")
    assert not is_covered("own_package", write(code / "own_package" / ".venv" / "junk.py"))


@pytest.mark.parametrize(
    "line",
    [
        "import own_maths",
        "import os, own_maths as m",
        "from own_maths import scale",
        "def f():\n\tfrom own_maths import x",
        "import os; import \\\n own_maths",
        "try: from own_maths import x\nexcept ImportError: pass",
        "import importlib; m = importlib.import_module('own_maths')",
        "from importlib import import_module; m = import_module('own_maths')",
        "m = __import__('own_maths')",
    ],
)
def test_what_a_module_imports_from_its_folder_is_covered(code: Path, line: str) -> None:
    write(code / "own_layers.py", "import between\n")
    write(code / "between" / "__init__.py", f"import own_layers\n{line}\n")
    maths = write(code / "own_maths.py")
    assert is_covered("own_layers", maths)
    assert is_covered("own_layers", code / "between" / "__init__.py")
    assert not is_covered("own_layers", write(code / "unused.py"))


def test_what_a_module_imports_from_another_folder_is_covered(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of `PYTHONPATH=lib penstock predict …`."""
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    maths = write(tmp_path / "lib" / "own_maths.py", "from own_package.inner import x\n")
    (tmp_path / "lib" / "own_package").mkdir()
    inner = write(tmp_path / "lib" / "own_package" / "inner" / "__init__.py")
    write(code / "own_layers.py", "import own_maths\n")
    assert is_covered("own_layers", maths)
    assert is_covered("own_layers", inner)
    assert not is_covered("own_layers", write(tmp_path / "lib" / "unused.py"))
    parts = parts_of_module("own_layers")
    assert parts[str(Path("own_package", "inner"))] == str(tmp_path / "lib" / "own_package" / "inner")


def test_of_two_modules_the_one_that_python_imports_is_covered(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = write(code / "own_maths.py")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    imported = write(tmp_path / "lib" / "own_maths.py")
    write(code / "own_layers.py", "import own_maths\n")
    assert is_covered("own_layers", imported)
    assert not is_covered("own_layers", hidden)


def test_what_a_package_links_to_is_covered(code: Path, tmp_path: Path) -> None:
    write(code / "own_package" / "__init__.py")
    maths = write(tmp_path / "elsewhere" / "maths.py")
    (code / "own_package" / "inner").symlink_to(tmp_path / "elsewhere")
    (code / "own_package" / "round").symlink_to(code / "own_package")
    assert is_covered("own_package", maths)


def test_what_an_installed_package_brings_along_is_not_the_users_code(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray does, on its nodes alone: there the digest has to be the same."""
    brought = tmp_path / "site-packages" / "package" / "brought"
    brought.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(brought))
    write(code / "own_layers.py", "import own_maths\n")
    assert not is_covered("own_layers", write(brought / "own_maths.py"))


def install(folder: Path, files: dict[str, str]) -> None:
    """Put files into a folder as `pip install --target` does."""
    folder.joinpath("brought-1.0.dist-info").mkdir(parents=True)
    for name, text in files.items():
        write(folder / name, text)
    lines = [f"{name},sha256=0,{len(text)}\n" for name, text in files.items()]
    (folder / "brought-1.0.dist-info" / "RECORD").write_text("".join([*lines, "brought-1.0.dist-info/RECORD,,\n"]))


@pytest.mark.parametrize("name", ["brought/__init__.py", "brought.py"])
@pytest.mark.parametrize("is_beside", [True, False])
def test_what_was_installed_into_a_folder_of_any_name_is_not_the_users_code(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_beside: bool
) -> None:
    """It is not read, however much it is."""
    folder = code if is_beside else tmp_path / "target"
    install(folder, {name: "import own_maths\n"})
    monkeypatch.syspath_prepend(str(folder))
    write(code / "own_layers.py", "import brought, own_maths\n")
    assert is_covered("own_layers", write(code / "own_maths.py"))
    assert list(parts_of_module("own_layers")) == ["own_layers.py", "own_maths.py"]
    assert list(parts_of_module("brought")) == [name.removesuffix("/__init__.py")]
    assert is_covered("brought", folder / name)


def test_what_the_user_put_in_the_place_of_what_is_installed_is_covered(code: Path) -> None:
    install(code, {"brought/__init__.py": "", "own_maths.py": "as it was brought"})
    maths, plugin = write(code / "own_maths.py", "other"), write(code / "brought" / "plugin.py")
    write(code / "own_layers.py", "from brought import plugin\nimport own_maths\n")
    assert is_covered("own_layers", maths)
    assert is_covered("own_layers", plugin)
    assert list(parts_of_module("own_layers")) == [str(Path("brought", "plugin.py")), "own_layers.py", "own_maths.py"]


def test_of_a_damaged_record_nothing_counts(code: Path) -> None:
    install(code, {"own_maths.py": ""})
    with open(code / "brought-1.0.dist-info" / "RECORD", "ab") as record:
        record.write(b"\xff")
    write(code / "own_layers.py", "import own_maths\n")
    assert is_covered("own_layers", code / "own_maths.py")


def test_penstock_itself_is_not_the_users_code(code: Path) -> None:
    write(code / "own_layers.py", "import penstock\n")
    assert list(parts_of_module("own_layers")) == ["own_layers.py"]


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
    assert list(parts_of_module("pyarrow.parquet")) == ["pyarrow"]
    assert list(parts_of_module("json")) == ["json"]


def test_unknown_module_has_no_digest() -> None:
    assert of_module("no_such_module_of_anyone") is None
    assert of_module("json.nothing") is None
