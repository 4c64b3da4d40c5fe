"""Counts of true and predicted classes: the confusion matrix, and precision, recall and F1 of every class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.errors import InputError, UsageError

_MOST_CLASSES = 10_000


class ClassCounts:
    """The confusion matrix of one output, true classes by predicted ones, each row counted once.

    Args:
        shape: The shape of a row of the output: its last dimension has a value for each class, or the only value.
        threshold: A single value at least this large is class 1.
        labels: The names of the classes, if they have any.

    Raises:
        UsageError: There are too many classes for a matrix.
    """

    def __init__(self, shape: Sequence[int], threshold: float = 0.5, labels: Sequence[str] = ()) -> None:
        self._is_binary = not shape or shape[-1] == 1
        self._threshold = threshold
        classes = 2 if self._is_binary else shape[-1]
        if classes > _MOST_CLASSES:
            raise UsageError(
                "there are too many classes to count each of them",
                received=f"{classes:,} classes",
                allowed=f"at most {_MOST_CLASSES:,}",
                hint="leave out --per-class and --confusion",
            )
        self._names = list(labels) if len(labels) == classes else [str(number) for number in range(classes)]
        self.matrix: Array = np.zeros((classes, classes), np.int64)

    def add(self, labels: Array, predictions: Array, ignored: int | None = None) -> None:
        """Count rows but those of class `ignored`. Labels are whole numbers, or have the shape of the predictions."""
        classes = len(self.matrix)
        predicted = self._classes_of(predictions)
        true = self._classes_of(labels) if labels.shape == predictions.shape else labels.reshape(-1).astype(np.int64)
        if ignored is not None and len(true) == len(predicted):
            true, predicted = true[true != ignored], predicted[true != ignored]
        if len(true) != len(predicted) or (len(true) and not 0 <= true.min() <= true.max() < classes):
            raise InputError(
                "the labels are no classes of the output, so that classes cannot be counted",
                received=f"labels {labels.dtype}{list(labels.shape[1:])} from {true.min()} to {true.max()}",
                allowed=f"0 to {classes - 1}, or one-hot vectors",
                hint="leave out --per-class and --confusion",
            )
        counts = np.bincount(true * classes + predicted, minlength=classes * classes)
        self.matrix += counts.reshape(classes, classes)

    def _classes_of(self, values: Array) -> Array:
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


def _share(part: Array, total: Array) -> Array:
    return np.divide(part, total, out=np.zeros(len(part)), where=total > 0)
