"""Text files for the contract of sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.sources.tables.text import TextLines

from .case import Bad, Case
from .table_cases import BAD_ROW, ROWS, SPLIT, file_of, names_of

LINES = [f"line {i} é" if i % 5 else "" for i in range(ROWS)]


def write_lines(line_end: str, *, ends: bool = True) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        paths = names_of(folder, ".txt")
        for number, path in enumerate(paths):
            lines = LINES[SPLIT[number] : SPLIT[number + 1]]
            text = line_end.join(lines) + (line_end if lines and (ends or not lines[-1]) else "")
            Path(path).write_bytes(text.encode())
        return paths

    return write


def line_of_file(paths: list[str], row: int) -> str:
    """As an editor counts it."""
    return f"{paths[file_of(row)]}, line {row - SPLIT[file_of(row)] + 1}"


def spoil_line(paths: list[str]) -> Bad:
    """A line that is not UTF-8."""
    path = paths[file_of(BAD_ROW)]
    lines = Path(path).read_bytes().splitlines(keepends=True)
    place = BAD_ROW - SPLIT[file_of(BAD_ROW)]
    start = sum(map(len, lines[:place]))
    lines[place] = b"\xff" + lines[place][1:]
    Path(path).write_bytes(b"".join(lines))
    return Bad(BAD_ROW, f"{line_of_file(paths, BAD_ROW)}, byte {start}", "UTF-8", {"text": None})


def text_case(name: str, write: Callable[[Path], list[str]]) -> Case:
    return Case(name, write, TextLines, {"text": LINES}, line_of_file, spoil=spoil_line)


CASES = [
    text_case("text", write_lines("\n")),
    text_case("text of Windows", write_lines("\r\n")),
    text_case("text without an end", write_lines("\n", ends=False)),
]
