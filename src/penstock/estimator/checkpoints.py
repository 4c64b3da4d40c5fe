"""Checkpoints: which one a call uses, what happens without one, and which variables a warm start takes."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from penstock.estimator.calling import LOG
from penstock.estimator.legacy_keras import quiet
from penstock.estimator.refusals import WrongValue
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.restoring import (
    find_checkpoint,
    initial_values,
    newest_checkpoint,
    none_there,
)


def global_step_of(model_dir: str) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    path = newest_checkpoint(model_dir)
    if path is None:
        return 0
    reader = tf.train.load_checkpoint(path)
    return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0


def check_path(path: Any) -> str | None:
    """The checkpoint that the user means by a prefix such as `model.ckpt-300`, or by a folder.

    Raises:
        NoCheckpoint: There is none.
    """
    if path is None or path == "":
        return None
    text = os.fspath(path)
    if not isinstance(text, str):
        raise WrongValue("checkpoint_path must be text", received=repr(path))
    return find_checkpoint(text)


def check_initial_values(scaffold: Any, model_dir: str) -> None:
    """Check the first values of the variables of the default graph, where there is no checkpoint.

    A model without a checkpoint is allowed if it has no variables, sets their values itself, or loads them from another
    place.

    Raises:
        NoCheckpoint: Some would be random numbers.
    """
    values = initial_values(scaffold)
    if values.random:
        raise none_there(model_dir, values.random)
    if values.given:
        LOG.warning("%s has no checkpoint: the variables begin with what the model_fn gives them", model_dir)


def repair_note(model_dir: str) -> None:
    """Let the file `checkpoint` in the folder name the newest checkpoint.

    TensorFlow goes on from the checkpoint that this file names. In a folder that was moved, it names missing files.
    """
    newest = newest_checkpoint(model_dir)
    if newest is None:
        return
    state = tf.train.get_checkpoint_state(model_dir)
    if state is not None and _is_there(state.model_checkpoint_path):
        return
    noted = state.all_model_checkpoint_paths if state is not None else ()
    moved = [os.path.join(model_dir, os.path.basename(path)) for path in noted]
    kept = [path for path in moved if path != newest and _is_there(path)]
    with quiet():
        tf.compat.v1.train.update_checkpoint_state(model_dir, newest, [*kept, newest])


def _is_there(prefix: str) -> bool:
    return bool(tf.io.gfile.exists(prefix + ".index") or tf.io.gfile.exists(prefix))


class _WarmStartFields(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any
    var_name_to_vocab_info: dict[str, Any]
    var_name_to_prev_var_name: dict[str, str]


class WarmStartSettings(_WarmStartFields):
    """Which variables begin with the values of another checkpoint.

    Args:
        ckpt_to_initialize_from: A checkpoint, or a folder of them.
        vars_to_warm_start: A regular expression for trainable variables, a list of these for all variables, a list of
            variables, or None for only those with a vocabulary.
        var_name_to_vocab_info: Variable name to `VocabInfo`, where the vocabulary changed.
        var_name_to_prev_var_name: Variable name to its name in the checkpoint.
    """

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from: Any,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: dict[str, Any] | None = None,
        var_name_to_prev_var_name: dict[str, str] | None = None,
    ) -> WarmStartSettings:
        if not ckpt_to_initialize_from:
            raise WrongValue("a warm start needs a checkpoint", received=f"{ckpt_to_initialize_from!r}")
        return super().__new__(
            cls,
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def settings_of(warm_start_from: Any) -> WarmStartSettings | None:
    """What `Estimator(warm_start_from=…)` means: settings, a checkpoint, a folder of them, or a SavedModel."""
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if not isinstance(warm_start_from, (str, bytes, os.PathLike)):
        raise WrongValue(
            "warm_start_from is not understood",
            received=type(warm_start_from).__name__,
            allowed="a path, or WarmStartSettings",
        )
    path = os.fsdecode(warm_start_from)
    variables = os.path.join(path, "variables", "variables")
    return WarmStartSettings(variables if os.path.exists(variables + ".index") else path)
