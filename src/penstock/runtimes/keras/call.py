"""A Keras model as something to be called with columns by name, on any backend."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core import nesting
from penstock.core.nesting import DENSE, RAGGED, SPARSE, Nesting
from penstock.core.records import ModelFile, Scaling, Signature, TensorSpec
from penstock.core.scaling import scaled_inputs
from penstock.runtimes.frameworks import keras, tf
from penstock.runtimes.keras import precision
from penstock.runtimes.keras.loading import load_keras_model, writer_version

__all__ = ["KerasCall", "call_keras_model", "digest_of_weights", "load_keras_model"]

MASK = "_mask"
"""Suffix for the name of a mask: a ragged input is padded to one length, and its mask says which values are real."""


def call_keras_model(file: ModelFile) -> KerasCall:
    """Load a model and make it callable. A model from a builder has a digest of its weights in its signature."""
    call = KerasCall(load_keras_model(file), scaling=file.scaling)
    if file.kind == "builder":
        call.signature = replace(call.signature, weights=digest_of_weights(call.model))
    elif file.kind == "h5" and writer_version(file).startswith("1"):
        notes = (f"Keras {writer_version(file)} wrote the model: its layers were translated for Keras 3",)
        call.signature = replace(call.signature, notes=notes)
    if file.precision != precision.AS_MADE:
        remark = precision.lower(call.model, file.precision)
        call.signature = replace(call.signature, notes=(*call.signature.notes, remark))
        call.precision = file.precision
    return call


def digest_of_weights(model: Any) -> str:
    """A digest of a model's architecture, as far as it has a description, and of its weights."""
    try:
        digest = hashlib.sha256(model.to_json().encode())
    except (NotImplementedError, TypeError, ValueError):
        digest = hashlib.sha256(type(model).__qualname__.encode())  # a subclass may have no description
    for values in map(np.asarray, model.get_weights()):
        digest.update(repr(values.tolist()).encode() if values.dtype == object else values.tobytes())
    return digest.hexdigest()[:32]


class KerasCall:
    """How a Keras model takes its inputs and names its outputs.

    A model without declared inputs (a subclass) takes its arrays in the structure in which the caller gave them. If
    that is unknown, it takes one column as it is, and several as a dict. A ragged input is fed padded, with a mask. The
    same holds for an input that the caller gave ragged, if the framework has ragged tensors.
    """

    def __init__(self, model: Any, *, given: Nesting | None = None, scaling: Scaling | None = None) -> None:
        self.model = model
        self.precision = precision.AS_MADE
        self._scaling = scaling
        self._given = given
        self._input_structure = self._structure("input")
        self.output_structure: Any = self._structure("output")
        self.ragged_outputs: frozenset[str] = frozenset()
        """Outputs that are ragged tensors. They are known once the step was traced."""
        self._kinds = self._kinds_of_inputs()
        self.signature = self._describe()
        parameters = inspect.signature(model.call).parameters.values()
        takes_training = any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters)
        self.options: dict[str, bool] = {"training": False} if takes_training else {}

    @property
    def has_own_step(self) -> bool:
        """Whether the model has a `predict_step` of its own."""
        return type(self.model).predict_step is not keras.Model.predict_step

    @staticmethod
    def data_of_step(packed: Any) -> Any:
        """What `predict_step` gets of a batch: the inputs as they are, but a list or tuple of them inside a tuple."""
        return (packed,) if isinstance(packed, (tuple, list)) else packed

    def scale(self, name: str, tensor: Any, to_float32: Callable[[Any], Any]) -> Any:
        """An input, scaled if the user asked for it. Called while the step is traced; the cast comes after it."""
        if self._scaling is None or name not in scaled_inputs(self._scaling, self.signature):
            return tensor
        return self._scaling.apply(to_float32(tensor))

    def pack(self, tensors: Mapping[str, Any]) -> Any:
        """Tensors by name in the structure that the model is called with."""
        if self._input_structure is not None:
            # The names are those of the signature, since a copy on another device may name its inputs differently. The
            # mask of an input follows the input.
            names = (spec.name for spec in self.signature.inputs)
            flat = []
            for kind in self._kinds:
                name = next(names)
                mask = tensors[next(names)] if kind == RAGGED else None
                flat.append(_composite(kind, tensors[name], mask))
            return self._tree.pack_sequence_as(self._input_structure, flat)
        if self._given is not None and all(name in tensors for name, _ in self._given_leaves()):
            flat = [_composite(kind, tensors[name], tensors.get(name + MASK)) for name, kind in self._given_leaves()]
            return nesting.rebuilt(self._given, flat)
        values = list(tensors.values())
        return values[0] if len(values) == 1 else dict(tensors)

    def name_outputs(self, outputs: Any) -> dict[str, Any]:
        """The outputs by name. Called while the step is traced; keeps the structure for `unpack`."""
        flat = self._tree.flatten(outputs)
        self.output_structure = self._tree.pack_sequence_as(outputs, [0] * len(flat))
        names = self._names(self.output_structure, _output_names(self.model), "output")
        is_ragged = (hasattr(tensor, "row_splits") for tensor in flat)
        self.ragged_outputs = frozenset(itertools.compress(names, is_ragged))
        if self.precision != precision.AS_MADE:
            flat = [precision.as_float32(tensor) for tensor in flat]
        return dict(zip(names, flat, strict=True))

    def unpack(self, columns: Mapping[str, Any]) -> Any:
        """Columns by name in the structure that `model.predict` would return; as a dict where only some were kept."""
        names = self._names(self.output_structure, _output_names(self.model), "output")
        if set(columns) != set(names):
            return dict(columns)
        return self._tree.pack_sequence_as(self.output_structure, [columns[name] for name in names])

    @property
    def _tree(self) -> Any:
        """The framework's functions that flatten structures, each in its own order, and rebuild them."""
        return keras.tree

    @property
    def _written_by(self) -> str:
        return f"Keras {keras.__version__} on {keras.backend.backend()}"

    def _structure(self, side: str) -> Any:
        """The model's declared inputs or outputs in their structure; None where it has none."""
        flat = getattr(self.model, side + "s", None)
        if not flat:
            return None
        if isinstance(self.model, keras.Sequential):
            return flat[0]
        structure = getattr(self.model, f"_{side}s_struct", None)
        if structure is None:
            structure = list(flat)
        # Keras itself unwraps a list of one.
        return structure[0] if isinstance(structure, (list, tuple)) and len(structure) == 1 else structure

    @property
    def own_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs without the masks that are made for ragged ones."""
        masks = {spec.name + MASK for spec in self.signature.inputs}
        return tuple(spec for spec in self.signature.inputs if spec.name not in masks)

    def _kinds_of_inputs(self) -> list[str]:
        """The kind of tensor as which each declared input is fed. A ragged tensor of the caller's stays ragged."""
        named = self._named("input")
        kinds = [self._kind_of(tensor) for _, tensor in named]
        if self._given is None or not self._has_composites:
            return kinds
        given = [leaf.kind for _, leaf in nesting.leaves(self._given)]
        by_name = dict(self._given_leaves())
        if len(given) != len(kinds) or not any(kind == RAGGED for kind in given):
            return kinds
        wanted = [by_name.get(name, kind) for (name, _), kind in zip(named, given, strict=True)]
        return [RAGGED if want == RAGGED else kind for want, kind in zip(wanted, kinds, strict=True)]

    def _given_leaves(self) -> list[tuple[str, str]]:
        """The columns of the structure that the caller gave, each with the kind of tensor as which it is fed."""
        if self._given is None:
            return []
        leaves = nesting.leaves(self._given)
        return [
            (nesting.name_of(path) or f"x{index}", leaf.kind if self._has_composites else DENSE)
            for index, (path, leaf) in enumerate(leaves)
        ]

    @property
    def _has_composites(self) -> bool:
        """Whether the framework has ragged and sparse tensors."""
        return bool(keras.backend.backend() == "tensorflow")

    def _kind_of(self, tensor: Any) -> str:
        """`ragged`, `sparse` or `dense`: only TensorFlow has the first two."""
        if not self._has_composites:
            return DENSE
        if getattr(tensor, "ragged", False):
            return RAGGED
        return SPARSE if getattr(tensor, "sparse", False) else DENSE

    def _dtype(self, tensor: Any) -> str:
        return str(keras.backend.standardize_dtype(tensor.dtype))

    def _describe(self) -> Signature:
        inputs: list[TensorSpec] = []
        for (name, tensor), kind in zip(self._named("input"), self._kinds, strict=True):
            inputs.append(self._spec(name, tensor))
            if kind == RAGGED:
                inputs.append(TensorSpec(name + MASK, "bool", (None,)))
        if self._input_structure is None:
            inputs = self._given_inputs()
        batch = {tensor.shape[0] for _, tensor in self._named("input") if len(tensor.shape)} - {None}
        # The vocabulary of a layer of tf_keras is among its weights, and has no shape.
        weights = (weight for weight in self.model.weights if hasattr(weight, "shape")) if self.model.built else None
        return Signature(
            tuple(inputs),
            tuple(self._spec(name, tensor) for name, tensor in self._named("output")),
            structure=_kind(self.output_structure),
            fixed_batch=batch.pop() if len(batch) == 1 else None,
            parameters=None if weights is None else sum(math.prod(weight.shape) for weight in weights),
            writer=self._written_by,
        )

    def _given_inputs(self) -> list[TensorSpec]:
        """The inputs of a model that declares none, if some were given ragged: each of these needs a mask."""
        if self._given is None or not any(kind == RAGGED for _, kind in self._given_leaves()):
            return []
        inputs: list[TensorSpec] = []
        for (name, kind), (_, leaf) in zip(self._given_leaves(), nesting.leaves(self._given), strict=True):
            inputs.append(TensorSpec(name, "float32" if leaf.dtype == "float64" else leaf.dtype, None))
            if kind == RAGGED:
                inputs.append(TensorSpec(name + MASK, "bool", (None,)))
        return inputs

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
    """Keras's names of the outputs; a Sequential has them in its inner functional model."""
    names = getattr(model, "output_names", None) or getattr(getattr(model, "_functional", None), "output_names", None)
    return list(names or ())


def _composite(kind: str, tensor: Any, mask: Any) -> Any:
    """A tensor of the kind that the model takes, from a dense one."""
    if kind == DENSE:
        return tensor
    if kind == SPARSE:
        return tf.sparse.from_dense(tensor)
    return tf.RaggedTensor.from_tensor(tensor, lengths=tf.reduce_sum(tf.cast(mask, tf.int64), axis=1))


def _kind(structure: Any) -> str:
    if isinstance(structure, Mapping):
        return "dict"
    return "list" if isinstance(structure, (list, tuple)) else "single"
