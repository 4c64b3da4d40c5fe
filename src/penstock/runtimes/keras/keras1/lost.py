"""Operations of Keras 1 and Theano that Keras 3 lacks, as functions of weights and a tensor with channels last."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.records import Array
from penstock.runtimes.frameworks import keras

Compute = Callable[[list[Any], Any], Any]


def layer(name: str, compute: Compute, arrays: list[Array]) -> Any:
    """A layer that computes `compute(weights, tensor)`."""

    class Lost(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.parts = [
                self.add_weight(shape=array.shape, name=f"part_{i}", initializer=keras.initializers.Constant(array))
                for i, array in enumerate(arrays)
            ]

        def call(self, tensor: Any) -> Any:
            return compute(self.parts, tensor)

        def compute_mask(self, tensor: Any, mask: Any = None) -> Any:
            return mask

    return Lost(name=name)


def hard_sigmoid(tensor: Any) -> Any:
    """The hard sigmoid as it was before Keras 3, in which its slope is another one."""
    return keras.ops.clip(0.2 * tensor + 0.5, 0.0, 1.0)


def normalise_rows(epsilon: float) -> Compute:
    def compute(parts: list[Any], tensor: Any) -> Any:
        mean = keras.ops.mean(tensor, axis=-1, keepdims=True)
        deviation = keras.ops.sqrt(keras.ops.var(tensor, axis=-1, keepdims=True) + epsilon)
        return parts[0] * (tensor - mean) / (deviation + epsilon) + parts[1]

    return compute


def highway(activation: Any) -> Compute:
    activate = keras.activations.get(activation)

    def compute(parts: list[Any], tensor: Any) -> Any:
        kernel, carry, *biases = parts
        bias, carry_bias = biases or (0.0, 0.0)
        share = keras.ops.sigmoid(keras.ops.matmul(tensor, carry) + carry_bias)
        return activate(keras.ops.matmul(tensor, kernel) + bias) * share + (1 - share) * tensor

    return compute


def maxout(parts: list[Any], tensor: Any) -> Any:
    features = keras.ops.einsum("bi,fio->bfo", tensor, parts[0])
    return keras.ops.max(features + parts[1] if len(parts) > 1 else features, axis=1)


def prelu(parts: list[Any], tensor: Any) -> Any:
    return keras.ops.relu(tensor) - parts[0] * keras.ops.relu(-tensor)


def parametric_softplus(parts: list[Any], tensor: Any) -> Any:
    return keras.ops.softplus(parts[1] * tensor) * parts[0]


def srelu(parts: list[Any], tensor: Any) -> Any:
    ops = keras.ops
    left, left_slope, width, right_slope = parts
    right = left + ops.abs(width)
    above = tensor - left
    middle = left + ops.minimum(ops.relu(above), right - left) - left_slope * ops.relu(-above)
    return middle + ops.relu(tensor - right) * right_slope


def thresholded_relu(theta: float) -> Compute:
    return lambda parts, tensor: tensor * keras.ops.cast(tensor > theta, tensor.dtype)


def cosine(parts: list[Any], tensors: Any) -> Any:
    ops = keras.ops
    left, right = tensors
    product = ops.sum(left * right, axis=-1, keepdims=True)
    lengths = ops.sqrt(ops.sum(left * left, axis=-1, keepdims=True) * ops.sum(right * right, axis=-1, keepdims=True))
    return ops.expand_dims(product / ops.maximum(lengths, 1e-7), 1)


def local_connections(sizes: Sequence[int], strides: Sequence[int], activation: Any) -> Compute:
    """A convolution with its own weights at every place. Each patch is made flat, as the weights are."""
    ops, rank = keras.ops, len(sizes)
    activate = keras.activations.get(activation)

    def compute(parts: list[Any], tensor: Any) -> Any:
        counts = [(n - size) // step + 1 for n, size, step in zip(tensor.shape[1:-1], sizes, strides, strict=True)]
        width = parts[0].shape[1]
        patches = [
            ops.reshape(tensor[(slice(None), *_patch(place, sizes, strides))], (-1, 1, width))
            for place in _places(counts)
        ]
        summed = ops.einsum("bpi,pio->bpo", ops.concatenate(patches, axis=1), parts[0])
        shaped = ops.reshape(summed, (-1, *counts, parts[0].shape[2])) if rank > 1 else summed
        return activate(shaped + parts[1] if len(parts) > 1 else shaped)

    return compute


def _places(counts: Sequence[int]) -> list[tuple[int, ...]]:
    places: list[tuple[int, ...]] = [()]
    for count in counts:
        places = [(*place, number) for place in places for number in range(count)]
    return places


def _patch(place: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(i * step, i * step + size) for i, step, size in zip(place, strides, sizes, strict=True))


def transposed_convolution(
    lengths: Sequence[int], strides: tuple[int, ...], is_same: bool, is_theano: bool, activation: Any
) -> Compute:
    """A transposed convolution whose output has exactly these lengths, which the file of Keras 1 states."""
    ops = keras.ops
    activate = keras.activations.get(activation)

    def compute(parts: list[Any], tensor: Any) -> Any:
        whole = ops.conv_transpose(tensor, parts[0], strides, padding="valid")
        for axis, length in enumerate(lengths, start=1):
            size, step, count = parts[0].shape[axis - 1], strides[axis - 1], tensor.shape[axis]
            left_out = max((count - 1) * step + size - length, 0)
            begin = 0 if not is_same else size // 2 if is_theano else left_out // 2
            whole = _cut(whole, axis, begin, length)
        return activate(whole + parts[1] if len(parts) > 1 else whole)

    return compute


def _cut(tensor: Any, axis: int, begin: int, length: int) -> Any:
    """`length` places from `begin` on, filled up with zeros where the tensor ends before."""
    missing = begin + length - tensor.shape[axis]
    if missing > 0:
        tensor = keras.ops.pad(tensor, [(0, missing if i == axis else 0) for i in range(len(tensor.shape))])
    return tensor[(slice(None),) * axis + (slice(begin, begin + length),)]


def theano_pooling(is_max: bool, sizes: Sequence[int], strides: Sequence[int]) -> Compute:
    """Pooling with Theano's `same`: windows begin before the first value, and places outside do not count."""
    ops = keras.ops
    before = [max(size - 2 if size % 2 else size - 1, 0) for size in sizes]
    around = [(0, 0), *((pad, pad) for pad in before), (0, 0)]

    def compute(parts: list[Any], tensor: Any) -> Any:
        size, step = tuple(sizes), tuple(strides)
        if is_max:
            lowest = float("-inf")
            pooled = ops.max_pool(ops.pad(tensor, around, constant_values=lowest), size, step, "valid")
        else:
            pooled = ops.average_pool(ops.pad(tensor, around), size, step, "valid") / ops.average_pool(
                ops.pad(ops.ones_like(tensor), around), size, step, "valid"
            )
        counts = [-(-n // s) for n, s in zip(tensor.shape[1:-1], strides, strict=True)]
        return pooled[(slice(None), *(slice(count) for count in counts))]

    return compute
