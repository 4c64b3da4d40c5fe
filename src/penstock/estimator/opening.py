"""A `model_fn` named in the shell: `penstock predict --estimator module:function --checkpoint DIR`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.estimator import travelling
from penstock.estimator.model_function import ModelFunction, function_of
from penstock.models import digest
from penstock.models.formats import builder
from penstock.runtimes.tensorflow.restoring import checkpoint_files, find_checkpoint

RUNTIMES = ("tf_keras",)


def open_estimator(location: str, checkpoint: str | None = None, params: Mapping[str, Any] | None = None) -> ModelFile:
    """The model behind `module:function` and a checkpoint. The module is not imported here: replicas do.

    Args:
        location: A `model_fn`, or a function without arguments that returns an Estimator.
        checkpoint: Its `model_dir`, or one checkpoint; None where the Estimator knows it.
        params: What the `model_fn` gets as `params`.

    Raises:
        ModelError: There is no such module or checkpoint.
    """
    found = builder.recognise(location)
    if found is None:
        raise ModelError(
            "this is not a function",
            received=f"--estimator {location}",
            allowed="module:function, a model_fn or a function that returns an Estimator",
        )
    prefix = None
    digests = [found.digest, json.dumps(params, sort_keys=True, default=repr)]
    if checkpoint is not None:
        prefix = find_checkpoint(checkpoint if "://" in checkpoint else os.path.abspath(checkpoint))
        if "://" not in prefix:
            digests.append(digest.of_files((os.path.basename(path), path) for path in checkpoint_files(prefix)))
    whole = hashlib.sha256("\0".join(digests).encode()).hexdigest()
    function = ModelFunction(location, params=dict(params or {}), checkpoint=prefix)
    return ModelFile("estimator", location, whole, RUNTIMES, payload=travelling.pack(function))


def file_of(estimator: Any) -> ModelFile:
    """An Estimator as a model, with its newest checkpoint.

    Raises:
        ModelError: It has none.
    """
    function = function_of(estimator)
    prefix = find_checkpoint(estimator.model_dir)
    weights = digest.of_files((os.path.basename(path), path) for path in checkpoint_files(prefix))
    portable = replace(function, checkpoint=prefix, config=function.called.config.portable())
    # The function itself travels by value, and pickles differ from process to process: only its name counts.
    return ModelFile("estimator", function.name, weights, RUNTIMES, payload=travelling.pack(portable))
