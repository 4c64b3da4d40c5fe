"""Layers of Keras 1 as layers of Keras 3, which runs them on every backend. `keras1.model` puts them together."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.errors import ModelError
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.keras1 import lost
from penstock.runtimes.keras.keras1.spatial import (
    around,
    convolution,
    deconvolution2d,
    global_pooling,
    locally_connected,
    pooling,
)
from penstock.runtimes.keras.keras1.translation import Config, Origin, Translation, activation


def translate(kind: str, config: Config, arrays: list[Array], origin: Origin) -> Translation:
    """The layer of class `kind`.

    Raises:
        ModelError: There is no such layer, or it cannot be translated.
    """
    if kind in origin.custom_objects:
        layer = origin.custom_objects[kind].from_config(config)
        return Translation([layer], layer if arrays else None, arrays)
    if kind not in _LAYERS:
        raise ModelError(
            "this layer of Keras 1 is not known",
            received=f"{kind}, called {config.get('name')!r}",
            allowed=", ".join(sorted(_LAYERS)),
            hint=f"--custom-objects MODULE, a module with a class {kind}",
        )
    return _LAYERS[kind](config, arrays, origin)


def _plain(kind: str, **renamed: str) -> Callable[..., Translation]:
    """A layer without weights; `renamed` maps its arguments in Keras 3 to their names in Keras 1."""

    def make(config: Config, arrays: list[Array], origin: Origin) -> Translation:
        arguments = {new: config[old] for new, old in renamed.items() if config.get(old) is not None}
        return Translation([getattr(keras.layers, kind)(name=config["name"], **arguments)])

    return make


def _nothing(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    """A layer that does something only in training: it becomes the identity."""
    return Translation([keras.layers.Activation("linear", name=config["name"])])


def _activation(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    return Translation([keras.layers.Activation(activation(config["activation"], origin), name=config["name"])])


def _dense(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    layer = keras.layers.Dense(
        config["output_dim"],
        activation=activation(config["activation"], origin),
        use_bias=config["bias"],
        name=config["name"],
    )
    return Translation([layer], layer, arrays)


def _embedding(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    layer = keras.layers.Embedding(
        config["input_dim"], config["output_dim"], mask_zero=config["mask_zero"], name=config["name"]
    )
    return Translation([layer], layer, arrays)


def _batch_normalization(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    if config["mode"] not in (0, 1):
        raise ModelError(
            "a layer normalises each batch by itself: the answer for a row would depend on its neighbours",
            received=f"BatchNormalization mode={config['mode']}, called {config['name']!r}",
            allowed="mode=0, mode=1",
        )
    if config["mode"] == 1:
        return Translation([lost.layer(config["name"], lost.normalise_rows(config["epsilon"]), arrays)])
    layer = keras.layers.BatchNormalization(axis=config["axis"], epsilon=config["epsilon"], name=config["name"])
    return Translation([layer], layer, arrays)


_GATES = {"LSTM": (0, 2, 1, 3), "GRU": (0, 1, 2), "SimpleRNN": (0,)}
"""The order of the gates in Keras 3, by their places in Keras 1, which wrote i, c, f, o and z, r, h."""


def _recurrent(kind: str) -> Callable[..., Translation]:
    def make(config: Config, arrays: list[Array], origin: Origin) -> Translation:
        layer = _recurrent_layer(kind, config, origin)
        return Translation([layer], layer, joined_gates(kind, arrays))

    return make


def _recurrent_layer(kind: str, config: Config, origin: Origin) -> Any:
    if config.get("stateful"):
        raise ModelError(
            "a layer of this model is stateful: the answer for a row would depend on the rows before it",
            received=f"{kind}, called {config['name']!r}",
        )
    arguments: Config = {name: config[name] for name in ("return_sequences", "go_backwards", "unroll")}
    if kind != "SimpleRNN":
        arguments["recurrent_activation"] = activation(config["inner_activation"], origin)
    if kind == "GRU":
        arguments["reset_after"] = False
    return getattr(keras.layers, kind)(
        config["output_dim"], activation=activation(config["activation"], origin), name=config["name"], **arguments
    )


def joined_gates(kind: str, arrays: list[Array]) -> list[Array]:
    """W, U and b, each with all gates side by side. With `consume_less="gpu"`, Keras 1 wrote them in this form."""
    if len(arrays) == 3:
        return arrays
    return [np.concatenate([arrays[3 * gate + part] for gate in _GATES[kind]], axis=-1) for part in range(3)]


def _bidirectional(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    kind, inner = config["layer"]["class_name"], config["layer"]["config"]
    if kind not in _GATES:
        raise ModelError("Bidirectional takes recurrent layers only", received=f"{kind} in {config['name']!r}")
    inside = _recurrent_layer(kind, inner, origin)
    layer = keras.layers.Bidirectional(inside, merge_mode=config["merge_mode"], name=config["name"])
    for direction in (layer.forward_layer, layer.backward_layer):
        # Keras copies the layer with the names of its functions, and its own hard_sigmoid is another function.
        direction.cell.activation = inside.cell.activation
        if kind != "SimpleRNN":
            direction.cell.recurrent_activation = inside.cell.recurrent_activation
        direction.zero_output_for_mask = False
    half = len(arrays) // 2
    return Translation([layer], layer, joined_gates(kind, arrays[:half]) + joined_gates(kind, arrays[half:]))


def _computed(compute: Callable[[Config, Origin], lost.Compute]) -> Callable[..., Translation]:
    """A layer that Keras 3 does not have any more; `lost` computes it."""

    def make(config: Config, arrays: list[Array], origin: Origin) -> Translation:
        return Translation([lost.layer(config["name"], compute(config, origin), arrays)])

    return make


def _merge(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    name, mode = config["name"], config["mode"]
    if config.get("mode_type", "raw") != "raw":
        return Translation([keras.layers.Lambda(old_function(config, "mode", origin), name=name)])
    if mode == "concat":
        return Translation([keras.layers.Concatenate(axis=config["concat_axis"], name=name)])
    if mode == "dot":
        axes = config["dot_axes"]
        return Translation([keras.layers.Dot(tuple(axes) if isinstance(axes, list) else axes, name=name)])
    if mode == "cos":
        return Translation([lost.layer(name, lost.cosine, [])])
    kinds = {"sum": "Add", "mul": "Multiply", "ave": "Average", "max": "Maximum"}
    return Translation([getattr(keras.layers, kinds[mode])(name=name)])


def _lambda(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    function = old_function(config, "function", origin)
    return Translation([keras.layers.Lambda(function, arguments=config.get("arguments") or {}, name=config["name"])])


def old_function(config: Config, key: str, origin: Origin) -> Any:
    """The custom object with the name of a layer's function or of the layer. Code in the file is for an old Python."""
    for name in (config[key], config["name"]):
        if isinstance(name, str) and name in origin.custom_objects:
            return origin.custom_objects[name]
    is_named = config.get(f"{key}_type") == "function"
    wanted = config[key] if is_named else config["name"]
    raise ModelError(
        "a layer of this model calls a function that is not in the file"
        if is_named
        else "a layer of this model holds code for the Python that wrote it, which no Python of today can run",
        received=f"{config['name']!r}" + (f" calls {wanted!r}" if is_named else ""),
        hint=f"--custom-objects MODULE, a module with a function called {wanted}",
    )


_LAYERS: dict[str, Callable[..., Translation]] = {
    "Activation": _activation,
    "ActivityRegularization": _nothing,
    "AtrousConvolution1D": convolution("Conv1D", 1),
    "AtrousConvolution2D": convolution("Conv2D", 2),
    "BatchNormalization": _batch_normalization,
    "Bidirectional": _bidirectional,
    "Convolution1D": convolution("Conv1D", 1),
    "Convolution2D": convolution("Conv2D", 2),
    "Convolution3D": convolution("Conv3D", 3),
    "Deconvolution2D": deconvolution2d,
    "Dense": _dense,
    "Dropout": _nothing,
    "ELU": _plain("ELU", alpha="alpha"),
    "Embedding": _embedding,
    "Flatten": _plain("Flatten"),
    "GRU": _recurrent("GRU"),
    "GaussianDropout": _nothing,
    "GaussianNoise": _nothing,
    "Highway": _computed(lambda config, origin: lost.highway(activation(config["activation"], origin))),
    "LSTM": _recurrent("LSTM"),
    "Lambda": _lambda,
    "LeakyReLU": _plain("LeakyReLU", negative_slope="alpha"),
    "LocallyConnected1D": locally_connected(1),
    "LocallyConnected2D": locally_connected(2),
    "Masking": _plain("Masking", mask_value="mask_value"),
    "MaxoutDense": _computed(lambda config, origin: lost.maxout),
    "Merge": _merge,
    "PReLU": _computed(lambda config, origin: lost.prelu),
    "ParametricSoftplus": _computed(lambda config, origin: lost.parametric_softplus),
    "Permute": _plain("Permute", dims="dims"),
    "RepeatVector": _plain("RepeatVector", n="n"),
    "Reshape": _plain("Reshape", target_shape="target_shape"),
    "SReLU": _computed(lambda config, origin: lost.srelu),
    "SeparableConvolution2D": convolution("SeparableConv2D", 2),
    "SimpleRNN": _recurrent("SimpleRNN"),
    "SpatialDropout1D": _nothing,
    "SpatialDropout2D": _nothing,
    "SpatialDropout3D": _nothing,
    "ThresholdedReLU": _computed(lambda config, origin: lost.thresholded_relu(config["theta"])),
    "TimeDistributedDense": _dense,
    **{f"{kind}Pooling{rank}D": pooling(kind, rank) for kind in ("Max", "Average") for rank in (1, 2, 3)},
    **{f"Global{kind}Pooling{rank}D": global_pooling(kind, rank) for kind in ("Max", "Average") for rank in (1, 2, 3)},
    **{
        f"{kind}{rank}D": around(kind, rank) for kind in ("ZeroPadding", "Cropping", "UpSampling") for rank in (1, 2, 3)
    },
}
