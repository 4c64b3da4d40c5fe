"""Rules of early stopping, by the metrics of evaluations."""

from __future__ import annotations

import operator

import pytest

from penstock.estimator.experimental import Better, _crosses, _is_stuck

VALUES = [(0, 0.5), (10, 0.9), (20, 0.8), (30, 0.7)]


@pytest.mark.parametrize(
    ("is_beyond", "threshold", "stops"),
    [(operator.gt, 0.85, True), (operator.gt, 0.9, False), (operator.lt, 0.6, True), (operator.lt, 0.5, False)],
)
def test_a_value_beyond_the_threshold_stops(is_beyond: Better, threshold: float, stops: bool) -> None:
    assert _crosses(is_beyond, threshold)(VALUES) is stops


@pytest.mark.parametrize(
    ("is_better", "most_steps", "stops"),
    [(operator.gt, 20, True), (operator.gt, 21, False), (operator.lt, 30, True), (operator.lt, 31, False)],
)
def test_no_better_value_for_so_many_steps_stops(is_better: Better, most_steps: int, stops: bool) -> None:
    assert _is_stuck(is_better, most_steps)(VALUES) is stops


def test_a_value_that_comes_later_does_not_undo_the_stop() -> None:
    assert _is_stuck(operator.gt, 20)([*VALUES, (40, 1.0)])


def test_without_evaluations_training_goes_on() -> None:
    assert not _crosses(operator.gt, 0.0)([])
    assert not _is_stuck(operator.gt, 0)([])
