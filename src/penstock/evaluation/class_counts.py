"""Counts of true and predicted classes: the confusion matrix, and precision, recall and F1 of every class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.errors import InputError, UsageError

_MOST_CLASSES = 10_000
_TRUE = 0.5
"""A single-value label of at least this size is class 1, even where the predictions are logits."""


class ClassCounts:
    """The confusion matrix of one output, true classes by predicted ones, each row counted once.

    Args:
        output: Its name.
        shape: The shape of a row of the output: its last dimension has a value for each class, or the only value.
        threshold: A single value at least this large is class 1.
        labels: The names of the classes, if they have any.
        has_others: Whether other outputs are evaluated, too.

    Raises:
        UsageError: There are too many classes for a matrix.
    """

    def __init__(
        self,
        output: str,
        shape: Sequence[int],
        threshold: float = 0.5,
        labels: Sequence[str] = (),
        *,
        has_others: bool = False,
    ) -> None:
        self._output = output
        self._hint = "leave out --per-class and --confusion"
        if has_others:
            self._hint += ", or name labels and metrics of the other outputs only: --label OTHER=COLUMN --metrics NAME"
        self._is_binary = not shape or shape[-1] == 1
        self._threshold = threshold
        classes = 2 if self._is_binary else shape[-1]
        if classes > _MOST_CLASSES:
            raise UsageError(
                f"the output {output!r} has too many classes to count each of them",
                received=f"{classes:,} classes",
                allowed=f"at most {_MOST_CLASSES:,}",
                hint=self._hint,
            )
        self._names = list(labels) if len(labels) == classes else [str(number) for number in range(classes)]
        self.matrix: Array = np.zeros((classes, classes), np.int64)

    def add(self, labels: Array, predictions: Array, ignored: int | None = None) -> None:
        """Count rows but those of class `ignored`. Labels are whole numbers, or have the shape of the predictions.

        Raises:
            InputError: The labels are no classes, but for example those of a regression.
        """
        classes = len(self.matrix)
        predicted = self._predicted(predictions)
        if self._is_binary:
            true = (labels.reshape(-1) >= _TRUE).astype(np.int64)
            are_classes = _are_between_0_and_1(labels) or bool(np.isin(labels, (-1, 1)).all())  # as a hinge loss takes
        elif labels.shape == predictions.shape:
            true = self._predicted(labels)
            are_classes = _are_between_0_and_1(labels)
        else:
            true = labels.reshape(-1).astype(np.int64)
            if ignored is not None and len(true) == len(predicted):
                true, predicted = true[true != ignored], predicted[true != ignored]
            are_classes = not len(true) or bool(0 <= true.min() <= true.max() < classes)
        if len(true) != len(predicted) or not are_classes:
            least, most = float(labels.min()), float(labels.max())
            raise InputError(
                f"the labels of the output {self._output!r} are no classes, so that classes cannot be counted",
                received=f"labels {labels.dtype}{list(labels.shape[1:])} from {least:g} to {most:g}",
                allowed=f"0 to {classes - 1}, or one-hot vectors",
                hint=self._hint,
            )
        counts = np.bincount(true * classes + predicted, minlength=classes * classes)
        self.matrix += counts.reshape(classes, classes)

    def _predicted(self, values: Array) -> Array:
        if self._is_binary:
            return (values.reshape(-1) >= self._threshold).astype(np.int64)
        best: Array = np.argmax(values, axis=-1).reshape(-1)
        return best

    def confusion(self) -> dict[str, Any]:
        return {"classes": self._names, "matrix": self.matrix.tolist()}

    def per_class(self) -> dict[str, dict[str, float | int]]:
        """Precision, recall, F1 and rows of every class; a class that is never predicted has a precision of 0."""
        hits = np.diagonal(self.matrix).astype(np.float64)
        true, predicted = self.matrix.sum(axis=1), self.matrix.sum(axis=0)
        precision, recall = _share(hits, predicted), _share(hits, true)
        f1 = _share(2 * hits, true + predicted)
        return {
            name: {
                "precision": float(precision[place]),
                "recall": float(recall[place]),
                "f1": float(f1[place]),
                "rows": int(true[place]),
            }
            for place, name in enumerate(self._names)
        }


def _are_between_0_and_1(labels: Array) -> bool:
    return bool(((labels >= 0) & (labels <= 1)).all())


def _share(part: Array, total: Array) -> Array:
    return np.divide(part, total, out=np.zeros(len(part)), where=total > 0)
