"""Means of losses over pieces of batches, weighted so that they equal the means over whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.training.pieces import Piece, current_piece


class WeightedMeans:
    """Replaces `update_state` of a model's means until `remove`. Outside of a piece, it changes nothing.

    Keras weights the mean of each output's loss by the number of rows, which it reads from a shape while it traces; if
    the shape is not known, by one. A model's own step updates a mean once, with the loss of the rows that it sees, as
    if they were the whole batch.
    """

    def __init__(self, model: Any, num_devices: int, is_sum: bool) -> None:
        self._num_devices, self._is_sum = num_devices, is_sum
        of_outputs = model._compile_loss.metrics if model._compile_loss is not None else []
        self._means = [metric for metric in model.metrics if type(metric) is keras.metrics.Mean]
        for metric in self._means:
            is_of_output = any(metric is each for each in of_outputs)
            weighted = self._weighted(metric.update_state, is_of_output, metric is model._loss_tracker)
            object.__setattr__(metric, "update_state", weighted)

    def remove(self) -> None:
        """Make the means as they were before."""
        for metric in self._means:
            vars(metric).pop("update_state", None)

    def _weighted(self, update: Any, is_of_output: bool, is_loss: bool) -> Any:
        def update_state(values: Any, sample_weight: Any = None) -> Any:
            piece = current_piece()
            if piece is not None and is_of_output:
                sample_weight = piece.rows
            elif piece is not None and sample_weight is None and len(keras.ops.shape(values)) == 0:
                values, sample_weight = self._of_own_step(values, piece)
            elif piece is not None and is_loss and self._is_sum:
                values = _of_batch(values, piece)
            return update(values, sample_weight=sample_weight)

        return update_state

    def _of_own_step(self, value: Any, piece: Piece) -> tuple[Any, Any]:
        """The value of a piece and its weight: pieces of a batch count by their rows, and all batches count alike."""
        if self._is_sum or piece.is_weighted:  # the value is what this piece adds to the loss of the batch
            value = _of_batch(value, piece)
        return value, piece.share * self._num_devices


def _of_batch(value: Any, piece: Piece) -> Any:
    """The loss of a whole batch, if all of its pieces add as much to it for each row as this piece adds."""
    return keras.ops.divide_no_nan(value, keras.ops.cast(piece.share, value.dtype))


@contextmanager
def weighted_means(model: Any, is_sum: bool) -> Iterator[None]:
    """Inside the context, weight the means of a model by the pieces that one device works on."""
    means = WeightedMeans(model, 1, is_sum)
    try:
        yield
    finally:
        means.remove()
