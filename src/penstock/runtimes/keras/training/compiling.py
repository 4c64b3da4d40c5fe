"""Compiles a model for training: as it was saved, as the user asked, or with a loss that fits the labels."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.records import TensorSpec
from penstock.errors import ModelError, UsageError, one_line
from penstock.runtimes.frameworks import keras

_ADAM = "adam"


@dataclass(frozen=True)
class CompileRequest:
    """What the user asked for; the rest stays as the model was compiled. `losses` and `metrics` are by output."""

    losses: Mapping[str, Any]
    metrics: Mapping[str, list[Any]]
    optimizer: str | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    scales_loss: bool = False
    """Whether the optimizer scales the loss, as float16 needs it."""


def compile_for_training(model: Any, request: CompileRequest, labels: Mapping[str, TensorSpec]) -> list[str]:
    """Compile a model, as far as it is not compiled yet; `labels` are the columns of true answers, by output.

    Returns:
        Remarks for the user on what was decided.

    Raises:
        ModelError: The model is not compiled, and no loss fits.
        UsageError: Keras has no such optimizer.
    """
    remarks: list[str] = []
    compiled = model.compiled and model._compile_loss is not None
    optimizer = _optimizer(model, request)
    if request.scales_loss and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if compiled and optimizer is model.optimizer and not request.losses and not request.metrics:
        _set(optimizer, request)
        return remarks
    losses, metrics = dict(request.losses), dict(request.metrics)
    loss: Any
    if not losses and compiled:
        loss = model._compile_loss._user_loss
    else:
        for output in labels if not losses else ():
            losses[output], metric, reason = propose_loss(model, output, labels[output])
            remarks.append(f"loss {_name(losses[output])}, proposed because {reason}: --loss NAME chooses another")
            if metric and not request.metrics and not compiled:
                metrics[output] = [metric]
        loss = _single(losses)
    if not metrics and compiled and model._compile_metrics is not None:
        given, weighted = model._compile_metrics._user_metrics, model._compile_metrics._user_weighted_metrics
    else:
        given, weighted = (_single(metrics) if len(labels) == 1 else dict(metrics) or None), None
    weights = model._compile_loss._user_loss_weights if compiled and not request.losses else None
    if not compiled and request.optimizer is None:
        remarks.append(f"optimizer {_ADAM}: --optimizer NAME chooses another")
    try:
        model.compile(optimizer, loss, metrics=given, weighted_metrics=weighted, loss_weights=weights)
    except Exception as error:
        raise ModelError("the model cannot be compiled", received=one_line(error)) from error
    _set(model.optimizer, request)
    return remarks


def check_trainable(model: Any, location: str) -> None:
    """Refuse a model without trainable weights. A model that is not built yet is not refused."""
    if model.built and not model.trainable_variables:
        raise ModelError(
            "the model has no weights to train",
            received=f"{location}: {len(model.variables)} variables, none of them trainable",
            hint="set trainable = True on the model, or on some of its layers, before it is saved",
        )


def _single(by_output: Mapping[str, Any]) -> Any:
    """The only entry, or all of them by output; None where there is none."""
    if not by_output:
        return None
    return next(iter(by_output.values())) if len(by_output) == 1 else dict(by_output)


def _name(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return f"{loss.name} of logits"


def _optimizer(model: Any, request: CompileRequest) -> Any:
    if request.optimizer is None:
        return model.optimizer if model.compiled and model.optimizer is not None else keras.optimizers.get(_ADAM)
    try:
        return keras.optimizers.get(request.optimizer)
    except ValueError:
        from keras.src.optimizers import ALL_OBJECTS_DICT

        known = [name for name in ALL_OBJECTS_DICT if name == name.lower() and name not in ("optimizer",)]
        close = difflib.get_close_matches(request.optimizer.lower(), known, n=1)
        raise UsageError(
            "Keras has no optimizer of this name",
            received=f"--optimizer {request.optimizer}",
            allowed=", ".join(sorted(known)),
            hint=f"did you mean {close[0]}?" if close else None,
        ) from None


def _set(optimizer: Any, request: CompileRequest) -> None:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    if request.learning_rate is not None:
        try:
            optimizer.learning_rate = request.learning_rate
        except TypeError:
            raise UsageError(
                "the optimizer of the model has a schedule for its learning rate",
                received=f"--learning-rate {request.learning_rate}",
                hint="leave it out, or name another optimizer: --optimizer adam",
            ) from None
    if request.clip_norm is not None:
        if optimizer.clipnorm is not None or optimizer.clipvalue is not None:
            raise UsageError(
                "the optimizer of the model clips gradients already",
                received=f"--clip-norm {request.clip_norm}",
                hint="leave it out, or name another: --optimizer adam",
            )
        optimizer.global_clipnorm = request.clip_norm


def propose_loss(model: Any, output: str, label: TensorSpec) -> tuple[Any, str | None, str]:
    """The loss that fits the last layer and the labels, the metric that goes with it, and why.

    Raises:
        ModelError: No loss fits for certain.
    """
    shape, activation = _last_layer(model, output)
    size = shape[-1] if shape else None
    is_whole = label.dtype != "bool" and "int" in label.dtype
    is_class = is_whole or label.dtype == "bool"
    is_vector = label.shape is not None and tuple(label.shape) == tuple(shape or ()) and len(shape or ()) > 0
    losses = keras.losses
    # In pandas, whole numbers with missing values are floats. Only a softmax shows that such numbers are classes.
    is_softmax = activation == "softmax" and label.dtype.startswith("float")
    is_class = is_class or is_softmax
    if is_class and not label.shape and size is not None and size > 1 and activation in ("softmax", "linear"):
        what = f"the last layer is a softmax of {size} values" if is_softmax else f"the last layer gives {size} values"
        reason = f"labels are classes and {what}"
        loss = "sparse_categorical_crossentropy"
        return (
            (loss if activation == "softmax" else losses.SparseCategoricalCrossentropy(from_logits=True)),
            ("accuracy"),
            reason,
        )
    if size == 1 and activation == "sigmoid" and not (label.shape and label.shape != (1,)):
        return "binary_crossentropy", "accuracy", "the last layer gives one value from 0 to 1"
    if is_vector and activation == "softmax":
        return "categorical_crossentropy", "accuracy", "labels and the last layer have a value for each class"
    if is_vector and activation == "sigmoid":
        return "binary_crossentropy", "accuracy", "the last layer gives values from 0 to 1"
    is_number = label.dtype.startswith("float") or is_whole
    if activation in ("linear", "relu", "softplus") and is_number and (is_vector or (size == 1 and not label.shape)):
        return "mse", None, "labels are numbers and the last layer gives numbers"
    raise ModelError(
        "the model is not compiled, and no loss can be proposed",
        received=f"labels {label}; output {output!r} of shape {shape}, activation {activation or 'unknown'}",
        hint="name one: --loss mse, --loss sparse_categorical_crossentropy, …; or compile the model before it is saved",
    )


def _last_layer(model: Any, output: str) -> tuple[tuple[int | None, ...] | None, str | None]:
    """The shape of a row of an output, and the activation that it comes from."""
    tensors, names = getattr(model, "outputs", None), list(getattr(model, "output_names", ()))
    if not tensors:
        return None, None
    tensor = tensors[names.index(output)] if output in names else tensors[0]
    layer = tensor._keras_history.operation
    activation = getattr(layer, "activation", None)
    if activation is None and type(layer).__name__ in ("Softmax", "ReLU"):
        return tuple(tensor.shape[1:]), type(layer).__name__.lower()
    name = getattr(activation, "__name__", None) if activation is not None else "linear"
    return tuple(tensor.shape[1:]), name
