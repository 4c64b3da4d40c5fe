"""Objects with a length and items."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from penstock.core.records import RowFailure
from penstock.errors import InputError
from penstock.sources.python.datasets import MapDataset, open_object
from penstock.sources.python.streaming import Rows, StreamedRows
from tests.support.naming import told


class Items:
    """A dataset of items that are made when they are asked for."""

    def __init__(self, make: Callable[[int], Any], rows: int = 5) -> None:
        self.make, self.rows = make, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def listed(*items: Any) -> MapDataset:
    return MapDataset(Items(lambda index: items[index], len(items)))


def read(source: MapDataset, rows_per_span: int = 3) -> tuple[dict[str, list[Any]], list[RowFailure]]:
    columns = list(source.schema())
    rows: dict[str, list[Any]] = {name: [] for name in columns}
    failures: list[RowFailure] = []
    for span in source.divide(rows_per_span):
        for block in source.read(span, columns):
            failures += block.failures
            for name in columns:
                column: Any = block.columns[name]
                rows[name] += column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    return rows, failures


class Tensor:
    """As a tensor of PyTorch that has a gradient."""

    def __init__(self, values: Any, is_detached: bool = False) -> None:
        self.values, self.is_detached = values, is_detached

    def detach(self) -> Tensor:
        return Tensor(self.values, True)

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        assert self.is_detached
        return np.asarray(self.values)

    def __array__(self, *arguments: Any) -> Any:
        raise RuntimeError("can't call numpy() on a tensor that requires grad")


@pytest.mark.parametrize(
    ("first", "schema", "is_positional"),
    [
        (np.zeros((2, 3), np.float32), {"x0": "float32[2, 3]"}, True),
        ((np.zeros(2, np.uint8), 5), {"x0": "uint8[2]", "x1": "int64[]"}, True),
        ([np.zeros(2), "text"], {"x0": "float64[2]", "x1": "string[]"}, True),
        ([1.5, 2.5], {"x0": "float64[2]"}, True),
        ([[1, 2], [3, 4]], {"x0": "int64[2, 2]"}, True),
        (["a", "b"], {"x0": "string[2]"}, True),
        (7, {"x0": "int64[]"}, True),
        ("text", {"x0": "string[]"}, True),
        (b"bytes", {"x0": "string[]"}, True),
        (True, {"x0": "bool[]"}, True),
        ({"b": np.float16(1), "a": "t"}, {"b": "float16[]", "a": "string[]"}, False),
        (Tensor([[1.0, 2.0]]), {"x0": "float64[1, 2]"}, True),
        ((Tensor([1]), Tensor(3)), {"x0": "int64[1]", "x1": "int64[]"}, True),
        ({"day": datetime.date(2024, 1, 2)}, {"day": "opaque[]"}, False),
        ({"ragged": [[1], [2, 3]]}, {"ragged": "int64[?, ?]"}, False),
    ],
    ids=told,
)
def test_first_item_decides_the_columns(first: Any, schema: dict[str, str], is_positional: bool) -> None:
    source = listed(first, first)
    assert {name: str(spec) for name, spec in source.schema().items()} == schema
    assert source.is_positional == is_positional
    rows, failures = read(source)
    assert failures == []
    assert all(len(values) == 2 for values in rows.values())


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"x": np.zeros(4, np.float32), "n": 1}, "value 'x' has the shape (4,), not (3,)"),
        ({"x": np.zeros((3, 1), np.float32), "n": 1}, "value 'x' has the shape (3, 1), not (3,)"),
        ({"x": np.zeros(3), "n": 1}, "value 'x' is float64, not float32"),
        ({"x": np.zeros(3, np.float32), "n": 1.5}, "value 'n' is float64, not int64"),
        ({"x": None, "n": 1}, "value 'x' has the shape (), not (3,)"),
        ({"x": np.zeros(3, np.float32), "n": 1 << 70}, "value 'n' is object, not int64"),
        ({"x": np.zeros(3, np.float32), "n": "text"}, "value 'n' is <U4, not int64"),
        ({"x": np.zeros(3, np.float32)}, "has no value 'n'"),
        ((np.zeros(3, np.float32), 1), "is a tuple of 2, and the first row is not"),
        (None, "is a NoneType, and the first row is not"),
    ],
    ids=told,
)
def test_item_unlike_the_first_one_is_a_failure(odd: Any, reason: str) -> None:
    like = {"x": np.ones(3, np.float32), "n": 1}
    rows, (failure,) = read(listed(like, odd, like))
    assert (failure.row, failure.stage, failure.error, failure.reason) == (1, "read", "BadRow", reason)
    assert failure.origin == "Items, item 1"
    assert (rows["n"][0], rows["n"][2]) == (1, 1)


def test_numbers_that_lose_nothing_are_taken() -> None:
    rows, failures = read(
        listed({"f": np.float32(1), "i": 5}, {"f": 2, "i": np.int32(6)}, {"f": 2.5, "i": np.uint8(7)})
    )
    assert failures == []
    assert rows == {"f": [1, 2, 2.5], "i": [5, 6, 7]}


def test_text_must_stay_text() -> None:
    rows, (failure,) = read(listed("a", b"b", 3, None))
    assert rows == {"x0": ["a", b"b", "", None]}
    assert failure.reason == "value 'x0' is 3, not text"


def test_number_or_text_that_is_none_is_missing_and_not_unlike_the_others() -> None:
    rows, failures = read(listed({"n": 1, "t": "a"}, {"n": None, "t": None}, {"n": 3, "t": "c"}))
    assert failures == []
    assert rows == {"n": [1, None, 3], "t": ["a", None, "c"]}


def test_tuple_of_another_length_is_a_failure() -> None:
    _, (failure,) = read(listed((1, 2), (1, 2, 3)))
    assert failure.reason == "is a tuple of 3, and the first row is not"


@pytest.mark.parametrize("has_batches", [False, True], ids=["one by one", "several at a time"])
def test_item_that_raises_is_a_failure_with_the_exception(has_batches: bool) -> None:
    class Some(Items):
        if has_batches:

            def __getitems__(self, indices: list[int]) -> list[Any]:
                return [self[index] for index in indices]

    def make(index: int) -> Any:
        if index in (0, 4):
            raise FileNotFoundError(f"no file {index}")
        return index

    rows, failures = read(MapDataset(Some(make, 6)))
    assert [rows["x0"][index] for index in (1, 2, 3, 5)] == [1, 2, 3, 5]
    assert [(failure.row, failure.error, failure.reason) for failure in failures] == [
        (0, "FileNotFoundError", "FileNotFoundError: no file 0"),
        (4, "FileNotFoundError", "FileNotFoundError: no file 4"),
    ]


def test_several_items_are_asked_for_at_once_where_the_dataset_can() -> None:
    asked: list[list[int]] = []

    class Batched(Items):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            asked.append(indices)
            return [self[index] for index in indices]

    read(MapDataset(Batched(lambda index: index, 5)))
    assert asked == [[0, 1, 2], [3, 4]]


def test_too_few_items_at_once_are_asked_for_again() -> None:
    class Short(Items):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices[1:]]

    assert read(MapDataset(Short(lambda index: index, 5)))[0] == {"x0": [0, 1, 2, 3, 4]}


def test_dataset_of_which_nothing_can_be_read_is_an_input_error() -> None:
    def make(index: int) -> Any:
        raise ValueError(f"item {index} is broken")

    with pytest.raises(InputError) as caught:
        MapDataset(Items(make)).schema()
    assert caught.value.received is not None
    assert caught.value.received.endswith("item 0: ValueError: item 0 is broken")


def test_items_are_asked_for_by_one_thread_at_a_time() -> None:
    inside = threading.Semaphore(1)

    def make(index: int) -> int:
        assert inside.acquire(blocking=False)
        inside.release()
        return index

    source = MapDataset(Items(make, 2000))
    source.schema()
    with ThreadPoolExecutor(4) as pool:
        blocks = list(pool.map(lambda span: list(source.read(span, ["x0"])), source.divide(50)))
    assert not any(block.failures for some in blocks for block in some)


def test_large_items_come_in_small_blocks() -> None:
    source = MapDataset(Items(lambda index: np.zeros((1024, 1024), np.float32), 6))
    (span,) = source.divide(10)
    assert [block.rows for block in source.read(span, ["x0"])] == [2, 2, 2]


class Table:
    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


def test_same_dataset_is_the_same_job_and_another_content_is_not() -> None:
    (fragment,) = MapDataset(Table(np.arange(5))).fragments()
    assert MapDataset(Table(np.arange(5))).fragments() == [fragment]
    assert MapDataset(cloudpickle.loads(cloudpickle.dumps(Table(np.arange(5))))).fragments() == [fragment]
    assert MapDataset(Table(np.arange(1, 6))).fragments() != [fragment]
    assert MapDataset(Table(np.arange(6))).fragments() != [fragment]


def test_dataset_that_cannot_be_pickled_says_what_to_do() -> None:
    source = MapDataset(Table([threading.Lock()]))
    with pytest.raises(InputError) as caught:
        source.fragments()
    assert caught.value.hint is not None


class Keyless:
    def __iter__(self) -> Any:
        return iter([np.zeros((2, 1))])


def make_generator() -> Any:
    yield np.zeros((2, 1))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (Items(int), MapDataset),
        (range(5), MapDataset),
        (make_generator(), StreamedRows),
        (iter([np.zeros((1, 1))]), StreamedRows),
        (Keyless(), StreamedRows),
        (Rows([1, 2]), StreamedRows),
        (np.zeros(3), type(None)),
        ([1, 2], type(None)),
        ((np.zeros(2), np.zeros(2)), type(None)),
        ({"a": [1]}, type(None)),
        (pa.table({"a": [1]}), type(None)),
        (pa.array([1]), type(None)),
        ("path", type(None)),
        (b"bytes", type(None)),
        ({1, 2}, type(None)),
        (5, type(None)),
        (None, type(None)),
        (Items, type(None)),
    ],
    ids=told,
)
def test_objects_are_recognised(data: Any, kind: type) -> None:
    assert isinstance(open_object(data), kind)


def test_generator_function_must_be_called() -> None:
    with pytest.raises(InputError) as caught:
        open_object(make_generator)
    assert caught.value.hint == "call it: make_generator()"


def of_torch(name: str) -> type:
    """A class with the name and the habits of one of PyTorch, which need not be installed for it."""

    def no_item(self: object, index: int) -> Any:
        raise NotImplementedError

    return type(name, (), {"__module__": "torch.utils.data.dataset", "__getitem__": no_item})


def test_iterable_dataset_of_pytorch_gives_single_rows() -> None:
    class Lines(of_torch("IterableDataset")):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter([("one", 1), ("two", 2)])

    source = open_object(Lines())
    assert isinstance(source, StreamedRows)
    assert {name: str(spec) for name, spec in source.schema().items()} == {"x0": "string[]", "x1": "int64[]"}
    assert source.traits.may_have_targets
