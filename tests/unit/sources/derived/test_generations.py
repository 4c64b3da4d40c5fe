"""The files of a job that was appended to: one input, each span read from the files that it was made from."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from penstock.core.columns import to_arrow
from penstock.core.protocols import with_changes
from penstock.core.records import Block, RowFailure, Span, Watch
from penstock.sources.derived.generations import Generations
from penstock.sources.derived.wrapper import Around
from penstock.sources.tables.csv import CsvFiles

FILES = {"a.csv": range(5), "b.csv": range(5, 12), "c.csv": range(12, 20)}
BROKEN = 8


@pytest.fixture
def sources(tmp_path: Path) -> list[CsvFiles]:
    """Three generations of one file each. A row of the second has too few fields."""
    for name, rows in FILES.items():
        lines = ["id,word", *(f"{row}" if row == BROKEN else f"{row},w{row}" for row in rows)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [CsvFiles([str(tmp_path / name)]) for name in FILES]


@pytest.fixture
def grown(sources: list[CsvFiles]) -> tuple[Generations, list[Span]]:
    """The source of a job after two appends, and the spans of its manifest."""
    first = Generations(sources[:1], [0], 0)
    spans = list(first.divide(3))
    second = Generations(sources[:2], [0, spans[-1].stop], len(spans))
    spans += second.divide(3)
    third = Generations(sources, [0, 5, spans[-1].stop], len(spans))
    spans += third.divide(3)
    return third, spans


def rows_of(source: Generations, span: Span) -> list[int]:
    (failed,) = [[failure.row for failure in block.failures] for block in source.read(span, ["id"])] or [[]]
    return [row for block in source.read(span, ["id"]) for row in range(block.start, block.start + block.rows)
            if row not in failed]  # fmt: skip


def test_spans_and_rows_go_on_where_the_last_ended(grown: tuple[Generations, list[Span]]) -> None:
    _, spans = grown
    assert [span.index for span in spans] == list(range(len(spans)))
    assert [(span.start, span.stop) for span in spans] == [
        (0, 3), (3, 5), (5, 8), (8, 11), (11, 12), (12, 15), (15, 18), (18, 20)
    ]  # fmt: skip


def test_every_span_is_read_from_its_own_files(grown: tuple[Generations, list[Span]], tmp_path: Path) -> None:
    source, spans = grown
    for view in (source, pickle.loads(pickle.dumps(source)), source.with_floats(["id"])):
        read = [row for span in spans for row in rows_of(view, span)]
        assert read == [row for row in range(20) if row != BROKEN]
        values = [
            value
            for span in spans
            for block in view.read(span, ["id"])
            for place, value in enumerate(to_arrow(block.columns["id"]).to_pylist())  # type: ignore[arg-type]
            if block.start + place != BROKEN
        ]
        assert values == [row for row in range(20) if row != BROKEN]
    ends = [(source.origin(span, span.start), next(iter(source.extents(span, ["id"]))).file.path) for span in spans]
    assert [Path(path).name for _, path in ends] == ["a.csv"] * 2 + ["b.csv"] * 3 + ["c.csv"] * 3
    assert all(origin.startswith(path) for origin, path in ends)


def test_failures_have_the_numbers_of_the_job(grown: tuple[Generations, list[Span]]) -> None:
    source, spans = grown
    failures = [failure.row for span in spans for block in source.read(span, ["id"]) for failure in block.failures]
    assert failures == [BROKEN]


def test_run_of_some_generations_has_the_files_of_no_others(grown: tuple[Generations, list[Span]]) -> None:
    source, spans = grown
    assert [Path(fragment.path).name for fragment in source.fragments()] == list(FILES)
    some = pickle.loads(pickle.dumps(source.only({1})))
    assert [Path(fragment.path).name for fragment in some.fragments()] == ["b.csv", "c.csv"]
    assert rows_of(some, spans[2]) == [5, 6, 7]
    with pytest.raises(AssertionError, match="left out"):
        rows_of(some, spans[0])


class Reporting(Around):
    """A source that reports the first row of every span."""

    watch: Watch

    def watched_by(self, watch: Watch) -> Self:
        return with_changes(self, watch=watch)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        assert list(self.watch.poisoned) == [1]
        self.watch.begin(span.start, 1)
        return super().read(span, columns)


class Noting(Watch):
    """Notes the rows that are reported."""

    def __init__(self) -> None:
        self.poisoned = {6: RowFailure(6, "b.csv", "read", "Died", "it died")}
        self.begun: list[int] = []

    def begin(self, first_row: int, rows: int) -> None:
        self.begun.append(first_row)


def test_rows_are_reported_and_left_out_by_the_numbers_of_the_job(sources: list[CsvFiles]) -> None:
    source = Generations([sources[0], Reporting(sources[1])], [0, 5], 2)
    span = next(iter(source.divide(3)))
    watch = Noting()
    next(source.watched_by(watch).read(span, ["id"]))
    assert watch.begun == [5]
