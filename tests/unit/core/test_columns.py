"""Columns between Arrow and numpy."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.columns import (
    OPAQUE,
    count_not_finite,
    describe,
    is_text,
    join,
    take_rows,
    to_array,
    to_arrow,
    to_lists,
    whole,
)
from penstock.core.records import STRING, Array, Column, Shape

NAN, INF = np.nan, np.inf
NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def tensors(values: Array) -> pa.Array:
    storage = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), int(np.prod(values.shape[1:])))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(storage.type.value_type, values.shape[1:]), storage)


def nested(values: list[Any], depth: int, kind: pa.DataType, *, fixed: tuple[int, ...] = ()) -> pa.Array:
    """`values` as lists of lists; the lengths from the outside in where they are fixed."""
    for level in range(depth - 1, -1, -1):
        kind = pa.list_(kind, fixed[level]) if fixed else pa.list_(kind)
    return pa.array(values, kind)


class TestDescribe:
    @pytest.mark.parametrize("dtype", NUMBERS)
    def test_numbers_keep_their_dtype(self, dtype: str) -> None:
        values = np.zeros(3, dtype=dtype)
        assert describe("x", values).dtype == describe("x", pa.array(values)).dtype == dtype

    @pytest.mark.parametrize(
        ("column", "dtype", "shape"),
        [
            (np.zeros((2, 28, 28), "uint8"), "uint8", (28, 28)),
            (np.zeros(2, ">f4"), "float32", ()),
            (np.array(["a", "b"]), STRING, ()),
            (np.array([b"a", b"b"]), STRING, ()),
            (np.array([["a", "b"]], dtype=object), STRING, (2,)),
            (pa.array([True, False]), "bool", ()),
            (pa.array([Decimal("1.50")]), "float64", ()),
            (pa.array(["a"]), STRING, ()),
            (pa.array(["a"], pa.large_string()), STRING, ()),
            (pa.array(["a"], pa.string_view()), STRING, ()),
            (pa.array([b"a"]), STRING, ()),
            (pa.array([b"ab"], pa.binary(2)), STRING, ()),
            (pa.array(["a", "b", "a"]).dictionary_encode(), STRING, ()),
            (pa.array([7, 8, 7], pa.int16()).dictionary_encode(), "int16", ()),
            (pa.array([[1, 2, 3]], pa.list_(pa.uint8())), "uint8", (3,)),
            (pa.array([[1, 2, 3]], pa.large_list(pa.uint8())), "uint8", (3,)),
            (pa.array([[1, 2, 3]], pa.list_(pa.uint8(), 3)), "uint8", (3,)),
            (pa.array([], pa.list_(pa.uint8(), 3)), "uint8", (3,)),
            (pa.array([], pa.list_(pa.uint8())), "uint8", (None,)),
            (pa.array([None, [1, 2]], pa.list_(pa.int32())), "int32", (2,)),
            (pa.array([None, None], pa.list_(pa.int32())), "int32", (None,)),
            (pa.array([[[1, 2], [3, 4], [5, 6]]]), "int64", (3, 2)),
            (pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.float32(), 2))), "float32", (2, 2)),
            (pa.array([["a", "b"]]), STRING, (2,)),
            (pa.array([[True, False]]), "bool", (2,)),
            (tensors(np.zeros((2, 4, 5, 3), "float32")), "float32", (4, 5, 3)),
            (pa.array([datetime.date(2024, 1, 1)]), OPAQUE, ()),
            (pa.array([{"a": 1}]), OPAQUE, ()),
            (pa.nulls(2), OPAQUE, ()),
        ],
    )
    def test_columns_are_described(self, column: Column, dtype: str, shape: Shape) -> None:
        spec = describe("x", column)
        assert (spec.name, spec.dtype, spec.shape) == ("x", dtype, shape)

    def test_length_of_lists_is_the_most_common_one(self) -> None:
        assert describe("x", pa.array([[1, 2, 3], [1, 2], None, [3, 4], []])).shape == (2,)
        assert describe("x", pa.array([[[1], [2]], [[1, 2, 3], [4]], [[5], [6]]])).shape == (2, 1)

    @pytest.mark.parametrize(
        ("column", "varies"),
        [
            (pa.array([[1, 2], [3, 4]]), True),
            (pa.array([[1, 2]], pa.large_list(pa.int64())), True),
            (pa.array([["a"], []]), True),
            (pa.array([[[1], [2]]]), True),
            (pa.array([[[1, 2]]], pa.list_(pa.list_(pa.int64()), 1)), False),
            (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), False),
            (tensors(np.zeros((2, 4, 5), "float32")), False),
            (pa.array([1, 2]), False),
            (pa.array(["a", "bc"]), False),
            (np.zeros((2, 3)), False),
        ],
        ids=lambda value: str(getattr(value, "type", value)),
    )
    def test_lists_may_vary_whatever_length_they_have_here(self, column: Column, varies: bool) -> None:
        assert describe("x", column).varies is varies

    def test_columns_in_memory_have_no_encoding(self) -> None:
        assert describe("x", pa.array([b"\xff\xd8"])).encoding is None

    def test_list_lengths_of_a_slice_are_those_of_its_own_rows(self) -> None:
        column = pa.array([[1], [1, 2, 3], [4, 5, 6]]).slice(1)
        assert describe("x", column).shape == (3,)


class TestToArray:
    @pytest.mark.parametrize("dtype", NUMBERS)
    def test_numbers_pass_unchanged(self, dtype: str) -> None:
        values = np.array([0, 1, 100], dtype=dtype)
        array, bad = to_array(pa.array(values), dtype, ())
        assert not bad
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, values)

    def test_numpy_columns_are_not_copied_when_they_fit(self) -> None:
        values = np.arange(12, dtype=np.float32).reshape(3, 4)
        array, bad = to_array(values, "float32", (4,))
        assert not bad
        assert np.shares_memory(array, values)

    def test_arrow_numbers_are_not_copied_when_they_fit(self) -> None:
        values = np.arange(12, dtype=np.float32)
        array, _ = to_array(pa.array(values), "float32", ())
        assert np.shares_memory(array, values)

    def test_numpy_columns_take_the_shape_of_the_input(self) -> None:
        array, _ = to_array(np.arange(12, dtype=np.uint8).reshape(2, 6), "uint8", (3, 2, 1))
        assert array.shape == (2, 3, 2, 1)
        assert array[1, 2, 1, 0] == 11

    def test_big_endian_becomes_native(self) -> None:
        array, _ = to_array(np.array([1.5, 2.5], ">f4"), "float32", ())
        assert array.dtype.isnative
        assert array.tolist() == [1.5, 2.5]

    def test_fortran_order_becomes_rows_first(self) -> None:
        values = np.asfortranarray(np.arange(6).reshape(2, 3))
        array, _ = to_array(values, "int64", (3,))
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])

    def test_wider_numbers_are_cast_to_what_crosses_to_the_device(self) -> None:
        array, _ = to_array(pa.array([1.5, 2.5], pa.float64()), "float32", ())
        assert array.dtype == np.float32
        assert array.tolist() == [1.5, 2.5]

    def test_bools_and_decimals_become_numbers(self) -> None:
        assert to_array(pa.array([True, False]), "bool", ())[0].tolist() == [True, False]
        assert to_array(pa.array([True, False]), "float32", ())[0].tolist() == [1.0, 0.0]
        assert to_array(pa.array([Decimal("1.50"), Decimal("-2.25")]), "float64", ())[0].tolist() == [1.5, -2.25]

    @pytest.mark.parametrize(
        "kind",
        [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
        ids=str,
    )
    def test_text_becomes_bytes_objects(self, kind: pa.DataType) -> None:
        values = ["a", "", "é"] if "string" in str(kind) else [b"a", b"", "é".encode()]
        array, bad = to_array(pa.array(values, kind), STRING, ())
        assert not bad
        assert array.dtype == object
        assert array.tolist() == [b"a", b"", "é".encode()]

    @pytest.mark.parametrize(
        "column",
        [np.array(["a", "é"]), np.array(["a", "é"], dtype=object), np.array([b"a", "é".encode()], dtype=object)],
        ids=["unicode", "objects", "bytes objects"],
    )
    def test_numpy_text_becomes_bytes_objects(self, column: Array) -> None:
        assert to_array(column, STRING, ())[0].tolist() == [b"a", "é".encode()]

    def test_fixed_width_bytes_keep_their_shape(self) -> None:
        array, _ = to_array(np.array([[b"a", b"b"], [b"c", b"d"]]), STRING, (2,))
        assert array.tolist() == [[b"a", b"b"], [b"c", b"d"]]

    def test_dictionaries_are_decoded(self) -> None:
        assert to_array(pa.array(["b", "a", "b"]).dictionary_encode(), STRING, ())[0].tolist() == [b"b", b"a", b"b"]
        assert to_array(pa.array([7, 8, 7]).dictionary_encode(), "int64", ())[0].tolist() == [7, 8, 7]

    @pytest.mark.parametrize("fixed", [(), (3, 2)], ids=["lists", "fixed-size lists"])
    def test_nested_lists_become_arrays(self, fixed: tuple[int, ...]) -> None:
        values = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
        array, bad = to_array(nested(values.tolist(), 2, pa.uint8(), fixed=fixed), "uint8", (3, 2))
        assert not bad
        np.testing.assert_array_equal(array, values)

    def test_flat_lists_take_the_shape_of_the_input(self) -> None:
        values = np.arange(24, dtype=np.uint8).reshape(4, 6)
        array, _ = to_array(pa.array(values.tolist(), pa.list_(pa.uint8())), "uint8", (2, 3, 1))
        np.testing.assert_array_equal(array, values.reshape(4, 2, 3, 1))

    def test_fixed_shape_tensors_become_arrays(self) -> None:
        values = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
        array, bad = to_array(tensors(values), "float32", (3, 2, 2))
        assert not bad
        np.testing.assert_array_equal(array, values)

    def test_tensors_that_are_stored_transposed_have_their_own_axes(self) -> None:
        values = np.arange(24, dtype=np.float32).reshape(4, 3, 2).transpose(0, 2, 1)
        column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
        assert column.type.permutation == [1, 0]
        assert describe("x", column).shape == (2, 3)
        array, bad = to_array(column, "float32", (2, 3))
        assert not bad
        np.testing.assert_array_equal(array, values)
        array, bad = to_array(column.take(pa.array([3, None, 0]))[1:], "float32", (2, 3))
        assert bad == {0: "is null"}
        np.testing.assert_array_equal(array[1], values[0])

    def test_transposed_tensors_keep_all_digits_and_rows_that_hold_a_null_are_bad(self) -> None:
        storage = pa.array([[2**60 + 1, 2, 3, 4, 5, 6], [1, 2, None, 4, 5, 6]], pa.list_(pa.int64(), 6))
        kind = pa.fixed_shape_tensor(pa.int64(), (2, 3), permutation=[1, 0])
        array, bad = to_array(pa.ExtensionArray.from_storage(kind, storage), "int64", (3, 2))
        assert bad == {1: "holds a null"}
        assert array[0].tolist() == [[2**60 + 1, 4], [2, 5], [3, 6]]

    def test_text_that_stands_for_numbers_is_read_where_numbers_are_fed(self) -> None:
        array, bad = to_array(pa.array(["12", "", None, "x", " 1e3 "]), "float32", ())
        assert bad == {1: "is null", 2: "is null", 3: "is 'x', not a number"}
        assert array.tolist() == [12, 0, 0, 0, 1000]

    def test_unknown_dimension_is_worked_out(self) -> None:
        array, bad = to_array(pa.array([[1, 2, 3], [4, 5, 6]]), "int64", (None,))
        assert not bad
        assert array.tolist() == [[1, 2, 3], [4, 5, 6]]

    @pytest.mark.parametrize(
        "column",
        [
            pa.array([], pa.float32()),
            np.empty(0, "float32"),
        ],
        ids=["arrow", "numpy"],
    )
    def test_no_rows_give_an_empty_array(self, column: Column) -> None:
        array, bad = to_array(column, "float32", ())
        assert array.shape == (0,)
        assert not bad

    def test_no_lists_give_an_empty_array_of_the_right_rank(self) -> None:
        assert to_array(pa.array([], pa.list_(pa.float32())), "float32", (3, 2))[0].shape == (0, 3, 2)


def variants_with_an_offset() -> dict[str, tuple[Column, str, Shape]]:
    """Columns of 8 rows of every kind, for slicing."""
    numbers = np.arange(8, dtype=np.int32)
    pairs = np.arange(16, dtype=np.int32).reshape(8, 2)
    cubes = np.arange(64, dtype=np.float32).reshape(8, 2, 2, 2)
    words = [f"w{i}" for i in range(8)]
    return {
        "numbers": (pa.array(numbers), "int32", ()),
        "bools": (pa.array([i % 3 == 0 for i in range(8)]), "bool", ()),
        "decimals": (pa.array([Decimal(i) for i in range(8)]), "float64", ()),
        "words": (pa.array(words), STRING, ()),
        "fixed-width bytes": (pa.array([w.encode() for w in words], pa.binary(2)), STRING, ()),
        "dictionary": (pa.array(words).dictionary_encode(), STRING, ()),
        "lists": (pa.array(pairs.tolist(), pa.list_(pa.int32())), "int32", (2,)),
        "large lists": (pa.array(pairs.tolist(), pa.large_list(pa.int32())), "int32", (2,)),
        "fixed-size lists": (pa.array(pairs.tolist(), pa.list_(pa.int32(), 2)), "int32", (2,)),
        "nested lists": (nested(cubes.tolist(), 3, pa.float32()), "float32", (2, 2, 2)),
        "nested fixed-size lists": (nested(cubes.tolist(), 3, pa.float32(), fixed=(2, 2, 2)), "float32", (2, 2, 2)),
        "tensors": (tensors(cubes), "float32", (2, 2, 2)),
        "lists of words": (pa.array([[w, w + "!"] for w in words]), STRING, (2,)),
        "lists of dictionary words": (
            pa.array([[w, w] for w in words], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            STRING,
            (2,),
        ),
        "lists of bools": (pa.array([[i % 2 == 0, True] for i in range(8)]), "bool", (2,)),
        "lists of decimals": (pa.array([[Decimal(i)] for i in range(8)]), "float64", (1,)),
        "numpy": (pairs, "int32", (2,)),
        "numpy words": (np.array(words, dtype=object), STRING, ()),
    }


@pytest.mark.parametrize("kind", variants_with_an_offset())
def test_slices_give_the_rows_that_they_cover(kind: str) -> None:
    column, dtype, shape = variants_with_an_offset()[kind]
    everything, _ = to_array(column, dtype, shape)
    for start in range(9):
        for stop in range(start, 9):
            piece = column[start:stop]
            array, bad = to_array(piece, dtype, shape)
            assert not bad
            assert array.shape == (stop - start, *shape)
            np.testing.assert_array_equal(array, everything[start:stop])


class TestBadRows:
    @pytest.mark.parametrize(
        ("column", "dtype", "shape", "zero"),
        [
            (pa.array([1, None, 3], pa.uint8()), "uint8", (), 0),
            (pa.array([1.0, None, 3.0]), "float32", (), 0.0),
            (pa.array([1.0, None, 3.0], pa.float16()), "float16", (), 0.0),
            (pa.array([True, None, True]), "bool", (), False),
            (pa.array([Decimal("1.5"), None, Decimal("3.5")]), "float64", (), 0.0),
            (pa.array(["a", None, "c"]), STRING, (), b""),
            (pa.array(["a", None, "c"]).dictionary_encode(), STRING, (), b""),
            (pa.array([[1, 2], None, [5, 6]]), "int64", (2,), [0, 0]),
            (pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int64(), 2)), "int64", (2,), [0, 0]),
            (pa.array([["a", "b"], None, ["c", "d"]]), STRING, (2,), [b"", b""]),
            (pa.array([[[1], [2]], None, [[5], [6]]]), "int64", (2, 1), [[0], [0]]),
        ],
    )
    def test_null_row_is_zero_filled_and_named(self, column: pa.Array, dtype: str, shape: Shape, zero: object) -> None:
        array, bad = to_array(column, dtype, shape)
        assert dict(bad) == {1: "is null"}
        assert array.shape == (3, *shape)
        assert array[1].tolist() == zero if shape else array.tolist()[1] == zero
        others, _ = to_array(column.take(pa.array([0, 2])), dtype, shape)
        np.testing.assert_array_equal(array[[0, 2]], others)

    def test_null_tensor_is_zero_filled_and_named(self) -> None:
        storage = pa.array([[1, 2, 3, 4], None], pa.list_(pa.int64(), 4))
        column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), [2, 2]), storage)
        array, bad = to_array(column, "int64", (2, 2))
        assert dict(bad) == {1: "is null"}
        assert array.tolist() == [[[1, 2], [3, 4]], [[0, 0], [0, 0]]]

    @pytest.mark.parametrize("row", [[1], [1, 2, 3], []], ids=["short", "long", "empty"])
    def test_row_of_another_length_is_zero_filled_and_named(self, row: list[int]) -> None:
        array, bad = to_array(pa.array([[1, 2], row, [5, 6]]), "int64", (2,))
        assert dict(bad) == {1: f"has {len(row)} values, not 2"}
        assert array.tolist() == [[1, 2], [0, 0], [5, 6]]

    @pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int64(), 2)], ids=["list", "fixed-size list"])
    def test_row_that_holds_a_null_is_zero_filled_and_named(self, kind: pa.DataType) -> None:
        array, bad = to_array(pa.array([[1, 2], [3, None], [5, 6]], kind), "int64", (2,))
        assert dict(bad) == {1: "holds a null"}
        assert array.tolist() == [[1, 2], [0, 0], [5, 6]]

    def test_rows_that_are_all_of_one_wrong_length_are_all_named(self) -> None:
        array, bad = to_array(pa.array([[1, 2], [3, 4]]), "int64", (3,))
        assert dict(bad) == {0: "has 2 values, not 3", 1: "has 2 values, not 3"}
        assert array.tolist() == [[0, 0, 0], [0, 0, 0]]

    @pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())], ids=str)
    def test_rows_of_different_lengths_are_bad_even_if_their_sum_fits(self, kind: pa.DataType) -> None:
        array, bad = to_array(pa.array([[1], [2, 3, 4], [5, 6]], kind), "int64", (2,))
        assert dict(bad) == {0: "has 1 values, not 2", 1: "has 3 values, not 2"}
        assert array.tolist() == [[0, 0], [0, 0], [5, 6]]

    def test_bad_rows_of_a_slice_are_numbered_within_it(self) -> None:
        column = pa.array([[1], [1, 2], [3, 4], None, [5, 6]]).slice(1)
        array, bad = to_array(column, "int64", (2,))
        assert dict(bad) == {2: "is null"}
        assert array.tolist() == [[1, 2], [3, 4], [0, 0], [5, 6]]

    def test_inner_null_list_is_a_bad_row(self) -> None:
        array, bad = to_array(pa.array([[[1, 2], [3, 4]], [[5, 6], None]]), "int64", (2, 2))
        assert list(bad) == [1]
        assert array.tolist() == [[[1, 2], [3, 4]], [[0, 0], [0, 0]]]

    def test_row_whose_inner_lists_differ_in_length_is_bad_even_if_the_count_fits(self) -> None:
        array, bad = to_array(pa.array([[[1, 2], [3, 4]], [[5], [6, 7, 8]]]), "int64", (2, 2))
        assert list(bad) == [1]
        assert array.tolist() == [[[1, 2], [3, 4]], [[0, 0], [0, 0]]]

    def test_single_row_whose_inner_lists_differ_in_length_is_bad(self) -> None:
        _, bad = to_array(pa.array([[[5], [6, 7, 8]]]), "int64", (2, 2))
        assert list(bad) == [0]

    def test_row_of_another_shape_is_bad_even_if_the_count_fits(self) -> None:
        wide, high = [[1, 2, 3], [4, 5, 6]], [[1, 2], [3, 4], [5, 6]]
        for rows, expected in (([wide, high], [1]), ([high, high], [0, 1]), ([wide, wide], [])):
            array, bad = to_array(pa.array(rows), "int64", (2, 3))
            assert list(bad) == expected
            assert set(bad.values()) <= {"has the shape [3, 2], not [2, 3]"}
            assert [row.tolist() for row in array] == [[[0] * 3] * 2 if row in expected else wide for row in range(2)]

    def test_axes_of_one_value_do_not_count(self) -> None:
        column = pa.array([[[1, 2], [3, 4]]])
        assert to_array(column, "int64", (2, 2, 1))[0].tolist() == [[[[1], [2]], [[3], [4]]]]
        assert to_array(column, "int64", (4,))[0].tolist() == [[1, 2, 3, 4]]

    def test_none_among_text_objects_is_a_bad_row(self) -> None:
        array, bad = to_array(np.array(["a", None, "c"], dtype=object), STRING, ())
        assert dict(bad) == {1: "is null"}
        assert array.tolist() == [b"a", b"", b"c"]

    def test_number_among_text_objects_is_not_turned_into_zero_bytes(self) -> None:
        array, bad = to_array(np.array(["a", 3, "c"], dtype=object), STRING, ())
        assert list(bad) == [1]
        assert array.tolist() == [b"a", b"", b"c"]

    def test_fraction_for_a_whole_number_is_a_bad_row_and_not_cut_off(self) -> None:
        array, bad = to_array(pa.array([1.0, 2.5, 3.0]), "int64", ())
        assert list(bad) == [1]
        assert array.tolist() == [1, 0, 3]

    @pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float64(), 3)], ids=str)
    def test_fraction_in_a_list_fails_the_row_that_holds_it(self, kind: pa.DataType) -> None:
        rows = [[1.0, 2.5, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.5]]
        array, bad = to_array(pa.array(rows, kind), "int32", (3,))
        assert dict(bad) == {0: "is not a whole number", 2: "is not a whole number"}
        assert array[1].tolist() == [4, 5, 6]

    def test_fraction_beside_a_null_row_is_not_cut_off(self) -> None:
        array, bad = to_array(pa.array([[1.0, 2.0], None, [3.0, 4.5], [5.0, 6.0]]), "int32", (2,))
        assert dict(bad) == {1: "is null", 2: "is not a whole number"}
        assert array[[0, 3]].tolist() == [[1, 2], [5, 6]]

    @pytest.mark.parametrize("shape", [(), (2,), (1, 2)])
    def test_fraction_in_an_array_fails_its_row(self, shape: tuple[int, ...]) -> None:
        values = np.arange(3.0).repeat(math.prod(shape)).reshape(3, *shape)
        values[1] += 0.5
        array, bad = to_array(values, "int32", shape)
        assert dict(bad) == {1: "is not a whole number"}
        assert array[[0, 2]].tolist() == values[[0, 2]].tolist()

    @pytest.mark.parametrize("value", [256, -1, 300.0, float("inf")])
    def test_number_that_an_integer_input_cannot_hold_fails_its_row(self, value: float) -> None:
        array, bad = to_array(np.array([[1, 2], [3, value], [255, 0]]), "uint8", (2,))
        assert dict(bad) == {1: "does not fit into uint8"}
        assert array[[0, 2]].tolist() == [[1, 2], [255, 0]]

    def test_number_that_is_none_fails_its_row(self) -> None:
        assert dict(to_array(np.array([1.0, np.nan]), "int32", ())[1]) == {1: "is NaN, which no int32 is"}


@given(
    rows=st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 255)), max_size=4)), max_size=12),
    width=st.integers(1, 4),
    start=st.integers(0, 3),
)
def test_good_rows_pass_and_bad_rows_are_zero_whatever_stands_beside_them(
    rows: list[list[int | None] | None], width: int, start: int
) -> None:
    array, bad = to_array(pa.array(rows, pa.list_(pa.uint8())).slice(start), "uint8", (width,))
    expected = rows[start:]
    assert array.shape == (len(expected), width)
    for position, row in enumerate(expected):
        is_good = row is not None and len(row) == width and None not in row
        assert (position in bad) == (not is_good)
        assert array[position].tolist() == (row if is_good else [0] * width)


class TestToArrow:
    @pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
    def test_vectors_of_numbers_keep_their_type(self, dtype: str) -> None:
        values = np.array([0, 1, 1], dtype=dtype)
        column = to_arrow(values)
        assert describe("x", column).dtype == dtype
        np.testing.assert_array_equal(column.to_numpy(zero_copy_only=False), values)

    def test_rows_of_rank_one_become_fixed_size_lists(self) -> None:
        column = to_arrow(np.arange(6, dtype=np.float32).reshape(2, 3))
        assert column.type == pa.list_(pa.float32(), 3)
        assert column.to_pylist() == [[0, 1, 2], [3, 4, 5]]

    def test_rows_of_rank_two_and_above_become_fixed_shape_tensors(self) -> None:
        values = np.arange(24, dtype=np.float32).reshape(2, 2, 3, 2)
        column = to_arrow(values)
        assert column.type == pa.fixed_shape_tensor(pa.float32(), [2, 3, 2])
        np.testing.assert_array_equal(column.to_numpy_ndarray(), values)

    @pytest.mark.parametrize("shape", [(0,), (0, 3), (0, 2, 3)])
    def test_no_rows_keep_their_type(self, shape: tuple[int, ...]) -> None:
        empty = to_arrow(np.empty(shape, "float32"))
        assert len(empty) == 0
        assert empty.type == to_arrow(np.empty((1, *shape[1:]), "float32")).type

    def test_strided_arrays_are_stored_in_row_order(self) -> None:
        values = np.arange(24).reshape(4, 6)[::2, ::3]
        assert to_arrow(values).to_pylist() == values.tolist()
        assert to_arrow(np.arange(10)[::3]).to_pylist() == [0, 3, 6, 9]

    @pytest.mark.parametrize("shape", [(2,), (2, 2), (2, 2, 2)])
    def test_big_endian_numbers_are_stored(self, shape: tuple[int, ...]) -> None:
        values = np.arange(np.prod(shape), dtype=">f4").reshape(shape)
        array, bad = to_array(to_arrow(values), "float32", shape[1:])
        assert not bad
        np.testing.assert_array_equal(array, values)

    def test_matrices_of_bools_keep_their_values(self) -> None:
        values = np.array([[True, False], [False, True]])
        array, _ = to_array(to_arrow(values), "bool", (2,))
        np.testing.assert_array_equal(array, values)

    def test_text_becomes_strings(self) -> None:
        for values in (np.array(["a", "é"]), np.array(["a", "é"], object), np.array([b"a", "é".encode()], object)):
            column = to_arrow(values)
            assert pa.types.is_large_string(column.type)
            assert column.to_pylist() == ["a", "é"]

    def test_bytes_that_are_not_text_stay_bytes(self) -> None:
        column = to_arrow(np.array([b"a", b"\xff\xfe"], dtype=object))
        assert column.to_pylist() == [b"a", b"\xff\xfe"]

    def test_rows_of_text_become_lists_of_text(self) -> None:
        column = to_arrow(np.array([["a", "b"], ["c", "d"]], dtype=object))
        assert column.to_pylist() == [["a", "b"], ["c", "d"]]

    def test_tables_of_text_keep_their_shape(self) -> None:
        values = np.array([[["a", "b"], ["c", "d"]]], dtype=object)
        array, _ = to_array(to_arrow(values), STRING, (2, 2))
        assert array.tolist() == [[[b"a", b"b"], [b"c", b"d"]]]
        assert describe("x", to_arrow(values)).shape == (2, 2)

    def test_arrow_columns_pass_unchanged(self) -> None:
        column = pa.array([datetime.date(2024, 1, 1)])
        assert to_arrow(column) is column


@pytest.mark.parametrize("kind", variants_with_an_offset())
def test_column_that_is_cut_and_joined_again_is_the_same(kind: str) -> None:
    column, dtype, shape = variants_with_an_offset()[kind]
    everything, _ = to_array(column, dtype, shape)
    joined = join([column[0:3], column[3:4], column[4:4], column[4:8]])
    array, bad = to_array(joined, dtype, shape)
    assert not bad
    np.testing.assert_array_equal(array, everything)


@pytest.mark.parametrize("kind", variants_with_an_offset())
def test_rows_are_taken_by_a_mask(kind: str) -> None:
    column, dtype, shape = variants_with_an_offset()[kind]
    everything, _ = to_array(column, dtype, shape)
    mask = np.array([True, False, False, True, True, False, True, False])
    array, bad = to_array(take_rows(column, mask), dtype, shape)
    assert not bad
    np.testing.assert_array_equal(array, everything[mask])


def test_single_piece_is_joined_without_a_copy() -> None:
    piece = np.arange(3)
    assert join([piece]) is piece


def test_numpy_and_arrow_pieces_of_one_column_are_joined() -> None:
    column = join([np.array([1.0, 2.0]), pa.array([3.0])])
    assert to_arrow(column).to_pylist() == [1.0, 2.0, 3.0]


def test_dictionaries_with_different_words_are_joined() -> None:
    column = join([pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()])
    assert to_arrow(column).to_pylist() == ["a", "b", "c", "a"]


def test_chunks_become_one_array() -> None:
    assert whole(pa.chunked_array([[1], [2, 3]])).to_pylist() == [1, 2, 3]
    assert whole(pa.chunked_array([], pa.int64())).to_pylist() == []
    single = pa.array([1])
    assert whole(pa.chunked_array([single])).equals(single)


def test_text_types_are_known() -> None:
    assert is_text(pa.string_view())
    assert is_text(pa.binary(4))
    assert not is_text(pa.int8())


class TestToLists:
    def test_rows_of_any_length_are_lists_of_one_type(self) -> None:
        pieces = [np.ones((2, 1, 2), "f4"), np.ones((1, 0, 2), "f4"), np.ones((1, 3, 1), "f4")]
        found = to_lists(pieces)
        assert found.to_pylist() == [row.tolist() for piece in pieces for row in piece]
        assert {to_lists([piece]).type for piece in pieces} == {found.type}
        assert describe("y", found).varies

    @pytest.mark.parametrize("value", [b"a", b"\xff", True, 7], ids=str)
    def test_text_and_truths_too(self, value: Any) -> None:
        rows = np.array([[value, value]], dtype=object if isinstance(value, bytes) else None)
        wanted = value.decode() if value == b"a" else value
        assert to_lists([rows, rows[:, :1]]).to_pylist() == [[wanted, wanted], [wanted]]


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ([np.array([1.0, NAN, INF, -INF])], 3),
        ([np.array([INF, -INF])], 2),
        ([np.array([[1, NAN], [2, 3], [NAN, INF]], np.float32)], 2),
        ([np.array([1.0, NAN, 2.0]), np.array([NAN, NAN, 0.0])], 2),
        ([np.array([3e38, 3e38], np.float32)], 0),
        ([np.array([6e4, 6e4, NAN], np.float16)], 1),
        ([np.array([1, 2]), np.array(["nan", "inf"], object), np.array([True, False])], 0),
        ([np.zeros((0, 3)), np.zeros((2, 0))], 0),
        ([pa.array([[1.0], [], [NAN, 2.0], [INF]])], 2),
        ([to_lists([np.array([[[1.0, NAN]], [[1.0, 2.0]]]), np.array([[[INF]]])])], 2),
        ([pa.array(["nan"]), pa.array([[1, 2]])], 0),
        ([], 0),
    ],
)
def test_rows_that_hold_something_that_is_no_number_are_counted_once(columns: list[Column], rows: int) -> None:
    assert count_not_finite(columns) == rows
