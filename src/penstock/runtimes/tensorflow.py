"""TensorFlow: Keras models on the TensorFlow backend, and SavedModels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.core.records import STRING, Columns, Device, ModelFile, Signature, TensorSpec
from penstock.core.scaling import scaled_inputs
from penstock.errors import DeviceError, ModelError, one_line
from penstock.runtimes.keras_call import KerasCall, call_keras_model
from penstock.runtimes.lean_imports import lean_imports
from penstock.runtimes.memory_limit import out_of_memory
from penstock.runtimes.xla import xla_flags

Step = Callable[[dict[str, Any]], dict[str, Any]]


class TensorFlowRuntime:
    """A compiled `tf.function`: with XLA on a GPU (3.3 times faster there), without it on a CPU (where XLA can be
    7 times slower on depthwise convolutions)."""

    name = "tensorflow"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        visible = (device.uuid or str(device.index)) if device.kind == "gpu" else "-1"
        return {
            "KERAS_BACKEND": "tensorflow",
            "CUDA_VISIBLE_DEVICES": visible,
            "XLA_FLAGS": xla_flags(device, threads),
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "TF_NUM_INTRAOP_THREADS": str(threads),
            "TF_NUM_INTEROP_THREADS": str(threads),
            "OMP_NUM_THREADS": str(threads),
        }

    def load(self, model: ModelFile, device: Device, threads: int) -> TensorFlowReplica:
        with lean_imports(model, "tensorflow"):
            import keras  # noqa: F401 - TensorFlow imports it anyway, and here it does so leanly
            import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        if device.kind == "gpu" and not tf.config.list_physical_devices("GPU"):
            raise DeviceError(
                "this TensorFlow does not see the GPU",
                received=f"{device} {device.name}, tensorflow {tf.__version__}",
                hint="pip install 'tensorflow[and-cuda]', or --devices cpu, or --runtime jax",
            )
        if model.kind == "saved_model":
            signature, step = _load_saved_model(model)
            return TensorFlowReplica(signature, step, f"/{device.kind.upper()}:0")
        return wrap(call_keras_model(model), f"/{device.kind.upper()}:0")


def wrap(call: KerasCall, place: str) -> TensorFlowReplica:
    """A Keras model on the TensorFlow backend as a replica at `place`, a device such as `/GPU:0`."""
    import keras

    model = call.model
    has_own_step = type(model).predict_step is not keras.Model.predict_step

    def step(tensors: dict[str, Any]) -> dict[str, Any]:
        scaled = {name: call.scale(name, tensor, _to_float32) for name, tensor in tensors.items()}
        packed = call.pack(_cast(scaled, call.signature))
        outputs = model.predict_step((packed,)) if has_own_step else model(packed, **call.options)
        return call.name_outputs(outputs)

    return TensorFlowReplica(call.signature, step, place, call)


def _to_float32(tensor: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tensor, tf.float32)


def _cast(tensors: dict[str, Any], signature: Signature) -> dict[str, Any]:
    """Every tensor in the dtype that the model takes: this is where a uint8 pixel becomes a float."""
    import tensorflow as tf

    wanted = {spec.name: spec.dtype for spec in signature.inputs if spec.dtype != STRING}
    return {
        name: tf.cast(tensor, wanted[name]) if name in wanted and tensor.dtype.name != wanted[name] else tensor
        for name, tensor in tensors.items()
    }


class TensorFlowReplica:
    """A model on one device of this process."""

    def __init__(self, signature: Signature, step: Step, place: str, call: KerasCall | None = None) -> None:
        import tensorflow as tf

        self.signature = signature
        self.call = call
        self._tf = tf
        self._place = place
        self._plain = tf.function(step, autograph=False)
        is_gpu = place.startswith("/GPU")
        self._step = _compiled_for_gpu(step) if is_gpu else None
        self._to_device = _feeder(place)

    def predict(self, batch: Columns) -> Columns:
        tf = self._tf
        try:
            with tf.device(self._place):
                # Held until the outputs are on the host: memory that came by DLPack is reused by another stream as
                # soon as its tensor is dropped, while the kernels that read it may still be queued.
                tensors = {name: self._to_device(array) for name, array in batch.items()}
                outputs = self._run(tensors)
                return {name: _to_numpy(name, tensor) for name, tensor in outputs.items()}
        except tf.errors.ResourceExhaustedError as error:
            raise out_of_memory(batch, one_line(error)) from None

    def close(self) -> None:
        self._step = None

    def _run(self, tensors: dict[str, Any]) -> dict[str, Any]:
        step = self._step
        if step is not None:
            try:
                return dict(step(tensors))
            except (self._tf.errors.InvalidArgumentError, self._tf.errors.UnimplementedError) as error:
                # Strings and lookups have no XLA kernels. Anything else fails again below, with its own message.
                outputs = dict(self._plain(tensors))
                print(f"penstock: without XLA, because it rejects this model: {one_line(error)}", flush=True)
                self._step = None
                return outputs
        return dict(self._plain(tensors))


def _compiled_for_gpu(step: Step) -> Any:
    """The step under XLA, its outputs copied to the host inside the call.

    Waiting for the GPU in `tensor.numpy()` holds the GIL, and with it every other lane; waiting inside a function call
    does not.
    """
    import tensorflow as tf

    compiled = tf.function(step, jit_compile=True, autograph=False)

    def to_host(tensors: dict[str, Any]) -> dict[str, Any]:
        outputs = compiled(tensors)
        with tf.device("/CPU:0"):
            return {name: tf.identity(output) for name, output in outputs.items()}

    return tf.function(to_host, autograph=False)


def _feeder(place: str) -> Callable[[Any], Any]:
    import tensorflow as tf

    if place == "/GPU:0":
        from penstock.runtimes.cuda_feed import feeder_to_tensorflow

        return feeder_to_tensorflow()
    return tf.constant  # type: ignore[no-any-return]


def _to_numpy(name: str, tensor: Any) -> Any:
    if not hasattr(tensor, "numpy"):
        raise ModelError(
            "an output of the model is ragged or sparse",
            received=f"{name}: {type(tensor).__name__}",
            allowed="dense tensors with one row for each row of the input",
        )
    array = tensor.numpy()
    return array.astype(np.float32) if tensor.dtype.name == "bfloat16" else np.asarray(array)


def _load_saved_model(file: ModelFile) -> tuple[Signature, Step]:
    import tensorflow as tf

    try:
        loaded = tf.saved_model.load(file.location)
    except Exception as error:
        raise ModelError("the model does not load", received=f"{file.location}: {one_line(error)}") from error
    names = list(loaded.signatures)
    chosen = file.signature or ("serving_default" if "serving_default" in names else (names[0] if names else None))
    if chosen not in names or (file.signature is None and len(names) > 1 and "serving_default" not in names):
        raise ModelError(
            "the SavedModel has no such signature" if file.signature else "the SavedModel has several signatures",
            received=f"--signature {file.signature}" if file.signature else file.location,
            allowed=", ".join(names) or "none: it was saved without signatures",
            hint="choose one with --signature NAME" if names else None,
        )
    function = loaded.signatures[chosen]
    signature = _describe(function, str(chosen), tuple(names), loaded)
    scaling = file.scaling
    scaled_names = scaled_inputs(scaling, signature) if scaling is not None else ()

    def step(tensors: dict[str, Any]) -> dict[str, Any]:
        # The loaded object owns the variables: this closure keeps it alive.
        assert loaded is not None
        scaled = {
            name: file.scaling.apply(_to_float32(tensor))
            if file.scaling is not None and name in scaled_names
            else tensor
            for name, tensor in tensors.items()
        }
        return dict(function(**_cast(scaled, signature)))

    return signature, step


def _describe(function: Any, name: str, names: tuple[str, ...], loaded: Any) -> Signature:
    specs = function.structured_input_signature[1]
    inputs = tuple(_spec(key, spec) for key, spec in specs.items())
    outputs = tuple(_spec(key, spec) for key, spec in function.structured_outputs.items())
    batch = {spec.shape[0] for spec in specs.values() if spec.shape.rank} - {None}
    for spec in specs.values():
        if spec.shape.rank == 0:
            raise ModelError(
                "an input of this signature has no batch dimension",
                received=f"{name}: {spec.name} is a single value",
                allowed="inputs with rows first",
            )
    variables = getattr(loaded, "variables", None) or ()
    return Signature(
        inputs,
        outputs,
        structure="dict",
        fixed_batch=batch.pop() if len(batch) == 1 else None,
        name=name,
        others=tuple(other for other in names if other != name),
        parameters=sum(int(np.prod(variable.shape)) for variable in variables) or None,
        writer=f"TensorFlow {getattr(loaded, 'tensorflow_version', 'unknown')}",
    )


def _spec(name: str, spec: Any) -> TensorSpec:
    shape = None if spec.shape.rank is None else tuple(spec.shape.as_list()[1:])
    return TensorSpec(name, STRING if spec.dtype.name == "string" else spec.dtype.name, shape)
