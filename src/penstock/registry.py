"""The one place that names the concrete sources, sinks, models and runtimes. A new one is a file and a line here."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Sequence
from typing import Any

from penstock.core.protocols import Runtime, Sink, Source
from penstock.core.records import ModelFile
from penstock.errors import DeviceError, InputError, ModelError
from penstock.models import builder, keras_file, saved_model
from penstock.options import ReadOptions
from penstock.runtimes.jax import JaxRuntime
from penstock.runtimes.tensorflow import TensorFlowRuntime
from penstock.runtimes.torch import TorchRuntime
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.npy import NpySink
from penstock.sinks.parquet import ParquetSink
from penstock.sources.audio import AudioFiles
from penstock.sources.csv import CsvFiles
from penstock.sources.files import Paths, expand, is_url
from penstock.sources.image_columns import ImageColumns
from penstock.sources.image_files import ImageFiles
from penstock.sources.jsonl import JsonLines
from penstock.sources.listing import NUMBERED
from penstock.sources.npy import ArrayFiles
from penstock.sources.parquet import ParquetFiles
from penstock.sources.tar import TarFiles
from penstock.sources.text import TextLines
from penstock.sources.tfrecord import TFRecordFiles, looks_like_tfrecord

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
MODELS: tuple[Any, ...] = (keras_file, saved_model, builder)
RUNTIMES: dict[str, Runtime] = {"tensorflow": TensorFlowRuntime(), "jax": JaxRuntime(), "torch": TorchRuntime()}
SINKS: dict[str, Sink] = {"parquet": ParquetSink(), "npy": NpySink(), "jsonl": JsonLinesSink()}

_INSTALL = {
    "tensorflow": "pip install 'penstock[tensorflow]'",
    "jax": "pip install 'penstock[jax]'",
    "torch": "pip install 'penstock[torch]'",
}


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
    paths = expand(arguments, suffixes, (*TextLines.suffixes, NUMBERED))
    kind = _format_of(paths)
    if kind not in _ROW_PER_FILE:
        _check_access(paths)
    takes_reading = "reading" in inspect.signature(kind).parameters
    source: Source = kind(paths, reading=reading) if takes_reading else kind(paths)
    return ImageColumns(source, reading.images, reading) if reading.images else source


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


def open_model(location: str, *, signature: str | None = None, trust: bool = False) -> ModelFile:
    """The model behind a path or `module:function`.

    Raises:
        ModelError: It is none of the kinds that are known.
    """
    file = find_model(location, signature=signature, trust=trust)
    if file is not None:
        return file
    allowed = "a .keras file, a SavedModel folder, or module:function that builds a Keras model"
    if not os.path.exists(location):
        raise ModelError("no such model", received=location, allowed=allowed)
    raise ModelError("this is not a model that penstock knows", received=location, allowed=allowed)


def find_model(location: str, *, signature: str | None = None, trust: bool = False) -> ModelFile | None:
    """As `open_model`, but None for what is not a model at all."""
    for kind in MODELS:
        file: ModelFile | None = kind.recognise(location, signature=signature, trust=trust)
        if file is not None:
            return file
    return None


def is_installed(runtime: str) -> bool:
    """Whether a framework can be imported, found out without importing it."""
    return importlib.util.find_spec(runtime) is not None


def choose_runtime(model: ModelFile, wanted: str | None) -> str:
    """The runtime to use: the one asked for, or the first that is installed and executes this kind of model.

    Raises:
        DeviceError: The framework is not installed.
        ModelError: The runtime asked for does not execute this kind of model.
    """
    if wanted is not None and wanted not in model.runtimes:
        raise ModelError(
            f"the {wanted} runtime does not execute this kind of model",
            received=f"{model.kind} at {model.location}",
            allowed=", ".join(model.runtimes),
        )
    candidates = (wanted,) if wanted is not None else model.runtimes
    for name in candidates:
        if is_installed(name):
            return name
    names = " or ".join(candidates)
    raise DeviceError(
        f"{names} is not installed",
        received=f"a model of kind {model.kind}",
        hint=_INSTALL[candidates[0]],
    )


def writer_of(model: ModelFile) -> str | None:
    """What wrote a model file, where the file itself says so."""
    return keras_file.writer(model.location) if model.kind == "keras" else None
