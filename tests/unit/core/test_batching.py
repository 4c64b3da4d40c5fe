"""Batches: their default size, and how blocks become batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import (
    BATCH_BYTES,
    IMAGES_ON_A_CPU,
    LARGEST_BATCH,
    MOST_BATCH_BYTES,
    SMALLEST_BATCH,
    Batch,
    cut,
    default_batch_size,
)
from penstock.core.columns import to_arrow
from penstock.core.feeds import Dense, LoadedRows, Ragged
from penstock.core.records import Columns, RowFailure

Blocks = list[Columns]


def blocks_of(sizes: list[int]) -> Blocks:
    """Blocks of these sizes whose rows are numbered from 1, so that no real row looks like padding."""
    rows = np.arange(1, sum(sizes) + 1, dtype=np.int64)
    pieces = np.split(rows, np.cumsum(sizes)[:-1]) if sizes else []
    return [{"x": piece, "image": np.stack([piece, -piece], axis=1).astype(np.int32)} for piece in pieces]


def pieces_of(blocks: Iterable[Columns], first_row: int = 0) -> Iterator[LoadedRows]:
    """Blocks as pieces of a span, one after the other."""
    start = first_row
    for block in blocks:
        rows = len(next(iter(block.values())))
        yield LoadedRows(start, rows, {name: Dense(array) for name, array in block.items()})
        start += rows


@given(row_bytes=st.integers(0, 1 << 30))
def test_default_size_is_a_power_of_two_within_bounds(row_bytes: int) -> None:
    size = default_batch_size(row_bytes)
    assert size & (size - 1) == 0
    assert size <= LARGEST_BATCH
    assert size >= SMALLEST_BATCH or size == 1 or 2 * size * row_bytes > MOST_BATCH_BYTES


@given(row_bytes=st.integers(BATCH_BYTES // LARGEST_BATCH, BATCH_BYTES // SMALLEST_BATCH))
def test_default_batch_is_near_8_megabytes_between_the_bounds(row_bytes: int) -> None:
    assert BATCH_BYTES / 1.5 <= default_batch_size(row_bytes) * row_bytes <= BATCH_BYTES * 1.5


@pytest.mark.parametrize(
    ("row_bytes", "rows", "expected"),
    [
        (784, None, 8192),
        (224 * 224 * 3, None, 64),
        (224 * 224 * 3 * 4, None, 32),
        (0, None, 8192),
        (1 << 40, None, 1),
        (12_000 * 12_000 * 3, None, 1),
        (4 << 20, None, 32),
        (5 << 20, None, 16),
        (784, 100, 128),
        (784, 128, 128),
        (784, 1, 1),
        (784, 0, 1),
        (784, 8191, 8192),
        (784, 1_000_000, 8192),
        (1 << 40, 5, 1),
    ],
)
def test_default_size_of_known_cases(row_bytes: int, rows: int | None, expected: int) -> None:
    assert default_batch_size(row_bytes, rows) == expected


@given(sizes=st.lists(st.integers(0, 23), max_size=12), batch_size=st.integers(1, 16))
def test_any_blocks_become_batches_that_cover_every_row_once_in_order(sizes: list[int], batch_size: int) -> None:
    batches = list(cut(pieces_of(blocks_of(sizes)), batch_size))
    total = sum(sizes)
    assert [batch.index for batch in batches] == list(range(-(-total // batch_size)))
    assert [place for batch in batches for place in batch.positions] == list(range(total))
    assert [batch.positions[0] for batch in batches] == list(range(0, total, batch_size))
    assert [len(batch.positions) for batch in batches] == [batch.rows for batch in batches]
    assert sum(batch.rows for batch in batches) == total
    seen = np.concatenate([batch.arrays["x"][: batch.rows] for batch in batches]) if batches else np.empty(0)
    np.testing.assert_array_equal(seen, np.arange(1, total + 1))
    for batch in batches:
        np.testing.assert_array_equal(batch.arrays["image"][:, 0], batch.arrays["x"])
        np.testing.assert_array_equal(batch.arrays["image"][:, 1], -batch.arrays["x"])


@given(sizes=st.lists(st.integers(0, 23), max_size=12), batch_size=st.integers(1, 16))
def test_every_batch_has_the_full_size_and_only_the_last_is_padded(sizes: list[int], batch_size: int) -> None:
    batches = list(cut(pieces_of(blocks_of(sizes)), batch_size))
    for batch in batches:
        assert batch.arrays["x"].shape == (batch_size,)
        assert batch.arrays["image"].shape == (batch_size, 2)
        assert batch.arrays["x"].dtype == np.int64
        assert batch.arrays["image"].dtype == np.int32
        last = batch.rows - 1
        assert (batch.arrays["x"][batch.rows :] == batch.arrays["x"][last]).all()
        assert (batch.arrays["image"][batch.rows :] == batch.arrays["image"][last]).all()
    assert all(batch.rows == batch_size for batch in batches[:-1])


@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6), batch_size=st.integers(1, 4))
def test_blocks_of_whole_batches_are_not_copied(sizes: list[int], batch_size: int) -> None:
    blocks = blocks_of([size * batch_size for size in sizes])
    batches = list(cut(pieces_of(blocks), batch_size))
    owners = [block for block, size in zip(blocks, sizes, strict=True) for _ in range(size)]
    for batch, owner in zip(batches, owners, strict=True):
        assert np.shares_memory(batch.arrays["x"], owner["x"])
        assert np.shares_memory(batch.arrays["image"], owner["image"])


def test_batch_inside_a_block_is_a_view_even_after_a_batch_that_was_joined() -> None:
    blocks = blocks_of([3, 9])
    joined, view, last = cut(pieces_of(blocks), 4)
    assert not np.shares_memory(joined.arrays["x"], blocks[1]["x"])
    assert np.shares_memory(view.arrays["x"], blocks[1]["x"])
    assert last.arrays["x"].tolist() == [9, 10, 11, 12]
    assert last.rows == 4


def test_batches_that_are_kept_are_not_overwritten_by_later_ones() -> None:
    batches = list(cut(pieces_of(blocks_of([1] * 12)), 4))
    assert [batch.arrays["x"].tolist() for batch in batches] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_cutting_leaves_the_blocks_as_they_were() -> None:
    blocks = blocks_of([3, 2])
    for block in blocks:
        block["x"].flags.writeable = False
    assert [batch.arrays["x"].tolist() for batch in cut(pieces_of(blocks), 4)] == [[1, 2, 3, 4], [5, 5, 5, 5]]


def test_text_is_padded_with_the_last_text() -> None:
    words = np.array([b"a", b"b", b"c"], dtype=object)
    (batch,) = cut(pieces_of([{"text": words}]), 5)
    assert batch.rows == 3
    assert batch.arrays["text"].tolist() == [b"a", b"b", b"c", b"c", b"c"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "bool", "complex64"])
def test_padding_repeats_the_last_row_in_every_dtype(dtype: str) -> None:
    rows = np.array([[0, 0, 0], [1, 0, 1]], dtype=dtype)
    (batch,) = cut(pieces_of([{"x": rows}]), 4)
    assert batch.arrays["x"].dtype == dtype
    np.testing.assert_array_equal(batch.arrays["x"], rows[[0, 1, 1, 1]])


def test_no_blocks_make_no_batch() -> None:
    assert list(cut([], 8)) == []
    assert list(cut(pieces_of(blocks_of([0, 0])), 8)) == []


def test_batches_are_cut_as_blocks_arrive() -> None:
    taken: list[int] = []

    def arriving() -> Iterator[LoadedRows]:
        for number, piece in enumerate(pieces_of(blocks_of([4, 4, 4]))):
            taken.append(number)
            yield piece

    batches = cut(arriving(), 4)
    assert isinstance(next(batches), Batch)
    assert taken == [0]


class Shelf:
    """Room that remembers what was asked of it, filled with what no row has."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, tuple[tuple[int, ...], Any]]] = []
        self.given: list[Columns] = []

    def __call__(self, wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> Columns:
        self.asked.append(dict(wanted))
        self.given.append({name: np.full(shape, 99, dtype) for name, (shape, dtype) in wanted.items()})
        return self.given[-1]


@given(sizes=st.lists(st.integers(0, 23), max_size=12), batch_size=st.integers(1, 16))
def test_batches_lie_in_the_room_that_was_given_with_the_same_rows(sizes: list[int], batch_size: int) -> None:
    shelf = Shelf()
    batches = list(cut(pieces_of(blocks_of(sizes)), batch_size, shelf))
    for batch, plain, arrays in zip(batches, cut(pieces_of(blocks_of(sizes)), batch_size), shelf.given, strict=True):
        assert batch.arrays is arrays
        for name, array in plain.arrays.items():
            np.testing.assert_array_equal(batch.arrays[name], array)
    shape = ((batch_size,), np.dtype(np.int64)), ((batch_size, 2), np.dtype(np.int32))
    assert all(asked == {"x": shape[0], "image": shape[1]} for asked in shelf.asked)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), batch_size=st.integers(1, 8), data=st.data())
def test_kept_columns_and_failures_go_with_their_rows(sizes: list[int], batch_size: int, data: st.DataObject) -> None:
    total, first_row = sum(sizes), 100
    failed = data.draw(st.sets(st.integers(first_row, first_row + total - 1)))
    pieces = list(pieces_of(blocks_of(sizes), first_row))
    for piece in pieces:
        own = range(piece.start, piece.start + piece.rows)
        piece.kept = {"row": np.array(own), "name": pa.array([f"r{row}" for row in own])}
        piece.failures = {row: RowFailure(row, "", "read", "E", f"why {row}") for row in own if row in failed}
    batches = list(cut(pieces, batch_size))
    for batch in batches:
        own = range(first_row + batch.positions[0], first_row + batch.positions[0] + batch.rows)
        assert batch.kept["row"].tolist() == list(own)
        assert to_arrow(batch.kept["name"]).to_pylist() == [f"r{row}" for row in own]
        assert sorted(failure.row for failure in batch.failures) == [row for row in own if row in failed]
        assert all(failure.reason == f"why {failure.row}" for failure in batch.failures)


def test_nothing_is_kept_where_nothing_was_asked_for() -> None:
    (batch,) = cut(pieces_of(blocks_of([3])), 4)
    assert dict(batch.kept) == {}
    assert batch.failures == ()
    assert not batch.lengths
    assert (batch.values, batch.padded) == (0, 0)


def test_rows_that_are_no_array_yet_are_written_into_the_batch_and_not_viewed() -> None:
    ragged = Ragged(np.array([1, 2, 3, 4]), np.array([0, 1, 2, 3, 4]))
    batches = list(cut([LoadedRows(0, 4, {"x": ragged})], 2))
    assert [batch.arrays["x"].tolist() for batch in batches] == [[[1], [2]], [[3], [4]]]
    assert not any(np.shares_memory(batch.arrays["x"], ragged.values) for batch in batches)


@pytest.mark.parametrize(("side", "expected"), [(32, 512), (224, 16), (299, 8), (1024, 8)])
def test_images_on_a_cpu_come_in_batches_that_stay_in_the_caches(side: int, expected: int) -> None:
    assert default_batch_size(side * side * 3, None, *IMAGES_ON_A_CPU) == expected
