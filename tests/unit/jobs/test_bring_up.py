"""Bringing a job up: what a loaded model answers changes what was decided. A real engine, in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.records import Columns, Device, Placement, Signature, TensorSpec
from penstock.core.state import VARIABLES, State
from penstock.core.stopping import StopFlag
from penstock.engines.embedded import EmbeddedEngine
from penstock.errors import InputError, ModelError
from penstock.jobs.bring_up import Started, bring_up
from penstock.jobs.decide import Request
from penstock.jobs.placement import Setting
from penstock.options.records import PredictOptions
from penstock.sources.python.memory import InMemory
from tests.unit.pool.piping import Doubler

CPU = Placement((Device("cpu", 0),), loaders=1, lanes=1)


def brought_up(replica: Any, source: InMemory, **asked: Any) -> Started:
    engine = EmbeddedEngine([replica], CPU, lambda *_: None, StopFlag())
    return bring_up(engine, Request(source, PredictOptions(**asked)), Setting("tensorflow", None, 1, CPU))


def arrays(rows: int) -> InMemory:
    return InMemory({"x": np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)})


class Summing:
    """A model of rows of any length, whose answers depend on padding where `is_counting`."""

    signature = Signature((TensorSpec("x", "float32", (None,)),), (TensorSpec("y", "float32", ()),))

    def __init__(self, *, is_counting: bool) -> None:
        self._is_counting = is_counting

    def predict(self, batch: Columns) -> Columns:
        x = batch["x"]
        return {"y": x.sum(axis=1) + (x.shape[1] if self._is_counting else 0)}

    def close(self) -> None:
        pass


class Counting(Doubler):
    """A model that keeps state."""

    def look(self, batch: Columns) -> State:
        return State(VARIABLES, ("count",))

    def hold(self, seed: int | None) -> None:
        pass

    def restore(self) -> None:
        pass

    def turn(self, row: int) -> None:
        pass


def test_job_that_is_up_gives_a_result_for_every_row() -> None:
    started = brought_up(Doubler(), arrays(100), batch_size=8)
    assert [spec.name for spec in started.prepared.outputs] == ["y", "total"]
    answers = np.concatenate([result.columns["y"] for result in started.results()])
    np.testing.assert_array_equal(answers, 2 * np.arange(300, dtype=np.float32).reshape(100, 3))
    started.close()
    started.close()


@pytest.mark.parametrize("is_counting", [False, True])
def test_rows_are_padded_unless_that_changes_their_answers(is_counting: bool) -> None:
    lengths = [[float(row)] * (1 + row % 9) for row in range(64)]
    source = InMemory({"x": pa.array(lengths, pa.list_(pa.float32()))})
    started = brought_up(Summing(is_counting=is_counting), source)
    assert started.recipe.is_padded != is_counting
    assert any("padding changes the answers" in note for note in started.decision.notes) == is_counting
    started.close()


def test_model_with_state_is_prepared_once_more_for_batches_in_order() -> None:
    started = brought_up(Counting(), arrays(100))
    assert (started.recipe.state, started.recipe.batch_size) == (VARIABLES, 32)
    assert [spec.name for spec in started.prepared.outputs] == ["y", "total"]
    assert "the model keeps state (count)" in started.decision.notes[-1]
    started.close()


def test_job_that_does_not_come_up_closes_its_engine() -> None:
    class Closing(EmbeddedEngine):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True
            super().close()

    engine = Closing([Doubler()], CPU, lambda *_: None, StopFlag())
    source = InMemory({"x": np.zeros((4, 5), np.float32)})
    with pytest.raises((InputError, ModelError)):
        bring_up(engine, Request(source, PredictOptions()), Setting("tensorflow", None, 1, CPU))
    assert engine.is_closed
