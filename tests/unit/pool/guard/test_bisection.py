"""When the model rejects a batch: the rows at fault are found, the others keep their bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.records import Array, Columns
from penstock.errors import DeviceError, ModelError
from penstock.pool.guard.bisection import check_rows
from tests.unit.pool.piping import Blocks, Doubler, Rejecting, X, guarded


def test_one_rejected_row_is_found_in_logarithmic_time() -> None:
    x = np.zeros((1024, 3), np.float32)
    x[700] = 1000
    replica = Doubler(poison=1000)
    _, failures = guarded(replica).answer(Batch(0, range(1024), 1024, {"x": x}), 0)
    assert [failure.row for failure in failures] == [700]
    assert replica.calls <= 2 * 10 + 6


def test_bisection_does_not_touch_the_batch_it_was_given() -> None:
    x = np.ones((4, 3), np.float32)
    x[2] = 1000
    before = x.copy()
    x.flags.writeable = False
    guarded(Doubler(poison=1000)).answer(Batch(0, range(4), 4, {"x": x}), 0)
    np.testing.assert_array_equal(x, before)


@given(places=st.permutations(range(20)), rows=st.integers(1, 8), data=st.data())
def test_rejected_rows_are_named_by_their_place_in_the_span_in_whatever_order_they_lie(
    places: list[int], rows: int, data: st.DataObject
) -> None:
    positions = np.sort(np.array(places[:rows]))
    poisoned = data.draw(st.sets(st.integers(0, rows - 1)))
    x = np.ones((8, 3), np.float32)
    x[sorted(poisoned)] = 1000
    outputs, failures = guarded(Doubler(poison=1000)).answer(Batch(0, positions, rows, {"x": x}), 500)
    assert [failure.row for failure in failures] == [500 + int(positions[place]) for place in sorted(poisoned)]
    alive = [place for place in range(rows) if place not in poisoned]
    assert (outputs["y"][alive] == 2).all()
    assert {(failure.stage, failure.error, failure.origin) for failure in failures} <= {("predict", "ValueError", "")}


def test_batch_that_the_model_takes_is_predicted_once() -> None:
    replica = Doubler(poison=1000)
    outputs, failures = guarded(replica).answer(Batch(0, range(4), 4, {"x": np.ones((4, 3), np.float32)}), 0)
    assert failures == []
    assert replica.calls == 1
    assert outputs["total"].tolist() == [3.0] * 4


def test_error_of_the_device_is_not_bisected() -> None:
    raised = DeviceError("the device ran out of memory")
    with pytest.raises(DeviceError) as caught:
        guarded(Rejecting(raised)).answer(Batch(0, range(2), 2, {"x": np.ones((2, 3), np.float32)}), 0)
    assert caught.value is raised


@pytest.mark.parametrize("output", [np.zeros(3), np.zeros((3, 4)), np.zeros((5, 4)), np.zeros(())], ids=np.shape)
def test_output_without_one_row_for_each_row_is_refused(output: Array) -> None:
    fitting: Columns = {"y": np.zeros((4, 2)), "z": np.zeros(4)}
    check_rows(fitting, 4)
    with pytest.raises(ModelError) as caught:
        check_rows(fitting | {"loss": output}, 4)
    assert caught.value.received == f"loss: shape {output.shape} for a batch of 4"


class FromThreeOn:
    """A model that takes rows of three values and more."""

    signature = Doubler().signature

    def predict(self, batch: Columns) -> Columns:
        if batch["x"].shape[1] < 3:
            raise ValueError("kernel size can't be greater than the input")
        return {"y": batch["x"].sum(axis=1)}

    def close(self) -> None:
        pass


def test_shape_that_a_model_rejects_fails_the_rows_of_that_size_only() -> None:
    replica = guarded(FromThreeOn())
    replica.take(Job(Blocks([2]), (X,), (), 2, fewest_rows=1))
    short = Batch(0, np.array([4, 9]), 2, {"x": np.ones((2, 2), np.float32)})
    outputs, failures = replica.predict(short, 100)
    assert outputs is None
    assert [failure.row for failure in failures] == [104, 109]
    assert "kernel size" in failures[0].reason
    whole = Batch(1, np.array([5]), 1, {"x": np.ones((1, 3), np.float32)})
    outputs, failures = replica.predict(whole, 100)
    assert outputs is not None
    assert outputs["y"].tolist() == [3.0]
    assert failures == []
