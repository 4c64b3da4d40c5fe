"""Whatever is given for an option is taken, or refused with a message that names the option."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.jobs.steps import as_request
from penstock.options.records import OPTIONS, PredictOptions, make_options
from penstock.options.table import values_of

WRONG: list[Any] = [
    "", " ", "x", "²", "-1", "a=b", "=", "nan", "\0", "a,,b", "auto ", "9" * 5000,
    b"b", 0, -1, 5, 1.5, 10**30, True, float("nan"), float("inf"), -float("inf"), 1j, Decimal(1),
    [], [None], [""], ["x", "x"], ["x", 1], [1, None, 2], (1, 2, 3), [[1], [2]], [float("nan")], {"cpu"}, range(3),
    {}, {"x": 5}, {"x": []}, {"x": None}, {"x": ""}, {"": "x"}, {1: "x"}, {"by_value": True}, {"numbers": "x"},
    object(), object, len, Path(), Path("nowhere"), ..., np.int64(-1), np.float32("nan"), np.zeros((2, 2)),
    np.array(["x"]), np.array([None]), np.datetime64("2026-01-01"), iter("ab"),
]  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_any_value_is_taken_or_is_a_usage_error(name: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "labels": {"argmax": True},
        "sample_by": {"sample": 9},
        "params": {"estimator": True},
    }
    refused: list[UsageError] = []
    for value in WRONG:
        try:
            options = make_options({**needed.get(name, {}), name: value})
        except UsageError as error:
            refused.append(error)
        else:
            if not OPTIONS[name].kind.is_function:
                json.dumps(as_request(options))
    assert len(refused) > len(WRONG) // 2
    assert all(error.received for error in refused)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scale", float("nan")),
        ("scale", (1, None, 2)),
        ("scale", []),
        ("nulls", b"b"),
        ("rename", {"score": None}),
        ("labels", ["a", "a", "b", None]),
        ("seed", -1),
        ("loaders", 10**9),
        ("threads", 10**30),
        ("replicas_per_device", 5000),
        ("devices", "cpu:9999"),
        ("signature", 5),
        ("plan", {}),
        ("plan", 5),
        ("estimator", "no"),
        ("weights", ""),
        ("outputs", ""),
    ],
)
def test_values_that_would_change_the_answer_or_hang_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        make_options({"argmax": name == "labels", name: value})
    assert name in f"{caught.value.problem} {caught.value.received}"


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint8, np.array])
def test_whole_numbers_of_numpy_are_whole_numbers(number: Callable[[int], Any]) -> None:
    given = dict.fromkeys(("batch_size", "top_k", "threads", "part_rows", "seed"), number(2))
    values = values_of(make_options(given))
    assert {name: (type(values[name]), values[name]) for name in given} == dict.fromkeys(given, (int, 2))
    json.dumps(as_request(make_options(given)))


def test_arrays_and_numbers_of_numpy_are_taken_as_lists_and_numbers_are() -> None:
    given = {"scale": np.array([0.5, 2.0], np.float32), "tolerance": np.float64(0.25), "image_size": np.array([8, 9])}
    plain = {"scale": [0.5, 2.0], "tolerance": 0.25, "image_size": (8, 9)}
    assert make_options(given) == make_options(plain)
    assert make_options({"check": np.True_, "keep": np.array(["a", "b"])}) == PredictOptions(
        check=True, keep=("a", "b")
    )
