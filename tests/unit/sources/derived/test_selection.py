"""Some rows of another source: which they are, what they are called, where they come from."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.columns import to_arrow
from penstock.core.deferred import Deferred
from penstock.core.protocols import Source, SourceTraits
from penstock.core.records import Block, RowFailure, Span
from penstock.errors import InputError, UsageError
from penstock.sources.derived.selection import SelectedRows, WholeBatches, sample, select, to_runs
from penstock.sources.python.memory import InMemory
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.parquet import ParquetFiles

ROWS = 100
BROKEN = (7, 42, 43, 99)


def in_memory(rows: int = ROWS) -> InMemory:
    return InMemory({"id": np.arange(rows), "word": pa.array([f"w{row}" for row in range(rows)])})


def csv_files(folder: Path) -> CsvFiles:
    """Two files, four rows of which have too few fields."""
    for name, rows in (("a.csv", range(60)), ("b.csv", range(60, ROWS))):
        lines = ["id,word", *(f"{row}" if row in BROKEN else f"{row},w{row}" for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return CsvFiles([str(folder / "a.csv"), str(folder / "b.csv")])


def parquet_file(folder: Path) -> ParquetFiles:
    """One large row group, which is cut into spans of one group."""
    table = pa.table({"id": np.arange(ROWS), "word": [f"w{row}" for row in range(ROWS)]})
    pq.write_table(table, folder / "rows.parquet", row_group_size=ROWS)
    return ParquetFiles([str(folder / "rows.parquet")])


def from_json(span: Span) -> Span:
    """A span as a resumed run has it: from the text of its manifest."""

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    text = json.dumps([span.index, span.start, span.rows, span.locator, span.group, span.numbers])
    return Span(*(tuples(item) for item in json.loads(text)))


def read(source: Source, span: Span, columns: Sequence[str]) -> tuple[list[list[Any]], list[RowFailure]]:
    """The rows of a span, checked to be numbered without gaps, and its failures."""
    found: list[list[Any]] = [[] for _ in columns]
    failures: list[RowFailure] = []
    row = span.start
    for block in source.read(span, columns):
        assert block.start == row
        row += block.rows
        for values, name in zip(found, columns, strict=True):
            column = block.columns[name]
            assert not isinstance(column, Deferred)
            assert len(column) == block.rows
            values.extend(to_arrow(column).to_pylist())
        assert all(block.start <= failure.row < block.start + block.rows for failure in block.failures)
        failures += block.failures
    assert row == span.stop
    return found, failures


def check(selected: SelectedRows, expected: list[int], rows_per_span: int, broken: Sequence[int] = ()) -> list[Span]:
    """The rows of a selection are exactly these, under their numbers, also when the spans come out of a manifest."""
    spans = list(selected.divide(rows_per_span))
    assert spans == [from_json(span) for span in spans]
    assert spans == list(selected.divide(rows_per_span))
    assert [span.index for span in spans] == list(range(len(spans)))
    assert [span.start for span in spans] == np.cumsum([0, *(span.rows for span in spans)])[:-1].tolist()
    numbers: list[int] = []
    lost: list[int] = []
    for span in map(from_json, spans):
        (ids, words), failures = read(selected, span, ["id", "word"])
        own = [span.number(row) for row in range(span.start, span.stop)]
        failed = {span.number(failure.row) for failure in failures}
        assert [i for i, number in zip(ids, own, strict=True) if number not in failed] == [
            number for number in own if number not in failed
        ]
        assert all(words[place] == f"w{number}" for place, number in enumerate(own) if number not in failed)
        numbers += own
        lost += [span.number(failure.row) for failure in failures]
    assert numbers == expected
    assert lost == [row for row in expected if row in broken]
    return spans


SELECTIONS = [
    (0, 10),
    (0, None),
    (95, None),
    (95, 10),
    (30, 1),
    (58, 4),
    (0, ROWS),
    (0, ROWS + 50),
    (ROWS, 5),
    (500, None),
]


@pytest.mark.parametrize(("skip", "limit"), SELECTIONS)
@pytest.mark.parametrize("rows_per_span", [1, 8, 1000])
def test_skip_and_limit_take_the_rows_between(skip: int, limit: int | None, rows_per_span: int) -> None:
    expected = list(range(ROWS))[skip:][:limit]
    check(select(in_memory(), skip=skip, limit=limit), expected, rows_per_span)


@pytest.mark.parametrize(("skip", "limit"), SELECTIONS)
@pytest.mark.parametrize("rows_per_span", [8, 1000])
def test_rows_of_files_keep_their_failures_numbers_and_origins(
    tmp_path: Path, skip: int, limit: int | None, rows_per_span: int
) -> None:
    selected = select(csv_files(tmp_path), skip=skip, limit=limit)
    for span in check(selected, list(range(ROWS))[skip:][:limit], rows_per_span, BROKEN):
        for row in range(span.start, span.stop):
            number = span.number(row)
            place = f"{'a' if number < 60 else 'b'}.csv"
            assert place in selected.origin(span, row)


@given(rows=st.sets(st.integers(0, ROWS - 1)).map(sorted), rows_per_span=st.integers(1, 30))
def test_any_rows_can_be_taken(rows: list[int], rows_per_span: int) -> None:
    spans = check(SelectedRows(in_memory(), to_runs(np.array(rows, np.int64))), rows, rows_per_span)
    assert all(0 < span.rows <= rows_per_span for span in spans)


@pytest.mark.parametrize("rows", [[0], [7, 8], [42, 43, 59, 60, 61], [3, 50, 97, 99], list(range(0, ROWS, 7))], ids=str)
def test_any_rows_of_files_can_be_taken(tmp_path: Path, rows: list[int]) -> None:
    selected = SelectedRows(csv_files(tmp_path), to_runs(np.array(rows)))
    check(selected, rows, 16, BROKEN)
    failures = [f for span in selected.divide(16) for f in read(selected, span, ["id"])[1]]
    for failure in failures:
        assert failure.stage == "read"
        assert ".csv" in failure.origin


def test_origin_names_the_line_that_the_whole_source_would_name(tmp_path: Path) -> None:
    source = csv_files(tmp_path)
    (whole,) = [span for span in source.divide(1000) if span.start == 0][:1]
    selected = select(source, skip=20, limit=3)
    (span,) = selected.divide(1000)
    assert [selected.origin(span, row) for row in range(3)] == [source.origin(whole, 20 + row) for row in range(3)]


def test_spans_of_a_large_row_group_stay_apart_and_keep_their_group(tmp_path: Path) -> None:
    source = parquet_file(tmp_path)
    groups = [span.group for span in source.divide(5, 5)]
    assert len(set(groups)) == 1
    assert groups[0] is not None
    selected = SelectedRows(source, to_runs(np.arange(0, ROWS, 3)))
    spans = list(selected.divide(5, 5))
    assert {span.group for span in spans} == {groups[0]}
    assert [i for span in spans for i in read(selected, span, ["id"])[0][0]] == list(range(0, ROWS, 3))


def test_few_rows_of_many_spans_share_a_span() -> None:
    selected = SelectedRows(in_memory(), to_runs(np.array([3, 33, 63, 93])))
    assert [span.rows for span in selected.divide(10)] == [4]
    assert [span.rows for span in selected.divide(2)] == [2, 2]


def test_selection_says_what_its_source_says() -> None:
    source = in_memory()
    selected = select(source, skip=1, limit=2)
    assert selected.schema() == source.schema()
    assert selected.fragments() == source.fragments()
    assert selected.is_positional is False
    assert selected.traits == replace(source.traits, reads_at_random=False)
    assert (selected.keeps, selected.paths, selected.remarks()) == ((), (), [])


def test_selection_survives_pickling() -> None:
    copied = pickle.loads(pickle.dumps(select(in_memory(), skip=3, limit=4)))
    check(copied, [3, 4, 5, 6], 2)


class Endless:
    """A source that never ends, and says which of its spans were asked for and let go."""

    traits = SourceTraits(is_resumable=False)

    def __init__(self) -> None:
        self.made: list[int] = []
        self.released: list[tuple[int, int]] = []

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        start = 0
        while True:
            self.made.append(start)
            yield Span(start // rows_per_span, start, rows_per_span, (start,))
            start += rows_per_span

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        numbers = np.arange(span.start, span.stop)
        yield Block(span.start, span.rows, {"id": numbers, "word": pa.array([f"w{row}" for row in numbers])})

    def release(self, span: Span) -> None:
        self.released.append((span.start, span.rows))

    def close(self) -> None: ...


def test_source_that_never_ends_is_asked_for_no_more_than_is_wanted() -> None:
    source = Endless()
    selected = select(source, skip=15, limit=20)  # type: ignore[arg-type]
    spans = list(selected.divide(10))
    assert source.made == [0, 10, 20, 30]
    assert [span.number(row) for span in spans for row in range(span.start, span.stop)] == list(range(15, 35))


def test_releasing_a_span_releases_what_it_is_made_of() -> None:
    source = Endless()
    selected = SelectedRows(source, [(5, 1), (15, 1), (25, 10)])  # type: ignore[arg-type]
    for span in selected.divide(10):
        selected.release(span)
    assert source.released == [(0, 10), (10, 10), (20, 10), (30, 10)]


@pytest.mark.parametrize("open_source", [lambda _: in_memory(), csv_files], ids=["memory", "csv"])
@pytest.mark.parametrize("wanted", [1, 13, ROWS, ROWS + 1])
def test_sample_has_as_many_rows_as_wanted_in_order(
    tmp_path: Path, open_source: Callable[[Path], Source], wanted: int
) -> None:
    source = open_source(tmp_path)
    selected = sample(source, wanted, None, seed=3)
    numbers = [span.number(row) for span in selected.divide(16) for row in range(span.start, span.stop)]
    assert len(numbers) == min(wanted, ROWS)
    broken = () if isinstance(source, InMemory) else BROKEN
    check(selected, sorted(set(numbers)), 16, broken)


def test_same_seed_samples_the_same_rows_and_another_seed_others() -> None:
    def rows(seed: int, by: str | None) -> list[int]:
        selected = sample(classed(), 20, by, seed)
        return [span.number(row) for span in selected.divide(16) for row in range(span.start, span.stop)]

    for by in (None, "class"):
        assert rows(1, by) == rows(1, by)
        assert rows(1, by) != rows(2, by)


def classed() -> InMemory:
    """Seventy `a`, twenty-five `b`, four null and a single `c`."""
    names = ["a"] * 70 + ["b"] * 25 + [None] * 4 + ["c"]
    order = np.random.default_rng(0).permutation(ROWS)
    values = [names[place] for place in order]
    numbers = [{"a": 1.5, "b": 2.5, "c": 3.5, None: 4.5}[name] for name in values]
    return InMemory({"id": np.arange(ROWS), "class": pa.array(values), "number": np.array(numbers)})


@pytest.mark.parametrize("by", ["class", "number"])
def test_sample_by_a_column_keeps_the_share_of_every_value(by: str) -> None:
    source = classed()
    selected = sample(source, 20, by, seed=5)
    taken = [value for span in selected.divide(7) for value in read(selected, span, ["class"])[0][0]]
    assert len(taken) == 20
    # A single `c` of a hundred has its row among twenty; what that costs the others is less than one row each.
    assert (taken.count("c"), taken.count(None)) == (1, 1)
    assert taken.count("a") in (13, 14)
    assert taken.count("b") in (4, 5)


def test_sample_by_a_column_of_files_counts_broken_rows_as_a_class(tmp_path: Path) -> None:
    lines = ["id,kind", *("broken" if row in BROKEN else f"{row},k{row % 2}" for row in range(ROWS))]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = CsvFiles([str(tmp_path / "a.csv")])
    selected = sample(source, 25, "kind", seed=0)
    kinds = [kind for span in selected.divide(100) for kind in read(selected, span, ["kind"])[0][0]]
    assert len(kinds) == 25
    assert [kinds.count("k0"), kinds.count("k1")] == [12, 12]


def test_sample_by_a_column_that_is_not_there_is_told() -> None:
    with pytest.raises(InputError) as caught:
        sample(in_memory(), 5, "colour", 0)
    assert caught.value.received == "--sample-by colour"
    assert caught.value.allowed == "id, word"


def test_stream_cannot_be_sampled() -> None:
    with pytest.raises(UsageError, match="a stream cannot be sampled"):
        sample(Endless(), 5, None, 0)  # type: ignore[arg-type]


def test_sample_of_nothing_is_nothing() -> None:
    assert list(sample(in_memory(0), 5, None, 0).divide(10)) == []
    assert list(sample(in_memory(0), 5, "word", 0).divide(10)) == []


@pytest.mark.parametrize("size", [1, 7, 32, 60, 200])
@pytest.mark.parametrize("make", [csv_files, parquet_file])
def test_files_and_row_groups_do_not_cut_whole_batches(
    tmp_path: Path, make: Callable[[Path], Source], size: int
) -> None:
    source = WholeBatches(select(make(tmp_path), skip=5, limit=90))
    spans = list(source.divide(size))
    assert [span.rows for span in spans] == [size] * (90 // size) + ([90 % size] if 90 % size else [])
    assert [span.start for span in spans] == list(range(0, 90, size))
    assert [span.number(row) for span in spans for row in range(span.start, span.stop)] == list(range(5, 95))
    again = pickle.loads(pickle.dumps(source))
    for span in spans:
        blocks = list(again.read(span, ["id", "word"]))
        assert [row for b in blocks for row in range(b.start, b.start + b.rows)] == list(range(span.start, span.stop))
        ids = [value for block in blocks for value in to_arrow(block.columns["id"]).to_pylist()]
        broken = {failure.row for block in blocks for failure in block.failures}
        for row, value in zip(range(span.start, span.stop), ids, strict=True):
            assert row in broken or value == row + 5
            assert (row in broken) == (make is csv_files and row + 5 in BROKEN)
