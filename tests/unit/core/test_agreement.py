"""Whether two runs gave the same answers."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.agreement import compare
from penstock.core.answering import Answers, NumpyRanking, keep

RNG = np.random.default_rng(7)
SCORES = RNG.normal(size=(20, 10)).astype(np.float32)
SPREAD = float(np.ptp(SCORES))


def test_equal_answers_agree() -> None:
    assert compare({"y": SCORES}, {"y": SCORES.copy()}, 0.0) is None


def test_a_difference_within_the_tolerance_of_the_spread_agrees() -> None:
    assert compare({"y": SCORES + 0.5e-4 * SPREAD}, {"y": SCORES}, 1e-4) is None


def test_a_larger_one_is_named_with_output_row_and_both_values() -> None:
    wrong = SCORES.copy()
    wrong[13, 4] += 3e-4 * SPREAD
    found = compare({"y": wrong}, {"y": SCORES}, 1e-4)
    assert found is not None
    assert (found.output, found.row) == ("y", 13)
    assert found.ours == f"{wrong[13, 4]:.9g}"
    assert found.theirs == f"{SCORES[13, 4]:.9g}"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_agrees_only_with_itself(value: float) -> None:
    odd = SCORES.copy()
    odd[3, 3] = value
    assert compare({"y": odd}, {"y": odd.copy()}, 1e-4) is None
    for ours, theirs in ((odd, SCORES), (SCORES, odd)):
        found = compare({"y": ours}, {"y": theirs}, 1e-4)
        assert found is not None
        assert found.row == 3


def test_text_and_whole_numbers_must_be_equal() -> None:
    names = np.array([b"a", b"b"], object)
    assert compare({"s": names, "n": np.array([1, 2])}, {"s": names.copy(), "n": np.array([1, 2])}, 1e-4) is None
    found = compare({"n": np.array([1, 2])}, {"n": np.array([1, 3])}, 0.9)
    assert found is not None
    assert (found.row, found.ours, found.theirs) == (1, "2", "3")


def test_another_shape_never_agrees() -> None:
    assert compare({"y": SCORES}, {"y": SCORES[:, :5]}, 0.9) is not None


def test_classes_that_were_ranked_agree_with_whole_outputs() -> None:
    answers = Answers(top_k=3)
    kept = keep(answers, {"y": SCORES}, NumpyRanking())
    assert compare(kept, {"y": SCORES}, 1e-6, answers) is None


def test_classes_that_are_nearly_tied_may_change_places_but_worse_ones_may_not() -> None:
    tied = np.array([[1.0, 1.0 + 1e-7, 0.0]])
    answers = Answers(argmax=True)
    for place in (0, 1):
        assert compare({"y_class": np.array([place], np.int32)}, {"y": tied}, 1e-4, answers) is None
    found = compare({"y_class": np.array([2], np.int32)}, {"y": tied}, 1e-4, answers)
    assert found is not None
    assert found.output == "y_class"
