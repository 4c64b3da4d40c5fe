"""tf_keras: the Keras 2 that is still maintained, for models that Keras 3 refuses."""

import importlib.util
import json
import zipfile
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.protocols import Replica
from penstock.core.records import Device, ModelFile
from penstock.errors import DeviceError, ModelError, RefusedByRuntime, one_line
from penstock.runtimes.environment import lean_imports
from penstock.runtimes.frameworks import tf, tf_keras
from penstock.runtimes.keras.call import KerasCall, digest_of_weights
from penstock.runtimes.keras.custom_objects import missing_object, not_found
from penstock.runtimes.keras.h5_files import backend_of_h5, config_of_h5
from penstock.runtimes.keras.loading import CONTAINS_CODE, load_with, path_with_suffix, writer_version
from penstock.runtimes.keras.precision import check_kind
from penstock.runtimes.keras.weights import turn_kernels
from penstock.runtimes.tensorflow.runtime import GPU_PROBE, TensorFlowRuntime, prepare_tensorflow, wrap


class TfKerasRuntime:
    """The TensorFlow runtime in processes where `tf.keras` is tf_keras."""

    name = "tf_keras"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return TensorFlowRuntime().environment(device, threads) | {"TF_USE_LEGACY_KERAS": "1"}

    def load(self, model: ModelFile, device: Device, threads: int) -> Replica:
        check_kind(model, self.name)
        if importlib.util.find_spec("tf_keras") is None:
            raise DeviceError("tf_keras is not installed", received=model.location, hint="pip install tf_keras")
        with lean_imports(model, "tensorflow"):
            import tensorflow  # noqa: F401
            import tf_keras  # noqa: F401 - imported here so that it, too, is imported leanly

        tf.get_logger().setLevel("ERROR")
        if model.kind == "estimator":
            from penstock.runtimes.tensorflow import session as graph_session

            # A session of TensorFlow 1 has its own settings, also for the share of memory.
            prepare_tensorflow(replace(device, memory_limit=0), threads)
            return graph_session.load(model, device, threads)
        prepare_tensorflow(device, threads)
        call = TfKerasCall(load_tf_keras_model(model), scaling=model.scaling)
        call.signature = replace(call.signature, notes=(f"{call.version} was used",))
        if model.kind == "builder":
            call.signature = replace(call.signature, weights=digest_of_weights(call.model))
        return wrap(call, f"/{device.kind.upper()}:0", model.answers)


class TfKerasCall(KerasCall):
    """How a model of tf_keras takes its inputs and names its outputs."""

    @property
    def version(self) -> str:
        return f"tf_keras {tf_keras.__version__}"

    @property
    def has_own_step(self) -> bool:
        return type(self.model).predict_step is not tf_keras.Model.predict_step

    @property
    def _tree(self) -> Any:
        return SimpleNamespace(
            flatten=tf.nest.flatten, pack_sequence_as=tf.nest.pack_sequence_as, flatten_with_path=_with_paths
        )

    @property
    def _written_by(self) -> str:
        return self.version

    def _structure(self, side: str) -> Any:
        return getattr(self.model, f"_nested_{side}s", None)

    @property
    def _has_composites(self) -> bool:
        return True

    def _kind_of(self, tensor: Any) -> str:
        kinds = {tf.RaggedTensorSpec: "ragged", tf.SparseTensorSpec: "sparse"}
        return kinds.get(type(tensor.type_spec), "dense")

    def _dtype(self, tensor: Any) -> str:
        return str(tensor.dtype.name)


def _with_paths(structure: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Every leaf with the keys that lead to it, in the order of `tf.nest`: dicts by their sorted keys."""
    if isinstance(structure, dict):
        inside = [(key, structure[key]) for key in sorted(structure)]
    elif isinstance(structure, (list, tuple)):
        inside = list(enumerate(structure))
    else:
        return [(path, structure)]
    return [leaf for key, value in inside for leaf in _with_paths(value, (*path, key))]


def load_tf_keras_model(file: ModelFile) -> Any:
    """Load a file that Keras 2 wrote, or call a builder.

    Raises:
        ModelError: It does not load; the framework's reason is given in one line.
        RefusedByRuntime: It is of Keras 1 or 3.
    """
    version = writer_version(file) if file.kind in ("h5", "keras") else ""
    if version.startswith(("1", "3")):
        raise RefusedByRuntime(
            "tf_keras does not load this model",
            received=f"tf_keras {tf_keras.__version__} reads models of Keras 2, and Keras {version} wrote this one",
            hint="--runtime tensorflow",
        )
    return load_with("tf_keras", file, _read, _not_loaded, _not_a_model)


def _read(file: ModelFile, objects: dict[str, Any]) -> Any:
    if file.kind == "h5":
        with path_with_suffix(file.location, ".h5") as path:
            model = tf_keras.models.model_from_config(_as_it_was_meant(config_of_h5(file.location)), objects)
            model.load_weights(path)
        if backend_of_h5(file.location) == "theano":
            turn_kernels(model)
        return model
    suffix = ".keras" if file.kind == "keras" else ""
    with path_with_suffix(file.location, suffix) as path:
        return tf_keras.models.load_model(path, custom_objects=objects, compile=False, safe_mode=not file.trust)


def _as_it_was_meant(config: Any) -> Any:
    """A description with the defaults of the time when it was written, and with layers that run on any device."""
    if isinstance(config, list):
        return [_as_it_was_meant(value) for value in config]
    if not isinstance(config, dict):
        return config
    kind, settings = config.get("class_name"), config.get("config")
    if kind == "GRU" and isinstance(settings, dict):
        config = config | {"config": {"reset_after": False} | settings}
    elif kind in ("CuDNNGRU", "CuDNNLSTM") and isinstance(settings, dict):
        # These layers run on a GPU only. The layers that replaced them read the same weights and run anywhere.
        gates = {"recurrent_activation": "sigmoid"} | ({"reset_after": True} if kind == "CuDNNGRU" else {})
        config = config | {"class_name": str(kind).removeprefix("CuDNN"), "config": gates | settings}
    return {key: _as_it_was_meant(value) for key, value in config.items()}


def _not_loaded(file: ModelFile, error: BaseException) -> ModelError:
    missing = missing_object(error)
    if missing is not None:
        return not_found(file.location, missing, file.custom_objects)
    text = str(error)
    needs_trust = "safe_mode" in text or "unsafe" in text.lower()
    is_damaged = isinstance(error, (OSError, EOFError, zipfile.BadZipFile, json.JSONDecodeError))
    return ModelError(
        "the model file is damaged" if is_damaged else "the model does not load",
        received=f"{file.location}: tf_keras {tf_keras.__version__}: {one_line(error)}",
        hint=CONTAINS_CODE if needs_trust else None,
    )


def _not_a_model(file: ModelFile, made: Any) -> ModelError:
    return ModelError(
        "the function did not return a model of tf_keras",
        received=f"{file.location} returned {type(made).__module__}.{type(made).__qualname__}",
        allowed=f"tf.keras.Model of tf_keras {tf_keras.__version__}",
        hint="build it with tf.keras, which is tf_keras on this runtime; or --runtime tensorflow",
    )


RUNTIME = RuntimeEntry(
    TfKerasRuntime,
    Package(("tf_keras",), ("tf_keras",), "pip install 'penstock[legacy]'"),
    gpu_probe=GPU_PROBE,
    loader="tf_keras",
    writes_steps=True,
)
