"""A job that writes to a folder, described: what the fingerprint covers, and what a resumed run starts again from."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from penstock.core.records import ModelFile
from penstock.estimator import Estimator
from penstock.estimator.opening import file_of, open_estimator
from penstock.jobs import steps
from penstock.jobs.open import open_both
from penstock.options.records import PredictOptions
from penstock.runtimes.keras.live import LiveModel

REQUESTED = (
    "signature", "runtime", "precision", "batch_size", "threads", "format", "part_rows", "trust_model",
    "as_example", "top_k", "argmax", "squeeze", "tolerance",
)  # fmt: skip
"""Options that are plain JSON as they are, and change the output."""


@dataclass(frozen=True)
class FolderJob:
    """A prediction job with an output: a folder, or the URL of a prefix in a remote store.

    `request` is the plain description of the job that the fingerprint covers and the manifest keeps.
    """

    model: ModelFile | LiveModel
    model_digest: str
    source: Any
    output: str
    options: PredictOptions
    request: dict[str, Any]
    overwrite: bool = False
    is_verbose: bool = False


def make_task(
    model: Any,
    data: Any,
    output: str,
    options: PredictOptions,
    *,
    overwrite: bool = False,
    is_verbose: bool = False,
) -> FolderJob:
    """The job behind a call, with the description that its fingerprint covers."""
    opened = open_both(resolved(model, options), data, options)
    request = {
        "model": opened.location,
        "inputs": opened.arguments,
        "columns": {name: list(columns) for name, columns in options.inputs.items()},
        "keep": list(options.keep),
        "rename": dict(options.rename),
        **{name: getattr(options, name) for name in REQUESTED},
        "outputs": list(options.outputs),
        "labels": list(options.labels),
        "loading": dataclasses.asdict(options.loading) | {"custom_objects": list(options.loading.custom_objects)},
        **steps.as_request(options),
    }
    return FolderJob(opened.model, opened.digest, opened.source, output, options, request, overwrite, is_verbose)


def resolved(model: Any, options: PredictOptions) -> Any:
    """An Estimator, or the place of a `model_fn`, as the description of a model; any other model as it is."""
    loading = options.loading
    if loading.estimator:
        return open_estimator(os.fspath(model), loading.checkpoint, loading.params)
    return file_of(model) if isinstance(model, Estimator) else model
