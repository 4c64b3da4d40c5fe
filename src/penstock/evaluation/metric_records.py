"""The records of an evaluation: what is measured, and the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.records import Scaling
from penstock.options.class_names import ClassNames

PREDICTION, LABEL, WEIGHT, INPUT, ROW = "prediction:", "label:", "weight:", "input:", "row:"
"""Prefixes of columns that a fold takes, before the name of an output or input. ROW is the column of row numbers."""


@dataclass(frozen=True)
class Structure:
    """The structure in which Keras gets arrays: `single`, `list` or `dict`."""

    kind: str
    names: tuple[str, ...]

    def pack(self, columns: Mapping[str, Any], prefix: str) -> Any:
        """The arrays of these names in this structure; None where there are no names."""
        if not self.names:
            return None
        arrays = [columns[prefix + name] for name in self.names]
        if self.kind == "single":
            return arrays[0]
        return arrays if self.kind == "list" else dict(zip(self.names, arrays, strict=True))


@dataclass(frozen=True)
class FoldShape:
    """The columns that a fold takes: the structures of predictions, labels and weights.

    For a `test_step` it takes `inputs` instead of predictions, and applies `scaling` to them. `batch_rows` is the
    number of rows of a batch, if the input came in batches.
    """

    predictions: Structure
    labels: Structure
    weights: Structure
    inputs: tuple[str, ...] = ()
    scaling: Scaling | None = None
    batch_rows: int | None = None


@dataclass(frozen=True)
class MetricRequest:
    """What is measured.

    Args:
        loss: Names of losses, or `OUTPUT=NAME`; empty for those that the model was compiled with.
        metrics: The same of metrics.
        classes: The names of the classes, if they are known.
        per_class: Whether precision, recall and F1 of every class are wanted.
        confusion: Whether the confusion matrix is wanted.
        batch_size: The rows of a batch, for losses and metrics that depend on it.
        is_lenient: Whether labels may be turned from classes into one-hot vectors and back, to fit the loss.
    """

    loss: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    classes: ClassNames = ()
    per_class: bool = False
    confusion: bool = False
    batch_size: int | None = None
    is_lenient: bool = True


@dataclass(frozen=True)
class MetricResults:
    """The result of a fold. `per_class` and `confusion` are by output, where they are wanted."""

    rows: int
    metrics: dict[str, Any]
    per_class: dict[str, Any] | None = None
    confusion: dict[str, Any] | None = None
