"""Keras models on the JAX backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.answering import Answers, keep
from penstock.core.records import Columns, Device, ModelFile
from penstock.errors import DeviceError, one_line
from penstock.runtimes.keras_call import KerasCall, call_keras_model
from penstock.runtimes.lean_imports import lean_imports
from penstock.runtimes.memory_limit import out_of_memory
from penstock.runtimes.xla import xla_flags


def xla_environment(device: Device, threads: int) -> dict[str, str]:
    """The variables that pin a process in which JAX runs."""
    is_gpu = device.kind == "gpu"
    return {
        "CUDA_VISIBLE_DEVICES": (device.uuid or str(device.index)) if is_gpu else "-1",
        "JAX_PLATFORMS": "cuda,cpu" if is_gpu else "cpu",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_FLAGS": xla_flags(device, threads),
        # The CPU client of JAX takes the size of its thread pool from this.
        "NPROC": str(threads),
        "OMP_NUM_THREADS": str(threads),
    }


class JaxRuntime:
    """The model as one jitted function of its weights and a batch."""

    name = "jax"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return {"KERAS_BACKEND": "jax"} | xla_environment(device, threads)

    def load(self, model: ModelFile, device: Device, threads: int) -> JaxReplica:
        with lean_imports(model, "jax", "scipy"):
            import jax
            import keras  # noqa: F401 - imported here so that it, too, is imported leanly

        try:
            target = jax.devices("cuda" if device.kind == "gpu" else "cpu")[0]
        except RuntimeError as error:
            raise DeviceError(
                "this JAX does not see the GPU",
                received=f"{device} {device.name}, jax {jax.__version__}: {one_line(error)}",
                hint="pip install 'jax[cuda12]', or --devices cpu",
            ) from None
        return JaxReplica(call_keras_model(model), target, model.answers)


class JaxReplica:
    """A model on one JAX device of this process."""

    def __init__(self, call: KerasCall, target: Any, answers: Answers | None = None) -> None:
        import jax

        self._answers = answers
        self.signature = call.signature
        self.call = call
        self._jax = jax
        self._target = target
        self._weights: Any = None
        self._step = jax.jit(self._trace)
        self.refresh()

    def refresh(self) -> None:
        """Take the model's weights as they are now."""
        model = self.call.model
        weights = ([v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables])
        self._weights = self._jax.device_put(weights, self._target)

    def predict(self, batch: Columns) -> Columns:
        try:
            tensors = {name: self._jax.device_put(array, self._target) for name, array in batch.items()}
            outputs = self._step(self._weights, tensors)
            return {name: to_numpy(array) for name, array in outputs.items()}
        except self._jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise out_of_memory(batch, one_line(error)) from None

    def close(self) -> None:
        self._weights = None

    def _trace(self, weights: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        wanted = {spec.name: spec.dtype for spec in self.signature.inputs}
        scaled = {name: self.call.scale(name, tensor, _to_float32) for name, tensor in tensors.items()}
        cast = {
            name: tensor.astype(wanted[name]) if name in wanted and tensor.dtype != wanted[name] else tensor
            for name, tensor in scaled.items()
        }
        outputs, _ = self.call.model.stateless_call(*weights, self.call.pack(cast), **self.call.options)
        return keep(self._answers, self.call.name_outputs(outputs), JaxRanking())


class JaxRanking:
    """Ranks while a step is traced. Of equal values, JAX gives the first one first."""

    def top_k(self, tensor: Any, k: int) -> tuple[Any, Any]:
        import jax

        values, places = jax.lax.top_k(tensor, k)
        return values, places.astype("int32")

    def argmax(self, tensor: Any) -> Any:
        return self.top_k(tensor, 1)[1][..., 0]


def _to_float32(tensor: Any) -> Any:
    return tensor.astype("float32")


def to_numpy(array: Any) -> Any:
    """An array on the host; numpy has no bfloat16 of its own."""
    return np.asarray(array, dtype=np.float32) if array.dtype == "bfloat16" else np.asarray(array)
