"""What a call was given, opened: models and data of every kind, and a log where there is no folder for one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

from penstock import registry, steps
from penstock.core.protocols import Source
from penstock.core.records import ModelFile
from penstock.errors import DeviceError, UsageError
from penstock.models import builder
from penstock.models.belongings import num_bytes, with_belongings
from penstock.options import DeviceRequest, PredictOptions, ReadOptions
from penstock.pool import devices
from penstock.runtimes.keras_call import digest_of_weights
from penstock.runtimes.live import LiveModel, is_live_keras_model, wrap_live
from penstock.sources.datasets import open_object
from penstock.sources.files import is_url
from penstock.sources.image_columns import ImageColumns
from penstock.sources.memory import open_memory

_SURELY_FITS = 1 << 30


def open_model(
    model: Any, options: PredictOptions, needs_digest: bool = True
) -> tuple[ModelFile | LiveModel, str, str | None]:
    """The model, its digest, and the place where a later process would find it."""
    if is_live_keras_model(model):
        if options.precision != "model":
            raise UsageError(
                "a live model computes in what it was made with",
                received=f"precision={options.precision}",
                hint="save the model and give its path, or build it with that dtype policy",
            )
        live = wrap_live(model, as_list=False, scaling=steps.make_scaling(options), answers=steps.make_answers(options))
        return live, digest_of_weights(model) if needs_digest else "", None
    file, location = _open_file(model, options)
    file = replace(
        file,
        inputs=tuple(options.inputs),
        constants=dict(options.loading.constants),
        scaling=steps.make_scaling(options),
        answers=steps.make_answers(options),
        precision=options.precision,
    )
    file = with_belongings(file, options.loading.weights, options.loading.custom_objects, trust=options.trust_model)
    return file, file.digest, location


def _open_file(model: Any, options: PredictOptions) -> tuple[ModelFile, str | None]:
    """What the model is, and its place for a later process."""
    if isinstance(model, ModelFile):
        return model, model.location if options.loading.estimator else None
    if isinstance(model, (str, os.PathLike)):
        location = os.fspath(model)
        check_size(location, options.devices)
        file = registry.open_model(
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
    smallest = min(devices.choose(wanted), key=lambda device: device.memory_bytes)
    if size > smallest.memory_bytes:
        raise DeviceError(
            "the model is too large for one device",
            received=f"{location}: {size / 2**30:,.1f} GiB",
            allowed=f"at most the {smallest.memory_bytes / 2**30:,.1f} GiB of {smallest} {smallest.name}".rstrip(),
            hint="--devices names others; penstock puts a whole model on each device",
        )


def open_data(data: Any, reading: ReadOptions, names: Sequence[str] = ()) -> tuple[Source, list[str] | None]:
    """The source, and the arguments with which a later process would open it again.

    `names` are those of the model's inputs, for arrays that have none.
    """
    if not is_paths(data):
        source: Source = open_object(data) or open_memory(data, names)
        return (ImageColumns(source, reading.images, reading) if reading.images else source), None
    paths = [data] if isinstance(data, (str, os.PathLike)) else data
    arguments = [absolute(os.fspath(path)) for path in paths]
    return registry.open_files(arguments, reading), arguments


def absolute(path: str) -> str:
    """A path that means the same from any folder. URLs do already."""
    return path if is_url(path) else os.path.abspath(path)


def is_paths(data: Any) -> bool:
    items = data if isinstance(data, (list, tuple)) else [data]
    return bool(items) and all(isinstance(item, (str, os.PathLike)) for item in items)


@contextlib.contextmanager
def log_without_folder(is_verbose: bool) -> Iterator[IO[Any]]:
    """Where replicas write when there is no output folder: a file without a name, or the terminal."""
    with os.fdopen(os.dup(2), "wb", buffering=0) if is_verbose else tempfile.TemporaryFile(buffering=0) as log:
        yield log
