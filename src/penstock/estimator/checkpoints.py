"""Checkpoints: which one is the latest, and in what they differ from a graph."""

from __future__ import annotations

import os
from typing import Any

from penstock.errors import ModelError
from penstock.estimator.refusals import WrongValue
from penstock.runtimes.graph_restoring import check_fits


class NoCheckpoint(ModelError, ValueError):
    """There is no trained model where one is needed. The original raised ValueError."""


def latest(model_dir: str) -> str | None:
    import tensorflow as tf

    found = tf.train.latest_checkpoint(model_dir)
    return None if found is None else str(found)


def need_latest(model_dir: str) -> str:
    """The newest checkpoint of a folder.

    Raises:
        NoCheckpoint: The folder has none.
    """
    found = latest(model_dir)
    if found is None:
        raise NoCheckpoint(
            "there is no trained model in model_dir",
            received=f"model_dir={model_dir!r}",
            allowed="a folder with `checkpoint` and `model.ckpt-N.index`",
            hint="train first, or point model_dir at a folder with checkpoints",
        )
    return found


def global_step_of(model_dir: str) -> int:
    """The step that the newest checkpoint was saved at; 0 where there is none."""
    import tensorflow as tf

    path = latest(model_dir)
    if path is None:
        return 0
    reader = tf.train.load_checkpoint(path)
    return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0


def check_restorable(checkpoint: str | None, scaffold: Any) -> None:
    """Compare the variables of the default graph with the checkpoint that they are about to be restored from.

    TensorFlow does not: a variable takes a value of another shape, and everything after it goes wrong in silence.

    Raises:
        ModelError: Which variables are missing in it, or have other shapes.
    """
    import tensorflow as tf

    if checkpoint is None:
        return
    savers = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS)
    saver = scaffold.saver or (savers[0] if savers else None)
    listed = getattr(saver, "_var_list", None)
    reader = tf.train.load_checkpoint(checkpoint)
    check_fits(checkpoint, reader, tf.compat.v1.global_variables() if listed is None else listed)


def check_path(path: Any) -> str | None:
    """A checkpoint as the user names it: a prefix such as `model.ckpt-300`, or its folder."""
    if path is None or path == "":
        return None
    text = os.fspath(path)
    if not isinstance(text, str):
        raise WrongValue("checkpoint_path must be text", received=repr(path))
    return need_latest(text) if os.path.isdir(text) else text
