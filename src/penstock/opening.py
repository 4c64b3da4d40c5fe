"""What a call was given, opened: models and data of every kind, and a log where there is no folder for one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from penstock import registry
from penstock.core.protocols import Source
from penstock.core.records import ModelFile
from penstock.errors import UsageError
from penstock.models import builder
from penstock.options import PredictOptions
from penstock.runtimes.keras_call import digest_of_weights
from penstock.runtimes.live import LiveModel, is_live_keras_model, wrap_live
from penstock.sources.memory import open_memory


def open_model(
    model: Any, options: PredictOptions, needs_digest: bool = True
) -> tuple[ModelFile | LiveModel, str, str | None]:
    """The model, its digest, and the place where a later process would find it."""
    if isinstance(model, (str, os.PathLike)):
        file = registry.open_model(os.fspath(model), signature=options.signature, trust=options.trust_model)
        return file, file.digest, file.location
    if is_live_keras_model(model):
        return wrap_live(model, as_list=False), digest_of_weights(model) if needs_digest else "", None
    if callable(model):
        file = builder.from_function(model)
        return file, file.digest, None
    raise UsageError(
        "this is not a model",
        received=type(model).__name__,
        allowed="a Keras model, a path, 'module:function', or a function that builds a Keras model",
    )


def open_data(data: Any) -> tuple[Source, list[str] | None]:
    """The source, and the arguments with which a later process would open it again."""
    if not is_paths(data):
        return open_memory(data), None
    paths = [data] if isinstance(data, (str, os.PathLike)) else data
    arguments = [os.path.abspath(os.fspath(path)) for path in paths]
    return registry.open_files(arguments), arguments


def is_paths(data: Any) -> bool:
    items = data if isinstance(data, (list, tuple)) else [data]
    return bool(items) and all(isinstance(item, (str, os.PathLike)) for item in items)


@contextlib.contextmanager
def log_without_folder(is_verbose: bool) -> Iterator[IO[Any]]:
    """Where replicas write when there is no output folder: a file without a name, or the terminal."""
    with os.fdopen(os.dup(2), "wb", buffering=0) if is_verbose else tempfile.TemporaryFile(buffering=0) as log:
        yield log
