"""Batches: their default size, and how blocks become batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import BATCH_BYTES, LARGEST_BATCH, SMALLEST_BATCH, Batch, cut, default_batch_size
from penstock.core.records import Columns


def blocks_of(sizes: list[int]) -> list[Columns]:
    """Blocks of these sizes whose rows are numbered from 1, so that no real row looks like padding."""
    rows = np.arange(1, sum(sizes) + 1, dtype=np.int64)
    pieces = np.split(rows, np.cumsum(sizes)[:-1]) if sizes else []
    return [{"x": piece, "image": np.stack([piece, -piece], axis=1).astype(np.int32)} for piece in pieces]


@given(row_bytes=st.integers(0, 1 << 30))
def test_default_size_is_a_power_of_two_within_bounds(row_bytes: int) -> None:
    size = default_batch_size(row_bytes)
    assert size & (size - 1) == 0
    assert SMALLEST_BATCH <= size <= LARGEST_BATCH


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
        (1 << 40, None, 32),
        (784, 100, 128),
        (784, 128, 128),
        (784, 1, 1),
        (784, 0, 1),
        (784, 8191, 8192),
        (784, 1_000_000, 8192),
        (1 << 40, 5, 8),
    ],
)
def test_default_size_of_known_cases(row_bytes: int, rows: int | None, expected: int) -> None:
    assert default_batch_size(row_bytes, rows) == expected


@given(sizes=st.lists(st.integers(0, 23), max_size=12), batch_size=st.integers(1, 16))
def test_any_blocks_become_batches_that_cover_every_row_once_in_order(sizes: list[int], batch_size: int) -> None:
    batches = list(cut(blocks_of(sizes), batch_size))
    total = sum(sizes)
    assert [batch.index for batch in batches] == list(range(-(-total // batch_size)))
    assert [batch.offset for batch in batches] == list(range(0, total, batch_size))
    assert sum(batch.rows for batch in batches) == total
    seen = np.concatenate([batch.arrays["x"][: batch.rows] for batch in batches]) if batches else np.empty(0)
    np.testing.assert_array_equal(seen, np.arange(1, total + 1))
    for batch in batches:
        np.testing.assert_array_equal(batch.arrays["image"][:, 0], batch.arrays["x"])
        np.testing.assert_array_equal(batch.arrays["image"][:, 1], -batch.arrays["x"])


@given(sizes=st.lists(st.integers(0, 23), max_size=12), batch_size=st.integers(1, 16))
def test_every_batch_has_the_full_size_and_only_the_last_is_padded(sizes: list[int], batch_size: int) -> None:
    batches = list(cut(blocks_of(sizes), batch_size))
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
    batches = list(cut(blocks, batch_size))
    owners = [block for block, size in zip(blocks, sizes, strict=True) for _ in range(size)]
    for batch, owner in zip(batches, owners, strict=True):
        assert np.shares_memory(batch.arrays["x"], owner["x"])
        assert np.shares_memory(batch.arrays["image"], owner["image"])


def test_batch_inside_a_block_is_a_view_even_after_a_batch_that_was_joined() -> None:
    blocks = blocks_of([3, 9])
    joined, view, last = cut(blocks, 4)
    assert not np.shares_memory(joined.arrays["x"], blocks[1]["x"])
    assert np.shares_memory(view.arrays["x"], blocks[1]["x"])
    assert last.arrays["x"].tolist() == [9, 10, 11, 12]
    assert last.rows == 4


def test_batches_that_are_kept_are_not_overwritten_by_later_ones() -> None:
    batches = list(cut(blocks_of([1] * 12), 4))
    assert [batch.arrays["x"].tolist() for batch in batches] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_cutting_leaves_the_blocks_as_they_were() -> None:
    blocks = blocks_of([3, 2])
    for block in blocks:
        block["x"].flags.writeable = False
    assert [batch.arrays["x"].tolist() for batch in cut(blocks, 4)] == [[1, 2, 3, 4], [5, 5, 5, 5]]


def test_text_is_padded_with_the_last_text() -> None:
    words = np.array([b"a", b"b", b"c"], dtype=object)
    (batch,) = cut([{"text": words}], 5)
    assert batch.rows == 3
    assert batch.arrays["text"].tolist() == [b"a", b"b", b"c", b"c", b"c"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "bool", "complex64"])
def test_padding_repeats_the_last_row_in_every_dtype(dtype: str) -> None:
    rows = np.array([[0, 0, 0], [1, 0, 1]], dtype=dtype)
    (batch,) = cut([{"x": rows}], 4)
    assert batch.arrays["x"].dtype == dtype
    np.testing.assert_array_equal(batch.arrays["x"], rows[[0, 1, 1, 1]])


def test_no_blocks_make_no_batch() -> None:
    assert list(cut([], 8)) == []
    assert list(cut(blocks_of([0, 0]), 8)) == []


def test_batches_are_cut_as_blocks_arrive() -> None:
    taken: list[int] = []

    def blocks() -> list[Columns]:
        return blocks_of([4, 4, 4])

    def arriving() -> object:
        for number, block in enumerate(blocks()):
            taken.append(number)
            yield block

    batches = cut(arriving(), 4)  # type: ignore[arg-type]
    assert isinstance(next(batches), Batch)
    assert taken == [0]
