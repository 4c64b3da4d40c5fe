"""Arrays and tables that the caller already holds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.columns import to_arrow
from penstock.core.records import Span
from penstock.errors import InputError
from penstock.sources.python.memory import InMemory, SharedMemory, open_memory
from tests.support.naming import told


def read(source: InMemory) -> dict[str, list[Any]]:
    """All rows of a source by column, in one span."""
    rows = sum(span.rows for span in source.divide(1000))
    (block,) = source.read(Span(0, 0, rows, ()), list(source.schema()))
    return {name: to_arrow(column).to_pylist() for name, column in block.columns.items()}


def test_single_array_is_a_column_named_after_the_only_input() -> None:
    source = open_memory(np.zeros((3, 2)), ["image"])
    assert list(source.schema()) == ["image"]
    assert source.is_positional
    assert list(open_memory(np.zeros((3, 2)), []).schema()) == ["x0"]
    assert list(open_memory(np.zeros((3, 2)), ["a", "b"]).schema()) == ["x0"]


def test_arrays_of_a_list_take_the_names_of_the_inputs_in_order() -> None:
    source = open_memory([np.zeros(3), np.ones((3, 2))], ["a", "b"])
    assert {name: spec.shape for name, spec in source.schema().items()} == {"a": (), "b": (2,)}
    assert source.is_positional
    assert list(open_memory([np.zeros(3), np.ones(3)]).schema()) == ["x0", "x1"]
    assert list(open_memory((np.zeros(3), np.ones(3)), ["a", "b"]).schema()) == ["a", "b"]


def test_shared_copy_knows_whether_its_arrays_were_given_in_order() -> None:
    for data, expected in (([np.zeros(2), np.ones(2)], True), ({"a": np.zeros(2)}, False)):
        shared = open_memory(data).shared()
        assert shared.is_positional == expected
        shared.close()


def test_nested_lists_of_numbers_are_one_array() -> None:
    assert read(open_memory([[1, 2], [3, 4]], ["x"])) == {"x": [[1, 2], [3, 4]]}


def test_dict_gives_its_columns_by_name() -> None:
    source = open_memory({"b": np.zeros(2), "a": [1, 2]})
    assert list(source.schema()) == ["b", "a"]
    assert not source.is_positional


def test_arrow_tables_and_batches_give_their_columns() -> None:
    table = pa.table({"a": [1, 2], "t": ["x", "y"]})
    for data in (table, table.to_batches()[0], pa.concat_tables([table.slice(0, 1), table.slice(1)])):
        source = open_memory(data)
        assert read(source) == {"a": [1, 2], "t": ["x", "y"]}
        assert not source.is_positional


def test_table_with_two_columns_of_one_name_is_told() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InputError):
        open_memory(table)


@pytest.mark.parametrize("data", [5, 1.5, None, object(), "rows.csv"], ids=told)
def test_anything_else_is_told(data: Any) -> None:
    with pytest.raises(InputError) as caught:
        open_memory(data)
    assert caught.value.problem == "this input is not understood"
    assert caught.value.received == type(data).__name__


def test_single_number_has_no_rows() -> None:
    with pytest.raises(InputError, match="a single number has no rows"):
        open_memory({"x": 5})


def test_empty_list_and_empty_dict_are_told() -> None:
    with pytest.raises(InputError):
        open_memory({})
    assert list(open_memory([], ["x"]).divide(10)) == []


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        InMemory({"a": np.zeros(3), "b": np.zeros(4)})
    assert caught.value.received == "a 3, b 4"


def test_no_columns_are_refused() -> None:
    with pytest.raises(InputError, match="the input has no columns"):
        InMemory({})


def test_blocks_are_views_of_the_callers_arrays() -> None:
    values = np.arange(10)
    (block,) = InMemory({"x": values}).read(Span(1, 4, 4, ()), ["x"])
    assert np.shares_memory(block.columns["x"], values)
    assert (block.start, block.rows) == (4, 4)
    assert np.asarray(block.columns["x"]).tolist() == [4, 5, 6, 7]


def digest(columns: dict[str, Any]) -> str:
    (fragment,) = InMemory(columns).fragments()
    return fragment.path


def test_same_content_is_the_same_job_wherever_it_lies() -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert digest({"x": values}) == digest({"x": values.copy()}) == digest({"x": np.asfortranarray(values)})
    assert digest({"x": pa.array([1, 2, 3])}) == digest({"x": pa.array([0, 1, 2, 3]).slice(1)})
    assert digest({"x": np.array(["a", "b"], object)}) == digest({"x": np.array(["a", "b"], object)})


@pytest.mark.parametrize(
    "other",
    [
        {"y": np.arange(4)},
        {"x": np.arange(1, 5)},
        {"x": np.arange(4, dtype=np.int32)},
        {"x": np.arange(4).reshape(2, 2)},
        {"x": np.arange(5)},
        {"x": np.arange(4), "z": np.arange(4)},
        {"x": pa.array(["0", "1", "2", "3"])},
    ],
    ids=told,
)
def test_another_content_is_another_job(other: dict[str, Any]) -> None:
    assert digest({"x": np.arange(4)}) != digest(other)


def test_text_that_differs_in_one_letter_is_another_job() -> None:
    assert digest({"x": np.array(["ab", "c"], object)}) != digest({"x": np.array(["a", "bc"], object)})
    assert digest({"x": np.array(["ab", "c"])}) != digest({"x": np.array(["ab", "d"])})


def test_null_differs_from_zero() -> None:
    assert digest({"x": pa.array([0, None])}) != digest({"x": pa.array([0, 0])})


@pytest.mark.parametrize(
    "column",
    [
        np.arange(6, dtype=np.uint8).reshape(3, 2),
        np.array(["a", "é", ""], dtype=object),
        np.array(["a", "é", ""]),
        np.array([b"a", b"\xff", b""], dtype=object),
        np.array([["a", "b"], ["c", "d"], ["e", "f"]], dtype=object),
        pa.array([[1, 2], None, [3, 4]]),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        np.arange(3, dtype=">f8"),
    ],
    ids=told,
)
def test_shared_memory_holds_the_same_rows(column: Any) -> None:
    shared = SharedMemory.holding({"c": column, "n": np.arange(3)})
    (block,) = shared.read(Span(0, 1, 2, ()), ["c", "n"])
    arrived: Any = block.columns["c"]
    plain = arrived.tolist() if isinstance(arrived, np.ndarray) else arrived.to_pylist()
    assert plain == (column.tolist() if isinstance(column, np.ndarray) else column.to_pylist())[1:3]
    assert np.asarray(block.columns["n"]).tolist() == [1, 2]
    del block, arrived
    shared.close()


def test_shared_memory_is_freed_with_its_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        shared = SharedMemory.holding({"x": np.arange(1000)})
        assert shared.schema()["x"].dtype == "int64"
        shared.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_shared_memory_without_rows_can_be_opened() -> None:
    shared = SharedMemory.holding({"x": np.empty((0, 3), np.float32)})
    assert str(shared.schema()["x"]) == "float32[3]"
    assert list(shared.divide(10)) == []
    shared.close()
