"""What a model's own `train_step` does with its loss: scaled by Keras, a mean over rows, or a sum over rows.

On several devices gradients of shards are added up. A loss that Keras computed is weighted by the share of its shard.
One that the step computes by hand is not, and whether its gradients must be weighted is found by trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.training.pieces import Piece, working_on
from penstock.runtimes.keras.training.variables import read_variables, variables_of, write_variables

BY_KERAS, MEAN, SUM, UNKNOWN = "by keras", "mean", "sum", "unknown"
_TOLERANCE = 0.2
"""A mean and a sum differ by the factor 2 in what is tried here; dropout makes gradients differ, too."""


def kind_of_loss(model: Any, data: Any) -> str:
    """How the losses of shards make that of a batch, in this model's `train_step`; everything stays as it was."""
    if not has_own(model, "train_step"):
        return BY_KERAS
    rows = next(len(leaf) for leaf in keras.tree.flatten(data) if leaf is not None)
    half = rows // 2
    if half == 0:
        return UNKNOWN
    variables = variables_of(model)
    before = read_variables(variables)
    try:
        whole, piece = _gradients(model, _rows(data, 0, 2 * half))
        if piece.is_scaled and whole:
            return BY_KERAS if has_sum(model) else MEAN
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
    """Whether a model says itself what a step is, or what its loss is."""
    return any(getattr(type(model), name) is not getattr(keras.Model, name) for name in (step, "compute_loss"))


def has_sum(model: Any) -> bool:
    """Whether a compiled loss adds up rows: its gradients are not weighted by the share of a shard."""
    losses = (model._compile_loss._flat_losses or []) if model._compile_loss is not None else []
    return any(getattr(each.loss, "reduction", None) == "sum" for each in losses)


def _gradients(model: Any, data: Any) -> tuple[list[Any], Piece]:
    """The gradients that a step hands to the optimizer, which does nothing with them."""
    caught: list[Any] = []

    def catch(grads: Sequence[Any], trainable_variables: Any = None) -> None:
        caught.extend(np.asarray(keras.ops.convert_to_numpy(g)) for g in grads if g is not None)

    object.__setattr__(model.optimizer, "apply", catch)
    try:
        with working_on(Piece(1.0)) as piece:
            model.train_step(keras.tree.map_structure(_as_tensor, data))
    finally:
        vars(model.optimizer).pop("apply", None)
    return caught, piece


def _as_tensor(leaf: Any) -> Any:
    return None if leaf is None else keras.ops.convert_to_tensor(leaf)


def _rows(data: Any, begin: int, end: int) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[begin:end], data)


def _distance(these: list[Any], those: list[Any]) -> float:
    apart = sum(float(np.sum((a - b) ** 2)) for a, b in zip(these, those, strict=True))
    size = sum(float(np.sum(a**2)) for a in these)
    return float((apart / size) ** 0.5) if size else float("inf")
