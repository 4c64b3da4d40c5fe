"""The one place that names the concrete sources, sinks, models and runtimes. A new one is a file and a line here."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.packages import PACKAGES
from penstock.core.protocols import Runtime, Sink, Source
from penstock.core.records import ModelFile
from penstock.errors import DeviceError, InputError, ModelError, RefusedByRuntime
from penstock.models.facts import FileFacts
from penstock.models.formats import builder, frozen_graph, jax_export, saved_model, stablehlo
from penstock.models.formats import h5 as h5_file
from penstock.models.formats import keras as keras_file
from penstock.models.formats import onnx as onnx_file
from penstock.models.formats import tflite as tflite_file
from penstock.options.records import ReadOptions
from penstock.runtimes.jax.runtime import JaxRuntime
from penstock.runtimes.jax.stablehlo import StableHloRuntime
from penstock.runtimes.keras.tf_keras import TfKerasRuntime
from penstock.runtimes.onnx.runtime import OnnxRuntime
from penstock.runtimes.openvino.runtime import OpenVinoRuntime
from penstock.runtimes.tensorflow.runtime import TensorFlowRuntime
from penstock.runtimes.tflite.runtime import TfliteRuntime
from penstock.runtimes.torch import TorchRuntime
from penstock.sinks.csv import CsvSink
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.npy import NpySink
from penstock.sinks.parquet import ParquetSink
from penstock.sources.audio.files import AudioFiles
from penstock.sources.files.listing import NUMBERED
from penstock.sources.files.paths import Paths, expand, is_url
from penstock.sources.images.columns import ImageColumns
from penstock.sources.images.files import ImageFiles
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.jsonl import JsonLines
from penstock.sources.tables.npy import ArrayFiles
from penstock.sources.tables.parquet import ParquetFiles
from penstock.sources.tables.text import TextLines
from penstock.sources.tar.files import TarFiles
from penstock.sources.tfrecord.files import TFRecordFiles, looks_like_tfrecord

Loaded = TypeVar("Loaded")

SOURCES: tuple[Any, ...] = (
    ParquetFiles,
    ArrayFiles,
    CsvFiles,
    JsonLines,
    TFRecordFiles,
    ImageFiles,
    TarFiles,
    AudioFiles,
    TextLines,
)
_ROW_PER_FILE = (ImageFiles, AudioFiles)
"""A file that cannot be read is a failed row here, not the end of the job."""
FEW_FILES, FEW_SHARE = 3, 10
MODELS: tuple[Any, ...] = (
    keras_file,
    h5_file,
    saved_model,
    frozen_graph,
    onnx_file,
    tflite_file,
    stablehlo,
    jax_export,
    builder,
)
RUNTIMES: dict[str, Runtime] = {
    "tensorflow": TensorFlowRuntime(),
    "tensorflow-xla": TensorFlowRuntime(is_xla=True),
    "jax": JaxRuntime(),
    "torch": TorchRuntime(),
    "torch-compiled": TorchRuntime(is_compiled=True),
    "tf_keras": TfKerasRuntime(),
    "onnx": OnnxRuntime(),
    "onnx-tensorrt": OnnxRuntime(provider="tensorrt"),
    "openvino": OpenVinoRuntime(),
    "tflite": TfliteRuntime(),
    "stablehlo": StableHloRuntime(),
}
SINKS: dict[str, Sink] = {"parquet": ParquetSink(), "npy": NpySink(), "jsonl": JsonLinesSink(), "csv": CsvSink()}


def known_suffixes() -> list[str]:
    return [suffix for source in SOURCES for suffix in source.suffixes]


def open_files(arguments: Sequence[str], reading: ReadOptions | None = None) -> Source:
    """The source behind files, folders, globs and URLs, which must all be of one format.

    Args:
        arguments: Paths or URLs.
        reading: What files do not say themselves; sources take of it what concerns them.

    Raises:
        InputError: Nothing matches, the format is unknown, or there are several.
    """
    reading = reading or ReadOptions()
    # A folder may hold a README.txt beside its data: text is taken only where there is nothing else.
    suffixes = [suffix for suffix in known_suffixes() if suffix not in TextLines.suffixes]
    paths, left_out = _without_few_others(expand(arguments, suffixes, (*TextLines.suffixes, NUMBERED)))
    kind = _format_of(paths)
    if kind not in _ROW_PER_FILE:
        _check_access(paths)
    if left_out:
        source: Source = ImageFiles(paths, reading, left_out)
    else:
        takes_reading = "reading" in inspect.signature(kind).parameters
        source = kind(paths, reading=reading) if takes_reading else kind(paths)
    return ImageColumns(source, reading.images, reading) if reading.images else source


def _without_few_others(paths: Paths) -> tuple[Paths, list[str]]:
    """Photos of folders without the few files of another kind that lie beside them, such as a table of labels.

    They are few where they are three at most, or one for ten photos, and fewer than the photos.
    """
    if paths.examples().keys().isdisjoint(ImageFiles.suffixes):
        return paths, []
    photos, others = paths.split(ImageFiles.suffixes)
    is_few = len(others) <= max(FEW_FILES, len(photos) // FEW_SHARE) and len(others) < len(photos)
    return (photos, others) if is_few else (paths, [])


def _format_of(paths: Paths) -> Any:
    kinds: dict[Any, str] = {}
    for suffix, path in paths.examples().items():
        kind = next((source for source in SOURCES if suffix in source.suffixes), None)
        if kind is None and looks_like_tfrecord(path):
            kind = TFRecordFiles  # often named without a suffix
        if kind is None:
            raise InputError("unknown format", received=path, allowed=", ".join(known_suffixes()))
        kinds.setdefault(kind, path)
    if len(kinds) > 1:
        raise InputError(
            "the input mixes formats",
            received=", ".join(kinds.values()),
            hint="give the files of one format only, for example with a glob: 'folder/*.parquet'",
        )
    return next(iter(kinds))


def _check_access(paths: Paths) -> None:
    for path in paths:
        if not is_url(path) and not os.access(path, os.R_OK):
            raise InputError("the file cannot be read", received=f"{path}: permission denied")


def open_model(
    location: str, *, signature: str | None = None, trust: bool = False, own: tuple[str, ...] = ()
) -> ModelFile:
    """The model behind a path or `module:function`. `own` are modules of its classes, which the user named.

    Raises:
        ModelError: It is none of the kinds that are known, damaged, or needs trust.
    """
    file = find_model(location, signature=signature, trust=trust, own=own)
    if file is not None:
        return file
    allowed = (
        "a file (.keras, .h5, .onnx, .tflite, .pb, .jax, .mlir), a SavedModel folder, or module:function that builds a "
        "Keras model"
    )
    if not os.path.exists(location):
        raise ModelError("no such model", received=location, allowed=allowed)
    is_checkpoint = os.path.isfile(os.path.join(location, "checkpoint"))
    raise ModelError(
        "this is not a model that penstock knows",
        received=location,
        allowed=allowed,
        hint=f"of an Estimator's checkpoint: --estimator module:function --checkpoint {location}"
        if is_checkpoint
        else None,
    )


def find_model(
    location: str, *, signature: str | None = None, trust: bool = False, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """As `open_model`, but None for what is not a model at all."""
    for kind in MODELS:
        file: ModelFile | None = kind.recognise(location, signature=signature, trust=trust, own=own)
        if file is not None:
            return file
    return None


def is_installed(runtime: str) -> bool:
    """Whether a runtime can be used, found out without importing its framework."""
    return PACKAGES[runtime].is_installed


def choose_runtime(model: ModelFile, wanted: str | None) -> str:
    """The runtime to use: the one asked for, or the first that is installed and executes this kind of model.

    Raises:
        DeviceError: The framework is not installed.
        ModelError: The runtime asked for does not execute this kind of model.
    """
    if wanted is not None and not executes(model, wanted):
        raise ModelError(
            f"the {wanted} runtime does not execute this kind of model",
            received=f"{model.kind} at {model.location}",
            allowed=", ".join(model.runtimes),
        )
    candidates = (wanted,) if wanted is not None else _preferred(model)
    for name in candidates:
        if is_installed(name):
            return name
    names = " or ".join(candidates)
    raise DeviceError(
        f"{names} is not installed",
        received=f"a model of kind {model.kind}",
        hint=PACKAGES[candidates[0]].install,
    )


VARIANTS = {"tensorflow-xla": "tensorflow", "torch-compiled": "torch", "onnx-tensorrt": "onnx", "openvino": "onnx"}
"""Runtimes that execute whatever another one does, each in its own way."""


COMPILE_EACH_SIZE = ("tensorflow-xla", "jax", "torch-compiled", "onnx-tensorrt", "openvino", "stablehlo")
"""Runtimes that compile anew for each shape of batches: rows of many sizes that are not padded keep them busy."""


def executes(model: ModelFile, runtime: str) -> bool:
    """Whether a runtime reads this kind of model."""
    return runtime in model.runtimes or VARIANTS.get(runtime) in model.runtimes


def _preferred(model: ModelFile) -> tuple[str, ...]:
    """The runtimes of a model, best first. The code of a builder means by `tf.keras` what it means in this process."""
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if model.kind == "builder" and is_legacy and "tf_keras" in model.runtimes:
        return ("tf_keras", *(name for name in model.runtimes if name != "tf_keras"))
    return model.runtimes


_KERAS_3 = ("tensorflow", "jax", "torch")
"""Runtimes that load a Keras model with the same Keras: where one refuses, all do."""


def after_refusal(model: ModelFile, refused: str) -> str | None:
    """The runtime that may load what another one refused; None where there is none."""
    others = [name for name in model.runtimes if name != refused and not (refused in _KERAS_3 and name in _KERAS_3)]
    return next((name for name in others if is_installed(name)), None)


def on_the_first_that_loads(
    model: ModelFile, wanted: str | None, load: Callable[[str], Loaded]
) -> tuple[Loaded, str | None]:
    """What `load` makes of a runtime: the one that was asked for, or the first that does not refuse the model.

    Keras 3 reads most files of Keras 2, and tf_keras the others: only trying tells. The second value says, for people,
    why it is not the first choice.
    """
    first = choose_runtime(model, wanted)
    try:
        return load(first), None
    except RefusedByRuntime as refusal:
        other = after_refusal(model, first) if wanted is None else None
        if other is None:
            raise
        told = refusal
    try:
        return load(other), f"{other} is used, because {first} refuses the model: {told.received}"
    except RefusedByRuntime as second:
        # What the first choice says comes first: the other was only a last resort.
        reasons = f"{told.received}; {second.received}"
        raise ModelError(told.problem, received=reasons, allowed=told.allowed, hint=told.hint) from None


def like(model: ModelFile, used: str) -> list[str]:
    """The runtimes that load what `used` did: Keras 3 runs on several frameworks, and tf_keras is another Keras."""
    return [name for name in model.runtimes if name == used or (name in _KERAS_3 and used in _KERAS_3)]


def own_runtime(model: ModelFile, used: str) -> str:
    """The runtime that counts as the model's own: what others are compared with.

    Keras models count as TensorFlow's, where they were most likely trained, unless only tf_keras reads them.
    """
    if used in _KERAS_3 and is_installed("tensorflow"):
        return "tensorflow" if "tensorflow" in model.runtimes else used
    # A runtime that the model does not name reads what was converted from it, or compiles what another one loads.
    return used if used in model.runtimes else own_runtime(model, choose_runtime(model, None))


def facts_of(model: ModelFile) -> FileFacts:
    """What a model's file says about itself, without running it."""
    for kind in MODELS:
        if model.kind in kind.KINDS:
            facts: FileFacts = kind.facts(model)
            return facts
    return FileFacts(None, 0)
