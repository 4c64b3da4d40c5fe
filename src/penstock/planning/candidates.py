"""What could run a model on a device here, and in which order it is worth trying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import registry
from penstock.core.packages import CONVERTER, PACKAGES
from penstock.core.records import Binding, ModelFile, TensorSpec

_IN_FLOAT32 = ("jax", "torch", "torch-compiled")
_READ_STEPS = ("openvino", "onnx", "onnx-tensorrt")
"""Runtimes that read a converted step."""
_ORDER = {
    "cpu": ("openvino", "onnx", "jax", "tensorflow-xla", "torch-compiled", "torch"),
    "gpu": ("jax", "onnx-tensorrt", "onnx", "torch-compiled", "torch"),
}
"""The most promising first: time may run out."""
_KINDS_THAT_CONVERT = ("keras", "h5", "saved_model", "frozen_graph")
"""Of a model that a function builds nobody knows the weights before it runs: what was converted may be of others."""


@dataclass(frozen=True)
class Candidate:
    """A runtime that may be faster than the model's own. `why_not` says why it cannot be tried."""

    runtime: str
    is_converted: bool = False
    why_not: str | None = None


def candidates(
    model: ModelFile,
    own: str,
    device_kind: str,
    bindings: Sequence[Binding],
    outputs: Sequence[TensorSpec] = (),
    *,
    has_many_sizes: bool = False,
) -> list[Candidate]:
    """Every other runtime that could execute the model on this kind of device; those that cannot be tried last.

    With `has_many_sizes`, every batch holds rows of one size, and there are many sizes.
    """
    found: list[Candidate] = []
    for name in _ORDER[device_kind]:
        if name == own or device_kind not in PACKAGES[name].device_kinds:
            continue
        if has_many_sizes and name in registry.COMPILE_EACH_SIZE:
            found.append(Candidate(name, why_not="it compiles anew for each size of rows, and there are many"))
        elif registry.executes(model, name) and is_alike(own, name):
            found.append(Candidate(name, why_not=_missing(name) or _too_wide(name, bindings, outputs)))
        elif name in _READ_STEPS and can_convert(model, own):
            why_not = _missing(name) or _missing_converter() or _too_wide(name, bindings, outputs)
            found.append(Candidate(name, is_converted=True, why_not=why_not))
    return sorted(found, key=lambda candidate: candidate.why_not is not None)


def is_alike(own: str, other: str) -> bool:
    """Whether another runtime loads a model as its own does: what only tf_keras reads, no other Keras does."""
    return own != "tf_keras" or other in _READ_STEPS


def can_convert(model: ModelFile, own: str) -> bool:
    return own in ("tensorflow", "tf_keras") and model.kind in _KINDS_THAT_CONVERT


def needs_conversion(model: ModelFile, runtime: str) -> bool:
    """Whether a runtime reads only what was converted from this model."""
    return runtime in _READ_STEPS and model.kind in _KINDS_THAT_CONVERT


def _too_wide(runtime: str, bindings: Sequence[Binding], outputs: Sequence[TensorSpec]) -> str | None:
    """What a runtime cuts down: OpenVINO whole numbers to 32 bits, Keras on JAX or torch the weights of float64."""
    if runtime == "openvino":
        wide = [binding.input for binding in bindings if binding.dtype in ("int64", "uint64", "uint32")]
        return f"it has no whole numbers as wide as {wide[0]} takes" if wide else None
    dtypes = {binding.input: binding.dtype for binding in bindings} | {spec.name: spec.dtype for spec in outputs}
    double = [name for name, dtype in dtypes.items() if dtype == "float64"]
    return f"it does not compute {double[0]} in float64" if runtime in _IN_FLOAT32 and double else None


def _missing(runtime: str) -> str | None:
    package = PACKAGES[runtime]
    return None if package.is_installed else f"not installed: {package.install}"


def _missing_converter() -> str | None:
    return None if CONVERTER.is_installed else f"conversion is not installed: {CONVERTER.install}"
