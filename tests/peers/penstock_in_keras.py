"""A plugin of pytest for `keras_predict.py`: counts calls of `predict` in Keras's tests, and answers them if asked."""

from __future__ import annotations

import inspect
import json
import os
from collections import Counter
from typing import Any

import pytest

_DEFAULTS = {"batch_size": None, "verbose": "auto", "steps": None, "callbacks": None}
_calls: Counter[str] = Counter()
_told: dict[str, dict[str, Any]] = {}
_running = [""]


def pytest_configure() -> None:
    import keras

    trainer = next(kind for kind in keras.Model.__mro__ if "predict" in vars(kind))
    original = trainer.predict

    def predict(
        self: Any, x: Any, batch_size: Any = None, verbose: Any = "auto", steps: Any = None, callbacks: Any = None
    ) -> Any:
        _calls[_running[0]] += 1
        given = {"batch_size": batch_size, "verbose": verbose, "steps": steps, "callbacks": callbacks}
        if os.environ["PENSTOCK_IN_KERAS"] != "ours":
            return original(self, x, **given)
        import penstock

        return penstock.predict(self, x, **{name: value for name, value in given.items() if value != _DEFAULTS[name]})

    trainer.predict = predict


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Only tests that say `predict` somewhere: the others take minutes, and say nothing about it."""
    items[:] = [item for item in items if "predict" in inspect.getsource(item.function)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    _running[0] = item.nodeid.partition("::")[2]


def pytest_runtest_logreport(report: Any) -> None:
    name = report.nodeid.partition("::")[2]
    if report.when == "call" or report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = " ".join(str(getattr(crash, "message", "")).split())[:400]
        _told[name] = {"outcome": report.outcome, "reason": reason, "calls": 0}


def pytest_sessionfinish() -> None:
    for name, told in _told.items():
        told["calls"] = _calls[name]
    with open(os.environ["PENSTOCK_TOLD"], "w", encoding="utf-8") as file:
        json.dump(_told, file)
