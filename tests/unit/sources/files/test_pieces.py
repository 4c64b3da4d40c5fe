"""Spans over files that are divided by row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.files.pieces import even_parts, spans_of_files


@given(files=st.lists(st.integers(0, 40), max_size=10), rows_per_span=st.integers(1, 25))
def test_spans_cover_every_row_of_every_file_once_in_order(files: list[int], rows_per_span: int) -> None:
    spans = list(spans_of_files(files, rows_per_span))
    runs = [run for span in spans for run in span.locator]
    covered = [(file, row) for file, start, rows in runs for row in range(start, start + rows)]
    assert covered == [(file, row) for file, rows in enumerate(files) for row in range(rows)]
    assert [span.index for span in spans] == list(range(len(spans)))
    assert [span.start for span in spans] == [sum(s.rows for s in spans[:i]) for i in range(len(spans))]
    assert all(span.rows == sum(rows for _, _, rows in span.locator) for span in spans)
    assert all(span.rows == rows_per_span for span in spans[:-1])


@given(rows=st.integers(1, 5000), limit=st.integers(1, 600), multiple=st.integers(1, 64))
def test_parts_are_even_within_the_limit_and_multiples(rows: int, limit: int, multiple: int) -> None:
    limit = -(-limit // multiple) * multiple
    parts = even_parts(rows, limit, multiple)
    assert [start for start, _ in parts] == [sum(taken for _, taken in parts[:i]) for i in range(len(parts))]
    assert sum(taken for _, taken in parts) == rows
    assert all(0 < taken <= limit for _, taken in parts)
    assert all(taken % multiple == 0 for _, taken in parts[:-1])
    assert len({taken for _, taken in parts[:-1]}) <= 1
    assert len(parts) == -(-rows // limit)


def test_known_parts() -> None:
    assert even_parts(100, 64, 8) == [(0, 56), (56, 44)]
    assert even_parts(64, 64, 8) == [(0, 64)]
