"""Whether two processes built the same model."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.estimator.likeness import Reference

SCORES = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)


def unlike(once: Any, found: Any, again: Any = None) -> str | None:
    return Reference(once, once if again is None else again).unlike(found, "cpu")


def test_another_order_of_summing_is_the_same_model() -> None:
    assert unlike({"scores": SCORES}, {"scores": SCORES + np.float32(1e-6)}) is None


def test_other_values_are_another_model() -> None:
    assert "scores" in (unlike({"scores": SCORES}, {"scores": 2 * SCORES}) or "")
    assert unlike(SCORES, 2 * SCORES)
    assert unlike({"words": np.array([b"a", b"b"], object)}, {"words": np.array([b"a", b"c"], object)})
    assert unlike([SCORES, SCORES], [SCORES, SCORES[:2]])
    assert unlike({"scores": SCORES}, {"scores": SCORES, "more": SCORES})


def test_what_is_random_says_nothing() -> None:
    once, again = ({"noise": SCORES + number, "scores": SCORES} for number in (0, 1))
    assert unlike(once, {"noise": SCORES + 2, "scores": SCORES}, again) is None
    assert unlike(once, {"noise": SCORES + 2, "scores": 2 * SCORES}, again)


def test_a_few_classes_of_many_may_turn_over() -> None:
    classes = np.zeros((20, 20), np.int64)
    other = classes.copy()
    other[3, 4] = 1
    assert unlike(classes, other) is None
    assert unlike(classes, 1 - other)
