"""Labels on their way into a training step: weighted by class, and in the form that the loss takes, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.figures import counted
from penstock.core.records import Array, Columns, Signature
from penstock.core.training import TrainBatch
from penstock.errors import InputError, UsageError
from penstock.evaluation.compiled_metrics import losses_of
from penstock.evaluation.label_fitting import LabelRule, check_weights, fit_labels
from penstock.evaluation.metric_records import MetricRequest
from penstock.runtimes.keras.training.keras_trainer import Pack

_MOST_CLASSES = 10_000


class LabelPack:
    """Packs batches for a compiled model.

    Args:
        model: The model.
        pack: From a batch with fitted labels to what a step takes.
        shapes: The shape of a row of every output; without those that are not known.
    """

    def __init__(self, model: Any, pack: Pack, shapes: Mapping[str, tuple[int | None, ...]]) -> None:
        self._model = model
        self._pack = pack
        self._shapes = shapes
        self._rules: dict[str, LabelRule] = {}

    def __call__(self, batch: TrainBatch) -> Any:
        """What a step takes.

        Raises:
            InputError: A label does not fit the loss, or a weight is out of range.
        """
        for weights in batch.weights.values():
            check_weights(weights, batch.numbers)
        targets: Columns = {
            output: self._fitted(output, labels, batch, place)
            for place, (output, labels) in enumerate(batch.targets.items())
        }
        return self._pack(replace(batch, targets=targets))

    @property
    def has_classes(self) -> bool:
        """Whether the labels of the batches so far were classes."""
        return any(rule.classes or rule.is_binary for rule in self._rules.values())

    def _fitted(self, output: str, labels: Array, batch: TrainBatch, place: int) -> Array:
        shape = self._shapes.get(output)
        if shape is None or None in shape:
            return labels
        # Only the shape of predictions matters: these take no memory.
        like = np.broadcast_to(np.float32(0), (len(labels), *(int(length or 1) for length in shape)))
        if output not in self._rules:
            losses = losses_of(self._model, MetricRequest(), output, place, len(batch.targets))
            self._rules[output] = LabelRule.of(losses, labels, like, is_lenient=True)
        return fit_labels(self._rules[output], output, labels, like, batch.numbers)


class SeenClasses:
    """The classes that batches have had, where labels are whole numbers, one for each row."""

    def __init__(self) -> None:
        self._values: set[int] = set()
        self.is_open = True
        """Whether more are wanted."""

    def add(self, batch: TrainBatch) -> None:
        labels = next(iter(batch.targets.values()), None)
        if self.is_open and labels is not None and labels.dtype.kind in "iub" and labels.ndim == 1:
            self._values.update(np.unique(labels).tolist())
            self.is_open = len(self._values) <= _MOST_CLASSES

    def missing(self, other: SeenClasses) -> list[int]:
        """The classes that only these batches have had; none where either has too many."""
        return sorted(self._values - other._values) if self.is_open and other.is_open else []


class ClassWeights:
    """Weights rows by their class, for training only: Keras weights no row of validation by its class.

    Args:
        weights: How much a row counts, by its class. Rows of other classes count 1.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._classes = np.array(sorted(weights))
        self._weights = np.array([weights[each] for each in sorted(weights)], np.float32)

    def __call__(self, batch: TrainBatch) -> TrainBatch:
        [labels] = batch.targets.values()
        labels = labels.reshape(len(labels), -1)[:, 0]
        places = np.searchsorted(self._classes, labels).clip(max=len(self._classes) - 1)
        made: Array = np.where(self._classes[places] == labels, self._weights[places], np.float32(1))
        for given in batch.weights.values():
            made = made * given
        return replace(batch, weights={"": made})


def check_class_weights(outputs: Mapping[str, str]) -> None:
    """Refuse class weights of a model with several outputs, as Keras does."""
    if len(outputs) > 1:
        raise UsageError(
            "class weights are for a model with one output", received=f"outputs {', '.join(outputs)}, --class-weights"
        )


def check_num_classes(num_classes: Mapping[str, int], signature: Signature) -> None:
    """Refuse labels of text with more classes than an output of the model tells apart.

    Args:
        num_classes: By output; "" is the only one.
        signature: Of the model.
    """
    for output in signature.outputs:
        classes = num_classes.get(output.name if len(signature.outputs) > 1 else "", 0)
        size = output.shape[-1] if output.shape else None
        if size is not None and classes > max(2, size):
            raise InputError(
                "the labels have more classes than the model tells apart",
                received=f"{classes:,} classes, an output of {counted(size, 'value')}",
                hint="train a model with a value for every class; or is --label another column?",
            )
