"""Epochs of a source: all rows once, in an order that bad rows do not change, from any point on."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.records import Block, RowFailure, Span
from penstock.core.shuffling import AllRows, RowSet, split_rows
from penstock.sources.catalog import open_files
from penstock.sources.derived.shuffled import SEED, EpochRows, Order, RandomRows, WindowedRows
from penstock.sources.derived.wrapper import Around
from penstock.sources.python.memory import InMemory

ROWS = 103


class ReadInOrder(Around):
    """A source of which only whole spans can be read; row 13 is broken, and says so."""

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        for block in self.source.read(span, columns):
            bad = [RowFailure(13, "", "read", "Broken", "row 13")] if 13 in range(span.start, span.stop) else []
            arrow = {name: pa.array(np.asarray(column)) for name, column in block.columns.items()}
            yield Block(block.start, block.rows, arrow, tuple(bad))


def numbers_in_memory() -> InMemory:
    return InMemory({"x": np.arange(ROWS), "y": np.arange(ROWS) * 0.5})


def epoch_rows(kind: str, rows: RowSet | None = None, seed: int | None = 3) -> EpochRows:
    order = Order(rows or AllRows(ROWS), seed)
    return (
        RandomRows(numbers_in_memory(), order)
        if kind == "random"
        else WindowedRows(ReadInOrder(numbers_in_memory()), order, 40)
    )


def numbers(source: EpochRows, epoch: int, bad: Sequence[int] = (), skip: int = 0) -> list[int]:
    return [int(row) for span in source.spans(epoch, 16, bad, skip) for row in source.numbers(span)]


def read(source: EpochRows, epoch: int, bad: Sequence[int] = (), skip: int = 0) -> list[int]:
    values: list[int] = []
    for span in source.spans(epoch, 16, bad, skip):
        blocks = list(source.read(span, ["x"]))
        assert sum(block.rows for block in blocks) == span.rows
        assert blocks[0].start == span.start
        values += [int(value) for block in blocks for value in np.asarray(block.columns["x"])]
    return values


both = pytest.mark.parametrize("kind", ["random", "windows"])


@both
def test_every_epoch_has_every_row_once_in_another_order(kind: str) -> None:
    source = epoch_rows(kind)
    epochs = [read(source, epoch) for epoch in range(3)]
    assert all(sorted(rows) == list(range(ROWS)) for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[1] == numbers(source, 1)
    assert epochs == [read(epoch_rows(kind), epoch) for epoch in range(3)]


@both
def test_without_a_seed_rows_come_in_the_order_of_the_input(kind: str) -> None:
    assert read(epoch_rows(kind, seed=None), 5) == list(range(ROWS))


@both
def test_bad_rows_leave_the_order_and_change_nothing_else(kind: str) -> None:
    source = epoch_rows(kind)
    before = read(source, 1)
    bad = [before[0], before[1], before[50], before[-1]]
    assert read(source, 1, bad) == [row for row in before if row not in bad]
    assert source.good(bad) == ROWS - 4


@both
@pytest.mark.parametrize("skip", [0, 1, 16, 17, 60, ROWS - 4])
def test_an_epoch_goes_on_from_any_row(kind: str, skip: int) -> None:
    source = epoch_rows(kind)
    bad = numbers(source, 2)[10:14]
    assert read(source, 2, bad, skip) == read(source, 2, bad)[skip:]


@both
def test_two_sides_of_a_split_share_no_row(kind: str) -> None:
    train, held_out = split_rows(ROWS, 0.2, seed=1)
    sides = [read(epoch_rows(kind, rows), 4, bad=[5]) for rows in (train, held_out)]
    assert sorted(sides[0] + sides[1]) == [row for row in range(ROWS) if row != 5]
    assert len(sides[1]) in (20, 21)


@both
def test_no_two_rows_of_any_epoch_are_counted_alike(kind: str) -> None:
    source = epoch_rows(kind)
    counted = [
        row for epoch in range(3) for span in source.spans(epoch, 16, [7]) for row in range(span.start, span.stop)
    ]
    assert len(set(counted)) == len(counted)


@both
def test_the_seed_of_a_row_depends_on_the_epoch_and_not_on_its_neighbours(kind: str) -> None:
    source = epoch_rows(kind)

    def seeds(epoch: int, bad: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for span in source.spans(epoch, 16, bad):
            for block in source.read(span, ["x", SEED]):
                found |= dict(zip(np.asarray(block.columns["x"]).tolist(), block.columns[SEED].tolist(), strict=True))  # type: ignore[union-attr]
        return found

    first = seeds(0, [])
    assert len(set(first.values())) == ROWS
    without = seeds(0, [3, 4])
    assert without == {row: seed for row, seed in first.items() if row not in (3, 4)}
    assert not set(first.values()) & set(seeds(1, []).values())


def test_a_failure_inside_a_window_keeps_its_row() -> None:
    source = epoch_rows("windows")
    (span,) = [span for span in source.spans(0, 16) if 13 in source.numbers(span)]
    (failure,) = [failure for block in source.read(span, ["x"]) for failure in block.failures]
    assert source.numbers(span)[failure.row - span.start] == 13


def test_spans_of_one_group_stay_in_order() -> None:
    class Compressed(Around):
        def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
            for span in self.source.divide(10):
                yield Span(span.index, span.start, span.rows, span.locator, group="a" if span.start < 60 else "b")

    source = WindowedRows(Compressed(numbers_in_memory()), Order(AllRows(ROWS), 1), 20)
    firsts = [start for span in source.spans(0, 16) for start, *_ in span.locator[1]]
    assert [start for start in firsts if start < 60] == [0, 10, 20, 30, 40, 50]
    assert [start for start in firsts if start >= 60] == [60, 70, 80, 90, 100]


@pytest.mark.parametrize(
    ("window_rows", "remark"),
    [
        (ROWS, "shuffle: all rows, anew in every epoch"),
        (40, "shuffle: inside windows of about 40 rows, put together anew in every epoch; --cache memory or disk"),
    ],
)
def test_a_window_that_holds_all_rows_is_told_as_a_shuffle_of_all(window_rows: int, remark: str) -> None:
    [told] = WindowedRows(ReadInOrder(numbers_in_memory()), Order(AllRows(ROWS), 1), window_rows).remarks()
    assert told.startswith(remark)


def test_windows_of_one_large_row_group_are_told_to_stay_in_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(ROWS)}), tmp_path / "rows.parquet", row_group_size=ROWS)
    [told] = WindowedRows(open_files([str(tmp_path / "rows.parquet")]), Order(AllRows(ROWS), 1), 40).remarks()
    assert told.startswith("shuffle: inside windows of about 40 rows, in the order of the input; --cache")


def opened(folder: Path, kind: str) -> Source:
    if kind == "npy":
        np.save(folder / "a.npy", np.arange(60))
        np.save(folder / "b.npy", np.arange(60, ROWS))
        return open_files([str(folder / "a.npy"), str(folder / "b.npy")])
    for number in range(12):
        (folder / f"{number:02d}.jpg").write_bytes(b"\xff\xd8\xff")
    return open_files([str(folder)])


def test_npy_files_are_read_at_random(tmp_path: Path) -> None:
    source = opened(tmp_path, "npy")
    assert source.traits.reads_at_random
    span = source.pick(np.array([102, 0, 59, 60]), 7)
    (block,) = source.read(span, ["data"])
    assert np.asarray(block.columns["data"]).tolist() == [102, 0, 59, 60]
    assert block.start == 7
    assert source.origin(span, 9).endswith("a.npy, row 59")
    assert source.origin(span, 10).endswith("b.npy, row 0")


def test_photos_are_read_at_random(tmp_path: Path) -> None:
    source = opened(tmp_path, "photos")
    assert source.traits.reads_at_random
    span = source.pick(np.array([11, 3]), 0)
    (block,) = source.read(span, ["image", "path"])
    paths = block.columns["path"]
    assert isinstance(paths, pa.Array)
    assert [path[-6:] for path in paths.to_pylist()] == ["11.jpg", "03.jpg"]
    assert isinstance(block.columns["image"], Deferred)
    assert source.origin(span, 1).endswith("03.jpg")
