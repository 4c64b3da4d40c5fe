"""Brings labels into the form that the loss takes, and checks them, before a training step gets them."""

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


class LabelPack:
    """Packs batches for a compiled model.

    Args:
        model: The model.
        pack: Makes the data for a step from a batch with fitted labels.
        shapes: The shape of a row of every output, where it is known.
    """

    def __init__(self, model: Any, pack: Pack, shapes: Mapping[str, tuple[int | None, ...]]) -> None:
        self._model = model
        self._pack = pack
        self._shapes = shapes
        self._rules: dict[str, LabelRule] = {}

    def __call__(self, batch: TrainBatch) -> Any:
        """The data for a step.

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


def check_class_weights(outputs: Mapping[str, str]) -> None:
    """Refuse class weights of a model with several outputs, as Keras does."""
    if len(outputs) > 1:
        raise UsageError(
            "class weights are for a model with one output", received=f"outputs {', '.join(outputs)}, --class-weights"
        )


def check_num_classes(num_classes: Mapping[str, int], signature: Signature) -> None:
    """Refuse labels of text with more classes than an output of the model has values.

    Args:
        num_classes: The number of classes by output; "" is the only output.
        signature: The signature of the model.
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
