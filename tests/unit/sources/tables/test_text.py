"""Text files, line by line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.records import RowFailure
from penstock.sources.tables import lines, text
from penstock.sources.tables.text import TextLines


def read(path: Path, raw: bytes, rows_per_span: int = 1000) -> tuple[list[str | None], list[RowFailure]]:
    path.write_bytes(raw)
    source = TextLines([str(path)])
    found: list[str | None] = []
    failures: list[RowFailure] = []
    for span in source.divide(rows_per_span):
        for block in source.read(span, ["text"]):
            column = block.columns["text"]
            assert isinstance(column, pa.Array)
            assert block.start == len(found)
            found += column.to_pylist()
            failures += block.failures
    return found, failures


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text") / "file.txt"


LINES = st.lists(st.sampled_from(["", "a", "bb ü", "𝄞", "\t", "x" * 30, "in\rside"]), min_size=1, max_size=12)


@given(
    words=LINES,
    line_ends=st.lists(st.sampled_from(["\n", "\r\n"]), min_size=12, max_size=12),
    ends=st.booleans(),
    rows=st.integers(1, 5),
    step=st.integers(1, 40),
)
def test_every_line_is_a_row_whatever_the_size_of_a_piece(
    path: Path, words: list[str], line_ends: list[str], ends: bool, rows: int, step: int
) -> None:
    raw = "".join(word + end for word, end in zip(words, line_ends, strict=False))
    if not ends and words[-1]:
        raw = raw.removesuffix("\n").removesuffix("\r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_STEP_BYTES", step)
        patch.setattr(lines, "_SCAN_BYTES", step)
        found, failures = read(path, raw.encode(), rows)
    assert found == words
    assert failures == []


def test_blank_lines_are_rows(path: Path) -> None:
    assert read(path, b"\n\na\r\n\r\n")[0] == ["", "", "a", ""]


def test_byte_order_mark_belongs_to_no_line(path: Path) -> None:
    assert read(path, b"\xef\xbb\xbfa\nb")[0] == ["a", "b"]
    assert read(path, b"a\n\xef\xbb\xbfb", 1)[0] == ["a", "\ufeffb"]


def test_line_that_is_not_utf8_is_a_failure_that_names_its_line_and_byte(path: Path) -> None:
    found, failures = read(path, b"one\r\nt\xffwo\nthree\nf\xc3\n\xa9ive\n")
    assert found == ["one", None, "three", None, None]
    assert [failure.row for failure in failures] == [1, 3, 4]
    assert failures[0].origin == f"{path}, line 2, byte 5"
    assert failures[0].stage == "read"
    assert failures[0].reason == "the line is not UTF-8: invalid start byte at its byte 1"
    assert failures[1].origin == f"{path}, line 4, byte 16"


@pytest.mark.parametrize("step", [1, 7, 10, 64])
@pytest.mark.parametrize("rows", [1, 2, 10])
def test_lines_are_too_long_or_not_however_they_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: int, rows: int
) -> None:
    monkeypatch.setattr(text, "_LONGEST_LINE", 10)
    monkeypatch.setattr(text, "_STEP_BYTES", step)
    found, failures = read(
        path, b"a\n" + b"b" * 10 + b"\n" + b"c" * 11 + b"\n" + b"d" * 30 + b"\ne\n" + b"f" * 12, rows
    )
    assert found == ["a", "b" * 10, None, None, "e", None]
    assert [failure.row for failure in failures] == [2, 3, 5]
    assert failures[2].origin == f"{path}, line 6, byte {2 + 11 + 12 + 31 + 2}"


def test_text_is_one_column_of_strings(path: Path) -> None:
    assert {name: str(spec) for name, spec in TextLines([str(path)]).schema().items()} == {"text": "string[]"}
