"""The stream of training rows, without any process: batches, bad rows, resuming, memory."""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.batching import Batch
from penstock.core.bucketing import boundary
from penstock.core.job import Job
from penstock.core.records import Array, Binding, Block, RowFailure, Span
from penstock.core.shuffling import AllRows
from penstock.core.training import TrainBatch, keep
from penstock.errors import InputError
from penstock.sources.catalog import open_files
from penstock.sources.derived.shuffled import Order, RandomRows
from penstock.sources.derived.wrapper import Around
from penstock.sources.python.memory import InMemory
from penstock.training import data as training_data
from penstock.training import row_stream
from penstock.training.cutting import GoodRows, cut_batches, good_rows
from penstock.training.data import Loading, RowFormat, from_source
from penstock.training.row_stream import RowStream, ThisProcess
from tests.support.training_arrays import from_arrays

ROWS = 101


class SomeBroken(Around):
    """Rows of which some are broken; every time that one is read is noted."""

    def __init__(self, source: InMemory, broken: Sequence[int]) -> None:
        super().__init__(source)
        self.broken = broken
        self.seen: list[int] = []

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        for block in self.source.read(span, columns):
            found = [place for place, number in enumerate(span.locator[0].tolist()) if number in self.broken]
            self.seen += [int(span.locator[0][place]) for place in found]
            failures = tuple(RowFailure(block.start + place, "", "load", "Broken", "it is") for place in found)
            yield Block(block.start, block.rows, block.columns, failures)


def stream(broken: Sequence[int] = (), failures: Sequence[RowFailure] = ()) -> tuple[RowStream, SomeBroken]:
    inside = SomeBroken(InMemory({"input:x": np.arange(ROWS) * 2}), broken)
    source = RandomRows(inside, Order(AllRows(ROWS), 9))
    job = Job(source, (Binding("input:x", ("input:x",), "int64", ()),), (), 24)
    return RowStream(job, source, 8, ThisProcess(job), failures), inside


def numbers(batches: Sequence[TrainBatch] | Iterator[TrainBatch]) -> list[list[int]]:
    return [batch.numbers.tolist() for batch in batches]


def test_an_epoch_is_cut_into_whole_batches_and_a_short_one() -> None:
    data, _ = stream()
    batches = list(data.batches(0))
    assert [batch.rows for batch in batches] == [8] * 12 + [5]
    assert sorted(chain.from_iterable(numbers(batches))) == list(range(ROWS))
    assert all((batch.inputs["x"] == batch.numbers * 2).all() for batch in batches)
    assert data.rows == ROWS


def test_epochs_follow_each_other_as_if_each_were_alone() -> None:
    data, _ = stream()
    in_turn = [numbers(data.batches(epoch)) for epoch in range(3)]
    assert in_turn == [numbers(stream()[0].batches(epoch)) for epoch in range(3)]
    assert in_turn[0] != in_turn[1]
    assert numbers(data.batches(1)) == in_turn[1]


def test_a_bad_row_is_left_out_before_batches_are_cut_and_is_found_once() -> None:
    data, inside = stream(broken=[5, 50])
    first, second = numbers(data.batches(0)), numbers(data.batches(1))
    good, _ = stream()
    whole = chain.from_iterable(numbers(good.batches(0)))
    assert list(chain.from_iterable(first)) == [row for row in whole if row not in (5, 50)]
    assert [len(batch) for batch in first] == [8] * 12 + [3]
    assert [len(batch) for batch in second] == [8] * 12 + [3]
    assert sorted(data.failures) == [5, 50]
    assert data.failures[5].origin == "memory"
    assert sorted(inside.seen) == [5, 50]
    assert data.rows == ROWS - 2


@pytest.mark.parametrize("step", [0, 1, 5, 12, 13])
def test_the_rest_of_an_epoch_is_the_same_after_a_restart(step: int) -> None:
    data, _ = stream(broken=[3, 44, 45])
    before = data.batches(2)
    used = [next(before) for _ in range(step)]
    rows, failures = sum(batch.rows for batch in used), list(data.failures.values())
    rest = numbers(before)
    again, _ = stream(broken=[3, 44, 45], failures=failures)
    assert numbers(again.batches(2, rows)) == rest
    assert numbers(again.batches(3)) == numbers(data.batches(3))
    assert sorted(again.failures) == [3, 44, 45]


def test_an_input_of_bad_rows_only_is_refused() -> None:
    data, _ = stream(broken=range(ROWS))
    with pytest.raises(InputError, match="every row of the input is bad"):
        list(data.batches(0))


def test_closing_an_epoch_in_the_middle_frees_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stream, "INLINE_BYTES", 0)
    data, _ = stream()
    batches = data.batches(0)
    assert isinstance(batches, Iterator)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(numbers(data.batches(1))) == 13


def test_an_error_of_the_reader_reaches_whoever_takes_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stream, "INLINE_BYTES", 0)
    data, inside = stream()
    monkeypatch.setattr(inside, "broken", None)
    with pytest.raises(TypeError):
        list(data.batches(0))


def test_a_thread_gathers_large_batches_from_memory() -> None:
    x = np.arange(40 * 70_000, dtype=np.float32).reshape(40, 70_000)
    data = from_arrays({"x": x}, {"": np.arange(40)}, {"": np.ones(40)}, batch_size=16, seed=1)
    batches = list(data.batches(0))
    assert [batch.rows for batch in batches] == [16, 16, 8]
    assert all(np.array_equal(batch.inputs["x"], x[batch.numbers]) for batch in batches)
    assert all(np.array_equal(batch.targets[""], batch.numbers) for batch in batches)
    assert all(batch.weights[""].sum() == batch.rows for batch in batches)


def test_batches_from_memory_are_not_borrowed() -> None:
    data = from_arrays({"x": np.arange(100)}, batch_size=8, seed=1)
    assert not any(batch.is_borrowed for batch in data.batches(0))


def test_text_is_an_input_too() -> None:
    data = from_arrays({"words": np.array(["a", "bb", "ccc"])}, batch_size=2, seed=None)
    assert [batch.inputs["words"].tolist() for batch in data.batches(0)] == [[b"a", b"bb"], [b"ccc"]]


def test_rows_of_different_sizes_keep_their_order_and_their_padding_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_data, "WINDOW_BYTES", 1)  # windows of 4 batches
    lists = pa.array([list(range(1, 2 + row % 5)) for row in range(90)])
    pq.write_table(pa.table({"x": lists}), tmp_path / "t.parquet", row_group_size=10)
    row_format = RowFormat((Binding("input:x", ("x",), "int64", (None,)),), buckets={"input:x": [[2, 4, 8]]})

    def epoch(skip: int) -> list[TrainBatch]:
        source = open_files([str(tmp_path / "t.parquet")])
        data = from_source(source, row_format, Loading(0, 2), batch_size=8, seed=4)
        return list(data.batches(1, skip))

    whole, rest = epoch(0), epoch(24)
    assert [batch.rows for batch in whole] == [8] * 11 + [2]
    for one, other in zip(whole[3:], rest, strict=True):
        assert np.array_equal(one.numbers, other.numbers)
        assert np.array_equal(one.inputs["x"], other.inputs["x"])
    for batch in whole:
        lengths = np.count_nonzero(batch.inputs["x"], axis=1)
        assert np.array_equal(lengths, batch.numbers % 5 + 1)
        assert batch.inputs["x"].shape[1] == boundary(int(lengths.max()), [2, 4, 8])


def piece(first: int, rows: int, freed: list[int], width: int = 2) -> GoodRows:
    values: Array = np.full((rows, width), first)
    return GoodRows(np.arange(first, first + rows), {"input:x": values}, lambda: freed.append(first))


def test_a_batch_inside_a_piece_is_a_view_and_the_piece_is_freed_with_its_last_batch() -> None:
    freed: list[int] = []
    source = piece(0, 8, freed)
    first, second = cut_batches([source], repeat(4))
    assert np.shares_memory(first.arrays["input:x"], source.arrays["input:x"])
    second.release()
    assert freed == []
    first.release()
    assert freed == [0]


def test_batches_across_pieces_are_copied_and_free_them_at_once() -> None:
    freed: list[int] = []
    batches = list(cut_batches([piece(0, 3, freed), piece(10, 3, freed), piece(20, 1, freed)], repeat(5)))
    assert [batch.numbers.tolist() for batch in batches] == [[0, 1, 2, 10, 11], [12, 20]]
    assert freed == [0, 10, 20]


def test_rows_of_different_lengths_are_padded_when_they_meet() -> None:
    (batch,) = cut_batches([piece(1, 1, [], width=3), piece(2, 1, [], width=2)], repeat(5))
    assert batch.arrays["input:x"].tolist() == [[1, 1, 1], [2, 2, 0]]


def test_failed_rows_of_a_loaded_batch_are_named_by_their_numbers() -> None:
    failure = RowFailure(102, "", "load", "Broken", "it is")
    batch = Batch(0, range(1, 4), 3, {"input:x": np.arange(5)}, failures=(failure,))
    freed: list[int] = []
    good, failures = good_rows(batch, Span(0, 100, 4, ()), np.array([7, 8, 9, 10]), lambda: freed.append(1))
    assert good.numbers.tolist() == [8, 10]
    assert good.arrays["input:x"].tolist() == [0, 2]
    assert [failure.row for failure in failures] == [9]
    assert freed == [1]
    assert good.release is keep
