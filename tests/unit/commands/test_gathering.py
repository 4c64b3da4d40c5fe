"""Results become arrays; rows that failed are raised, left out, or NaN."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.commands.gathering import Gathered, check_on_error, filled, to_numpy
from penstock.core.records import Column, Result, RowFailure, Span
from penstock.errors import InputError, TooManyFailures, UsageError


def result(columns: dict[str, Column], rows: int, failed: tuple[int, ...] = (), start: int = 0) -> Result:
    failures = tuple(RowFailure(row, "memory", "load", "BadValue", "is null") for row in failed)
    return Result(Span(0, start, rows, ()), columns, failures)


def test_results_without_failures_are_put_together() -> None:
    gathered = Gathered()
    gathered.add(result({"y": np.array([[1.0], [2.0]])}, 2))
    gathered.add(result({"y": np.array([[3.0]])}, 1, start=2))
    assert to_numpy(gathered.columns()["y"]).tolist() == [[1.0], [2.0], [3.0]]


def test_failed_row_is_raised_with_what_can_be_done() -> None:
    with pytest.raises(InputError) as caught:
        Gathered().add(result({"y": np.zeros((1, 1))}, 2, (1,)))
    assert caught.value.received == "row 1: is null"
    assert "on_error='skip'" in str(caught.value.hint)


def test_rule_for_failed_rows_is_refused_with_a_folder_which_records_them() -> None:
    with pytest.raises(UsageError) as caught:
        penstock.predict("m.onnx", "rows.csv", output="out", on_error="nan")
    assert "max_failures=…" in str(caught.value.hint)
    assert "limit" not in str(caught.value.hint)


def test_failed_rows_are_left_out_with_a_warning() -> None:
    gathered = Gathered("skip")
    gathered.add(result({"y": np.array([1.0, 3.0])}, 3, (1,)))
    with pytest.warns(UserWarning, match="1 of 3 rows failed and are left out; the first one is row 1: is null"):
        columns = gathered.columns()
    assert to_numpy(columns["y"]).tolist() == [1.0, 3.0]


def test_failed_rows_are_nan_in_their_places() -> None:
    gathered = Gathered("nan")
    gathered.add(result({"y": np.array([[1.0, 2.0]], np.float32), "n": np.array([7])}, 2, (0,)))
    gathered.add(result({"y": np.array([[3.0, 4.0]], np.float32), "n": np.array([8])}, 1, start=2))
    with pytest.warns(UserWarning, match="1 of 3 rows failed and are NaN"):
        columns = gathered.columns()
    y, n = to_numpy(columns["y"]), to_numpy(columns["n"])
    np.testing.assert_array_equal(y, np.array([[np.nan, np.nan], [1, 2], [3, 4]], np.float32))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(n, [np.nan, 7.0, 8.0])


def test_text_and_lists_have_none_where_a_row_failed() -> None:
    text: Column = np.array([b"a", b"b"], object)
    found = filled(result({"t": text, "l": pa.array([[1], [2, 3]])}, 3, (1,)))
    assert to_numpy(found["t"]).tolist() == [b"a", None, b"b"]
    lists = found["l"]
    assert isinstance(lists, pa.Array)
    assert lists.to_pylist() == [[1], None, [2, 3]]


def test_rows_of_a_selection_are_found_by_their_numbers() -> None:
    chosen = Result(
        Span(0, 0, 3, (), numbers=((5, 1), (9, 2))),
        {"y": np.array([1.0, 2.0])},
        (RowFailure(9, "", "load", "BadValue", "is null"),),
    )
    np.testing.assert_array_equal(to_numpy(filled(chosen)["y"]), [1.0, np.nan, 2.0])


@pytest.mark.parametrize("on_error", ["skip", "nan"])
def test_call_of_which_every_row_failed_is_told(on_error: str) -> None:
    gathered = Gathered(on_error)
    gathered.add(result({"y": np.zeros((0, 1))}, 2, (0, 1)))
    with pytest.raises(TooManyFailures, match="all of the 2 rows failed"):
        gathered.columns()


def test_unknown_on_error_is_told() -> None:
    for value in (None, "raise", "skip", "nan"):
        check_on_error(value)
    with pytest.raises(UsageError) as caught:
        check_on_error("ignore")
    assert caught.value.allowed == "'raise', 'skip', 'nan'"
