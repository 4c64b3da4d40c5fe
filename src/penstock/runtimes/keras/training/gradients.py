"""Adds gradients up over pieces and devices on TensorFlow, before they reach the optimizer.

The hook replaces `optimizer.apply`, so a model's own `train_step` calls it, too. Gradients are added up before they are
clipped: Keras itself clips the gradients of each replica, which gives another step than the whole batch would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.runtimes.frameworks import tf
from penstock.runtimes.keras.training.mirrored import optimizers_of
from penstock.runtimes.keras.training.pieces import Piece, current_piece


class GradientHook:
    """Replaces the `apply` of a model's optimizer until `remove`."""

    def __init__(self, model: Any, strategy: Any = None, is_sum: bool = False) -> None:
        self._model, self._strategy = model, strategy
        self._is_sum = is_sum  # whether losses that a step computes by hand are sums over rows
        self._accumulators: list[Any] = []
        self._apply = model.optimizer.apply
        object.__setattr__(model.optimizer, "apply", self._take)
        if strategy is not None:
            for optimizer in optimizers_of(model):
                object.__setattr__(optimizer, "_all_reduce_sum_gradients", _as_they_are)

    def remove(self) -> None:
        """Make the optimizer as it was before."""
        vars(self._model.optimizer).pop("apply", None)
        for optimizer in optimizers_of(self._model):
            vars(optimizer).pop("_all_reduce_sum_gradients", None)

    def prepare(self) -> None:
        """Make the variables in which gradients are added up."""
        if self._accumulators:
            return
        for variable in self._model.trainable_variables:
            self._accumulators.append(
                tf.Variable(
                    tf.zeros(variable.shape, variable.dtype),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
            )

    def forget(self) -> None:
        """Drop the sums: the pieces of a step that failed do not count."""
        for accumulator in self._accumulators:
            accumulator.assign(tf.zeros(accumulator.shape, accumulator.dtype))

    def _take(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        piece = current_piece()
        if piece is None:
            self._apply(grads, trainable_variables)
            return
        if not piece.is_weighted:
            # A device that only repeats a row has a share of 0.
            weight = tf.cast(piece.share > 0, tf.float32) if self._is_sum else piece.share
            grads = [g if g is None else g * tf.cast(weight, g.dtype) for g in grads]
        if self._accumulators:
            grads = self._added_up(list(grads), trainable_variables, piece)
        if not piece.is_last:
            return
        if self._strategy is not None:
            grads = _reduced(list(grads))
        self._apply(grads, trainable_variables)

    def _added_up(self, grads: list[Any], variables: Any, piece: Piece) -> list[Any]:
        known = {id(variable): number for number, variable in enumerate(self._model.trainable_variables)}
        variables = list(variables) if variables is not None else self._model.trainable_variables
        for number, (gradient, variable) in enumerate(zip(grads, variables, strict=True)):
            if gradient is None:
                continue
            accumulator = self._accumulators[known[id(variable)]]
            accumulator.assign_add(tf.convert_to_tensor(gradient))
            if piece.is_last:
                grads[number] = tf.identity(accumulator)
                accumulator.assign(tf.zeros_like(gradient))
        return grads


def _as_they_are(grads_and_vars: Any) -> Any:
    return grads_and_vars


def _reduced(grads: list[Any]) -> list[Any]:
    """The sums of gradients over all devices."""
    present = [number for number, gradient in enumerate(grads) if gradient is not None]
    context = tf.distribute.get_replica_context()
    sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [grads[number] for number in present])
    for number, value in zip(present, sums, strict=True):
        grads[number] = value
    return grads
