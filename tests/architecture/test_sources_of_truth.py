"""Rules that hold for every file of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "penstock"
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [str(path.relative_to(SOURCE)) for path in FILES]
MOST_LINES = 600
"""A concept has one file: about 400 lines are a reason to look again, these are a wall."""


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_file_is_longer_than_600_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert docstring.strip().splitlines()[0].endswith((".", ":", "…"))


def test_there_are_files_to_look_at() -> None:
    assert len(FILES) > 40


def test_no_module_is_called_by_a_name_that_says_nothing() -> None:
    assert not {path.stem for path in FILES} & {"utils", "util", "helpers", "common", "misc", "manager", "base"}


def test_no_object_frees_memory_in_its_destructor() -> None:
    found = [
        f"{path.name}: {node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == "__del__"
    ]
    assert found == []


def test_core_touches_no_file_no_process_and_no_clock() -> None:
    forbidden = {"os", "subprocess", "socket", "time", "multiprocessing", "threading", "pathlib", "io", "tempfile"}
    found = [
        f"{path.name}: {name}"
        for path in (SOURCE / "core").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in imported(node)
        if name.partition(".")[0] in forbidden
    ]
    assert found == []


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
