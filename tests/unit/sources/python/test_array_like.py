"""Whatever a caller holds as rows becomes a column, or is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.columns import describe
from penstock.core.nesting import ArrayLeaf, Branch
from penstock.errors import InputError
from penstock.sources.python.array_like import as_column, from_rows, given_as, is_nested
from penstock.sources.python.memory import open_memory


def column(value: Any) -> Any:
    found = as_column(value)
    assert isinstance(found, (np.ndarray, pa.Array))
    return found


def objects(*rows: Any) -> Any:
    array = np.empty(len(rows), object)
    array[:] = rows
    return array


class TestRows:
    @pytest.mark.parametrize("wrap", [list, tuple, lambda rows: objects(*rows)], ids=["list", "tuple", "object array"])
    def test_arrays_of_different_lengths_become_lists(self, wrap: Any) -> None:
        rows = [np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)]
        found = column(wrap(rows))
        assert found.to_pylist() == [row.tolist() for row in rows]
        assert describe("x", found).dtype == "float32"
        assert describe("x", found).varies

    def test_arrays_of_one_shape_become_one(self) -> None:
        assert from_rows([np.zeros((2, 3)), np.ones((2, 3))]).shape == (2, 2, 3)
        assert column(objects([1, 2], [3, 4])).tolist() == [[1, 2], [3, 4]]

    def test_lists_of_different_lengths_become_lists(self) -> None:
        assert column([[1, 2, 3], [4]]).to_pylist() == [[1, 2, 3], [4]]

    def test_rows_of_vectors_keep_their_inner_size(self) -> None:
        found = from_rows([np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32)])
        assert describe("x", found).shape in ((2, 3), (4, 3))

    def test_whole_numbers_beside_fractions_become_fractions(self) -> None:
        found = column([np.array([1, 2, 3]), np.array([0.5])])
        assert found.to_pylist() == [[1.0, 2.0, 3.0], [0.5]]

    def test_text_stays_text(self) -> None:
        assert column(["a", "b"]).tolist() == ["a", "b"]
        assert column(objects("a", b"b", None)).tolist() == ["a", b"b", None]

    def test_null_among_lists_is_a_null(self) -> None:
        assert column([[1.0, 2.0], None]).to_pylist() == [[1.0, 2.0], None]

    def test_null_among_the_numbers_of_a_row_is_a_null_and_the_column_stays_one_of_numbers(self) -> None:
        given: list[Any] = [[[1.0, 2.0], [1, None]], [[None, 2.0], [1.0, 1.0]], np.array([[1.0, None]], object)]
        for rows in given:
            assert column(rows).to_pylist() == [list(row) for row in rows]
            assert describe("x", column(rows)).dtype == "float64"
        assert column(np.array([["a", None]], object)).tolist() == [["a", None]]

    @pytest.mark.parametrize(
        "rows",
        [[np.zeros(2), np.zeros((2, 2))], [1, [2, 3]], [[1, "a"], [2.5]], [{"a": 1}, 2], [[object()], [1, 2]]],
        ids=["ranks", "number and list", "text and numbers", "dict and number", "objects"],
    )
    def test_rows_that_fit_into_no_column_are_told(self, rows: list[Any]) -> None:
        with pytest.raises(InputError):
            as_column(rows)

    def test_odd_row_is_named(self) -> None:
        with pytest.raises(InputError) as caught:
            from_rows([np.zeros(2), np.zeros(3), np.zeros((2, 2))])
        assert caught.value.received == "row 0 has the shape (2,), row 2 the shape (2, 2)"

    @pytest.mark.parametrize("value", [5, np.float32(1), np.array(3)], ids=repr)
    def test_single_number_has_no_rows(self, value: Any) -> None:
        with pytest.raises(InputError, match="a single number has no rows"):
            as_column(value)

    def test_complex_numbers_are_told(self) -> None:
        with pytest.raises(InputError, match="complex"):
            as_column(np.zeros(3, complex))


class TestStructures:
    def test_list_of_arrays_is_a_structure_and_a_list_of_numbers_is_not(self) -> None:
        assert is_nested([np.zeros(2), np.zeros(2)])
        assert is_nested({"x": [1, 2]})
        assert not is_nested([[1, 2], [3, 4]])
        assert not is_nested([np.float32(1), np.float32(2)])
        assert not is_nested(["a", "b"])
        assert not is_nested([])

    def test_how_arrays_were_given_says_nothing_of_their_values(self) -> None:
        data = {"x": [np.zeros(2), np.ones(2)], "y": np.zeros((2, 3))}
        expected = Branch("dict", ("x", "y"), (Branch("list", (0, 1), (ArrayLeaf(), ArrayLeaf())), ArrayLeaf()))
        assert given_as(data) == expected
        assert given_as({"x": [np.ones(5), np.ones(5)], "y": np.ones(5)}) == expected

    def test_nested_arrays_are_columns_by_the_keys_that_lead_to_them(self) -> None:
        source = open_memory({"x": [np.zeros(2), np.zeros((2, 3))], "y": np.zeros(2)})
        assert {name: spec.shape for name, spec in source.schema().items()} == {"x/0": (), "x/1": (3,), "y": ()}
        assert not source.is_positional

    def test_nested_lists_take_the_names_of_the_inputs_in_order(self) -> None:
        source = open_memory([np.zeros(2), (np.zeros(2), np.zeros((2, 3)))], ["a", "b", "c"])
        assert list(source.schema()) == ["a", "b", "c"]


class TestLists:
    def test_list_of_arrays_is_the_rows_of_an_only_input(self) -> None:
        source = open_memory([np.zeros(3), np.ones(3)], ["a"])
        assert source.schema()["a"].shape == (3,)
        assert len(source) == 2

    def test_list_of_one_array_is_the_input_itself_as_in_keras(self) -> None:
        assert len(open_memory([np.zeros((5, 3))], ["a"])) == 5

    def test_arrays_of_different_lengths_are_rows_where_nothing_is_known_of_the_model(self) -> None:
        source = open_memory([np.zeros(3), np.ones(5)])
        assert len(source) == 2
        assert source.schema()["x0"].varies

    def test_arrays_of_different_lengths_for_two_inputs_are_told(self) -> None:
        with pytest.raises(InputError, match="differ in their number of rows"):
            open_memory([np.zeros(3), np.ones(5)], ["a", "b"])


def test_frame_with_arrays_of_two_dimensions_in_a_column_is_read() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"id": [1, 2]})
    frame["image"] = [np.zeros((2, 2)), np.ones((2, 2))]
    schema = open_memory(frame).schema()
    assert schema["image"].shape == (2, 2)
    assert schema["id"].dtype == "int64"


def test_frame_with_a_column_of_anything_is_told() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(InputError) as caught:
        open_memory(pandas.DataFrame({"odd": [object(), 1]}))
    assert caught.value.problem == "the rows of column 'odd' cannot be put into one column"


def test_sparse_matrix_is_a_column_that_is_made_dense_as_it_is_read() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = scipy_sparse.coo_matrix(([1.0], ([3], [7])), shape=(1_000_000, 1_000_000))
    source = open_memory(matrix, ["x"])
    assert source.is_sparse
    span = next(iter(source.divide(10)))
    (block,) = source.read(span, ["x"])
    rows = block.columns["x"]
    assert isinstance(rows, np.ndarray)
    assert rows.shape == (10, 1_000_000)
    assert np.argwhere(rows).tolist() == [[3, 7]]
    assert source.fragments() == open_memory(matrix, ["x"]).fragments()


class _RayTensors(pa.ExtensionType):  # type: ignore[misc]
    """Arrays as blocks of Ray have them: flat lists, and the shape in the type."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        super().__init__(pa.large_list(pa.float32()), "ray.data.arrow_tensor_v2")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


class _RayTensorsOfAnyShape(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        self.value_type = pa.float32()
        shapes = pa.struct([("data", pa.large_list(pa.float32())), ("shape", pa.list_(pa.int64()))])
        super().__init__(shapes, "ray.data.arrow_variable_shaped_tensor")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_arrays_of_ray_keep_their_shape() -> None:
    kind = _RayTensors((2, 2))
    column = as_column(pa.ExtensionArray.from_storage(kind, pa.array([[1, 2, 3, 4], None], kind.storage_type)))
    assert str(describe("x", column)) == "float32[2, 2]"
    assert isinstance(column, pa.Array)
    assert column[0].as_py() == [1, 2, 3, 4]
    assert not column[1].is_valid


def test_arrays_of_ray_with_shapes_of_their_own_are_lists() -> None:
    kind = _RayTensorsOfAnyShape()
    rows = [{"data": [1, 2, 3, 4], "shape": [2, 2]}, {"data": [5, 6], "shape": [1, 2]}]
    column = as_column(pa.ExtensionArray.from_storage(kind, pa.array(rows, kind.storage_type)))
    assert isinstance(column, pa.Array)
    assert column.to_pylist() == [[[1, 2], [3, 4]], [[5, 6]]]
