"""Keras models that live in this process: wrapped where they are, and copied to the framework's other devices."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from penstock.core.records import Device
from penstock.core.scaling import Scaling
from penstock.errors import ModelError
from penstock.runtimes import jax as jax_runtime
from penstock.runtimes import tensorflow as tensorflow_runtime
from penstock.runtimes import torch as torch_runtime
from penstock.runtimes.keras_call import KerasCall

_KEPT_ON_THE_MODEL = "_penstock_live"


class LiveModel:
    """A live model on every device of its framework, compiled once and kept as long as the model lives."""

    def __init__(self, model: Any, as_list: bool, scaling: Scaling | None) -> None:
        import keras

        self.backend: str = keras.backend.backend()
        self._model = weakref.ref(model)
        self._copies: list[Any] = []
        places = _places(self.backend)
        self.devices = [device for device, _ in places]
        wrap: Callable[..., Any] = _WRAPPERS[self.backend]
        self.replicas: list[Any] = [wrap(KerasCall(model, as_list=as_list, scaling=scaling), places[0][1])]
        for _, place in places[1:]:
            copy = self._copy(model, place)
            if copy is None:
                self.devices = self.devices[:1]
                break
            call = KerasCall(copy, as_list=as_list, scaling=scaling)
            call.signature = self.replicas[0].signature  # a copy may name its inputs anew
            self.replicas.append(wrap(call, place))

    def refresh(self) -> None:
        """Bring every copy to the weights that the model has now."""
        model = self._model()
        for copy in self._copies:
            copy.set_weights(model.get_weights())  # type: ignore[union-attr]
        for replica in self.replicas:
            if hasattr(replica, "refresh"):
                replica.refresh()

    def _copy(self, model: Any, place: Any) -> Any:
        """What another device runs: JAX moves the weights itself, TensorFlow needs variables of its own there."""
        if self.backend != "tensorflow":
            return model
        import keras
        import tensorflow as tf

        try:
            with tf.device(place):
                copy = keras.models.clone_model(model)
                copy.set_weights(model.get_weights())
        except (ValueError, NotImplementedError, TypeError):
            return None  # a subclass without a config cannot be cloned: one device it is
        self._copies.append(copy)
        return copy


_WRAPPERS: dict[str, Callable[..., Any]] = {
    "tensorflow": tensorflow_runtime.wrap,
    "jax": jax_runtime.JaxReplica,
    "torch": torch_runtime.TorchReplica,
}


def is_live_keras_model(model: Any) -> bool:
    """Whether this is a Keras model. Keras is imported already if it is."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def wrap_live(model: Any, *, as_list: bool, scaling: Scaling | None = None) -> LiveModel:
    """The replicas of a live model; made at the first call and kept.

    Raises:
        ModelError: Its backend cannot be used here.
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow" and type(model).predict_step is not keras.Model.predict_step:
        raise ModelError(
            "a predict_step of its own is supported on TensorFlow only",
            received=f"{type(model).__name__} on {backend}",
            hint="call model.predict, or move that step into the model's call",
        )
    if backend not in _WRAPPERS:
        raise ModelError(
            "penstock does not run models on this Keras backend",
            received=f"keras.backend.backend() = {backend!r}",
            allowed=", ".join(_WRAPPERS),
            hint="set KERAS_BACKEND before Keras is imported",
        )
    # On the model itself, past Keras's tracking: a table of ours would keep every model alive for ever.
    if not hasattr(model, _KEPT_ON_THE_MODEL):
        object.__setattr__(model, _KEPT_ON_THE_MODEL, {})
    kept: dict[tuple[bool, Scaling | None], LiveModel] = getattr(model, _KEPT_ON_THE_MODEL)
    key = (as_list, scaling)
    if key not in kept:
        kept[key] = LiveModel(model, as_list, scaling)
    else:
        kept[key].refresh()
    return kept[key]


def _places(backend: str) -> list[tuple[Device, Any]]:
    """Every device that the framework has, as we name it and as it does."""
    if backend == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_logical_devices("GPU")
        found = gpus or tf.config.list_logical_devices("CPU")
        kind = "gpu" if gpus else "cpu"
        return [(Device(kind, i), f"/{kind.upper()}:{i}") for i in range(len(found))]
    if backend == "jax":
        import jax

        local = jax.local_devices()
        kind = "cpu" if local[0].platform == "cpu" else "gpu"
        return [(Device(kind, i), device) for i, device in enumerate(local)]
    import torch

    has_gpu = torch.cuda.is_available()
    return [(Device("gpu" if has_gpu else "cpu", 0), "cuda" if has_gpu else "cpu")]
