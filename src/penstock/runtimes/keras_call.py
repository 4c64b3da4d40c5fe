"""A Keras model as something to be called with columns by name, on any backend."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.core.records import ModelFile, Signature, TensorSpec
from penstock.core.scaling import Scaling, scaled_inputs
from penstock.runtimes import precision
from penstock.runtimes.keras_loading import load_keras_model, writer_version

__all__ = ["KerasCall", "call_keras_model", "digest_of_weights", "load_keras_model"]

MASK = "_mask"
"""Behind the name of a ragged input: which of its values, padded to one length, are real."""


def call_keras_model(file: ModelFile) -> KerasCall:
    """Load a model and make it callable. What a function built is told apart by its weights."""
    call = KerasCall(load_keras_model(file), scaling=file.scaling)
    if file.kind == "builder":
        call.signature = replace(call.signature, weights=digest_of_weights(call.model))
    elif file.kind == "h5" and writer_version(file).startswith("1"):
        notes = (f"Keras {writer_version(file)} wrote the model: its layers were translated for Keras 3",)
        call.signature = replace(call.signature, notes=notes)
    if file.precision != precision.AS_MADE:
        told = precision.lower(call.model, file.precision)
        call.signature = replace(call.signature, notes=(*call.signature.notes, told))
        call.precision = file.precision
    return call


def digest_of_weights(model: Any) -> str:
    """A digest of a model's architecture, as far as it has a description, and of its weights."""
    try:
        digest = hashlib.sha256(model.to_json().encode())
    except (NotImplementedError, TypeError, ValueError):
        digest = hashlib.sha256(type(model).__qualname__.encode())  # a subclass may have no description
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    return digest.hexdigest()[:32]


class KerasCall:
    """How a Keras model takes its inputs and names its outputs.

    A model without declared inputs (a subclass) takes whatever the columns are: one is passed as it is, several as
    a dict, or as a list where the caller gave a list. A ragged input is fed padded, with a mask beside it.
    """

    def __init__(self, model: Any, *, as_list: bool = False, scaling: Scaling | None = None) -> None:
        self.model = model
        self.precision = precision.AS_MADE
        self._scaling = scaling
        self._as_list = as_list
        self._input_structure = self._structure("input")
        self.output_structure: Any = self._structure("output")
        self._kinds = [self._kind_of(tensor) for _, tensor in self._named("input")]
        self.signature = self._describe()
        parameters = inspect.signature(model.call).parameters.values()
        takes_training = any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters)
        self.options: dict[str, bool] = {"training": False} if takes_training else {}

    @property
    def has_own_step(self) -> bool:
        """Whether the model says itself what `predict` does with a batch."""
        import keras

        return type(self.model).predict_step is not keras.Model.predict_step

    def scale(self, name: str, tensor: Any, to_float32: Callable[[Any], Any]) -> Any:
        """An input as it was asked to be scaled. Called while the step is traced; the model's dtype comes after it."""
        if self._scaling is None or name not in scaled_inputs(self._scaling, self.signature):
            return tensor
        return self._scaling.apply(to_float32(tensor))

    def pack(self, tensors: Mapping[str, Any]) -> Any:
        """Tensors by name in the structure that the model is called with."""
        if self._input_structure is not None:
            # By the signature's names: those of a copy on another device may be its own. A mask follows what it masks.
            names = (spec.name for spec in self.signature.inputs)
            flat = []
            for kind in self._kinds:
                name = next(names)
                mask = tensors[next(names)] if kind == "ragged" else None
                flat.append(_composite(kind, tensors[name], mask))
            return self._tree.pack_sequence_as(self._input_structure, flat)
        values = list(tensors.values())
        if self._as_list:
            return values
        return values[0] if len(values) == 1 else dict(tensors)

    def name_outputs(self, outputs: Any) -> dict[str, Any]:
        """The outputs by name. Called while the step is traced; keeps the structure for `unpack`."""
        flat = self._tree.flatten(outputs)
        self.output_structure = self._tree.pack_sequence_as(outputs, [0] * len(flat))
        names = self._names(self.output_structure, _output_names(self.model), "output")
        if self.precision != precision.AS_MADE:
            flat = [precision.as_float32(tensor) for tensor in flat]
        return dict(zip(names, flat, strict=True))

    def unpack(self, columns: Mapping[str, Any]) -> Any:
        """Columns by name in the structure that `model.predict` would return; as a dict where only some were kept."""
        if list(columns) != self._names(self.output_structure, _output_names(self.model), "output"):
            return dict(columns)
        return self._tree.pack_sequence_as(self.output_structure, list(columns.values()))

    @property
    def _tree(self) -> Any:
        """What takes structures apart, in an order of its own, and puts them together again."""
        import keras

        return keras.tree

    @property
    def _written_by(self) -> str:
        import keras

        return f"Keras {keras.__version__} on {keras.backend.backend()}"

    def _structure(self, side: str) -> Any:
        """The model's declared inputs or outputs in their structure; None where it has none."""
        import keras

        flat = getattr(self.model, side + "s", None)
        if not flat:
            return None
        if isinstance(self.model, keras.Sequential):
            return flat[0]
        structure = getattr(self.model, f"_{side}s_struct", None)
        if structure is None:
            structure = list(flat)
        # Keras itself takes and gives the only one of a list as it is.
        return structure[0] if isinstance(structure, (list, tuple)) and len(structure) == 1 else structure

    def _kind_of(self, tensor: Any) -> str:
        """`ragged`, `sparse` or `dense`: only TensorFlow has the first two."""
        import keras

        if keras.backend.backend() != "tensorflow":
            return "dense"
        if getattr(tensor, "ragged", False):
            return "ragged"
        return "sparse" if getattr(tensor, "sparse", False) else "dense"

    def _dtype(self, tensor: Any) -> str:
        import keras

        return str(keras.backend.standardize_dtype(tensor.dtype))

    def _describe(self) -> Signature:
        inputs: list[TensorSpec] = []
        for (name, tensor), kind in zip(self._named("input"), self._kinds, strict=True):
            inputs.append(self._spec(name, tensor))
            if kind == "ragged":
                inputs.append(TensorSpec(name + MASK, "bool", (None,)))
        batch = {tensor.shape[0] for _, tensor in self._named("input") if len(tensor.shape)} - {None}
        counted = [math.prod(weight.shape) for weight in self.model.weights] if self.model.built else None
        return Signature(
            tuple(inputs),
            tuple(self._spec(name, tensor) for name, tensor in self._named("output")),
            structure=_kind(self.output_structure),
            fixed_batch=batch.pop() if len(batch) == 1 else None,
            parameters=None if counted is None else sum(counted),
            writer=self._written_by,
        )

    def _named(self, side: str) -> list[tuple[str, Any]]:
        structure = self._structure(side)
        if structure is None:
            return []
        tensors = self._tree.flatten(structure)
        own = _output_names(self.model) if side == "output" else [tensor.name for tensor in tensors]
        return list(zip(self._names(structure, own, side), tensors, strict=True))

    def _spec(self, name: str, tensor: Any) -> TensorSpec:
        return TensorSpec(name, self._dtype(tensor), tuple(tensor.shape[1:]))

    def _names(self, structure: Any, own: list[str], fallback: str) -> list[str]:
        """A name for every leaf: the keys of dicts, else the model's own, else numbers. Never the same twice."""
        paths = [path for path, _ in self._tree.flatten_with_path(structure)]
        own = own if len(own) == len(paths) else []
        names: list[str] = []
        for position, path in enumerate(paths):
            if any(isinstance(key, str) for key in path):
                name = "/".join(str(key) for key in path)
            elif own:
                name = str(own[position])
            else:
                name = fallback if len(paths) == 1 else f"{fallback}_{position}"
            names.append(name if name not in names else f"{name}_{position}")
        return names


def _output_names(model: Any) -> list[str]:
    """The names of the layers that give the outputs, as Keras itself names them; a Sequential keeps them inside."""
    names = getattr(model, "output_names", None) or getattr(getattr(model, "_functional", None), "output_names", None)
    return list(names or ())


def _composite(kind: str, tensor: Any, mask: Any) -> Any:
    """A tensor of the kind that the model takes, from a dense one."""
    if kind == "dense":
        return tensor
    import tensorflow as tf

    if kind == "sparse":
        return tf.sparse.from_dense(tensor)
    return tf.RaggedTensor.from_tensor(tensor, lengths=tf.reduce_sum(tf.cast(mask, tf.int64), axis=1))


def _kind(structure: Any) -> str:
    if isinstance(structure, Mapping):
        return "dict"
    return "list" if isinstance(structure, (list, tuple)) else "single"
