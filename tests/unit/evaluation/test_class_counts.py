"""Counts of classes agree with scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from penstock.errors import InputError, UsageError
from penstock.evaluation.class_counts import ClassCounts


def test_counts_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(1)
    labels, predictions = random.integers(0, 5, 1000), random.random((1000, 5))
    counts = ClassCounts("which", (5,), labels=("a", "b", "c", "d", "e"))
    for start in range(0, 1000, 137):
        counts.add(labels[start : start + 137], predictions[start : start + 137])
    best = predictions.argmax(axis=1)
    assert counts.confusion() == {"classes": list("abcde"), "matrix": confusion_matrix(labels, best).tolist()}
    expected = precision_recall_fscore_support(labels, best, zero_division=0)
    found = [[each[name] for each in counts.per_class().values()] for name in ("precision", "recall", "f1", "rows")]
    np.testing.assert_allclose(found, expected)


def test_one_hot_labels_and_whole_numbers_count_alike() -> None:
    labels, predictions = np.array([2, 0, 1, 1]), np.random.default_rng(2).random((4, 3))
    whole, vectors = ClassCounts("which", (3,)), ClassCounts("which", (3,))
    whole.add(labels, predictions)
    vectors.add(np.eye(3)[labels], predictions)
    assert whole.matrix.tolist() == vectors.matrix.tolist()


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize(("threshold", "matrix"), [(0.5, [[1, 1], [1, 1]]), (0.0, [[0, 2], [0, 2]])])
def test_a_single_value_is_class_1_from_the_threshold_on(
    threshold: float, matrix: list[list[int]], shape: tuple[int, ...]
) -> None:
    """The threshold is one of predictions, which may be logits; labels have none."""
    counts = ClassCounts("which", (1,), threshold)
    counts.add(np.array([0, 0, 1, 1]).reshape(shape), np.array([[0.1], [0.9], [0.2], [0.5]]))
    assert counts.matrix.tolist() == matrix


def test_labels_that_are_no_classes_are_refused_by_the_name_of_the_output() -> None:
    with pytest.raises(InputError, match=r"'which'[^-]*from -1 to 7"):
        ClassCounts("which", (3,)).add(np.array([-1, 7]), np.zeros((2, 3)))
    with pytest.raises(UsageError, match=r"'which'.*\n.*20,000 classes"):
        ClassCounts("which", (20_000,))


@pytest.mark.parametrize("labels", [np.array([30.0, 0.4]), np.array([[30.0], [0.4]])])
def test_a_regression_beside_other_outputs_is_refused_with_what_to_do(labels: Any) -> None:
    alone, beside = ClassCounts("age", (1,)), ClassCounts("age", (1,), has_others=True)
    with pytest.raises(InputError, match=r"(?s)'age' are no classes.*from 0.4 to 30.*hint: leave out --per-class"):
        alone.add(labels, np.zeros((2, 1)))
    with pytest.raises(InputError, match="--label OTHER=COLUMN --metrics NAME"):
        beside.add(labels, np.zeros((2, 1)))
    with pytest.raises(InputError, match="'place'"):
        ClassCounts("place", (2,)).add(np.array([[3.0, 4.0]]), np.zeros((1, 2)))


def test_labels_of_a_hinge_loss_are_two_classes() -> None:
    counts = ClassCounts("which", (1,))
    counts.add(np.array([-1, 1, 1]), np.array([[-0.9], [0.8], [0.1]]))
    assert counts.matrix.tolist() == [[1, 0], [1, 1]]
