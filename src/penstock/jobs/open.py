"""Opening the arguments of a call: models and data of every kind, and a log where there is no folder for one."""

import contextlib
import glob
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import OPAQUE, to_array
from penstock.core.nesting import Nesting
from penstock.core.protocols import Source
from penstock.core.records import Array, ModelFile
from penstock.errors import DeviceError, InputError, UsageError
from penstock.jobs import steps
from penstock.jobs.trained_with import inputs_of_training
from penstock.models import catalog
from penstock.models.belongings import num_bytes, with_belongings
from penstock.models.formats import builder
from penstock.options.records import OPTIONS, DeviceRequest, PredictOptions, ReadOptions
from penstock.options.value_kinds import NO_PLAN
from penstock.pool.devices import inventory
from penstock.runtimes.keras.call import digest_of_weights
from penstock.runtimes.keras.live import LiveModel, is_live_keras_model, wrap_live
from penstock.sources.catalog import open_files
from penstock.sources.files.paths import is_url
from penstock.sources.images.columns import ImageColumns
from penstock.sources.python.array_like import from_rows, given_as
from penstock.sources.python.datasets import open_object
from penstock.sources.python.memory import InMemory, are_rows, open_memory
from penstock.sources.python.streaming import StreamedRows

_SURELY_FITS = 1 << 30
_LOOKED_AT = 100
_LONGEST_PATH = 1024
_PATH = re.compile(r"[^\s]*[\w)*\]][.][A-Za-z]\w{0,8}|[.~]?/[^\s]*")
"""What looks like the path of a file: a suffix, and no space."""


@dataclass(frozen=True)
class OpenedJob:
    """A model and its data, ready to be started.

    `digest` differs for different models; a later process would open both again with `location` and `arguments`.
    `options` are those that were given; where they left open how the model is fed, it is fed as in training, and
    `notes` say so.
    """

    model: ModelFile | LiveModel
    source: Source
    digest: str = ""
    location: str | None = None
    arguments: list[str] | None = None
    options: PredictOptions = field(default_factory=PredictOptions)
    notes: tuple[str, ...] = ()

    @property
    def file(self) -> ModelFile | None:
        """The model; None for a live one."""
        return None if isinstance(self.model, LiveModel) else self.model


def open_both(
    model: Any, data: Any, options: PredictOptions, *, needs_digest: bool = True, logits: bool = False
) -> OpenedJob:
    """Open a model and its data. A live model is built if it must be, and its inputs decide how lists are read.

    With `logits`, these are among the answers where the framework computes losses from them.
    """
    if is_live_keras_model(model):
        opened = open_live(model, data, options, logits=logits)
        return replace(opened, digest=digest_of_weights(model) if needs_digest else "")
    file, digest, location = open_model(model, options, logits=logits)
    source, arguments = open_data(data, options.reading)
    options, notes = inputs_of_training(location, source, options)
    file = replace(file, inputs=tuple(options.inputs))
    return OpenedJob(file, source, digest, location, arguments, options, tuple(notes))


def open_live(model: Any, data: Any, options: PredictOptions, *, logits: bool = False) -> OpenedJob:
    """Open a live model, which stays where it is, and its data."""
    _check_live(options)
    names = [str(tensor.name) for tensor in getattr(model, "inputs", None) or ()]
    takes = _taken_by(model)
    arguments: list[str] | None = None
    given: Nesting | None = None
    if is_paths(data, takes):
        source, arguments = open_data(data, options.reading, takes=takes)
    else:
        streamed = open_object(data)
        if are_rows(data, names):
            data = from_rows(list(data))
        is_table = type(data).__module__.partition(".")[0] in ("pandas", "pyarrow", "polars")
        if streamed is None and not is_table:
            given = given_as(data)
        source = streamed or open_memory(data)
        if isinstance(source, StreamedRows):
            given = source.given
    live = wrap_live(
        model,
        given=given,
        scaling=steps.make_scaling(options),
        answers=steps.make_answers(options, logits=logits),
        first_row=lambda: first_row(source),
    )
    if isinstance(source, InMemory):
        source = source.named([spec.name for spec in live.replicas[0].call.own_inputs])
    reading = options.reading
    if arguments is None and reading.images:
        source = ImageColumns(source, reading.images, reading)
    return OpenedJob(live, source, "", None, arguments, options)


def _check_live(options: PredictOptions) -> None:
    """Refuse options that cannot be chosen for a model that is loaded already."""
    for name in ("devices", "threads", "runtime", "precision", "replicas_per_device", "plan", "check"):
        if getattr(options, name) not in (OPTIONS[name].default, NO_PLAN):
            raise UsageError(
                "a live model runs as its framework was set up: there is nothing to choose or to compare",
                received=f"{name}={getattr(options, name)}",
                hint="save the model and give its path",
            )


def _taken_by(model: Any) -> str | None:
    """What a live model takes: `text`, `images` or `numbers`; None where it declares no inputs."""
    inputs = getattr(model, "inputs", None) or ()
    if not inputs:
        return None
    if any("string" in str(tensor.dtype) for tensor in inputs):
        return "text"
    return "images" if any(len(tensor.shape) == 4 for tensor in inputs) else "numbers"


def first_row(source: Source) -> dict[str, Array]:
    """The first row of every column that can be fed, with which a model is built."""
    span = next(iter(source.divide(1)), None)
    if span is None:
        raise InputError("the input has no rows", received=", ".join(f.path for f in source.fragments()[:3]))
    names = [name for name, spec in source.schema().items() if spec.dtype != OPAQUE and spec.shape is not None]
    row: dict[str, Array] = {}
    for block in source.read(span, names):
        for name, spec in source.schema().items():
            column = block.columns.get(name)
            if isinstance(column, (np.ndarray, pa.Array)):
                array, _ = to_array(column, "float32" if spec.dtype == "float64" else spec.dtype, spec.shape or ())
                row[name] = array
    return row


def open_model(model: Any, options: PredictOptions, *, logits: bool = False) -> tuple[ModelFile, str, str | None]:
    """Open a model file or a function; returns it with its digest and the location for a later process."""
    file, location = _open_file(model, options)
    file = replace(
        file,
        inputs=tuple(options.inputs),
        constants=dict(options.loading.constants),
        scaling=steps.make_scaling(options),
        answers=steps.make_answers(options, logits=logits),
        precision=options.precision,
    )
    file = with_belongings(file, options.loading.weights, options.loading.custom_objects, trust=options.trust_model)
    return file, file.digest, location


def _open_file(model: Any, options: PredictOptions) -> tuple[ModelFile, str | None]:
    """Recognise a model; returns it with its location for a later process."""
    if isinstance(model, ModelFile):
        return model, model.location if options.loading.estimator else None
    if isinstance(model, (str, os.PathLike)):
        location = os.fspath(model)
        check_size(location, options.devices)
        file = catalog.open_model(
            location, signature=options.signature, trust=options.trust_model, own=options.loading.custom_objects
        )
        return file, file.location
    if callable(model):
        return builder.from_function(model), None
    raise UsageError(
        "this is not a model",
        received=type(model).__name__,
        allowed="a Keras model, a path, 'module:function', a function that builds a Keras model, or an Estimator",
    )


def check_size(location: str, wanted: DeviceRequest) -> None:
    """Refuse a model that no device can hold, before all of it is read for its digest.

    Raises:
        DeviceError: Its files are larger than the memory of a device.
    """
    size = num_bytes(location)
    if size < _SURELY_FITS:
        return
    smallest = min(inventory.choose(wanted), key=lambda device: device.memory_bytes)
    if size > smallest.memory_bytes:
        raise DeviceError(
            "the model is too large for one device",
            received=f"{location}: {size / 2**30:,.1f} GiB",
            allowed=f"at most the {smallest.memory_bytes / 2**30:,.1f} GiB of {smallest} {smallest.name}".rstrip(),
            hint="--devices names others; penstock puts a whole model on each device",
        )


def open_data(data: Any, reading: ReadOptions, takes: str | None = None) -> tuple[Source, list[str] | None]:
    """The source, and the arguments with which a later process would open it again.

    `takes` is what the model takes (`text`, `images`, `numbers`), where that is known.
    """
    if not is_paths(data, takes):
        source: Source = open_object(data) or open_memory(data)
        return (ImageColumns(source, reading.images, reading) if reading.images else source), None
    paths = [data] if isinstance(data, (str, os.PathLike)) else data
    if takes == "text" and isinstance(data, str) and not _is_there(data):
        raise InputError("no such file", received=f"{data:.60}", hint="text for the model comes in a list: ['…', '…']")
    if "" in map(os.fspath, paths):
        raise InputError("a path of the input is empty", received="''", hint="the current folder is '.'")
    arguments = [absolute(os.fspath(path)) for path in paths]
    return open_files(arguments, reading), arguments


def absolute(path: str) -> str:
    """A path that means the same from any folder. URLs do already."""
    return path if is_url(path) else os.path.abspath(path)


def is_paths(data: Any, takes: str | None = None) -> bool:
    """Whether these are the paths of files, and not rows of text.

    For a model that takes text, a list of text is rows, unless every item is a file. For any other model it is paths.
    Where nothing is known of the model, it is paths if any item looks like a path or exists.
    """
    items = data if isinstance(data, (list, tuple)) else [data]
    if not items or not all(isinstance(item, (str, os.PathLike)) for item in items):
        return False
    if not isinstance(data, (list, tuple)) or any(isinstance(item, os.PathLike) for item in items):
        return True
    if takes == "text":
        return all(map(_is_there, items[:_LOOKED_AT]))
    return takes is not None or any(_is_there(item) or _PATH.fullmatch(item) for item in items[:_LOOKED_AT])


def _is_there(path: str) -> bool:
    is_short = len(path) < _LONGEST_PATH and "\0" not in path
    return is_url(path) or (is_short and (os.path.exists(path) or next(glob.iglob(path), None) is not None))


@contextlib.contextmanager
def log_without_folder(is_verbose: bool) -> Iterator[IO[Any]]:
    """Where replicas write when there is no output folder: a file without a name, or the terminal."""
    with os.fdopen(os.dup(2), "wb", buffering=0) if is_verbose else tempfile.TemporaryFile(buffering=0) as log:
        yield log
