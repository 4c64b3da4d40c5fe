"""A step is converted without copies of its graph first; with them where a pass of the converter fails."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from penstock.runtimes.tensorflow.to_onnx import _NO_COPIES, _in_place


def failing_in(filename: str) -> Callable[[], None]:
    """A function that raises, from a file of that name."""
    namespace: dict[str, Callable[[], None]] = {}
    exec(compile("def fail():\n    raise KeyError('no such node')", filename, "exec"), namespace)
    return namespace["fail"]


@pytest.mark.parametrize("asked", [None, "TRUE"])
def test_a_pass_that_fails_is_done_again_with_copies(asked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_NO_COPIES, raising=False)
    if asked is not None:
        monkeypatch.setenv(_NO_COPIES, asked)
    fail, seen = failing_in("/site/tf2onnx/optimizer/transpose_optimizer.py"), []

    def convert() -> str:
        seen.append(os.environ.get(_NO_COPIES))
        if len(seen) == 1:
            fail()
        return "a graph"

    assert _in_place(convert) == "a graph"
    assert seen == ["FALSE", asked]
    assert os.environ.get(_NO_COPIES) == asked


def test_a_model_that_cannot_be_converted_is_not_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_NO_COPIES, raising=False)
    fail, calls = failing_in("/site/tf2onnx/tfonnx.py"), []

    def convert() -> None:
        calls.append(1)
        fail()

    with pytest.raises(KeyError):
        _in_place(convert)
    assert len(calls) == 1
    assert _NO_COPIES not in os.environ
