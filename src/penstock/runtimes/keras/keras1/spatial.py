"""Spatial layers of Keras 1: convolutions, pooling, padding.

Theano flips the kernels of a convolution, pads `same` by half a kernel on both sides, and begins `same` pooling before
the first value. Layers with the ordering `th` have their channels first, which TensorFlow cannot compute on a CPU: they
are computed with channels last, between two permutations.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.keras1 import lost
from penstock.runtimes.keras.keras1.translation import Config, Origin, Translation, activation


def _between_permutations(steps: list[Any], rank: int, name: str, *, restore: bool = True) -> list[Any]:
    """These steps for a tensor whose channels come first; `rank` does not count the dimension of the rows."""
    to_last = keras.layers.Permute((*range(2, rank + 1), 1), name=f"{name}_channels_last")
    if not restore:
        return [to_last, *steps]
    # The last step has the layer's own name, because outputs are named after it.
    return [to_last, *steps, keras.layers.Permute((rank, *range(1, rank)), name=name)]


def convolution(kind: str, rank: int) -> Callable[..., Translation]:
    def make(config: Config, arrays: list[Array], origin: Origin) -> Translation:
        first = rank > 1 and origin.is_channels_first(config)
        name, sizes = config["name"], _kernel_sizes(config, rank)
        rates = _each(config.get("atrous_rate", 1), rank)
        strides = _each(config.get("subsample", config.get("subsample_length", 1)), rank)
        padding = _padding(config["border_mode"], sizes, rates, origin)
        own_name = f"{name}_inside" if first else name
        layer = getattr(keras.layers, kind)(
            config["nb_filter"],
            sizes,
            strides=strides,
            padding="valid" if padding else config["border_mode"],
            dilation_rate=rates,
            activation=activation(config["activation"], origin),
            use_bias=config["bias"],
            name=own_name,
            **({"depth_multiplier": config["depth_multiplier"]} if "depth_multiplier" in config else {}),
        )
        steps = [layer]
        if padding:
            steps.insert(0, _zero_padding(rank, padding, f"{name}_padding"))
        kernels = [kernel_of_today(w, sizes, first, origin.is_theano) if w.ndim > 1 else w for w in arrays]
        return Translation(_between_permutations(steps, rank + 1, name) if first else steps, layer, kernels)

    return make


def _kernel_sizes(config: Config, rank: int) -> tuple[int, ...]:
    names = {
        1: ("filter_length",),
        2: ("nb_row", "nb_col"),
        3: ("kernel_dim1", "kernel_dim2", "kernel_dim3"),
    }[rank]
    return tuple(config[name] for name in names)


def kernel_of_today(kernel: Array, sizes: tuple[int, ...], is_channels_first: bool, is_theano: bool) -> Array:
    """A kernel in the layout of Keras 3: lengths, then channels in, then channels out."""
    rank = len(sizes)
    if rank == 1:
        if kernel.shape[:2] != (sizes[0], 1):  # before Keras 1.1.1: out, in, length, 1
            kernel = kernel.transpose(2, 3, 1, 0)
        kernel = kernel[:, 0]
    elif is_channels_first:
        kernel = kernel.transpose(*range(2, rank + 2), 1, 0)
    return np.flip(kernel, tuple(range(rank))) if is_theano else kernel


def _padding(
    mode: str, sizes: Sequence[int], rates: Sequence[int], origin: Origin
) -> tuple[tuple[int, int], ...] | None:
    """The padding that must be added as a layer, because Theano pads differently; None where Keras pads alike."""
    spans = [(size - 1) * rate + 1 for size, rate in zip(sizes, rates, strict=True)]
    if mode == "full":
        return tuple((span - 1, span - 1) for span in spans)
    if mode == "same" and origin.is_theano:
        return tuple((span // 2, (span - 1) // 2) for span in spans)
    return None


def _zero_padding(rank: int, padding: Any, name: str) -> Any:
    return getattr(keras.layers, f"ZeroPadding{rank}D")(padding[0] if rank == 1 else padding, name=name)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * rank


def deconvolution2d(config: Config, arrays: list[Array], origin: Origin) -> Translation:
    first = origin.is_channels_first(config)
    name = config["name"]
    shape = list(config["output_shape"][1:])
    lengths = shape[1:] if first else shape[:2]
    kernel = kernel_of_today(arrays[0], _kernel_sizes(config, 2), first, origin.is_theano).transpose(0, 1, 3, 2)
    compute = lost.transposed_convolution(
        lengths,
        _each(config["subsample"], 2),
        config["border_mode"] == "same",
        origin.is_theano,
        activation(config["activation"], origin),
    )
    layer = lost.layer(f"{name}_inside" if first else name, compute, [kernel, *arrays[1:]])
    return Translation(_between_permutations([layer], 3, name) if first else [layer])


def locally_connected(rank: int) -> Callable[..., Translation]:
    def make(config: Config, arrays: list[Array], origin: Origin) -> Translation:
        first = rank > 1 and origin.is_channels_first(config)
        name, sizes = config["name"], _kernel_sizes(config, rank)
        weights, biases = arrays[0], arrays[1:]
        if first:
            # The values of a patch are stored with channels first; Keras 1 reshaped the bias instead of permuting it.
            places, _, filters = weights.shape
            weights = weights.reshape(places, -1, *sizes, filters).transpose(0, 2, 3, 1, 4)
            weights = weights.reshape(places, -1, filters)
            biases = [b.reshape(filters, *b.shape[:2]).transpose(1, 2, 0) for b in biases]
        strides = _each(config.get("subsample", config.get("subsample_length", 1)), rank)
        compute = lost.local_connections(sizes, strides, activation(config["activation"], origin))
        layer = lost.layer(f"{name}_inside" if first else name, compute, [weights, *biases])
        return Translation(_between_permutations([layer], rank + 1, name) if first else [layer])

    return make


def pooling(kind: str, rank: int) -> Callable[..., Translation]:
    def make(config: Config, arrays: list[Array], origin: Origin) -> Translation:
        first = rank > 1 and origin.is_channels_first(config)
        sizes = _each(config.get("pool_size", config.get("pool_length")), rank)
        strides = _each(config.get("strides", config.get("stride")) or sizes, rank)
        name = f"{config['name']}_inside" if first else config["name"]
        layer: Any
        if config["border_mode"] == "same" and origin.is_theano:
            layer = lost.layer(name, lost.theano_pooling(kind == "Max", sizes, strides), [])
        else:
            layer = getattr(keras.layers, f"{kind}Pooling{rank}D")(sizes, strides, config["border_mode"], name=name)
        return Translation(_between_permutations([layer], rank + 1, config["name"]) if first else [layer])

    return make


def global_pooling(kind: str, rank: int) -> Callable[..., Translation]:
    def make(config: Config, arrays: list[Array], origin: Origin) -> Translation:
        layer = getattr(keras.layers, f"Global{kind}Pooling{rank}D")(name=config["name"])
        first = rank > 1 and origin.is_channels_first(config)
        steps = _between_permutations([layer], rank + 1, config["name"], restore=False) if first else [layer]
        return Translation(steps)

    return make


def around(kind: str, rank: int) -> Callable[..., Translation]:
    """Layers that pad, crop or repeat every axis except the channels."""

    def make(config: Config, arrays: list[Array], origin: Origin) -> Translation:
        first = rank > 1 and origin.is_channels_first(config)
        name = f"{config['name']}_inside" if first else config["name"]
        given = config.get("padding", config.get("cropping", config.get("size", config.get("length"))))
        amount = _amounts(given, rank) if kind != "UpSampling" else given
        layer = getattr(keras.layers, f"{kind}{rank}D")(amount, name=name)
        return Translation(_between_permutations([layer], rank + 1, config["name"]) if first else [layer])

    return make


def _amounts(given: Any, rank: int) -> Any:
    """The amounts before and behind each axis. Keras 1 took numbers, pairs, flat lists and dicts."""
    if isinstance(given, dict):
        sides = ("left_pad", "right_pad") if rank == 1 else ("top_pad", "bottom_pad", "left_pad", "right_pad")
        given = [given.get(side, 0) for side in sides]
    if isinstance(given, (list, tuple)) and len(given) == 2 * rank and not isinstance(given[0], (list, tuple)):
        pairs = tuple((given[2 * axis], given[2 * axis + 1]) for axis in range(rank))
        return pairs[0] if rank == 1 else pairs
    return tuple(map(tuple, given)) if isinstance(given, list) and isinstance(given[0], list) else given
