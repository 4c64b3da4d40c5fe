"""Whether two runs gave the same answers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.agreement import compare
from penstock.core.output_selection import Answers, keep, numpy_top_k

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
    kept = keep(answers, {"y": SCORES}, numpy_top_k)
    assert compare(kept, {"y": SCORES}, 1e-6) is None


def test_classes_that_are_nearly_tied_may_change_places_but_worse_ones_may_not() -> None:
    tied = np.array([[1.0, 1.0 + 1e-7, 0.0]])
    for place in (0, 1):
        assert compare({"classes:y": np.array([place], np.int32)}, {"y": tied}, 1e-4) is None
    found = compare({"classes:y": np.array([2], np.int32)}, {"y": tied}, 1e-4)
    assert found is not None
    assert found.output == "y_class"


def test_an_output_that_is_called_like_a_score_is_an_output() -> None:
    kept = keep(Answers(top_k=2), {"risk_score": SCORES}, numpy_top_k)
    assert compare(kept, {"risk_score": SCORES}, 1e-6) is None


def test_values_without_bounds_hide_no_wrong_class() -> None:
    masked = np.array([[1.0, 0.0, -np.inf], [np.nan, np.nan, np.nan]])
    assert compare(keep(Answers(top_k=2), {"y": masked}, numpy_top_k), {"y": masked}, 1e-4) is None
    found = compare({"classes:y": np.array([1, 0], np.int32)}, {"y": masked}, 1e-4)
    assert found is not None
    assert found.row == 0


def test_lists_are_compared_by_their_lengths_and_within_the_tolerance() -> None:
    ours = pa.array([[1.0, 2.0], [], [3.0]], pa.large_list(pa.float32()))
    near = pa.array([[1.0, 2.0000001], [], [3.0]], pa.large_list(pa.float32()))
    assert compare({"y": ours}, {"y": near}, 1e-4) is None
    for other, row in (([[1.0, 2.0], [], [3.5]], 2), ([[1.0, 2.0], [3.0], []], 1)):
        found = compare({"y": ours}, {"y": pa.array(other, pa.large_list(pa.float32()))}, 1e-4)
        assert found is not None
        assert found.row == row
