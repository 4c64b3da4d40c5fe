"""What is around the user's functions is undone afterwards, whoever else is inside."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.errors import ModelError
from penstock.estimator.legacy_keras import SharedChange, quiet
from penstock.estimator.refusals import WrongValue, also_model_error


def test_the_last_thread_that_leaves_undoes_a_change() -> None:
    seen: list[str] = []

    @contextmanager
    def change() -> Iterator[None]:
        seen.append("made")
        yield
        seen.append("undone")

    shared = SharedChange(change)
    is_in, has_left = threading.Event(), threading.Event()

    def stays_longer() -> None:
        with shared():
            is_in.set()
            assert has_left.wait(60)
            seen.append("still inside")

    with shared(), shared():
        thread = threading.Thread(target=stays_longer)
        thread.start()
        assert is_in.wait(60)
    has_left.set()
    thread.join()
    assert seen == ["made", "still inside", "undone"]
    with shared():
        pass
    assert seen[3:] == ["made", "undone"]


def test_a_change_that_fails_is_tried_again() -> None:
    attempts = []

    @contextmanager
    def change() -> Iterator[None]:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("not now")
        yield

    shared = SharedChange(change)
    with pytest.raises(OSError, match="not now"), shared():
        pass
    with shared():
        assert len(attempts) == 2


def test_only_warnings_about_old_code_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tensorflow")
    deprecated = "From %s: %s (from %s) is deprecated and will be removed %s.\nInstructions for updating:\n%s"
    with caplog.at_level(logging.WARNING), quiet():
        logger.warning(deprecated, "model.py", "dense", "layers", "soon", "do otherwise")
        logger.warning("the user's data: column %s is deprecated", "x")
    logger.warning(deprecated, "model.py", "dense", "layers", "soon", "do otherwise")
    assert [record.args[0] for record in caplog.records if record.args] == ["x", "model.py"]  # type: ignore[index]


class Unpicklable(Exception):
    def __init__(self, code: int, *, place: str) -> None:
        super().__init__(f"{code} at {place}")
        self.code = code


@pytest.mark.parametrize(
    "error", [KeyError("x"), WrongValue("no"), OSError(2, "gone"), Unpicklable(3, place="a"), UnicodeError("x")]
)
def test_what_the_user_raised_is_a_model_error_as_well(error: Exception) -> None:
    made: Any = also_model_error(error, "the model_fn failed", "model.py, line 3")
    assert isinstance(made, ModelError)
    assert isinstance(made, type(error))
    assert made.exit_code == 6
    assert str(made) == "the model_fn failed\nreceived: model.py, line 3"
    assert getattr(made, "code", 3) == 3
    crossed = pickle.loads(pickle.dumps(made))
    assert type(crossed) is ModelError
    assert str(crossed) == str(made)


def test_an_end_of_iteration_is_a_model_error_only() -> None:
    assert not isinstance(also_model_error(StopIteration(), "failed", "here"), StopIteration)
