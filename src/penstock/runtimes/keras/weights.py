"""Loads weights into a model that a function built: from files of Keras 1, 2 and 3, and from TensorFlow's checkpoints.

It works for models of Keras 3 and of tf_keras.
"""

import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.errors import ModelError, PenstockError, RefusedByRuntime
from penstock.runtimes.keras.h5_files import Groups, backend_of_h5, groups_of_h5
from penstock.runtimes.keras.keras1.layers import joined_gates
from penstock.runtimes.keras.keras1.spatial import kernel_of_today

_MOST_SHOWN = 4


def load_weights(model: Any, path: str) -> None:
    """Give a model the weights in a file.

    Raises:
        ModelError: They do not fit; it says which names and shapes differ.
        RefusedByRuntime: It is a checkpoint of TensorFlow, which only tf_keras reads into its models.
    """
    is_legacy_model = any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)
    if os.path.exists(path + ".index"):
        _load_checkpoint(model, path, is_legacy_model)
        return
    try:
        groups, version = groups_of_h5(path)
        with warnings.catch_warnings(action="ignore"):
            if groups is None:
                _load_under_a_name(model, path, "model.weights.h5")
            elif version.startswith("1"):
                _load_groups(model, groups, version, path)
            else:
                _load_of_keras_2(model, groups, version, path)
                if backend_of_h5(path) == "theano":
                    turn_kernels(model)
    except PenstockError:
        raise
    except Exception as error:
        raise _misfit(path, " ".join(str(error).split())) from error


def _load_checkpoint(model: Any, path: str, is_legacy_model: bool) -> None:
    if not is_legacy_model:
        raise RefusedByRuntime(
            "Keras 3 does not read checkpoints of TensorFlow",
            received=f"{path} is a checkpoint of TensorFlow, which Keras 3 does not read",
            hint="--runtime tf_keras, with a function that builds the model with tf.keras",
        )
    try:
        model.load_weights(path).assert_existing_objects_matched().expect_partial()
    except Exception as error:
        raise _misfit(path, " ".join(str(error).split())) from error


def _load_of_keras_2(model: Any, groups: Groups, version: str, path: str) -> None:
    """Load weights as Keras does, by the order of the layers. If the order does not fit, load them by name."""
    try:
        _load_under_a_name(model, path, "model.h5")
    except ValueError as error:
        try:
            _load_groups(model, groups, version, path)
        except ModelError as misfit:
            raise misfit from error


def _load_under_a_name(model: Any, path: str, name: str) -> None:
    """Load a file under another name: Keras recognises the kind of a weights file by its name, not by its content."""
    if path.endswith(".keras"):
        model.load_weights(path)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        link = os.path.join(folder, name)
        os.symlink(os.path.abspath(path), link)
        model.load_weights(link)


def _load_groups(model: Any, groups: Groups, version: str, path: str) -> None:
    """Assign weights by the order of the layers. If the order does not fit, assign them by name, if all are there."""
    groups = {name: arrays for name, arrays in groups.items() if arrays}
    layers = [layer for layer in model.layers if layer.weights]
    arrays = [_arrays_of_today(layer, group, version) for layer, group in zip(layers, groups.values(), strict=False)]
    pairs = list(zip(layers, arrays, strict=False))
    if len(layers) != len(groups) or not all(_fits(layer, each) for layer, each in pairs):
        by_name = [
            (layer, _arrays_of_today(layer, groups[layer.name], version)) for layer in layers if layer.name in groups
        ]
        if len(by_name) < len(layers) or not all(_fits(layer, each) for layer, each in by_name):
            shown = pairs if len(by_name) < len(layers) else by_name
            raise _misfit(path, _differences(layers, groups, shown))
        pairs = by_name
    for layer, each in pairs:
        for weight, array in zip(_in_old_order(layer), each, strict=True):
            weight.assign(array)
    for layer in layers:
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()


def _in_old_order(layer: Any) -> list[Any]:
    """The weights of a layer in the order of Keras 1 and 2. A model inside a model is one layer with one group."""
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _arrays_of_today(layer: Any, group: list[tuple[str, Array]], version: str) -> list[Array]:
    arrays = [array for _, array in group]
    if not version.startswith("1"):
        return arrays
    kind = type(layer).__name__
    if kind in ("LSTM", "GRU", "SimpleRNN"):
        return joined_gates(kind, arrays)
    if kind in ("Conv1D", "Conv2D", "Conv3D", "SeparableConv2D"):
        is_theano = not any(name.endswith(":0") for name, _ in group)
        is_first = layer.data_format == "channels_first" and kind != "Conv1D"
        sizes = tuple(layer.kernel_size)
        return [kernel_of_today(w, sizes, is_first, is_theano) if w.ndim > 1 else w for w in arrays]
    return arrays


def _fits(layer: Any, arrays: list[Array]) -> bool:
    return [tuple(weight.shape) for weight in _in_old_order(layer)] == [array.shape for array in arrays]


def _differences(layers: list[Any], groups: Groups, pairs: list[tuple[Any, list[Array]]]) -> str:
    if len(layers) != len(groups):
        differences = [f"the model has {len(layers)} layers with weights, the file {len(groups)}"]
        names = {layer.name for layer in layers}
        absent = [name for name in names if name not in groups]
        more = [name for name in groups if name not in names]
        differences += [f"not in the file: {', '.join(sorted(absent)[:_MOST_SHOWN])}"] if absent else []
        differences += [f"not in the model: {', '.join(more[:_MOST_SHOWN])}"] if more else []
        return "; ".join(differences)
    differences = [
        f"{layer.name} has {_shapes(_in_old_order(layer))}, the file {_shapes(arrays)}"
        for layer, arrays in pairs
        if not _fits(layer, arrays)
    ]
    return "; ".join(differences[:_MOST_SHOWN])


def _shapes(arrays: list[Any]) -> str:
    return ", ".join(str(tuple(array.shape)) for array in arrays) or "none"


def _misfit(path: str, reason: str) -> ModelError:
    # After the names and shapes, Keras prints the values: they are cut off.
    first = reason.partition(" Target variable: ")[0].partition(" List of objects ")[0]
    return ModelError("the weights do not fit the model", received=f"{path}: {first[:600]}")


_TURNED = {"Conv1D": 1, "Conv2D": 2, "Conv3D": 3, "Conv2DTranspose": 2, "ConvLSTM2D": 2}
"""Layers with spatial kernels, and their number of spatial axes. Theano convolves; the other backends correlate."""
_POOLING = ("MaxPooling2D", "AveragePooling2D", "MaxPooling3D", "AveragePooling3D")


def turn_kernels(model: Any) -> None:
    """Flip the kernels of a model of Keras 2 that ran on Theano, after its weights were loaded.

    Raises:
        ModelError: A layer pads as only Theano does.
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
    """Refuse `same` padding, except with odd kernels and strides of one: only then do all backends pad alike."""
    is_plain = may_be_odd and all(size % 2 for size in sizes) and set(layer.strides) == {1}
    if layer.padding == "same" and not is_plain:
        raise ModelError(
            "a layer of this model pads as only Theano does",
            received=f"{type(layer).__name__} {layer.name!r}, padding='same', sizes {sizes}, strides {layer.strides}",
            hint="rebuild it with ZeroPadding2D and padding='valid'",
        )
