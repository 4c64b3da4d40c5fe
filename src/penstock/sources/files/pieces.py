"""Spans over files that are divided by row: a span is a few runs of rows, and may cover several small files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.core.records import Span


def spans_of_files(rows_of_files: Iterable[int], rows_per_span: int) -> Iterator[Span]:
    """Cut files, known by their numbers of rows, into spans of `rows_per_span` rows; files join without a gap."""
    index = start = filled = 0
    runs: list[tuple[int, int, int]] = []
    for file, rows in enumerate(rows_of_files):
        position = 0
        while position < rows:
            taken = min(rows - position, rows_per_span - filled)
            runs.append((file, position, taken))
            position, filled = position + taken, filled + taken
            if filled == rows_per_span:
                yield Span(index, start, filled, tuple(runs))
                index, start, filled, runs = index + 1, start + filled, 0, []
    if runs:
        yield Span(index, start, filled, tuple(runs))


def origin_of_run(paths: Sequence[str], start: int, runs: Iterable[tuple[int, int, int]], row: int) -> str:
    """The file and the row in it of `row`, in a span that begins at `start` and is made of (file, first row, rows)."""
    place = row - start
    for file, first, rows in runs:
        if place < rows:
            return f"{paths[file]}, row {first + place}"
        place -= rows
    return ""


def even_parts(rows: int, limit: int, multiple: int) -> list[tuple[int, int]]:
    """Cut `rows` into the fewest runs of at most `limit` rows, all but the last a multiple of `multiple`.

    >>> even_parts(100, 64, 8)
    [(0, 56), (56, 44)]
    """
    count = -(-rows // limit)
    size = -(-rows // count)
    size = min(limit, -(-size // multiple) * multiple)
    return [(start, min(size, rows - start)) for start in range(0, rows, size)]
