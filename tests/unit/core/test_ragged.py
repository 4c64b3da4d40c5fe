"""Columns of lists whose lengths differ."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ragged import to_ragged
from penstock.core.records import STRING

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
