"""What text files promise, besides what every source does."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from penstock.errors import InputError
from penstock.sources.tables import text as text_module
from penstock.sources.tables.text import TextLines

from .reading import read_span
from .text_cases import CASES


def test_file_that_lost_lines_since_it_was_divided_is_noticed(tmp_path: Path) -> None:
    source = CASES[0].open(CASES[0].write(tmp_path))
    spans = list(source.divide(64))
    os.truncate(tmp_path / "3.txt", 100)
    with pytest.raises(InputError, match="the file changed while it was read"):
        for _ in source.read(spans[-1], ["text"]):
            pass


def test_input_without_lines_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(InputError, match="the input has no rows"):
        list(TextLines([str(tmp_path / "a.txt")]).divide(10))


def test_line_that_would_not_fit_into_memory_is_a_failure_and_is_never_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "_LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(text_module, "_STEP_BYTES", 1 << 16)
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n" + b"x" * (40 << 20) + b"\nlast\n")
    source = TextLines([str(path)])
    (span,) = source.divide(10)
    tracemalloc.start()
    rows, (failure,) = read_span(source, span, ["text"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == {"text": ["first", None, "last"]}
    assert failure.origin == f"{path}, line 2, byte 6"
    assert failure.reason == f"the line is too long: {40 << 20} bytes, and at most {1 << 20} are read"
    assert peak < 8 << 20
