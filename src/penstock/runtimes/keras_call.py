"""A Keras model as something to be called with columns by name, on any backend."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import cloudpickle

from penstock.core.records import ModelFile, Signature, TensorSpec
from penstock.core.scaling import Scaling, scaled_inputs
from penstock.errors import ModelError, one_line


def load_keras_model(file: ModelFile) -> Any:
    """Load a `.keras` file, or call a builder. The backend was chosen in the environment.

    Raises:
        ModelError: It does not load; the framework's reason is given in one line.
    """
    import keras

    try:
        if file.kind == "keras":
            return keras.saving.load_model(file.location, compile=False, safe_mode=not file.trust)
        model = _call_builder(file)
    except (Exception, SystemExit) as error:
        raise _not_loaded(file, error) from error
    if not isinstance(model, keras.Model):
        raise ModelError(
            "the function did not return a Keras model",
            received=f"{file.location} returned {type(model).__name__}",
            allowed=f"keras.Model of Keras {keras.__version__}",
        )
    return model


def _call_builder(file: ModelFile) -> Any:
    if file.payload is not None:
        return cloudpickle.loads(file.payload)()
    module, _, function = file.location.partition(":")
    return getattr(importlib.import_module(module), function)()


def _not_loaded(file: ModelFile, error: BaseException) -> ModelError:
    text = str(error)
    needs_trust = "safe_mode" in text or "unsafe" in text.lower()
    needs_code = "custom" in text.lower() and "register" in text.lower()
    hint = None
    if needs_trust:
        hint = "it contains code (a Lambda layer); if you trust where it came from: --trust-model"
    elif needs_code:
        hint = "it has classes of its own: give module:function that imports them and loads the file"
    return ModelError("the model does not load", received=f"{file.location}: {one_line(error)}", hint=hint)


def call_keras_model(file: ModelFile) -> KerasCall:
    """Load a model and make it callable. What a function built is told apart by its weights."""
    call = KerasCall(load_keras_model(file), scaling=file.scaling)
    if file.kind == "builder":
        call.signature = replace(call.signature, weights=digest_of_weights(call.model))
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
    a dict, or as a list where the caller gave a list.
    """

    def __init__(self, model: Any, *, as_list: bool = False, scaling: Scaling | None = None) -> None:
        self.model = model
        self._scaling = scaling
        self._as_list = as_list
        self._input_structure = _structure(model, "input")
        self.output_structure: Any = _structure(model, "output")
        self.signature = self._describe()
        parameters = inspect.signature(model.call).parameters.values()
        takes_training = any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters)
        self.options: dict[str, bool] = {"training": False} if takes_training else {}

    def scale(self, name: str, tensor: Any, to_float32: Callable[[Any], Any]) -> Any:
        """An input as it was asked to be scaled. Called while the step is traced; the model's dtype comes after it."""
        if self._scaling is None or name not in scaled_inputs(self._scaling, self.signature):
            return tensor
        return self._scaling.apply(to_float32(tensor))

    def pack(self, tensors: Mapping[str, Any]) -> Any:
        """Tensors by name in the structure that the model is called with."""
        import keras

        if self._input_structure is not None:
            flat = [tensors[spec.name] for spec in self.signature.inputs]
            return keras.tree.pack_sequence_as(self._input_structure, flat)
        values = list(tensors.values())
        if self._as_list:
            return values
        return values[0] if len(values) == 1 else dict(tensors)

    def name_outputs(self, outputs: Any) -> dict[str, Any]:
        """The outputs by name. Called while the step is traced; keeps the structure for `unpack`."""
        import keras

        self.output_structure = keras.tree.map_structure(lambda _: 0, outputs)
        names = _names(self.output_structure, _output_names(self.model), "output")
        return dict(zip(names, keras.tree.flatten(outputs), strict=True))

    def unpack(self, columns: Mapping[str, Any]) -> Any:
        """Columns by name in the structure that `model.predict` would return."""
        import keras

        return keras.tree.pack_sequence_as(self.output_structure, list(columns.values()))

    def _describe(self) -> Signature:
        import keras

        inputs, outputs = (
            tuple(_spec(name, tensor) for name, tensor in _named(self.model, side)) for side in ("input", "output")
        )
        batch = {tensor.shape[0] for _, tensor in _named(self.model, "input") if len(tensor.shape)} - {None}
        counted = [math.prod(weight.shape) for weight in self.model.weights] if self.model.built else None
        return Signature(
            inputs,
            outputs,
            structure=_kind(self.output_structure),
            fixed_batch=batch.pop() if len(batch) == 1 else None,
            parameters=None if counted is None else sum(counted),
            writer=f"Keras {keras.__version__} on {keras.backend.backend()}",
        )


def _structure(model: Any, side: str) -> Any:
    """The model's declared inputs or outputs in their structure; None where it has none."""
    import keras

    flat = getattr(model, side + "s", None)
    if not flat:
        return None
    if isinstance(model, keras.Sequential):
        return flat[0]
    structure = getattr(model, f"_{side}s_struct", None)
    return structure if structure is not None else (flat[0] if len(flat) == 1 else list(flat))


def _named(model: Any, side: str) -> list[tuple[str, Any]]:
    import keras

    structure = _structure(model, side)
    if structure is None:
        return []
    tensors = keras.tree.flatten(structure)
    own = _output_names(model) if side == "output" else [tensor.name for tensor in tensors]
    return list(zip(_names(structure, own, side), tensors, strict=True))


def _output_names(model: Any) -> list[str]:
    """The names of the layers that give the outputs, as Keras itself names them; a Sequential keeps them inside."""
    names = getattr(model, "output_names", None) or getattr(getattr(model, "_functional", None), "output_names", None)
    return list(names or ())


def _names(structure: Any, own: list[str], fallback: str) -> list[str]:
    """A name for every leaf: the keys of dicts, else the model's own names, else numbers. Never the same twice."""
    import keras

    paths = [path for path, _ in keras.tree.flatten_with_path(structure)]
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


def _spec(name: str, tensor: Any) -> TensorSpec:
    import keras

    return TensorSpec(name, keras.backend.standardize_dtype(tensor.dtype), tuple(tensor.shape[1:]))


def _kind(structure: Any) -> str:
    if isinstance(structure, Mapping):
        return "dict"
    return "list" if isinstance(structure, (list, tuple)) else "single"
