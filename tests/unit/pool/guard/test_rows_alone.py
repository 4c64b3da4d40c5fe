"""Whether padding changes an answer, tried on models of plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.core.batching import Batch, on_the_heap
from penstock.core.bucketing import cut_by_size
from penstock.core.columns import to_arrow
from penstock.core.feeds import LoadedRows, Mask, Ragged
from penstock.core.messages import PaddingTrial
from penstock.core.records import UNWATCHED, Array, Columns, Signature, TensorSpec
from penstock.pool.guard.rows_alone import answers_alone, join_answers, try_padding
from tests.unit.pool.piping import guarded

TOLERANCE = 1e-4
LENGTHS = [3, 7, 4, 4, 9, 6]


class Model:
    """What a function makes of the input `x` (rows, steps, 2), under the name `y`."""

    def __init__(self, function: Callable[[Columns], Array], fixed_batch: int | None = None) -> None:
        self.signature = Signature(
            (TensorSpec("x", "float32", (None, 2)),), (TensorSpec("y", "float32", (2,)),), fixed_batch=fixed_batch
        )
        self._function = function
        self.shapes: list[tuple[int, ...]] = []

    def predict(self, batch: Columns) -> Columns:
        self.shapes.append(batch["x"].shape)
        return {"y": self._function(batch)}

    def close(self) -> None:
        pass


def batch_of(lengths: list[int], *, has_mask: bool = False) -> Batch:
    random = np.random.default_rng(4)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    feeds: dict[str, Any] = {"x": Ragged(random.normal(size=(offsets[-1], 2)).astype(np.float32), offsets)}
    buckets = {"x": [[max(lengths)]]}
    if has_mask:
        feeds["mask"] = Mask(np.array(lengths), np.dtype(np.float32))
        buckets["mask"] = buckets["x"]
    (batch,) = cut_by_size([LoadedRows(0, len(lengths), feeds)], 8, buckets, on_the_heap, UNWATCHED)
    return batch


def own_shape(batch: Batch) -> dict[str, tuple[int, ...]]:
    return {name: batch.arrays[name].shape[1:2] for name in batch.sizes}


def tried(
    model: Model,
    lengths: list[int] = LENGTHS,
    *,
    has_mask: bool = False,
    largest: dict[str, tuple[int, ...]] | None = None,
) -> PaddingTrial:
    follows = {"y": "x"} if model.predict(batch_of(lengths).arrays | MASK)["y"].ndim == 3 else {}
    batch = batch_of(lengths, has_mask=has_mask)
    return try_padding(guarded(model), batch, range(len(lengths)), follows, ["mask"], largest or own_shape(batch))


MASK = {"mask": np.ones((8, max(LENGTHS)), np.float32)}


def total(batch: Columns) -> Array:
    return np.asarray(batch["x"].sum(axis=1))


def mean(batch: Columns) -> Array:
    return np.asarray(batch["x"].mean(axis=1))


def masked_mean(batch: Columns) -> Array:
    real = (batch["x"] != 0).any(axis=2).sum(axis=1, keepdims=True)
    return np.asarray(batch["x"].sum(axis=1) / np.maximum(real, 1))


def largest_of_positive(batch: Columns) -> Array:
    return np.asarray(np.maximum(batch["x"], 0).max(axis=1))


def largest(batch: Columns) -> Array:
    return np.asarray(batch["x"].max(axis=1))


def each_step(batch: Columns) -> Array:
    return np.asarray(2 * batch["x"])


def from_behind(batch: Columns) -> Array:
    return np.cumsum(batch["x"][:, ::-1], axis=1)


def with_mask(batch: Columns) -> Array:
    mask = batch["mask"][:, :, None]
    return np.asarray((np.cos(batch["x"]) * mask).sum(axis=1) / mask.sum(axis=1))


def step_in_front(batch: Columns) -> Array:
    return np.pad(batch["x"], ((0, 0), (1, 0), (0, 0)))


def windows(batch: Columns) -> Array:
    """Sums of three steps: two fewer than the row has."""
    return np.asarray(np.lib.stride_tricks.sliding_window_view(batch["x"], 3, axis=1).sum(axis=3))


def every_second(batch: Columns) -> Array:
    return batch["x"][:, ::2]


def seldom_above_zero(batch: Columns) -> Array:
    """Zero for all short rows: there is no spread to measure a difference by."""
    return np.asarray(np.maximum(batch["x"].sum(axis=1) - 4, 0))


HARMLESS = [total, masked_mean, largest_of_positive, each_step, step_in_front, windows, seldom_above_zero]


@pytest.mark.parametrize("model", HARMLESS)
def test_padding_is_harmless_where_zeros_add_nothing(model: Callable[[Columns], Array]) -> None:
    assert tried(Model(model)).is_harmless(TOLERANCE)


@pytest.mark.parametrize("model", [mean, from_behind, every_second])
def test_padding_that_changes_an_answer_is_seen(model: Callable[[Columns], Array]) -> None:
    trial = tried(Model(model))
    assert trial.difference > 0.01
    assert not trial.is_harmless(TOLERANCE)


def test_what_most_rows_hide_is_seen_in_rows_that_are_cut_down() -> None:
    # Among many values the largest is hardly ever below zero.
    assert not tried(Model(largest), [40, 50, 60]).is_harmless(TOLERANCE)


def test_harm_that_only_much_padding_does_is_seen_where_the_job_pads_so_far() -> None:
    def many_zeros(batch: Columns) -> Array:
        zeros = (batch["x"] == 0).all(axis=2).sum(axis=1, keepdims=True)
        return np.asarray(total(batch) + np.maximum(zeros - 20, 0))

    assert tried(Model(many_zeros)).is_harmless(TOLERANCE)
    assert not tried(Model(many_zeros), largest={"x": (64,)}).is_harmless(TOLERANCE)


def test_mask_that_comes_with_the_rows_is_padded_with_zeros() -> None:
    assert tried(Model(with_mask), has_mask=True).is_harmless(TOLERANCE)


def test_model_that_rejects_padded_rows_is_not_padded() -> None:
    def up_to_nine(batch: Columns) -> Array:
        if batch["x"].shape[1] > 9:
            raise ValueError("no more than nine steps")
        return total(batch)

    assert tried(Model(up_to_nine), [9, 3]).difference == float("inf")


def test_sizes_that_are_too_short_alone_say_nothing() -> None:
    def from_three_on(batch: Columns) -> Array:
        if batch["x"].shape[1] < 3:
            raise ValueError("at least three steps")
        return total(batch)

    assert tried(Model(from_three_on)).is_harmless(TOLERANCE)


def test_model_that_always_answers_the_same_proves_nothing() -> None:
    trial = tried(Model(lambda batch: np.ones((len(batch["x"]), 2), np.float32)))
    assert trial.problem is not None
    assert "the same in every row" in trial.problem
    assert not trial.is_harmless(TOLERANCE)


def test_rows_that_all_failed_prove_nothing() -> None:
    assert try_padding(guarded(Model(total)), batch_of(LENGTHS), [], {}, [], {"x": (9,)}).problem is not None


def test_model_of_one_batch_size_is_tried_with_that() -> None:
    model = Model(total, fixed_batch=8)
    assert try_padding(guarded(model), batch_of(LENGTHS), range(len(LENGTHS)), {}, [], {"x": (9,)}).is_harmless(
        TOLERANCE
    )
    assert {shape[0] for shape in model.shapes} == {8}


def test_answers_alone_are_those_of_rows_at_their_own_size() -> None:
    model, batch = Model(mean), batch_of(LENGTHS)
    found = answers_alone(guarded(model), batch, [0, 1], {})
    assert [shape[:2] for shape in model.shapes] == [(1, length) for length in LENGTHS[:2]]
    for place, answer in found.items():
        np.testing.assert_allclose(answer["y"][0], batch.arrays["x"][place, : LENGTHS[place]].mean(axis=0), rtol=1e-6)


def test_answers_for_every_step_are_lists_of_the_length_of_their_row() -> None:
    found = answers_alone(guarded(Model(each_step)), batch_of(LENGTHS), range(len(LENGTHS)), {"y": "x"})
    assert [len(row) for row in to_arrow(join_answers(list(found.values()))["y"]).to_pylist()] == LENGTHS


@pytest.mark.parametrize(("model", "more"), [(step_in_front, 1), (windows, -2)])
def test_answers_that_are_longer_or_shorter_than_their_row_lose_nothing(
    model: Callable[[Columns], Array], more: int
) -> None:
    found = answers_alone(guarded(Model(model)), batch_of(LENGTHS), range(len(LENGTHS)), {"y": "x"})
    lengths = [len(row) for row in to_arrow(join_answers(list(found.values()))["y"]).to_pylist()]
    assert lengths == [length + more for length in LENGTHS]


def test_row_that_the_model_rejects_alone_has_no_answer() -> None:
    def from_four_on(batch: Columns) -> Array:
        if batch["x"].shape[1] < 4:
            raise ValueError("at least four steps")
        return total(batch)

    assert list(answers_alone(guarded(Model(from_four_on)), batch_of(LENGTHS), range(3), {})) == [1, 2]
