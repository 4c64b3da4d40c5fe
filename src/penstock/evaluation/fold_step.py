"""One step of a fold: it adds labels and predictions of a batch to the loss and metrics, compiled where that pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.records import Shape
from penstock.evaluation.compiled_metrics import user_loss
from penstock.runtimes.frameworks import jax, keras, tf


class FoldStep:
    """Does what Keras's `test_step` does after the call of the model.

    The first batch of a shape runs uncompiled, which also makes the variables of metrics. From the second one on, the
    step is compiled for that shape. A loss or metric that cannot be compiled runs uncompiled.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._seen: set[tuple[Shape, ...]] = set()
        self._compiled: Callable[[Any, Any, Any, Any], None] | None = None
        self._may_compile = not getattr(model, "run_eagerly", False)
        self.has_loss = False

    def __call__(self, labels: Any, predictions: Any, weights: Any, logits: Any) -> None:
        """Fold a batch. Each argument is a structure of arrays; `weights` and any of the `logits` may be None."""
        labels, predictions, weights, logits = (
            keras.tree.map_structure(_as_tensor, each) for each in (labels, predictions, weights, logits)
        )
        shapes = tuple(tuple(tensor.shape) for tensor in keras.tree.flatten((labels, predictions)))
        is_known = shapes in self._seen
        self._seen.add(shapes)
        if is_known and self._may_compile:
            try:
                self._compiled = self._compiled or self._compile()
                self._compiled(labels, predictions, weights, logits)
                return
            except Exception:  # if the batch itself is wrong, the uncompiled step raises a better error
                self._may_compile = False
        self._fold(labels, predictions, weights, logits)

    def _fold(self, labels: Any, predictions: Any, weights: Any, logits: Any) -> None:
        model = self._model
        for prediction, before in zip(keras.tree.flatten(predictions), keras.tree.flatten(logits), strict=True):
            if before is not None:
                prediction._keras_logits = before  # Keras's own softmax and sigmoid leave logits here for a loss
        self.has_loss = user_loss(model) is not None or bool(model.losses)
        if self.has_loss:
            loss = model.compute_loss(None, labels, predictions, weights, training=False)
            model._loss_tracker.update_state(loss, sample_weight=keras.tree.flatten(predictions)[0].shape[0])
        model.compute_metrics(None, labels, predictions, sample_weight=weights)

    def _compile(self) -> Callable[[Any, Any, Any, Any], None]:
        backend = keras.backend.backend()
        if backend == "tensorflow":
            compiled: Callable[[Any, Any, Any, Any], None] = tf.function(self._fold)
            return compiled
        return self._compiled_by_jax() if backend == "jax" else self._fold

    def _compiled_by_jax(self) -> Callable[[Any, Any, Any, Any], None]:
        variables = self._model.metrics_variables

        def fold(values: Any, labels: Any, predictions: Any, weights: Any, logits: Any) -> list[Any]:
            with keras.StatelessScope(state_mapping=zip(variables, values, strict=True)) as scope:
                self._fold(labels, predictions, weights, logits)
            return [scope.get_current_value(variable) for variable in variables]

        step = jax.jit(fold)

        def run(labels: Any, predictions: Any, weights: Any, logits: Any) -> None:
            values = step([variable.value for variable in variables], labels, predictions, weights, logits)
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

        return run


def _as_tensor(array: Any) -> Any:
    return None if array is None else keras.ops.convert_to_tensor(array)
