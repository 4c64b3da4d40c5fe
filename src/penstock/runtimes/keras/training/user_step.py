"""A user's step function in place of a model's `train_step`: `step(model, x, y, sample_weight) -> loss`.

The function calls the model and computes the loss. Gradients, their sums over devices and pieces, the optimizer and
the mean of losses are handled as in every other step: the loss of a shard counts by its rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.errors import UsageError, one_line
from penstock.runtimes.frameworks import keras, tf, torch

StepFunction = Callable[[Any, Any, Any, Any], Any]
_REPLACED = {
    "tensorflow": ("train_step",),
    "jax": ("compute_loss_and_updates", "compute_metrics"),
    "torch": ("train_step",),
}
_OF_STEP = "penstock_step"
"""On JAX, this key distinguishes the predictions of the function from those that Keras makes in tests."""


def load_step(step: str | StepFunction | None) -> StepFunction | None:
    """The function behind `module:function`.

    Raises:
        UsageError: It cannot be imported, or is no function.
    """
    if step is None or callable(step):
        return step
    module, _, name = step.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise UsageError(
            "the step function cannot be imported",
            received=f"--step {step}: {one_line(error)}",
            allowed="module:function, importable from this folder",
        ) from error
    if not callable(found):
        raise UsageError("this is not a function", received=f"--step {step}")
    return found  # type: ignore[no-any-return]


def put_in(model: Any, function: StepFunction) -> None:
    """Let the model train with the function, until `take_out`."""
    steps: dict[str, Callable[..., Any]] = {
        "train_step": _train_on_tensorflow if keras.backend.backend() == "tensorflow" else _train_on_torch,
        "compute_loss_and_updates": _updates_on_jax,
        "compute_metrics": _metrics_on_jax,
    }
    for name in _REPLACED[keras.backend.backend()]:
        object.__setattr__(model, name, partial(steps[name], model, function))


def take_out(model: Any) -> None:
    """Let the model train with the step of its class again."""
    for name in _REPLACED[keras.backend.backend()]:
        vars(model).pop(name, None)
    model.train_function = None


def _loss_of(model: Any, function: StepFunction, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """The mean of the rows' losses plus the losses of layers, and the predictions if the function returns them."""
    given = function(model, x, y, sample_weight)
    loss, predictions = given if isinstance(given, tuple) else (given, None)
    loss = keras.ops.mean(loss)
    for added in model.losses:
        loss = loss + keras.ops.cast(keras.ops.sum(added), loss.dtype)
    return loss, predictions


def _metrics_of(model: Any, y: Any, predictions: Any, sample_weight: Any) -> dict[str, Any]:
    if predictions is None or model._compile_metrics is None:
        return {"loss": model._loss_tracker.result()}
    model._compile_metrics.update_state(y, predictions, sample_weight)
    return {"loss": model._loss_tracker.result(), **model._compile_metrics.result()}


def _train_on_tensorflow(model: Any, function: StepFunction, data: Any) -> dict[str, Any]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        loss, predictions = _loss_of(model, function, x, y, sample_weight)
        scaled = model.optimizer.scale_loss(loss)
    rows = tf.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
    model._loss_tracker.update_state(loss, sample_weight=rows)
    weights = model.trainable_weights
    model.optimizer.apply(tape.gradient(scaled, weights), weights)
    return _metrics_of(model, y, predictions, sample_weight)


def _train_on_torch(model: Any, function: StepFunction, data: Any) -> dict[str, Any]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    model.zero_grad()
    loss, predictions = _loss_of(model, function, x, y, sample_weight)
    rows = len(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))
    model._loss_tracker.update_state(loss, sample_weight=rows)
    model.optimizer.scale_loss(loss).backward()
    weights = model.trainable_weights[:]
    with torch.no_grad():
        model.optimizer.apply([weight.value.grad for weight in weights], weights)
    return _metrics_of(model, y, predictions, sample_weight)


def _updates_on_jax(
    model: Any, function: StepFunction, *given: Any, training: bool = False, optimizer_variables: Any = None
) -> Any:
    """The function that Keras differentiates. It takes and returns the values of all variables."""
    if not training:
        return type(model).compute_loss_and_updates(model, *given)
    trainable, others, metrics, x, y, sample_weight = given
    values = [
        *zip(model.trainable_variables, trainable, strict=True),
        *zip(model.non_trainable_variables, others, strict=True),
        *zip(model.metrics_variables, metrics, strict=True),
    ]
    with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
        loss, predictions = _loss_of(model, function, x, y, sample_weight)
    others = [scope.get_current_value(variable) for variable in model.non_trainable_variables]
    metrics = [scope.get_current_value(variable) for variable in model.metrics_variables]
    with keras.StatelessScope(state_mapping=[*zip(model.optimizer.variables, optimizer_variables, strict=True)]):
        scaled = model.optimizer.scale_loss(loss)
    return scaled, (loss, {_OF_STEP: predictions}, others, metrics)


def _metrics_on_jax(
    model: Any, function: StepFunction, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
) -> dict[str, Any]:
    if isinstance(y_pred, dict) and _OF_STEP in y_pred:
        return _metrics_of(model, y, y_pred[_OF_STEP], sample_weight)
    tested: dict[str, Any] = type(model).compute_metrics(model, x, y, y_pred, sample_weight)
    return tested
