"""The user's function behind the model: what it gives is written, and a row that it cannot take fails alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.postprocessing import Finished, Postprocess, finish
from penstock.core.records import UNWATCHED, Array, Block, Column, TensorSpec
from penstock.errors import UsageError

COLUMNS: dict[str, Column] = {
    "p": np.array([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]], np.float32),
    "id": pa.array(["a", "b", "c"]),
}


def run(function: Callable[..., Any], columns: Mapping[str, Column] = COLUMNS, kept: tuple[str, ...] = ()) -> Finished:
    block = Block(0, len(next(iter(columns.values()))), columns)
    learnt = Postprocess.of(function).on(columns).learn([block], UNWATCHED)
    return finish(pickle.loads(pickle.dumps(learnt)), columns, kept, UNWATCHED)


def plain(finished: Finished) -> dict[str, list[Any]]:
    return {name: list(column.tolist()) for name, column in finished.columns.items()}


def test_thresholds_text_and_lists_are_columns() -> None:
    def decide(columns: dict[str, Array]) -> dict[str, Any]:
        assert columns["id"].tolist() == ["a", "b", "c"][: len(columns["id"])] or len(columns["id"]) == 1
        return {
            "best": columns["p"].argmax(1),
            "word": ["no" if p < 0.5 else "yes" for p in columns["p"][:, 1]],
            "above": [np.flatnonzero(row > 0.4).tolist() for row in columns["p"]],
        }

    finished = run(decide, kept=("id",))
    assert not finished.failures
    assert plain(finished) == {
        "best": [1, 0, 0],
        "word": ["yes", "no", "yes"],
        "above": [[1], [0], [0, 1]],
        "id": ["a", "b", "c"],
    }


def test_kept_column_is_the_functions_where_it_gives_one() -> None:
    finished = run(lambda columns: {"id": [text.upper() for text in columns["id"]]}, kept=("id",))
    assert plain(finished) == {"id": ["A", "B", "C"]}


def test_single_array_is_called_output() -> None:
    assert plain(run(lambda columns: columns["p"].sum(1))).keys() == {"output"}


def test_row_that_raises_fails_alone_and_what_is_kept_loses_it() -> None:
    def picky(columns: dict[str, Array]) -> dict[str, Any]:
        if "b" in columns["id"].tolist():
            raise ValueError("b")
        columns["p"][:] = -1  # what it writes into is its own
        return {"first": columns["id"]}

    finished = run(picky, kept=("p",))
    (failure,) = finished.failures
    assert (failure.row, failure.stage, failure.error) == (1, "postprocess", "ValueError")
    assert "ValueError: b (test_postprocessing.py, line" in failure.reason
    assert finished.columns["first"].tolist() == ["a", "c"]
    np.testing.assert_array_equal(finished.columns["p"], np.asarray(COLUMNS["p"])[[0, 2]])


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (1.5, "column 'y' is float64[], not int64[] as for the first rows"),
        ("text", "is string[], not int64[]"),
        ([1], "not int64[]"),
    ],
)
def test_row_of_another_type_than_the_first_fails(later: Any, reason: str) -> None:
    values = {"a": 1, "b": later, "c": 2.0}  # 2.0 is a whole number, whatever it is called
    finished = run(lambda columns: {"y": [values[name] for name in columns["id"]]})
    assert finished.columns["y"].tolist() == [1, 2]
    assert finished.columns["y"].dtype == np.int64
    (failure,) = finished.failures
    assert failure.row == 1
    assert reason in failure.reason


def test_lists_keep_the_type_of_the_first_that_has_values() -> None:
    values: dict[str, list[Any]] = {"a": [], "b": [1.5], "c": [2]}
    finished = run(lambda columns: {"y": [values[name] for name in columns["id"]]})
    assert not finished.failures
    assert plain(finished) == {"y": [[], [1.5], [2.0]]}


def test_result_of_which_every_row_fails_has_no_columns() -> None:
    learnt = Postprocess.of(lambda columns: columns["p"]).on(COLUMNS).learn([Block(0, 3, COLUMNS)], UNWATCHED)
    spoiled = COLUMNS | {"p": pa.array(["x", "y", "z"])}
    finished = finish(learnt, spoiled, ("id",), UNWATCHED)
    assert finished.columns == {}
    assert [failure.row for failure in finished.failures] == [0, 1, 2]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda columns: None, "it returned None"),
        (lambda columns: {}, "an empty dict"),
        (lambda columns: {"y": np.zeros(7)}, "has 7 rows, not 1"),
        (lambda columns: columns["q"], "KeyError: 'q'"),
    ],
)
def test_function_that_fails_on_every_row_is_told_as_such(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(UsageError, match="the postprocessing function fails on every one of the first rows") as caught:
        run(function)
    assert problem in (caught.value.received or "")


def test_function_that_is_not_there_is_told_as_such() -> None:
    with pytest.raises(UsageError, match="the postprocessing function cannot be imported"):
        Postprocess.of("nowhere_at_all:f").on(COLUMNS).learn([Block(0, 3, COLUMNS)], UNWATCHED)


def test_function_of_which_it_is_known_what_it_gives_is_not_called_to_learn_it() -> None:
    calls: list[int] = []

    def whole(columns: dict[str, Array]) -> dict[str, Any]:
        calls.append(len(columns["p"]))
        return {"y": columns["p"].argmax(1).astype(np.float64)}

    known = replace(Postprocess.of(whole), gives={"y": TensorSpec("y", "int64", ())}).on(COLUMNS)
    vars(known)["function"] = whole
    learnt = known.learn([Block(0, 3, COLUMNS)], UNWATCHED)
    assert not calls
    finished = finish(learnt, COLUMNS, (), UNWATCHED)
    assert calls == [3]
    assert plain(finished) == {"y": [1, 0, 0]}
    assert finished.columns["y"].dtype == np.int64
