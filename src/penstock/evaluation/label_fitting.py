"""Brings labels into the form of a loss (classes as whole numbers or one-hot vectors), and checks range and shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.errors import InputError

AS_CLASSES, AS_VECTORS, AS_THEY_ARE = "classes", "vectors", "as they are"
_SHOWN = 5
_OF_CLASSES = frozenset(
    {"accuracy", "acc", "crossentropy", "ce", "auc", "precision", "recall", "f1score", "fbetascore"}
)
"""Metrics that show that labels which are whole numbers are classes."""


@dataclass(frozen=True)
class LabelRule:
    """The form in which a loss gets the labels of an output.

    Args:
        form: Whole numbers (`classes`), one-hot vectors (`vectors`), or as they are.
        classes: How many classes the output has; 0 where its values are no classes.
        is_binary: Labels lie between 0 and 1.
        has_logits: Predictions are logits, so that a single value above 0 means class 1.
        ignored: The class that the loss leaves out (`ignore_class`), which may be out of range.
    """

    form: str = AS_THEY_ARE
    classes: int = 0
    is_binary: bool = False
    has_logits: bool = False
    ignored: int | None = None

    @classmethod
    def of(cls, losses: Sequence[Any], labels: Array, predictions: Array, *, is_lenient: bool) -> LabelRule:
        """The rule that follows from the loss, or the metrics, and from the first labels and predictions."""
        names = [_name(loss) for loss in losses if loss is not None]
        has_logits = any(bool(getattr(loss, "from_logits", _config(loss).get("from_logits"))) for loss in losses)
        classes = predictions.shape[-1] if predictions.ndim > 1 and predictions.shape[-1] > 1 else 0
        is_binary = any("binary" in name for name in names)
        is_sparse = any(name.startswith("sparse") for name in names)
        has_vectors = any(name.startswith(("categorical", "kl", "topkcategorical")) for name in names)
        if not classes or is_binary:
            return cls(AS_THEY_ARE, 0, is_binary, has_logits)
        are_classes = labels.dtype.kind in "iub" and _ranks_below(labels, predictions)
        # For a loss of the user's own, it is not known whether whole numbers are classes.
        are_judged = are_classes and not has_vectors and any(name in _OF_CLASSES for name in names)
        if is_sparse or are_judged:
            form = AS_CLASSES if is_lenient or are_classes else AS_THEY_ARE
            ignored = next((each for loss in losses if (each := _config(loss).get("ignore_class")) is not None), None)
            return cls(form, classes, False, has_logits, ignored)
        form = AS_VECTORS if has_vectors and is_lenient else AS_THEY_ARE
        return cls(form, classes if form == AS_VECTORS else 0, False, has_logits)


def _name(loss: Any) -> str:
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return name.lower().replace("_", "")


def _config(loss: Any) -> dict[str, Any]:
    found = getattr(loss, "_fn_kwargs", None)
    return found if isinstance(found, dict) else {}


def _ranks_below(labels: Array, predictions: Array) -> bool:
    """Whether there is one label for each vector of the predictions."""
    return labels.shape in (predictions.shape[:-1], (*predictions.shape[:-1], 1))


def fit_labels(rule: LabelRule, output: str, labels: Array, predictions: Array, rows: Array) -> Array:
    """Labels in the form of the rule.

    Raises:
        InputError: A label is out of range (the first such row is named), or the labels have another shape than the
            output.
    """
    if labels.dtype == np.float64:
        labels = labels.astype(np.float32)  # Keras does the same
    if rule.is_binary:
        _check_range(labels, rows, 0, 1, f"a label from 0 to 1, as the binary loss of {output!r} takes")
        return labels
    if not rule.classes:
        return labels
    if _ranks_below(labels, predictions):
        _check_whole(labels, rows, output)
        allowed = f"0 to {rule.classes - 1}: the output {output!r} has {rule.classes} classes"
        in_range = labels if rule.ignored is None else np.where(labels == rule.ignored, 0, labels)
        _check_range(in_range, rows, 0, rule.classes - 1, allowed)
        labels = labels.reshape(predictions.shape[:-1])
        if rule.form == AS_VECTORS:
            vectors: Array = np.eye(rule.classes, dtype=np.float32)[labels.astype(np.int64)]
            return vectors
        return labels.astype(np.int32)
    if labels.shape != predictions.shape:
        raise InputError(
            "the labels do not have the shape of the output",
            received=f"{labels.dtype}{list(labels.shape[1:])}",
            allowed=f"a class from 0 to {rule.classes - 1}, or {list(predictions.shape[1:])} as {output!r} has",
        )
    if rule.form == AS_CLASSES:
        _check_one_hot(labels, rows, output)
        classes: Array = np.argmax(labels, axis=-1).astype(np.int32)
        return classes
    return labels


def check_classes(losses: Sequence[Any], output: str, labels: Array, shape: tuple[int, ...]) -> None:
    """Check the labels of a model's only output, if the loss takes them as classes. `shape` is that of a row of it.

    Raises:
        InputError: One is out of range; the first row is named.
    """
    like = np.broadcast_to(np.float32(0), (len(labels), *shape))
    rule = LabelRule.of(losses, labels, like, is_lenient=False)
    if rule.form == AS_CLASSES:
        fit_labels(rule, output, labels, like, np.arange(len(labels)))


def check_weights(weights: Array, rows: Array) -> None:
    """Check the weights of rows.

    Raises:
        InputError: A weight is below 0, or no finite number; the first row is named.
    """
    with np.errstate(invalid="ignore"):
        is_odd = ~((weights >= 0) & np.isfinite(weights))
    _refuse(is_odd, weights, rows, "0 and above, and finite", problem="a weight is out of range")


def _check_whole(labels: Array, rows: Array, output: str) -> None:
    if labels.dtype.kind in "iub":
        return
    is_odd = (labels != np.rint(labels)) if labels.dtype.kind == "f" else np.ones(labels.shape, bool)
    _refuse(is_odd, labels, rows, f"a whole number, the class of {output!r}")


def _check_range(labels: Array, rows: Array, least: int, most: int, allowed: str) -> None:
    if labels.dtype.kind not in "iubf":
        _refuse(np.ones(labels.shape, bool), labels, rows, allowed)
    with np.errstate(invalid="ignore"):
        is_odd = ~((labels >= least) & (labels <= most))
    _refuse(is_odd, labels, rows, allowed, hint="labels that begin with 1, or another model?" if most > 1 else None)


def _check_one_hot(labels: Array, rows: Array, output: str) -> None:
    is_odd = ~(np.isclose(labels.sum(axis=-1), 1) & np.isclose(labels.max(axis=-1), 1))
    _refuse(is_odd, labels, rows, f"one-hot vectors: the sparse loss of {output!r} takes one class a row")


def _refuse(
    is_odd: Array,
    labels: Array,
    rows: Array,
    allowed: str,
    hint: str | None = None,
    problem: str = "a label is out of range",
) -> None:
    if not is_odd.any():
        return
    place = int(np.flatnonzero(is_odd.reshape(len(labels), -1).any(axis=1))[0])
    count = int(is_odd.reshape(len(labels), -1).any(axis=1).sum())
    values = np.ravel(labels[place])[:_SHOWN].tolist()
    value = values[0] if labels[place].size == 1 else values
    others = f" (and {count - 1:,} more of these {len(labels):,} rows)" if count > 1 else ""
    raise InputError(problem, received=f"row {int(rows[place])}: {value}{others}", allowed=allowed, hint=hint)
