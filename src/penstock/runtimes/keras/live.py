"""Keras models that live in this process: wrapped where they are, and copied to the framework's other devices."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from penstock.core.nesting import RAGGED, Nesting, leaves
from penstock.core.output_selection import Answers
from penstock.core.records import Device, Scaling, Shape
from penstock.core.state import State
from penstock.errors import ModelError, one_line
from penstock.runtimes import torch as torch_runtime
from penstock.runtimes.frameworks import jax, keras, tf, torch
from penstock.runtimes.jax import runtime as jax_runtime
from penstock.runtimes.keras import tf_keras as legacy_keras
from penstock.runtimes.keras.call import KerasCall
from penstock.runtimes.tensorflow import runtime as tensorflow_runtime

_KEPT_ON_THE_MODEL = "_penstock_live"
_LEGACY = "tf_keras"
_TRAINER = "keras.src.trainers.trainer"
FirstRow = Callable[[], Mapping[str, Any]]
"""One row of every column, to build a model with."""


class LiveModel:
    """A live model on every device of its framework, compiled once and kept as long as the model lives."""

    def __init__(
        self, model: Any, given: Nesting | None, scaling: Scaling | None, answers: Answers | None = None
    ) -> None:
        self.backend: str = _backend_of(model)
        self._model = weakref.ref(model)
        self._copies: list[Any] = []
        self.few_s: dict[tuple[Shape | None, ...], float] = {}
        """The seconds that a few rows of these shapes take, where they were measured."""
        self.states: dict[tuple[Shape | None, ...], State] = {}
        """What a call with rows of these shapes changes in the model, where that was found out."""
        targets = _targets(self.backend)
        self.devices = [device for device, _ in targets]
        wrap: Callable[..., Any] = _WRAPPERS[self.backend]
        call_of = legacy_keras.TfKerasCall if self.backend == _LEGACY else KerasCall
        self.replicas: list[Any] = [wrap(call_of(model, given=given, scaling=scaling), targets[0][1], answers)]
        for _, target in targets[1:]:
            copy = self._copy(model, target)
            if copy is None:
                self.devices = self.devices[:1]
                break
            call = call_of(copy, given=given, scaling=scaling)
            call.signature = self.replicas[0].signature  # a copy may have other names for its inputs
            self.replicas.append(wrap(call, target, answers))

    def refresh(self) -> None:
        """Give every copy the weights that the model has now."""
        model = self._model()
        for copy in self._copies:
            copy.set_weights(model.get_weights())  # type: ignore[union-attr]
        for replica in self.replicas:
            if hasattr(replica, "refresh"):
                replica.refresh()

    def _copy(self, model: Any, target: Any) -> Any:
        """The model for another device: JAX moves the weights itself, TensorFlow needs variables of its own there."""
        if self.backend not in ("tensorflow", _LEGACY):
            return model
        library = sys.modules["tf_keras" if self.backend == _LEGACY else "keras"]
        try:
            with tf.device(target):
                copy = library.models.clone_model(model)
                copy.set_weights(model.get_weights())
        except (ValueError, NotImplementedError, TypeError):
            return None  # a subclass without a config cannot be cloned: it runs on one device
        self._copies.append(copy)
        return copy


_WRAPPERS: dict[str, Callable[..., Any]] = {
    "tensorflow": tensorflow_runtime.wrap,
    "jax": jax_runtime.JaxReplica,
    "torch": torch_runtime.TorchReplica,
    _LEGACY: tensorflow_runtime.wrap,
}


def is_live_keras_model(model: Any) -> bool:
    """Whether this is a model of Keras 3 or tf_keras, or a layer that can predict. No library is imported for it."""
    is_model = any(_is_model_of(sys.modules.get(name), model) for name in ("keras", _LEGACY))
    return is_model or any(kind.__module__ == _TRAINER for kind in type(model).__mro__)


def _is_model_of(library: Any, model: Any) -> bool:
    kind = getattr(library, "Model", None)
    return isinstance(kind, type) and isinstance(model, kind)


def _backend_of(model: Any) -> str:
    if _is_model_of(sys.modules.get(_LEGACY), model):
        return _LEGACY
    return str(keras.backend.backend())


def wrap_live(
    model: Any,
    *,
    given: Nesting | None = None,
    scaling: Scaling | None = None,
    answers: Answers | None = None,
    first_row: FirstRow | None = None,
) -> LiveModel:
    """The replicas of a live model. They are made at the first call and kept.

    Args:
        model: The model.
        given: How the caller gave its inputs, for a model that declares none.
        scaling: What is done to its inputs.
        answers: Which of its outputs are kept, and in what form.
        first_row: One row, to build a model that has no weights yet.

    Raises:
        ModelError: Its backend cannot be used here, or it cannot be built.
    """
    backend = _backend_of(model)
    if backend not in _WRAPPERS:
        raise ModelError(
            "penstock does not run models on this Keras backend",
            received=f"keras.backend.backend() = {backend!r}",
            allowed=", ".join(name for name in _WRAPPERS if name != _LEGACY),
            hint="set KERAS_BACKEND before Keras is imported",
        )
    # They are kept on the model itself, past Keras's tracking: a table here would keep every model alive for ever.
    if not hasattr(model, _KEPT_ON_THE_MODEL):
        object.__setattr__(model, _KEPT_ON_THE_MODEL, {})
    kept: dict[tuple[Nesting | None, Scaling | None, Answers | None], LiveModel] = getattr(model, _KEPT_ON_THE_MODEL)
    key = (_that_matters(model, given), scaling, answers)
    if key not in kept:
        if backend != _LEGACY and first_row is not None:
            _build(model, key[0], first_row)
        kept[key] = LiveModel(model, *key)
    else:
        kept[key].refresh()
    return kept[key]


def _that_matters(model: Any, given: Nesting | None) -> Nesting | None:
    """How the inputs were given. None where the model declares its inputs and none was given ragged."""
    is_declared = bool(getattr(model, "inputs", None))
    is_ragged = given is not None and any(leaf.kind == RAGGED for _, leaf in leaves(given))
    return given if not is_declared or is_ragged else None


def _build(model: Any, given: Nesting | None, first_row: FirstRow) -> None:
    """Make the weights of a model that has none yet, as `model.predict` does with its first batch."""
    if getattr(model, "inputs", None) or all(layer.built for layer in model._flatten_layers()):
        return
    row = first_row()
    try:
        packed = KerasCall(model, given=given).pack(row)
        with keras.StatelessScope():
            model(packed)
    except Exception as error:
        if keras.backend.backend() == "tensorflow":
            return  # tracing the step makes the weights, and its error is the better one
        raise ModelError(
            "the model has no weights yet, and cannot be built with the first row",
            received=one_line(error),
            hint="call it once yourself: model(x[:1])",
        ) from None


def _targets(backend: str) -> list[tuple[Device, Any]]:
    """Every device of the framework, as a `Device` and as the framework's own name or object."""
    if backend in ("tensorflow", _LEGACY):
        gpus = tf.config.list_logical_devices("GPU")
        logical_devices = gpus or tf.config.list_logical_devices("CPU")
        kind = "gpu" if gpus else "cpu"
        return [(Device(kind, i), f"/{kind.upper()}:{i}") for i in range(len(logical_devices))]
    if backend == "jax":
        local = jax.local_devices()
        kind = "cpu" if local[0].platform == "cpu" else "gpu"
        return [(Device(kind, i), device) for i, device in enumerate(local)]
    has_gpu = torch.cuda.is_available()
    return [(Device("gpu" if has_gpu else "cpu", 0), "cuda" if has_gpu else "cpu")]
