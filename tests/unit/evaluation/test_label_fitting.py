"""Labels are handed to a loss in the form that it takes, and a label that it cannot take is named."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from penstock.errors import InputError
from penstock.evaluation.label_fitting import LabelRule, check_classes, check_weights, fit_labels

SCORES = np.random.default_rng(0).random((4, 3))
CLASSES = np.array([2, 0, 1, 1])
ROWS = np.array([10, 11, 14, 15])


def fitted(loss: str, labels: np.ndarray, predictions: np.ndarray = SCORES, *, is_lenient: bool = True) -> np.ndarray:  # type: ignore[type-arg]
    rule = LabelRule.of([loss], labels, predictions, is_lenient=is_lenient)
    return fit_labels(rule, "digit", labels, predictions, ROWS)


@pytest.mark.parametrize("labels", [CLASSES, CLASSES[:, None], CLASSES.astype(np.float64), np.eye(3)[CLASSES]])
def test_every_form_of_classes_fits_both_forms_of_losses(labels: np.ndarray) -> None:  # type: ignore[type-arg]
    assert fitted("sparse_categorical_crossentropy", labels).tolist() == CLASSES.tolist()
    np.testing.assert_array_equal(fitted("categorical_crossentropy", labels), np.eye(3)[CLASSES])


def test_a_class_that_the_loss_leaves_out_may_be_out_of_range() -> None:
    loss = SimpleNamespace(__name__="sparse_categorical_crossentropy", _fn_kwargs={"ignore_class": 255})
    labels = np.array([2, 255, 1, 255])
    rule = LabelRule.of([loss], labels, SCORES, is_lenient=True)
    assert fit_labels(rule, "digit", labels, SCORES, ROWS).tolist() == labels.tolist()
    with pytest.raises(InputError, match="row 11: 254"):
        fit_labels(rule, "digit", labels - (labels == 255), SCORES, ROWS)


def test_classes_in_memory_are_checked_and_other_labels_are_not() -> None:
    with pytest.raises(InputError, match="row 2: 3"):
        check_classes(["sparse_categorical_crossentropy"], "digit", np.array([0, 1, 3]), (3,))
    check_classes(["sparse_categorical_crossentropy"], "digit", CLASSES, (3,))
    check_classes(["sparse_categorical_crossentropy"], "digit", np.eye(3)[CLASSES], (3,))
    check_classes(["categorical_crossentropy"], "digit", CLASSES + 7, (3,))
    check_classes(["mse"], "digit", CLASSES + 7, (3,))


def test_labels_of_other_losses_stay_as_they_are() -> None:
    values = np.array([[0.5, 2, 3]] * 4)
    assert fitted("mse", values).dtype == np.float32
    np.testing.assert_array_equal(fitted("mse", values), values)
    assert fitted("loss_of_the_user", np.array([90, 91, 92, 93])).tolist() == [90, 91, 92, 93]


def test_only_labels_in_columns_change_their_form() -> None:
    np.testing.assert_array_equal(fitted("categorical_crossentropy", CLASSES, is_lenient=False), CLASSES)


@pytest.mark.parametrize(
    ("loss", "labels", "received"),
    [
        ("sparse_categorical_crossentropy", [0, 1, 3, 9], r"row 14: 3 \(and 1 more"),
        ("categorical_crossentropy", [0, 1, 2, -1], "row 15: -1"),
        ("accuracy", [0, 5, 1, 1], "row 11: 5"),
        ("sparse_categorical_crossentropy", [0, 0.5, 1, 1], "row 11: 0.5"),
        ("sparse_categorical_crossentropy", [[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 0, 0]], "row 14:"),
        ("sparse_categorical_crossentropy", [[1, 0], [0, 1], [0, 1], [1, 0]], r"\[2\]"),
    ],
)
def test_a_label_out_of_range_is_named_with_its_row(loss: str, labels: list[object], received: str) -> None:
    with pytest.raises(InputError, match=received):
        fitted(loss, np.array(labels))


def test_binary_labels_lie_between_0_and_1() -> None:
    assert fitted("binary_crossentropy", np.array([0, 1, 1, 0]), SCORES[:, :1]).tolist() == [0, 1, 1, 0]
    with pytest.raises(InputError, match="row 11: 2"):
        fitted("binary_crossentropy", np.array([0, 2, 1, 0]), SCORES[:, :1])


@pytest.mark.parametrize(("weight", "shown"), [(-1.0, "-1.0"), (float("nan"), "nan"), (float("inf"), "inf")])
def test_a_weight_below_zero_or_no_number_is_refused_with_its_row(weight: float, shown: str) -> None:
    check_weights(np.array([0.0, 2.5], np.float32), np.array([7, 8]))
    with pytest.raises(InputError, match="a weight is out of range") as caught:
        check_weights(np.array([1.0, weight], np.float32), np.array([7, 8]))
    assert caught.value.received == f"row 8: {shown}"
