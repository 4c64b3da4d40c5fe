"""Finds out what the loss of a model's `train_step` is: scaled by Keras, a mean over rows, or a sum over rows.

On several devices, the gradients of shards (the rows of one device) are added up. A loss that Keras computed is
weighted by the share of its shard. A loss that the step computes by hand is not: a trial shows whether its gradients
must be weighted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.training.pieces import Piece, working_on
from penstock.runtimes.keras.training.variables import read_variables, variables_of, write_variables

BY_KERAS, MEAN, SUM, UNKNOWN = "by keras", "mean", "sum", "unknown"
NO_PIECES = "a loss that does not tell how the losses of parts of a batch make that of the batch"
_TOLERANCE = 0.2
"""How far results of a trial may be apart: a mean and a sum differ by the factor 2, and dropout adds differences."""


def kind_of_loss(model: Any, data: Any) -> str:
    """How the losses of shards make the loss of a batch in this model's `train_step`. The model is not changed."""
    if not _are_compiled_known(model, data):
        return UNKNOWN
    is_each_weighted = keras.backend.backend() == "tensorflow"  # on others, the gradients of all losses are weighted
    if not has_own(model, "train_step"):
        return BY_KERAS if is_each_weighted or not has_sum(model) else UNKNOWN
    half = _num_rows(data) // 2
    if half == 0:
        return UNKNOWN
    variables = variables_of(model)
    before = read_variables(variables)
    try:
        whole, piece = _gradients(model, _rows(data, 0, 2 * half))
        if piece.is_summed and whole and is_each_weighted:
            return BY_KERAS
        if piece.is_scaled and whole and not piece.is_summed:
            return MEAN
        first, second = (_gradients(model, _rows(data, begin, begin + half))[0] for begin in (0, half))
    finally:
        write_variables(variables, before)
    if not len(whole) == len(first) == len(second) > 0:
        return UNKNOWN
    added = [a + b for a, b in zip(first, second, strict=True)]
    far_from = {MEAN: _distance(whole, [g / 2 for g in added]), SUM: _distance(whole, added)}
    nearest = min(far_from, key=far_from.__getitem__)
    return nearest if far_from[nearest] < _TOLERANCE else UNKNOWN


def has_own(model: Any, step: str) -> bool:
    """Whether a model has its own method for a step, or its own `compute_loss`."""
    return any(getattr(type(model), name) is not getattr(keras.Model, name) for name in (step, "compute_loss"))


def has_sum(model: Any) -> bool:
    """Whether a compiled loss is a sum over rows. Its gradients are not weighted by the share of a shard."""
    return any(getattr(loss, "reduction", None) == "sum" for loss in _compiled_losses(model))


def _compiled_losses(model: Any) -> list[Any]:
    losses = (model._compile_loss._flat_losses or []) if model._compile_loss is not None else []
    return [each.loss for each in losses]


def _are_compiled_known(model: Any, data: Any) -> bool:
    """Whether it is known how the compiled losses of shards make the loss of a batch.

    A loss of the user's own may be one number for all rows. A trial shows whether this is a mean over the rows.
    """
    losses = _compiled_losses(model)
    if any(getattr(loss, "reduction", "") in (None, "none") for loss in losses):
        return False
    of_user = [loss for loss in losses if not _is_of_keras(loss) and loss.reduction != "sum"]
    half = _num_rows(data) // 2
    if not of_user or half == 0:
        return not of_user
    x, y, _ = keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(_as_tensor, data))
    variables = variables_of(model)
    before = read_variables(variables)
    try:
        predictions = model(x, training=False)
        whole, first, second = (
            _values_of(model, _rows(y, begin, end), _rows(predictions, begin, end))
            for begin, end in ((0, 2 * half), (0, half), (half, 2 * half))
        )
    finally:
        write_variables(variables, before)
    return all(
        abs(whole[key] - (first[key] + second[key]) / 2) <= _TOLERANCE * abs(whole[key]) for key in map(id, of_user)
    )


def _is_of_keras(loss: Any) -> bool:
    return str(getattr(getattr(loss, "fn", type(loss)), "__module__", "")).partition(".")[0] == "keras"


def _values_of(model: Any, labels: Any, predictions: Any) -> dict[int, float]:
    """The values of the compiled losses, by the identities of the loss objects."""
    with working_on(Piece(1.0)) as piece:
        model._compile_loss(labels, predictions)
    return {id(loss): float(keras.ops.convert_to_numpy(value)) for loss, value in piece.values}


def _gradients(model: Any, data: Any) -> tuple[list[Any], Piece]:
    """The gradients that a step passes to the optimizer, which here does nothing with them, and the step's piece."""
    caught: list[Any] = []

    def catch(grads: Sequence[Any], trainable_variables: Any = None) -> None:
        caught.extend(np.asarray(keras.ops.convert_to_numpy(g)) for g in grads if g is not None)

    def catch_on_jax(optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        catch(grads)
        return trainable_variables, optimizer_variables

    name, replaced = ("stateless_apply", catch_on_jax) if keras.backend.backend() == "jax" else ("apply", catch)
    data = keras.tree.map_structure(_as_tensor, data)
    object.__setattr__(model.optimizer, name, replaced)
    try:
        with working_on(Piece(1.0)) as piece:
            model.train_step(*_state_of(model), data)
    finally:
        vars(model.optimizer).pop(name, None)
    return caught, piece


def _state_of(model: Any) -> list[Any]:
    """What `train_step` takes before the data: on JAX, the values of all variables."""
    if keras.backend.backend() != "jax":
        return []
    names = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
    return [model._get_jax_state(**dict.fromkeys(names, True))]


def _as_tensor(leaf: Any) -> Any:
    return None if leaf is None else keras.ops.convert_to_tensor(leaf)


def _num_rows(data: Any) -> int:
    return next(len(leaf) for leaf in keras.tree.flatten(data) if leaf is not None)


def _rows(data: Any, begin: int, end: int) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[begin:end], data)


def _distance(these: list[Any], those: list[Any]) -> float:
    apart = sum(float(np.sum((a - b) ** 2)) for a, b in zip(these, those, strict=True))
    size = sum(float(np.sum(a**2)) for a in these)
    return float((apart / size) ** 0.5) if size else float("inf")
