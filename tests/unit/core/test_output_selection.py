"""What is kept of a model's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.core.output_selection import Answers, keep, numpy_top_k, with_labels
from penstock.errors import UsageError

SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], np.float32)
OUTPUTS = {"probs": SCORES, "length": np.array([3.0, 4.0], np.float32)}


def test_without_a_wish_everything_is_kept() -> None:
    assert keep(None, OUTPUTS, numpy_top_k).keys() == OUTPUTS.keys()


def test_only_the_outputs_that_were_named_are_kept_in_that_order() -> None:
    kept = keep(Answers(outputs=("length", "probs")), OUTPUTS, numpy_top_k)
    assert list(kept) == ["length", "probs"]


def test_an_output_that_is_not_there_is_refused_with_the_list() -> None:
    with pytest.raises(UsageError, match="allowed: probs, length"):
        keep(Answers(outputs=("prob",)), OUTPUTS, numpy_top_k)


def test_the_best_classes_come_with_their_scores_and_other_outputs_stay() -> None:
    kept = keep(Answers(top_k=2), OUTPUTS, numpy_top_k)
    assert list(kept) == ["classes:probs", "scores:probs", "length"]
    assert kept["classes:probs"].tolist() == [[1, 2], [0, 2]]
    assert kept["classes:probs"].dtype == np.int32
    np.testing.assert_array_equal(kept["scores:probs"], np.array([[0.7, 0.2], [0.5, 0.3]], np.float32))


def test_the_best_class_is_a_single_number() -> None:
    assert keep(Answers(argmax=True), OUTPUTS, numpy_top_k)["classes:probs"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (Answers(top_k=4), "at most 3"),
        (Answers(argmax=True, labels=("a", "b")), "2 labels"),
        (Answers(argmax=True, outputs=("length",)), "one value for each class"),
    ],
)
def test_what_cannot_be_ranked_is_refused(answers: Answers, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        keep(answers, OUTPUTS, numpy_top_k)


def test_a_single_value_is_no_class_and_ids_are_no_scores() -> None:
    outputs = OUTPUTS | {"churn": np.array([[0.3], [0.9]], np.float32), "ids": np.array([[3, 1], [2, 0]])}
    kept = keep(Answers(argmax=True), outputs, numpy_top_k)
    assert list(kept) == ["classes:probs", "length", "churn", "ids"]
    alone = keep(Answers(argmax=True, outputs=("ids",)), outputs, numpy_top_k)
    assert alone["classes:ids"].tolist() == [0, 0]


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="probs_class"):
        keep(Answers(argmax=True), OUTPUTS | {"probs_class": np.zeros(2)}, numpy_top_k)
    labels = tuple("abc")
    with pytest.raises(UsageError, match="probs_label"):
        keep(Answers(argmax=True, labels=labels), OUTPUTS | {"probs_label": np.zeros(2)}, numpy_top_k)


def test_a_class_without_a_label_is_told() -> None:
    with pytest.raises(UsageError, match="class 2"):
        with_labels({"classes:p": np.array([0, 2], np.int32)}, ("cat", "dog"))


@given(
    st.one_of(
        arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=st.integers(-3, 3)),
        arrays.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=st.integers(0, 5)),
    ),
    st.integers(1, 40),
)
def test_ranking_is_a_stable_sort(scores: np.ndarray, k: int) -> None:
    k = min(k, scores.shape[1])
    values, places = numpy_top_k(scores, k)
    pairs = [sorted((-score, place) for place, score in enumerate(row)) for row in scores.tolist()]
    expected = [[place for _, place in row[:k]] for row in pairs]
    assert places.tolist() == expected
    np.testing.assert_array_equal(values, np.take_along_axis(scores, places, axis=1))
    assert numpy_top_k(scores, 1)[1][:, 0].tolist() == [places[0] for places in expected]


def test_every_output_has_labels_of_its_own_or_none() -> None:
    columns: dict[str, Any] = {f"classes:{name}": np.array([1], np.int32) for name in "pqr"}
    labelled: dict[str, Any] = with_labels(columns, {"p": ("cat", "dog"), "r": ("old", "new")})
    assert list(labelled) == ["classes:p", "labels:p", "classes:q", "classes:r", "labels:r"]
    assert labelled["labels:r"].to_pylist() == ["new"]
    answers = Answers(argmax=True, labels={"nobody": ("cat", "dog")})
    assert hash(answers) == hash(Answers(argmax=True))
    with pytest.raises(UsageError, match="names for 'nobody'"):
        keep(answers, OUTPUTS, numpy_top_k)


def test_labels_follow_their_classes_and_leave_other_columns_alone() -> None:
    columns: dict[str, Any] = {"classes:p": np.array([[1, 0], [0, 1]], np.int32), "x_class": np.array([9.5, 1.0])}
    labelled: dict[str, Any] = with_labels(columns, ("cat", "dog"))
    assert list(labelled) == ["classes:p", "labels:p", "x_class"]
    assert labelled["labels:p"].to_pylist() == [["dog", "cat"], ["cat", "dog"]]
    single: dict[str, Any] = with_labels({"classes:p": np.array([1], np.int32)}, ("cat", "dog"))
    assert single["labels:p"].to_pylist() == ["dog"]
