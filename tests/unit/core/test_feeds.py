"""Feeds: the rows of one input as they wait to be written into a batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.feeds import Dense, Encoded, Feed, Mask, Ragged, Rows, to_ragged
from penstock.core.records import STRING, UNWATCHED, Array

from .encoded import Diary, Letters, poisoned

UINT8 = np.dtype(np.uint8)
lists = st.lists(st.lists(st.integers(-100, 100), max_size=6), min_size=1, max_size=12)


def ragged(rows: list[list[int]]) -> Ragged:
    values = np.array([value for row in rows for value in row], np.int32)
    return Ragged(values, np.cumsum([0, *map(len, rows)]))


def written(feed: Feed, rows: Rows, length: int | None = None) -> Array:
    """What a feed writes, over what was there before."""
    count = len(range(len(feed))[rows]) if isinstance(rows, slice) else len(rows)
    shape = tuple(length if n is None else n for n in feed.shape)
    out = np.full((count, *(n or 0 for n in shape)), 77, feed.dtype)
    assert not feed.write(rows, out, 0, UNWATCHED)
    return out


def test_rows_in_an_array_are_copied_as_they_are() -> None:
    array = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
    feed = Dense(array)
    assert (len(feed), feed.dtype, feed.shape) == (6, np.float32, (2, 2))
    assert feed.sizes().shape == (6, 0)
    np.testing.assert_array_equal(written(feed, slice(1, 4)), array[1:4])
    np.testing.assert_array_equal(written(feed, np.array([5, 0, 2])), array[[5, 0, 2]])


def test_text_in_an_array_is_copied_as_it_is() -> None:
    feed = Dense(np.array([b"a", b"bc", b""], dtype=object))
    assert written(feed, np.array([1, 0])).tolist() == [b"bc", b"a"]


@given(rows=lists, extra=st.integers(0, 4), data=st.data())
def test_rows_of_different_lengths_are_padded_with_zeros(
    rows: list[list[int]], extra: int, data: st.DataObject
) -> None:
    feed = ragged(rows)
    length = max(map(len, rows)) + extra
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
    expected = [rows[place] + [0] * (length - len(rows[place])) for place in picked]
    assert written(feed, np.array(picked), length).tolist() == expected
    start, stop = sorted((picked[0], len(rows)))
    run = [row + [0] * (length - len(row)) for row in rows[start:stop]]
    assert written(feed, slice(start, stop), length).tolist() == run


@given(rows=lists)
def test_rows_of_different_lengths_know_their_sizes(rows: list[list[int]]) -> None:
    feed = ragged(rows)
    assert len(feed) == len(rows)
    assert feed.shape == (None,)
    assert feed.sizes().tolist() == [[len(row)] for row in rows]
    assert feed.sizes().dtype == np.int64


def test_values_of_ragged_rows_may_have_dimensions_of_their_own() -> None:
    feed = Ragged(np.arange(12).reshape(6, 2), np.array([0, 1, 1, 6]))
    assert feed.shape == (None, 2)
    out = written(feed, np.array([0, 1]), 2)
    assert out.tolist() == [[[0, 1], [0, 0]], [[0, 0], [0, 0]]]


def test_ragged_text_is_padded_with_empty_text() -> None:
    feed = Ragged(np.array([b"a", b"b", b"c"], dtype=object), np.array([0, 2, 3]))
    assert written(feed, slice(0, 2), 3).tolist() == [[b"a", b"b", b""], [b"c", b"", b""]]


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_mask_is_one_where_a_row_is_real(dtype: str) -> None:
    feed = Mask(np.array([2, 0, 4]), np.dtype(dtype))
    assert (len(feed), feed.shape, feed.sizes().tolist()) == (3, (None,), [[2], [0], [4]])
    out = written(feed, np.array([2, 0, 1]), 4)
    assert out.dtype == dtype
    assert out.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert written(feed, slice(1, 3), 5).tolist() == [[0] * 5, [1, 1, 1, 1, 0]]


@given(rows=lists, extra=st.integers(0, 3))
def test_mask_and_padding_agree(rows: list[list[int]], extra: int) -> None:
    ones = ragged([[1] * len(row) for row in rows])
    length = max(map(len, rows)) + extra
    mask = Mask(ones.sizes()[:, 0], np.dtype(np.int32))
    np.testing.assert_array_equal(
        written(mask, slice(0, len(rows)), length), written(ones, slice(0, len(rows)), length)
    )


def encoded(*rows: bytes) -> tuple[Encoded, Letters]:
    column = Letters(rows)
    return Encoded(column, UINT8, (None,)), column


def test_encoded_rows_are_decoded_straight_into_the_batch() -> None:
    feed, column = encoded(b"ab", b"c", b"def")
    assert (len(feed), feed.dtype, feed.shape) == (3, np.uint8, (None,))
    batch = np.full((5, 4), 77, np.uint8)
    assert feed.write(slice(1, 3), batch[2:4], 0, UNWATCHED) == {}
    assert batch.tolist() == [[77] * 4, [77] * 4, [*b"c", 0, 0, 0], [*b"def", 0], [77] * 4]
    assert column.decoded == [b"c", b"def"]


def test_encoded_rows_in_any_order_are_decoded_once_each() -> None:
    feed, column = encoded(b"ab", b"c", b"def")
    assert written(feed, np.array([2, 0]), 3).tolist() == [[*b"def"], [*b"ab", 0]]
    assert column.decoded == [b"def", b"ab"]


def test_nothing_is_decoded_to_learn_the_sizes_and_what_cannot_be_told_counts_as_nothing() -> None:
    feed, column = encoded(b"ab", b"!", b"def")
    assert feed.sizes().tolist() == [[2], [0], [3]]
    assert column.decoded == []


@pytest.mark.parametrize("rows", [slice(1, 4), np.array([1, 2, 3])], ids=["run", "any order"])
def test_encoded_rows_that_are_broken_are_named_by_their_place_in_the_batch(rows: Rows) -> None:
    feed, _ = encoded(b"z", b"ab", b"!c", b"d")
    out = np.full((3, 2), 77, np.uint8)
    bad = feed.write(rows, out, 40, UNWATCHED)
    assert bad == {1: "OSError: broken: !c"}
    assert bad.errors == {1: "OSError"}
    assert out.tolist() == [[*b"ab"], [0, 0], [*b"d", 0]]


def test_every_encoded_row_is_announced_by_its_number_in_the_input_before_it_is_decoded() -> None:
    feed, _ = encoded(b"z", b"ab", b"c", b"d")
    out = np.empty((2, 2), np.uint8)
    diary = Diary()
    feed.write(slice(1, 3), out, 40, diary)
    assert diary.begun == [(41, 1), (42, 1)]
    diary = Diary()
    feed.write(np.array([3, 0]), out, 40, diary)
    assert diary.begun == [(43, 1), (40, 1)]


@pytest.mark.parametrize("rows", [slice(1, 4), np.array([1, 2, 3])], ids=["run", "any order"])
def test_poisoned_rows_are_never_touched_and_the_others_are_decoded(rows: Rows) -> None:
    feed, column = encoded(b"z", b"ab", b"kill", b"!d")
    out = np.full((3, 4), 77, np.uint8)
    diary = Diary(poisoned=poisoned(42))
    bad = feed.write(rows, out, 40, diary)
    assert b"kill" not in column.decoded
    assert (42, 1) not in diary.begun
    assert out.tolist() == [[*b"ab", 0, 0], [0] * 4, [0] * 4]
    # Who knows of the poison names the row: here it is only left out.
    assert bad == {2: "OSError: broken: !d"}
    assert bad.errors == {2: "OSError"}


def test_poison_in_another_span_changes_nothing() -> None:
    feed, _ = encoded(b"ab", b"c")
    out = np.empty((2, 2), np.uint8)
    diary = Diary(poisoned=poisoned(7))
    assert feed.write(slice(0, 2), out, 40, diary) == {}
    assert out.tolist() == [[*b"ab"], [*b"c", 0]]
    assert diary.begun == [(40, 1), (41, 1)]


rows_of_numbers = st.lists(
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-1000, 1000)), max_size=5)), max_size=12
)


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32())], ids=str)
@given(rows=rows_of_numbers, start=st.integers(0, 3))
def test_every_row_keeps_its_values_and_those_without_are_named(
    kind: pa.DataType, rows: list[list[int | None] | None], start: int
) -> None:
    column = pa.array(rows, kind)[start:]
    rows = rows[start:]
    ragged, bad = to_ragged(column, "int32", (None,))
    assert len(ragged) == len(rows)
    assert ragged.sizes()[:, 0].tolist() == [len(row or ()) for row in rows]
    for place, row in enumerate(rows):
        own = ragged.values[ragged.offsets[place] : ragged.offsets[place + 1]]
        assert own.tolist() == [value or 0 for value in row or ()]
    wanted = {place: "is null" for place, row in enumerate(rows) if row is None}
    wanted |= {place: "has a value that is null" for place, row in enumerate(rows) if row is not None and None in row}
    assert dict(bad) == wanted


def test_values_take_the_dtype_that_is_asked_for() -> None:
    ragged, _ = to_ragged(pa.array([[1, 2], [3]], pa.list_(pa.int64())), "float32", (None,))
    assert ragged.values.dtype == np.float32
    assert ragged.values.tolist() == [1.0, 2.0, 3.0]


def test_fraction_for_an_integer_input_fails_its_row_only() -> None:
    ragged, bad = to_ragged(pa.array([[1.0], [2.0, 2.5], [3.0]]), "int32", (None,))
    assert dict(bad) == {1: "has a value that is not a whole number"}
    assert ragged.values.tolist() == [1, 2, 0, 3]


def test_words_are_bytes() -> None:
    ragged, bad = to_ragged(pa.array([["a", "é"], [], ["b"]]), STRING, (None,))
    assert ragged.values.tolist() == [b"a", "é".encode(), b"b"]
    assert ragged.sizes()[:, 0].tolist() == [2, 0, 1]
    assert dict(bad) == {}


def test_lists_of_vectors_have_a_dimension_of_their_own() -> None:
    column = pa.array([[[1, 2], [3, 4]], [], [[5, 6]]], pa.list_(pa.list_(pa.float32(), 2)))
    ragged, bad = to_ragged(column, "float32", (None, 2))
    assert ragged.shape == (None, 2)
    assert ragged.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert ragged.sizes()[:, 0].tolist() == [2, 0, 1]
    assert dict(bad) == {}


def test_vector_of_another_length_fails_the_row_that_holds_it() -> None:
    column = pa.array([[[1, 2]], [[3, 4], [5]], [[6, 7]]], pa.list_(pa.list_(pa.int64())))
    _, bad = to_ragged(column, "int64", (None, 2))
    assert dict(bad) == {1: "has a value that has 1 values, not 2"}


def test_row_behind_empty_ones_is_blamed_for_its_own_values() -> None:
    column = pa.array([[], [], [1, None], [], [2]], pa.list_(pa.int32()))
    assert dict(to_ragged(column, "int32", (None,))[1]) == {2: "has a value that is null"}


@pytest.mark.parametrize("kind", [pa.list_(pa.int32(), 2), pa.list_(pa.int32())], ids=str)
def test_lists_that_happen_to_have_one_length_are_read_alike(kind: pa.DataType) -> None:
    ragged, bad = to_ragged(pa.array([[1, 2], [3, 4], [5, 6]], kind)[1:], "int32", (None,))
    assert ragged.values.tolist() == [3, 4, 5, 6]
    assert ragged.offsets.tolist() == [0, 2, 4]
    assert dict(bad) == {}


def test_fixed_lists_with_a_null_row_keep_the_others_in_their_places() -> None:
    ragged, bad = to_ragged(pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int32(), 2)), "int32", (None,))
    assert dict(bad) == {1: "is null"}
    first, last = (ragged.values[ragged.offsets[row] : ragged.offsets[row + 1]].tolist() for row in (0, 2))
    assert (first, last) == ([1, 2], [5, 6])


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2)])
def test_array_is_rows_of_one_length(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    ragged, bad = to_ragged(array, "float32", (None, *shape[2:]))
    assert ragged.sizes()[:, 0].tolist() == [3] * 4
    assert ragged.values.dtype == np.float32
    np.testing.assert_array_equal(ragged.values, array.reshape(-1, *shape[2:]))
    assert dict(bad) == {}


def test_lists_of_which_none_has_a_value_are_empty_rows() -> None:
    ragged, bad = to_ragged(pa.array([[], []]), "int64", (None,))
    assert ragged.sizes()[:, 0].tolist() == [0, 0]
    assert ragged.values.dtype == np.int64
    assert dict(bad) == {}
