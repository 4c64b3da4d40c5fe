"""`penstock.ray.Predictor`: batches by call, as Ray's actors hand them over. It needs no Ray."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from penstock.errors import InputError, UsageError
from penstock.ray import Predictor
from tests.support.processes import MARK, marked, new_mark, wait_until

OPTIONS: dict[str, Any] = {"devices": "cpu:2", "threads": 1}


@pytest.fixture(scope="module")
def double(light_models: Path) -> str:
    return str(light_models / "double.onnx")


@pytest.fixture(scope="module")
def predictor(double: str) -> Iterator[Predictor]:
    """Of rows of four numbers, of which a missing one fails."""
    made = Predictor(double, on_error="nan", keep="name", batch_size=16, **OPTIONS)
    yield made
    made.close()


def _rows(first: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(first * 4, (first + count) * 4, dtype=np.float32).reshape(count, 4)


def _table(first: int, count: int, missing: tuple[int, ...] = ()) -> pa.Table:
    rows = [None if number in missing else row.tolist() for number, row in enumerate(_rows(first, count))]
    names = [f"row {first + number}" for number in range(count)]
    return pa.table({"x": pa.array(rows, pa.list_(pa.float32(), 4)), "name": names})


def test_every_batch_is_answered_in_order_from_many_threads(predictor: Predictor) -> None:
    sizes = [1, 100, 16, 33, 7, 250] * 4
    batches = [_table(1000 * number, size) for number, size in enumerate(sizes)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(predictor, batches))
    for number, (size, answer) in enumerate(zip(sizes, answers, strict=True)):
        np.testing.assert_array_equal(answer["doubled"], 2 * _rows(1000 * number, size))
        assert answer["doubled"].dtype == np.float32
        assert list(answer["name"]) == [f"row {1000 * number + row}" for row in range(size)]


def test_failed_rows_stay_in_their_places_with_the_reason(predictor: Predictor) -> None:
    answer = predictor(_table(0, 40, missing=(3, 39)))
    failed = np.isnan(answer["doubled"]).all(axis=1)
    assert np.flatnonzero(failed).tolist() == [3, 39]
    np.testing.assert_array_equal(answer["doubled"][~failed], 2 * _rows(0, 40)[~failed])
    assert answer["name"][39] == "row 39"
    assert np.flatnonzero(answer["error"] != "").tolist() == [3, 39]
    assert "x" in answer["error"][3]


def test_batch_of_failed_rows_only_has_the_same_columns(predictor: Predictor) -> None:
    answer = predictor(_table(0, 2, missing=(0, 1)))
    assert {name: column.shape for name, column in answer.items()} == {"doubled": (2, 4), "name": (2,), "error": (2,)}
    assert answer["doubled"].dtype == np.float32
    assert np.isnan(answer["doubled"]).all()


def test_batch_without_rows_has_the_same_columns(predictor: Predictor) -> None:
    answer = predictor(_table(0, 0))
    assert {name: column.shape for name, column in answer.items()} == {"doubled": (0, 4), "name": (0,), "error": (0,)}


def test_failed_row_raises_and_the_next_batch_is_answered(double: str) -> None:
    """Also of a copy, and of a batch that is a dict."""
    before = psutil.Process().children(recursive=True)
    predictor = pickle.loads(pickle.dumps(Predictor(double, **OPTIONS)))
    assert predictor({"x": np.empty((0, 4), np.float32)}) == {}
    np.testing.assert_array_equal(predictor({"x": _rows(0, 5)})["doubled"], 2 * _rows(0, 5))
    ragged = np.empty(3, object)  # as Ray has rows of different lengths
    ragged[:] = [*_rows(0, 2), np.zeros(3, np.float32)]
    with pytest.raises(InputError, match=r"row 2: .*") as raised:
        predictor({"x": ragged})
    assert "on_error='skip'" in str(raised.value.hint)
    np.testing.assert_array_equal(predictor({"x": _rows(7, 2)})["doubled"], 2 * _rows(7, 2))

    processes = [process for process in psutil.Process().children(recursive=True) if process not in before]
    assert processes
    del predictor, raised
    gc.collect()
    wait_until(lambda: not any(process.is_running() for process in processes))


def test_killed_replicas_lose_no_batch(double: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = new_mark()
    monkeypatch.setenv(MARK, mark)
    predictor = Predictor(double, batch_size=16, **OPTIONS)
    np.testing.assert_array_equal(predictor({"x": _rows(0, 64)})["doubled"], 2 * _rows(0, 64))
    replicas = marked(mark, "penstock.pool.processes.replica")
    assert replicas
    for process in replicas:
        process.kill()
    np.testing.assert_array_equal(predictor({"x": _rows(5, 640)})["doubled"], 2 * _rows(5, 640))
    predictor.close()
    wait_until(lambda: not marked(mark))


def test_what_does_not_fit_is_refused_at_once(double: str) -> None:
    with pytest.raises(UsageError, match="limit is for a whole input"):
        Predictor(double, limit=3)
    with pytest.raises(UsageError, match="unknown on_error"):
        Predictor(double, on_error="ignore")
    with pytest.raises(UsageError, match="batch_sizes"):
        Predictor(double, batch_sizes=3)  # type: ignore[call-arg]
