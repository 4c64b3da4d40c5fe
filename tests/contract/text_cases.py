"""Text files for the contract of sources."""

from __future__ import annotations

from pathlib import Path

from penstock.sources.text import TextLines

from .promises import Opened

LINES = [f"line {i} é" if i % 5 else "" for i in range(700)]
SPLIT = (0, 257, 257, 258, 700)  # four files, of which one has no lines and one has a single one


def write_lines(folder: Path, line_end: str, *, ends: bool = True) -> list[str]:
    paths: list[str] = []
    for number in range(4):
        lines = LINES[SPLIT[number] : SPLIT[number + 1]]
        text = line_end.join(lines) + (line_end if lines and (ends or not lines[-1]) else "")
        path = folder / f"{number}.txt"
        path.write_bytes(text.encode())
        paths.append(str(path))
    return paths


CASES = [
    Opened("text", lambda folder: TextLines(write_once(folder, "\n")), {"text": LINES}),
    Opened("text of Windows", lambda folder: TextLines(write_once(folder, "\r\n")), {"text": LINES}),
    Opened("text without an end", lambda folder: TextLines(write_once(folder, "\n", ends=False)), {"text": LINES}),
]


def write_once(folder: Path, line_end: str, *, ends: bool = True) -> list[str]:
    paths = sorted(str(path) for path in folder.glob("*.txt"))
    return paths or write_lines(folder, line_end, ends=ends)
