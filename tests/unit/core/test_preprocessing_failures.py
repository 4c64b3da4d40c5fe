"""Rows on which the user's function fails: each fails alone, keeps its place, and is named."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.columns import describe, join
from penstock.core.deferred import Deferred
from penstock.core.preprocessing import MOST_ROWS, Preprocess
from penstock.core.records import UNWATCHED, Array, Block, Column, RowFailure, SourceColumn, TensorSpec, Watch

from .encoded import Diary, Letters, poisoned

FIRST = 100
BAD = -1.0


class Noting:
    """A function that doubles `x`, notes what it was called with, and does something odd where a row is BAD."""

    def __init__(self, oddity: Callable[[Array], Any], *, is_by_row: bool = False) -> None:
        self._oddity = oddity
        self._is_by_row = is_by_row
        self.calls: list[list[float]] = []

    def __call__(self, given: dict[str, Any]) -> Any:
        x = given["x"]
        self.calls.append(np.atleast_1d(x).tolist())
        if np.any(x == BAD):
            return self._oddity(np.atleast_1d(x))
        return {"y": x * 2, "word": f"w{x}" if self._is_by_row else [f"w{value}" for value in x]}


def raising(x: Array) -> Any:
    raise ValueError("this row\nis odd")


ODDITIES: dict[str, Callable[[Array], Any]] = {
    "raises": raising,
    "gives nothing": lambda x: None,
    "gives an empty dict": lambda x: {},
    "forgets a row": lambda x: {"y": x[1:], "word": ["w"] * len(x)},
    "adds a row": lambda x: {"y": np.append(x, 1), "word": ["w"] * len(x)},
    "forgets a column": lambda x: {"y": x},
    "adds a column": lambda x: {"y": x, "word": ["w"] * len(x), "more": x},
    "renames a column": lambda x: {"z": x, "word": ["w"] * len(x)},
    "gives another shape": lambda x: {"y": np.zeros((len(x), 2)), "word": ["w"] * len(x)},
    "gives text for numbers": lambda x: {"y": ["a"] * len(x), "word": ["w"] * len(x)},
    "gives numbers for text": lambda x: {"y": x, "word": x},
    "gives lists for numbers": lambda x: {"y": [[1.0]] * len(x), "word": ["w"] * len(x)},
    "gives a single value": lambda x: {"y": 5.0, "word": ["w"] * len(x)},
}


def ready(function: Callable[..., Any], *, is_by_row: bool = False) -> Preprocess:
    """A function whose good answers are known. It is the function itself, not the copy that travels."""
    gives = {"y": TensorSpec("y", "float64", ()), "word": TensorSpec("word", "string", ())}
    takes = {"x": TensorSpec("x", "float64", ())}
    made = replace(Preprocess("here:function", is_by_row=is_by_row), takes=takes, gives=gives)
    vars(made)["function"] = function
    return made


def block_of(rows: int, bad: set[int], failures: tuple[RowFailure, ...] = ()) -> Block:
    x = np.arange(rows, dtype=np.float64)
    x[sorted(bad)] = BAD
    return Block(FIRST, rows, {"x": x}, failures)


def joined(blocks: list[Block], name: str) -> list[Any]:
    column = join([plain(block.columns[name]) for block in blocks])
    return list(column.tolist() if isinstance(column, np.ndarray) else column.to_pylist())


def plain(column: SourceColumn) -> Column:
    assert not isinstance(column, Deferred)
    return column


def check(blocks: list[Block], rows: int, failed: set[int]) -> list[RowFailure]:
    """Every row has its place; good rows have their answer; failed ones have zeros and are named once."""
    assert [block.start for block in blocks] == (FIRST + np.cumsum([0, *(b.rows for b in blocks)])[:-1]).tolist()
    assert sum(block.rows for block in blocks) == rows
    assert all(len(column) == block.rows for block in blocks for column in block.columns.values())
    expected = [0.0 if row in failed else 2.0 * row for row in range(rows)]
    assert joined(blocks, "y") == expected
    words = [b"" if row in failed else f"w{float(row)}" for row in range(rows)]
    assert joined(blocks, "word") == words
    failures = [failure for block in blocks for failure in block.failures]
    assert [failure.row for failure in failures] == [FIRST + row for row in sorted(failed)]
    return failures


@pytest.mark.parametrize("oddity", ODDITIES.values(), ids=list(ODDITIES))
def test_rows_at_fault_are_found_and_the_others_get_their_answers(oddity: Callable[[Array], Any]) -> None:
    function = Noting(oddity)
    failures = check(list(ready(function).apply(block_of(13, {0, 7, 8}), UNWATCHED)), 13, {0, 7, 8})
    assert {failure.stage for failure in failures} == {"preprocess"}
    assert all(failure.error and failure.reason for failure in failures)


def test_reason_is_what_the_function_said_on_one_line() -> None:
    (failure,) = check(list(ready(Noting(raising)).apply(block_of(4, {2}), UNWATCHED)), 4, {2})
    assert (failure.row, failure.origin, failure.stage, failure.error) == (FIRST + 2, "", "preprocess", "ValueError")
    assert re.fullmatch(r"ValueError: this row \(test_preprocessing_failures\.py, line \d+\)", failure.reason)


@pytest.mark.parametrize(
    ("oddity", "words"),
    [
        ("gives nothing", "it returned None"),
        ("gives an empty dict", "it returned an empty dict"),
        ("forgets a row", "column 'y' has 0 rows, not 1"),
        ("adds a row", "column 'y' has 2 rows, not 1"),
        ("forgets a column", "it gives the columns y, not y, word"),
        ("gives another shape", "column 'y' is float64[2], not float64[] as for the first rows"),
        ("gives text for numbers", "column 'y' is string[], not float64[] as for the first rows"),
        ("gives a single value", "it returned a single value, not one for each row"),
    ],
)
def test_wrong_answers_say_what_is_wrong(oddity: str, words: str) -> None:
    (failure,) = check(list(ready(Noting(ODDITIES[oddity])).apply(block_of(3, {1}), UNWATCHED)), 3, {1})
    assert failure.error == "WrongAnswer"
    assert words in failure.reason


@given(rows=st.integers(1, 40), data=st.data())
def test_any_rows_may_fail(rows: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    check(list(ready(Noting(raising)).apply(block_of(rows, bad), UNWATCHED)), rows, bad)


@given(rows=st.integers(1, 20), data=st.data())
def test_any_rows_may_fail_in_a_function_of_a_row(rows: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    function = Noting(raising, is_by_row=True)
    check(list(ready(function, is_by_row=True).apply(block_of(rows, bad), UNWATCHED)), rows, bad)


def test_function_of_a_row_that_answers_differently_fails_that_row_only() -> None:
    def odd(x: Array) -> Any:
        return {"other": 1}

    function = Noting(odd, is_by_row=True)
    blocks = list(ready(function, is_by_row=True).apply(block_of(5, {3}), UNWATCHED))
    (failure,) = check(blocks, 5, {3})
    assert "it gives the columns other, not y, word" in failure.reason


def test_one_row_at_fault_is_found_in_logarithmic_time() -> None:
    function = Noting(raising)
    check(list(ready(function).apply(block_of(MOST_ROWS, {700}), UNWATCHED)), MOST_ROWS, {700})
    assert len(function.calls) <= 2 * 10 + 1


def test_block_in_which_nothing_fails_is_one_call() -> None:
    function = Noting(raising)
    (block,) = ready(function).apply(block_of(50, set()), UNWATCHED)
    assert len(function.calls) == 1
    assert block.rows == 50


def test_large_blocks_are_handed_over_in_steps() -> None:
    function = Noting(raising)
    rows = 2 * MOST_ROWS + 10
    check(list(ready(function).apply(block_of(rows, set()), UNWATCHED)), rows, set())
    assert [len(call) for call in function.calls] == [MOST_ROWS, MOST_ROWS, 10]


def test_block_without_rows_makes_no_call() -> None:
    function = Noting(raising)
    assert list(ready(function).apply(block_of(0, set()), UNWATCHED)) == []
    assert function.calls == []


def test_rows_that_could_not_be_read_are_never_handed_over_and_keep_their_reason() -> None:
    function = Noting(raising)
    unread = tuple(RowFailure(FIRST + row, "a.csv", "read", "E", f"broken {row}") for row in (2, 5))
    block = Block(FIRST, 8, {"x": np.arange(8.0)}, unread)
    failures = check(list(ready(function).apply(block, UNWATCHED)), 8, {2, 5})
    assert tuple(failures) == unread
    assert {2.0, 5.0}.isdisjoint(value for call in function.calls for value in call)


def test_poisoned_rows_are_never_handed_over_and_keep_their_reason() -> None:
    function = Noting(raising)
    watch = Diary(poisoned=poisoned(FIRST + 4))
    (failure,) = check(list(ready(function).apply(block_of(8, set()), watch)), 8, {4})
    assert failure == watch.poisoned[FIRST + 4]
    assert not any(4.0 in call for call in function.calls)
    assert not any(first <= FIRST + 4 < first + rows for first, rows in watch.begun)


def test_careful_loader_hands_over_row_by_row_and_announces_each() -> None:
    function = Noting(raising)
    watch = Diary(is_careful=True)
    check(list(ready(function).apply(block_of(5, {2}), watch)), 5, {2})
    assert [len(call) for call in function.calls] == [1] * 5
    assert watch.begun == [(FIRST + row, 1) for row in range(5)]
    assert watch.ends == 5


def test_every_call_is_announced_with_its_rows_and_ended_also_when_it_raises() -> None:
    watch = Diary()
    check(list(ready(Noting(raising)).apply(block_of(4, {1}), watch)), 4, {1})
    assert watch.begun == [(FIRST, 4), (FIRST, 2), (FIRST, 1), (FIRST + 1, 1), (FIRST + 2, 2)]
    assert watch.ends == 5


def test_function_of_a_row_announces_every_row() -> None:
    watch = Diary()
    function = Noting(raising, is_by_row=True)
    check(list(ready(function, is_by_row=True).apply(block_of(3, set()), watch)), 3, set())
    assert watch.begun == [(FIRST, 3), (FIRST, 1), (FIRST + 1, 1), (FIRST + 2, 1)]


def test_interrupt_is_no_fault_of_a_row() -> None:
    def interrupted(x: Array) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(ready(Noting(interrupted)).apply(block_of(4, {1}), UNWATCHED))


def test_row_that_does_not_decode_fails_as_loading_and_the_function_never_sees_it() -> None:
    column = Letters([b"ab", b"!x", b"cd"])
    takes = {"x": TensorSpec("x", "uint8", (2,), encoding="letters")}
    gives = {"y": TensorSpec("y", "int64", ())}
    seen: list[int] = []

    def function(columns: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(columns["x"]))
        return {"y": columns["x"].sum(axis=1)}

    made = replace(Preprocess("here:function"), takes=takes, gives=gives)
    vars(made)["function"] = function
    blocks = list(made.apply(Block(FIRST, 3, {"x": column}), UNWATCHED))
    assert joined(blocks, "y") == [sum(b"ab"), 0, sum(b"cd")]
    (failure,) = [failure for block in blocks for failure in block.failures]
    assert failure == RowFailure(FIRST + 1, "", "load", "OSError", "OSError: broken: !x")
    assert sum(seen) == 2


@pytest.mark.parametrize(
    "column",
    [
        np.arange(3, dtype=np.uint8),
        np.zeros((3, 4, 2), np.float32),
        np.array(["a", "b", "c"]),
        pa.array(["a", "b", "c"]),
        pa.array([b"a", b"b", b"c"]),
        pa.array([[1], [2, 3], [4]]),
        pa.array([["a"], ["b", "c"], ["d"]]),
        pa.array([[[1.5]], [[2.5], [3.5]], [[4.5]]]),
        pa.array([datetime.date(2024, 1, day) for day in (1, 2, 3)]),
        pa.array([[datetime.date(2024, 1, day)] for day in (1, 2, 3)]),
        np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[D]"),
    ],
    ids=lambda column: str(describe("", column)),
)
def test_place_of_a_failed_row_joins_the_others_whatever_the_column(column: Column) -> None:
    def function(columns: dict[str, Any]) -> dict[str, Any]:
        if BAD in columns["x"]:
            raise ValueError("odd")
        first = int(columns["x"][0])
        return {"y": column[first : first + len(columns["x"])]}

    takes = {"x": TensorSpec("x", "float64", ())}
    made = replace(Preprocess("here:function"), takes=takes, gives={"y": describe("y", column)})
    vars(made)["function"] = function
    blocks = list(made.apply(block_of(3, {2}), UNWATCHED))
    together = join([plain(block.columns["y"]) for block in blocks])
    assert len(together) == 3
    assert [failure.row for block in blocks for failure in block.failures] == [FIRST + 2]
    first = together[:2].tolist() if isinstance(together, np.ndarray) else together[:2].to_pylist()
    assert first == (column[:2].tolist() if isinstance(column, np.ndarray) else column[:2].to_pylist())


def test_watch_that_listens_to_nothing_is_enough() -> None:
    check(list(ready(Noting(raising)).apply(block_of(4, {1}), Watch())), 4, {1})
