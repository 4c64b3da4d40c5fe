"""Models that Keras 2 ran on Theano: no Keras of today turns their kernels around."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.errors import ModelError

_TURNED = {"Conv1D": 1, "Conv2D": 2, "Conv3D": 3, "Conv2DTranspose": 2, "ConvLSTM2D": 2}
"""Layers with kernels over places, and over how many axes. Theano convolves; the others correlate."""
_POOLING = ("MaxPooling2D", "AveragePooling2D", "MaxPooling3D", "AveragePooling3D")


def turn_kernels(model: Any) -> None:
    """Turn the kernels of a model of Keras 2 that ran on Theano, now that its weights are loaded.

    Raises:
        ModelError: It pads as only Theano does.
    """
    for layer in _layers(model):
        kind = type(layer).__name__
        if kind in _TURNED:
            _refuse_padding(layer, tuple(layer.kernel_size), kind != "ConvLSTM2D")
            axes = tuple(range(_TURNED[kind]))
            weights = layer.get_weights()
            kernels = 2 if kind == "ConvLSTM2D" else 1
            layer.set_weights([np.flip(w, axes) if i < kernels else w for i, w in enumerate(weights)])
        elif kind in _POOLING:
            _refuse_padding(layer, tuple(layer.pool_size), False)


def _layers(model: Any) -> Iterator[Any]:
    """Every layer inside a model, each once."""
    seen: set[int] = set()
    pending = list(model.layers)
    while pending:
        layer = pending.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        pending += getattr(layer, "layers", None) or []
        pending += [layer.layer] if hasattr(layer, "layer") else []


def _refuse_padding(layer: Any, sizes: tuple[int, ...], may_be_odd: bool) -> None:
    """Only `same` with kernels of odd sizes, moved by one, is the same thing everywhere."""
    is_plain = may_be_odd and all(size % 2 for size in sizes) and set(layer.strides) == {1}
    if layer.padding == "same" and not is_plain:
        raise ModelError(
            "a layer of this model pads as only Theano does",
            received=f"{type(layer).__name__} {layer.name!r}, padding='same', sizes {sizes}, strides {layer.strides}",
            hint="rebuild it with ZeroPadding2D and padding='valid'",
        )
