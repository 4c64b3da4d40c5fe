"""Loads a model of Keras 3 from a file, which any version of Keras wrote, or from a function."""

import importlib
import json
import os
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cloudpickle

from penstock.core.records import ModelFile
from penstock.errors import ModelError, PenstockError, RefusedByRuntime, one_line
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.custom_objects import import_custom_objects, missing_object, not_found
from penstock.runtimes.keras.drawn_weights import not_drawn
from penstock.runtimes.keras.guarded_loading import guarded
from penstock.runtimes.keras.h5_files import backend_of_h5, build_optimizer, config_of_h5, version_of_h5
from penstock.runtimes.keras.keras1.model import load_keras1
from penstock.runtimes.keras.weights import load_weights, turn_kernels

_LEFT_IN_KERAS_2 = frozenset(
    {
        "AddLoss",
        "AddMetric",
        "BatchNormalizationV1",
        "BatchNormalizationV2",
        "ClassMethod",
        "CuDNNGRU",
        "CuDNNLSTM",
        "DenseFeatures",
        "InstanceMethod",
        "InstanceProperty",
        "LinearModel",
        "LocallyConnected1D",
        "LocallyConnected2D",
        "RandomFourierFeatures",
        "SequenceFeatures",
        "SlicingOpLambda",
        "SyncBatchNormalization",
        "TFOpLambda",
        "TensorFlowOpLayer",
        "ThresholdedReLU",
        "WideDeepModel",
    }
)
"""Classes of Keras 2 that Keras 3 does not have, and tf_keras does."""
_IS_OF_KERAS_2 = re.compile(r"Full object config: \{'module': '(?:tf_)?keras\.")

CONTAINS_CODE = "it contains code (a Lambda layer); if you trust where it came from: --trust-model"


def load_keras_model(file: ModelFile, *, is_compiled: bool = False) -> Any:
    """Load a `.keras` or `.h5` file with Keras 3, or call a builder. The backend was chosen in the environment.

    With `is_compiled`, the model has the loss, metrics and optimizer that it was saved with, for training.

    Raises:
        ModelError: It does not load; the framework's reason is given in one line.
        RefusedByRuntime: Keras 3 does not load it, but tf_keras may.
    """
    return load_with("keras", file, partial(_read, is_compiled=is_compiled), _not_loaded, _not_a_model)


def load_with(
    library: str,
    file: ModelFile,
    read: Callable[[ModelFile, dict[str, Any]], Any],
    not_loaded: Callable[[ModelFile, BaseException], ModelError],
    not_a_model: Callable[[ModelFile, Any], ModelError],
) -> Any:
    """Load a model with Keras 3 (`keras`) or with `tf_keras`.

    Args:
        library: The package.
        file: What to load.
        read: Reads a file, guarded, with the custom objects.
        not_loaded: The error for a file that does not load, or a builder that fails.
        not_a_model: The error for a builder that returns something else.
    """
    objects = import_custom_objects(file.custom_objects)
    try:
        if file.kind == "builder":
            model = call_builder(file)
        else:
            saving = importlib.import_module(f"{library}.src.saving.serialization_lib")
            # Where they read HDF5, neither library passes the safe mode on everywhere: this scope always holds.
            with guarded(library, file), saving.SafeModeScope(not file.trust):
                model = read(file, objects)
    except PenstockError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # any error of a builder is the model's
        raise not_loaded(file, error) from error
    if not isinstance(model, importlib.import_module(library).Model):
        raise not_a_model(file, model)
    if file.weights is not None:
        load_weights(model, file.weights)
    return model


def _read(file: ModelFile, objects: dict[str, Any], *, is_compiled: bool = False) -> Any:
    version = writer_version(file)
    if version.startswith("1"):
        return load_keras1(file.location, objects)
    _refuse_what_changed(file, version)
    suffix = ".h5" if file.kind == "h5" else ".keras"
    with path_with_suffix(file.location, suffix) as path, warnings.catch_warnings(action="ignore"), not_drawn():
        model = keras.saving.load_model(path, custom_objects=objects, compile=is_compiled, safe_mode=not file.trust)
    if file.kind == "h5" and backend_of_h5(file.location) == "theano":
        turn_kernels(model)
    if file.kind == "h5" and is_compiled:
        build_optimizer(model, file.location)
    return model


def call_builder(file: ModelFile) -> Any:
    if file.payload is not None:
        return cloudpickle.loads(file.payload)()
    module, _, function = file.location.partition(":")
    return getattr(importlib.import_module(module), function)()


def writer_version(file: ModelFile) -> str:
    """The version of Keras that wrote a file; empty where it does not say."""
    if file.kind == "h5":
        return version_of_h5(file.location)
    try:
        with zipfile.ZipFile(file.location) as archive:
            return str(json.loads(archive.read("metadata.json")).get("keras_version", ""))
    except (KeyError, ValueError):
        return ""


def described(file: ModelFile) -> str:
    """The description in a file, as JSON."""
    if file.kind == "h5":
        return json.dumps(config_of_h5(file.location))
    with zipfile.ZipFile(file.location) as archive:
        return archive.read("config.json").decode("utf-8", "replace")


def _refuse_what_changed(file: ModelFile, version: str) -> None:
    """Refuse a model that Keras 3 would load without a warning and then compute differently from Keras 2."""
    if version.startswith("2") and '"hard_sigmoid"' in described(file):
        raise RefusedByRuntime(
            "Keras 3 would give other answers",
            received=f"Keras {keras.__version__} computes hard_sigmoid otherwise than Keras {version} did",
            hint="--runtime tf_keras",
        )


@contextmanager
def path_with_suffix(path: str, suffix: str) -> Iterator[str]:
    """The file under a name with the suffix that Keras requires. Keras 2 wrote HDF5 under any name."""
    if path.endswith(suffix) or (suffix == ".h5" and path.endswith(".hdf5")):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        link = os.path.join(folder, "model" + suffix)
        os.symlink(os.path.abspath(path), link)
        yield link


def _not_loaded(file: ModelFile, error: BaseException) -> ModelError:
    text = str(error)
    reason = one_line(error).partition(" Full object config: ")[0]
    if "safe_mode" in text or "unsafe" in text.lower():
        return ModelError("the model does not load", received=f"{file.location}: {reason}", hint=CONTAINS_CODE)
    missing = missing_object(error)
    if missing is not None:
        if missing not in _LEFT_IN_KERAS_2 and not _IS_OF_KERAS_2.search(text):
            return not_found(file.location, missing, file.custom_objects)
        reason = f"it has no {missing} as Keras 2 had it"
    is_damaged = isinstance(error, (OSError, EOFError, zipfile.BadZipFile))
    # An error in a builder is the user's own, unless it is about something that Keras 3 removed.
    is_own = file.kind == "builder" and missing is None and "keras 3" not in text.lower()
    if is_damaged or is_own:
        return ModelError("the model does not load", received=f"{file.location}: {reason}")
    return RefusedByRuntime("the model does not load", received=f"Keras {keras.__version__}: {reason}")


def _not_a_model(file: ModelFile, made: Any) -> ModelError:
    kind = f"{type(made).__module__}.{type(made).__qualname__}"
    allowed = f"keras.Model of Keras {keras.__version__}"
    if any(base.__module__.startswith("tf_keras.") for base in type(made).__mro__):
        return RefusedByRuntime(
            "the function returned a model of tf_keras",
            received=f"{file.location} returns a model of tf_keras",
            allowed=allowed,
            hint="--runtime tf_keras",
        )
    return ModelError(
        "the function did not return a Keras model", received=f"{file.location} returned {kind}", allowed=allowed
    )
