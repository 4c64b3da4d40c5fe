"""A `model_fn` as a model file, and how it is sent to replicas.

It is named in the shell (`penstock predict --estimator module:function --checkpoint DIR`), or comes from an Estimator.
The command-line flags of the user's script are sent with it.
"""

import hashlib
import importlib
import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cloudpickle

from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.estimator.installing import install
from penstock.estimator.model_function import HasModelFunction, ModelFunction
from penstock.models import digest
from penstock.models.formats import builder
from penstock.runtimes.tensorflow.restoring import checkpoint_files, find_checkpoint

RUNTIMES = ("tf_keras",)
_OF_THE_PROCESS = ("absl.", "tensorflow.")
"""Modules whose flags are about the process itself. They are not sent: each process has its own."""


def open_estimator(location: str, checkpoint: str | None = None, params: Mapping[str, Any] | None = None) -> ModelFile:
    """The model behind `module:function` and a checkpoint. Only replicas import the module, not this process.

    Args:
        location: A `model_fn`, or a function without arguments that returns an Estimator.
        checkpoint: Its `model_dir`, or one checkpoint; None where the Estimator has a `model_dir`.
        params: What the `model_fn` gets as `params`.

    Raises:
        ModelError: There is no such module or checkpoint.
    """
    module = builder.recognise(location)
    if module is None:
        raise ModelError(
            "this is not a function",
            received=f"--estimator {location}",
            allowed="module:function, a model_fn or a function that returns an Estimator",
        )
    prefix = None
    digests = [module.digest, json.dumps(params, sort_keys=True, default=repr)]
    if checkpoint is not None:
        prefix = find_checkpoint(checkpoint if "://" in checkpoint else os.path.abspath(checkpoint))
        if "://" not in prefix:
            digests.append(digest.of_files((os.path.basename(path), path) for path in checkpoint_files(prefix)))
    whole = hashlib.sha256("\0".join(digests).encode()).hexdigest()
    function = ModelFunction(location, params=dict(params or {}), checkpoint=prefix)
    return ModelFile("estimator", location, whole, RUNTIMES, payload=pack(function, prefix))


def file_of(estimator: HasModelFunction) -> ModelFile:
    """An Estimator as a model, with its newest checkpoint.

    Raises:
        ModelError: It has none.
    """
    function = estimator._as_model_function()
    prefix = find_checkpoint(str(function.model_dir))
    weights = digest.of_files((os.path.basename(path), path) for path in checkpoint_files(prefix))
    portable = replace(function, checkpoint=prefix, config=function.called.config.portable())
    # The digest is only that of the weights: the function is pickled by value, and pickles differ between processes.
    return ModelFile("estimator", function.name, weights, RUNTIMES, payload=pack(portable, prefix))


def pack(model: Any, checkpoint: str | None) -> bytes:
    """A model with a method `resolved`, packed for other processes. Unpacking gives a `Travelling`."""
    return _dumps(Travelling(checkpoint, _dumps(_copy_flags()), _dumps(model)))


@dataclass(frozen=True)
class Travelling:
    """A packed model.

    It is unpacked only when `tf.estimator` and the flags are in place: modules may need both when they are imported.
    """

    checkpoint: str | None
    flags: bytes
    model: bytes

    def resolved(self) -> Any:
        """Unpack the model and return its `resolved()`. Only processes of Penstock's own call this."""
        install()
        copies = cloudpickle.loads(self.flags)
        if copies is not None:
            _set_flags(copies)
        return cloudpickle.loads(self.model).resolved()


class FlagCopy(NamedTuple):
    """A flag of absl: the module that defines it or, if the script itself defines it, all that makes it again."""

    name: str
    module: str | None
    kind: type
    state: dict[str, Any]
    value: Any


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles the flags of absl and of `tf.compat.v1.flags` by reference: each process has its own ones."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind.__name__ in ("FlagValues", "_FlagValuesWrapper") and value is _flags_of(kind.__module__):
            return _flags_of, (kind.__module__,)
        return super().reducer_override(value)


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _flags_of(module: str) -> Any:
    """The flags of this process: `absl.flags.FLAGS`, or TensorFlow's wrapper around them."""
    return importlib.import_module("absl.flags" if module.startswith("absl.") else module).FLAGS


def _copy_flags() -> list[FlagCopy] | None:
    """Every flag of the script, and those of other modules that were set; None where flags are not used."""
    absl = sys.modules.get("absl.flags")
    if absl is None or not absl.FLAGS.is_parsed():
        return None
    copies: list[FlagCopy] = []
    for module, flags in absl.FLAGS.flags_by_module_dict().items():
        is_module = module in sys.modules and module != "__main__"
        if module.startswith(_OF_THE_PROCESS):
            continue
        for flag in flags:
            if is_module and flag.value == flag.default:
                continue
            state = {} if is_module else {**vars(flag), "validators": []}
            copies.append(FlagCopy(flag.name, module if is_module else None, type(flag), state, flag.value))
    return copies


def _set_flags(copies: list[FlagCopy]) -> None:
    from absl import flags

    # This comes before any import, so that modules which read the script's flags at import find them set and parsed.
    flags.FLAGS.mark_as_parsed()
    for copy in copies:
        if copy.module is None and copy.name not in flags.FLAGS:
            flag: Any = object.__new__(copy.kind)
            vars(flag).update(copy.state)
            flags.FLAGS[copy.name] = flag
    for copy in copies:
        if copy.module is not None and copy.name not in flags.FLAGS:
            importlib.import_module(copy.module)
        if copy.name in flags.FLAGS:
            flags.FLAGS[copy.name].value = copy.value
