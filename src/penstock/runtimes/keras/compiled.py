"""The loss and metrics that a saved model was compiled with."""

import json
import warnings
import zipfile
from typing import Any

from penstock.core.records import ModelFile
from penstock.errors import ModelError, one_line
from penstock.runtimes.frameworks import h5py, keras
from penstock.runtimes.keras.custom_objects import import_custom_objects, missing_object
from penstock.runtimes.keras.guarded_loading import guarded

_KEPT = ("loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly")
"""The arguments of `compile` that an evaluation needs. The optimizer is left out: its class may not be known here."""


def compile_as_saved(model: Any, file: ModelFile) -> None:
    """Compile a model with the loss and metrics of its file, if it was saved with any. Builders compile by themselves.

    Raises:
        ModelError: They cannot be made: one is of a class or function that is not known.
    """
    if file.kind not in ("keras", "h5") or model.compiled:
        return
    objects = import_custom_objects(file.custom_objects)
    saving = keras.src.saving.serialization_lib
    try:
        with guarded("keras", file), saving.SafeModeScope(not file.trust), keras.saving.CustomObjectScope(objects):
            arguments = _of_h5(file) if file.kind == "h5" else _of_keras(file)
    except ModelError:
        raise
    except Exception as error:
        name = missing_object(error)
        raise ModelError(
            "the loss or a metric that the model was compiled with cannot be made",
            received=f"{file.location}: {one_line(error).partition(' Full object config: ')[0]}",
            hint=f"--custom-objects MODULE, in which {name or 'it'} is defined; or --metrics and --loss by name",
        ) from error
    if arguments:
        with warnings.catch_warnings(action="ignore"):
            model.compile(**{name: value for name, value in arguments.items() if name in _KEPT})


def _of_keras(file: ModelFile) -> dict[str, Any]:
    with zipfile.ZipFile(file.location) as archive:
        saved = json.loads(archive.read("config.json")).get("compile_config") or {}
    wanted = {name: value for name, value in saved.items() if name in _KEPT}
    made: dict[str, Any] = keras.saving.deserialize_keras_object(wanted)
    return made


def _of_h5(file: ModelFile) -> dict[str, Any]:
    from keras.src.legacy.saving import saving_utils

    with h5py.File(file.location, "r") as opened:
        saved = opened.attrs.get("training_config")
    if saved is None:
        return {}
    config = json.loads(saved.decode() if isinstance(saved, bytes) else saved)
    config |= {"optimizer_config": {"class_name": "SGD", "config": {}}}
    made: dict[str, Any] = saving_utils.compile_args_from_training_config({"loss_weights": None, **config})
    return made
