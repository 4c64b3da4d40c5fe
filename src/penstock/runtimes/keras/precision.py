"""The precision in which a Keras model computes: its own, or fewer bits if the user asked for them.

`bfloat16` and `float16` are Keras's mixed precision: the weights stay in 32 bits, layers compute in 16, and the outputs
are float32 again. `int8` quantizes the layers that Keras can quantize, from their weights alone. With `model`, nothing
is changed. On a CPU, float32 is then float32, even if an environment variable asks a library for fewer bits. On a GPU,
the framework decides: TensorFlow, JAX and torch (in convolutions) multiply float32 in TF32, as they do without
Penstock.
"""

import warnings
from collections import Counter
from typing import Any

from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.runtimes.frameworks import keras

STRICT_FLOAT32 = {
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    "DNNL_DEFAULT_FPMATH_MODE": "STRICT",
    "TF_SET_ONEDNN_FPMATH_MODE": "",
    "TF_ENABLE_AUTO_MIXED_PRECISION": "0",
}
"""Environment variables for every process that computes on a CPU. The user's own could lower the precision."""

AS_MADE = "model"
_KERAS_KINDS = ("keras", "h5", "builder")
_SIXTEEN_BITS = ("bfloat16", "float16")
_FLOATS = ("float64", "float32", *_SIXTEEN_BITS)


def check_kind(file: ModelFile, runtime: str) -> None:
    """Refuse another precision for a model whose precision this runtime cannot change.

    Raises:
        ModelError: The user asked for another precision.
    """
    if file.precision == AS_MADE or (file.kind in _KERAS_KINDS and runtime != "tf_keras"):
        return
    able = "openvino computes in bfloat16 and float16 by itself"
    keras = "; tensorflow, jax and torch do for models of Keras 3" if file.kind in _KERAS_KINDS else ""
    raise ModelError(
        f"the {runtime} runtime computes in the precision that the model was made in",
        received=f"--precision {file.precision} for a model of kind {file.kind}",
        allowed=f"--precision {AS_MADE}",
        hint=f"{able}{keras}: --runtime openvino",
    )


def lower(model: Any, precision: str) -> str:
    """Let a loaded model of Keras 3 compute in fewer bits. Returns a note for the user.

    Raises:
        ModelError: The model has no layer that can.
    """
    if precision in _SIXTEEN_BITS:
        return _mix(model, precision)
    return _quantize(model, precision)


def as_float32(tensor: Any) -> Any:
    """An output of a model whose layers compute in 16 bits. Called while the step is traced."""
    is_short = keras.backend.standardize_dtype(tensor.dtype) in _SIXTEEN_BITS
    return keras.ops.cast(tensor, "float32") if is_short else tensor


def _mix(model: Any, precision: str) -> str:
    """Set the policy of layers that compute with floats. Layers for strings and whole numbers stay as they are."""
    layers = [layer for layer in model._flatten_layers() if _computes_floats(layer)]
    for layer in layers:
        layer.dtype_policy = f"mixed_{precision}"
    if not model.built:
        return f"computes in {precision}"  # a subclass gets its weights when it is called
    if not any(_has_own_weights(layer) for layer in layers):
        raise ModelError(
            f"the model has no layer that could compute in {precision}",
            received=_described(model),
            allowed="a model with layers that have weights",
        )
    return _told(model, precision, [layer for layer in layers if _has_own_weights(layer)])


def _computes_floats(layer: Any) -> bool:
    policy = layer.dtype_policy
    return getattr(policy, "quantization_mode", None) is None and policy.compute_dtype in _FLOATS


def _quantize(model: Any, precision: str) -> str:
    if not model.built:
        raise ModelError(
            f"the model has no weights yet that could be quantized to {precision}",
            received=f"{type(model).__name__}, which builds itself when it is called",
            hint="call it once, or build it, in the function that returns it",
        )
    with warnings.catch_warnings(action="ignore"):  # Keras warns about each layer that it cannot quantize
        model.quantize(precision)
    able = [layer for layer in model._flatten_layers() if _is_quantized(layer, precision)]
    if not able:
        raise ModelError(
            f"the model has no layer that Keras can quantize to {precision}",
            received=_described(model),
            allowed="Dense, EinsumDense and Embedding layers",
        )
    return _told(model, precision, able)


def _told(model: Any, precision: str, able: list[Any]) -> str:
    having_weights = [layer for layer in model._flatten_layers() if _has_own_weights(layer)]
    return f"computes in {precision}: {len(able)} of {len(having_weights)} layers with weights"


def _is_quantized(layer: Any, precision: str) -> bool:
    return getattr(layer.dtype_policy, "quantization_mode", None) == precision


def _has_own_weights(layer: Any) -> bool:
    return bool(layer.weights) and len(list(layer._flatten_layers())) == 1


def _described(model: Any) -> str:
    """The layers of a model in words: `Conv2D ×53, BatchNormalization ×52`."""
    counts = Counter(type(layer).__name__ for layer in model._flatten_layers(include_self=False))
    return ", ".join(f"{name} ×{count}" for name, count in counts.most_common(8)) or type(model).__name__
