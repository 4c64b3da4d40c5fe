"""Rows that come as they come."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.records import RowFailure, Span
from penstock.errors import InputError
from penstock.sources.python import streaming
from penstock.sources.python.streaming import StreamedRows, pieces_of_batches, pieces_of_rows


def stream(batches: Iterable[Any]) -> StreamedRows:
    return StreamedRows(pieces_of_batches(batches), "generator")


def single(rows: Iterable[Any]) -> StreamedRows:
    return StreamedRows(pieces_of_rows(rows), "Rows")


def values(source: StreamedRows, spans: Iterable[Span], name: str = "x0") -> tuple[list[Any], list[RowFailure]]:
    found: list[Any] = []
    failures: list[RowFailure] = []
    for span in spans:
        (block,) = source.read(span, [name])
        column: Any = block.columns[name]
        assert (block.start, block.rows) == (span.start, span.rows)
        found += column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
        failures += block.failures
    return found, failures


def read(source: StreamedRows, rows_per_span: int, name: str = "x0") -> tuple[list[Any], list[RowFailure]]:
    found = values(source, source.divide(rows_per_span), name)
    source.close()
    return found


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    rows=st.integers(1, 20),
    peeks=st.lists(st.integers(1, 9)),
)
def test_spans_have_exactly_the_rows_asked_for_however_batches_come(
    sizes: list[int], rows: int, peeks: list[int]
) -> None:
    total = sum(sizes)
    edges = np.cumsum([0, *sizes])
    source = stream(np.arange(a, b) for a, b in itertools.pairwise(edges))
    for peek in peeks:
        first = next(source.divide(peek), None)
        assert values(source, [first] if first else [])[0] == list(range(min(peek, total)))
    spans = list(source.divide(rows))
    assert [span.rows for span in spans] == [min(rows, total - start) for start in range(0, total, rows)]
    assert [span.start for span in spans] == list(range(0, total, rows))
    assert [span.index for span in spans] == list(range(len(spans)))
    assert values(source, spans) == (list(range(total)), [])
    source.close()


def test_nothing_is_pulled_before_it_is_needed() -> None:
    pulled: list[int] = []

    def batches() -> Iterator[Any]:
        for number in range(10):
            pulled.append(number)
            yield np.full((4, 2), number)

    source = stream(batches())
    assert pulled == []
    assert str(source.schema()["x0"]) == "int64[2]"
    assert pulled == [0]
    spans = source.divide(6)
    next(spans)
    assert pulled == [0, 1]
    next(spans)
    assert pulled == [0, 1, 2]
    source.close()


def test_run_lets_go_what_it_has_passed_and_cannot_be_begun_again() -> None:
    source = stream(np.full((4, 2), number) for number in range(10))
    spans = source.divide(4)
    for _ in range(2):
        next(spans)
    assert next(source.divide(4)).start == 0
    for _ in range(5):
        next(spans)
    assert len(source._stream.head) <= 1
    with pytest.raises(InputError, match="a stream can be read only once"):
        source.divide(4)
    source.close()


def test_short_stream_can_be_divided_again_and_again() -> None:
    source = stream([np.arange(10)])
    assert [span.rows for span in source.divide(5)] == [5, 5]
    assert [span.rows for span in source.divide(10)] == [10]
    assert [span.rows for span in source.divide(7)] == [7, 3]
    source.close()


def test_locator_is_plain_json() -> None:
    source = single([{"a": 1, "t": "x"}, {"a": "odd", "t": "y"}])
    (span,) = source.divide(10)
    restored = as_tuples(json.loads(json.dumps(span.locator)))
    assert restored == span.locator
    assert values(source, [Span(0, 0, 2, restored)], "t")[0] == ["x", ""]
    source.close()


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def test_released_span_is_freed_and_those_who_read_it_can_go_on() -> None:
    before = len(os.listdir("/proc/self/fd"))
    source = stream(np.arange(10) for _ in range(5))
    spans = source.divide(10)
    first, second = next(spans), next(spans)
    (block,) = source.read(first, ["x0"])
    source.release(first)
    source.release(first)
    assert np.asarray(block.columns["x0"]).tolist() == list(range(10))
    with pytest.raises(InputError, match="a span of a stream is gone"):
        list(source.read(first, ["x0"]))
    del block
    source.release(second)
    third = next(spans)
    assert third.locator[0] == first.locator[0] or third.locator[0] == second.locator[0]
    with pytest.raises(InputError, match="holds another one"):
        list(source.read(first if third.locator[0] == first.locator[0] else second, ["x0"]))
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_stream_that_is_forgotten_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    source = stream([np.arange(10)])
    next(source.divide(3))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_anonymous_files_there_are_temporary_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    source = stream([np.arange(10)])
    spans = list(source.divide(5))
    assert values(source, spans)[0] == list(range(10))
    paths = [span.locator[0] for span in spans]
    assert all(os.path.exists(path) for path in paths)
    source.release(spans[0])
    source.close()
    assert not any(os.path.exists(path) for path in paths)


def test_copy_in_another_process_can_read_and_nothing_else() -> None:
    source = stream({"a": np.zeros((4, 1000)), "t": np.array(["x"] * 4)} for _ in range(3))
    source.schema()
    (first, second) = list(source.divide(6))
    raw = cloudpickle.dumps(source)
    assert len(raw) < 3000
    copied = cloudpickle.loads(raw)
    assert copied.schema() == source.schema()
    assert copied.is_positional == source.is_positional
    assert values(copied, [second], "t")[0] == ["x"] * 6
    assert copied.origin(first, 3) == "generator, row 3"
    with pytest.raises(InputError):
        copied.divide(6)
    source.close()


def test_exception_is_told_with_its_row_after_what_came_before() -> None:
    def batches() -> Iterator[Any]:
        yield np.arange(5)
        yield np.arange(5, 8)
        raise ConnectionError("the line is dead")

    source = stream(batches())
    spans = source.divide(3)
    given = [next(spans) for _ in range(3)]
    with pytest.raises(InputError) as caught:
        next(spans)
    assert caught.value.exit_code == 5
    assert caught.value.problem == "the input raised an exception"
    assert caught.value.received == "generator, row 8: ConnectionError: the line is dead"
    assert values(source, given)[0] == list(range(8))
    source.close()


def test_exception_after_single_rows_takes_none_of_them_down() -> None:
    def rows() -> Iterator[Any]:
        yield from range(5)
        raise ValueError("no more")

    source = single(rows())
    for _ in range(2):
        spans = source.divide(10)
        assert values(source, [next(spans)])[0] == [0, 1, 2, 3, 4]
        with pytest.raises(InputError, match="row 5: ValueError: no more"):
            next(spans)
    source.close()


def test_exception_at_once_is_told_by_the_schema() -> None:
    def batches() -> Iterator[Any]:
        yield from ()
        raise KeyError("missing")

    with pytest.raises(InputError, match="row 0: KeyError"):
        stream(batches()).schema()


def test_stream_without_rows_has_no_schema() -> None:
    for source in (stream([]), stream([np.empty((0, 3))]), single([])):
        assert list(source.divide(5)) == []
        with pytest.raises(InputError, match="the input has no rows"):
            source.schema()


@pytest.mark.parametrize(
    ("batch", "schema", "is_positional"),
    [
        (np.zeros((2, 3), np.float32), {"x0": "float32[3]"}, True),
        ((np.zeros((2, 3)),), {"x0": "float64[3]"}, True),
        ((np.zeros((2, 3)), np.zeros(2)), {"x0": "float64[3]"}, True),
        ([np.zeros((2, 3)), np.zeros(2)], {"x0": "float64[3]"}, True),
        ((np.zeros((2, 3)), None, np.zeros(2)), {"x0": "float64[3]"}, True),
        (({"a": np.zeros(2), "b": [1, 2]}, np.zeros(2)), {"a": "float64[]", "b": "int64[]"}, False),
        (([np.zeros(2), np.zeros((2, 1))], np.zeros(2)), {"x0": "float64[]", "x1": "float64[1]"}, True),
        (((np.zeros(2), np.zeros((2, 1))), np.zeros(2)), {"x0": "float64[]", "x1": "float64[1]"}, True),
        ([[1, 2], [3, 4]], {"x0": "int64[2]"}, True),
        ({"t": np.array(["a", "b"])}, {"t": "string[]"}, False),
        ({"t": ["a", None]}, {"t": "string[]"}, False),
        ({"r": [[1], [2, 3]]}, {"r": "int64[?]"}, False),
        (pa.table({"a": [1, 2]}), {"a": "int64[]"}, False),
        (pa.record_batch({"a": [1, 2]}), {"a": "int64[]"}, False),
    ],
    ids=str,
)
def test_batches_are_what_a_model_takes(batch: Any, schema: dict[str, str], is_positional: bool) -> None:
    source = stream([batch])
    assert {name: str(spec) for name, spec in source.schema().items()} == schema
    assert source.is_positional == is_positional
    assert [span.rows for span in source.divide(10)] == [2]
    source.close()


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (np.float32(5), "an element of the input is not a batch of rows"),
        ("text", "an element of the input is not a batch of rows"),
        (None, "an element of the input is not a batch of rows"),
        ((1, 2, 3, 4), "a batch is not understood"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "the arrays of a batch differ in their number of rows"),
        ({}, "the arrays of a batch differ in their number of rows"),
    ],
    ids=str,
)
def test_element_that_is_no_batch_is_an_input_error(batch: Any, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        list(stream([np.zeros((3, 1)), batch]).divide(2))
    assert caught.value.problem == problem
    assert "generator, row 3: " in str(caught.value.received)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"x": np.zeros((2, 4), np.float32)}, "column 'x' is float32[4], not float32[3]"),
        ({"x": np.zeros((2, 3))}, "column 'x' is float64[3], not float32[3]"),
        ({"x": np.array([["a"] * 3] * 2)}, "column 'x' is string[3], not float32[3]"),
        ({"y": np.zeros((2, 3), np.float32)}, "column 'x' is missing"),
    ],
    ids=str,
)
def test_batch_unlike_the_first_one_is_failures_of_its_rows_alone(odd: Any, reason: str) -> None:
    good = {"x": np.ones((2, 3), np.float32)}
    found, failures = read(stream([good, odd, good]), 3, "x")
    assert [failure.row for failure in failures] == [2, 3]
    assert {(failure.error, failure.reason) for failure in failures} == {("BadBatch", reason)}
    assert failures[0].origin == "generator, row 2"
    assert found == [[1, 1, 1]] * 2 + [[0, 0, 0]] * 2 + [[1, 1, 1]] * 2


def test_ragged_rows_among_arrays_fail_one_by_one() -> None:
    found, failures = read(stream([{"x": [[1, 2], [3, 4]]}, {"x": [[5, 6], [7]]}, {"x": [[8, 9]]}]), 10, "x")
    assert [(failure.row, failure.reason) for failure in failures] == [(3, "column 'x' has 1 values, not 2")]
    assert found == [[1, 2], [3, 4], [5, 6], [0, 0], [8, 9]]


def test_arrays_among_ragged_rows_are_taken() -> None:
    found, failures = read(stream([{"x": [[1, 2], [3]]}, {"x": [[5, 6], [7, 8]]}, {"x": [[]]}]), 10, "x")
    assert failures == []
    assert found == [[1, 2], [3], [5, 6], [7, 8], []]


def test_smaller_numbers_are_taken() -> None:
    found, failures = read(stream([np.zeros(2), np.ones(2, np.float32), np.array([2, 3], np.int16)]), 4)
    assert (found, failures) == ([0, 0, 1, 1, 2, 3], [])


def test_text_of_any_width_is_taken() -> None:
    found, failures = read(stream([np.array(["a"]), np.array(["longer", "é"]), np.array([b"b"])]), 2)
    assert [text.decode() if isinstance(text, bytes) else text for text in found] == ["a", "longer", "é", "b"]
    assert failures == []


def test_single_rows_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_BLOCK_ROWS", 4)
    rows = [{"a": number, "v": np.full(2, number, np.float32)} for number in range(11)]
    source = single(rows)
    assert {name: str(spec) for name, spec in source.schema().items()} == {"a": "int64[]", "v": "float32[2]"}
    assert read(source, 3, "v")[0] == [[number, number] for number in range(11)]


def test_single_row_unlike_the_first_one_is_a_failure() -> None:
    found, failures = read(single([1, "two", 3, [4, 5]]), 2)
    assert (found[0], found[2]) == (1, 3)
    assert [failure.row for failure in failures] == [1, 3]
    assert failures[1].origin == "Rows, row 3"


def test_no_stream_is_like_another() -> None:
    assert stream([]).fragments() != stream([]).fragments()
    assert not stream([]).traits.is_resumable
