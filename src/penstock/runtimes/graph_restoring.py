"""The variables of a graph, restored from a checkpoint: which one, whether it fits, what else must be initialised."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ModelError, one_line

_SHOWN = 6
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""In checkpoints of `tf.train.Checkpoint`, whose names are not those of variables: TensorFlow matches them itself."""


class NoCheckpoint(ModelError, ValueError):
    """There is no trained model where one is needed. The original raised ValueError."""


def find_checkpoint(place: str) -> str:
    """The checkpoint that a path means: one by its prefix, or the newest of a folder. Imports no framework.

    Raises:
        NoCheckpoint: There is none; the folder and what is in it are named.
    """
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", place)
    if is_checkpoint(prefix):
        return prefix
    found = newest_checkpoint(place)
    if found is None:
        raise none_there(place)
    return found


def newest_checkpoint(folder: str) -> str | None:
    """The newest checkpoint of a folder: what training goes on from, and what everything else uses.

    The folder's own note says which it is; where the note names a folder of another machine, or is missing, the files
    say it.
    """
    if "://" in folder:
        return _newest_remote(folder)
    if not os.path.isdir(folder):
        return None
    noted = _noted(folder)
    if noted is not None and is_checkpoint(noted):
        return noted
    found = [os.path.join(folder, name[: -len(".index")]) for name in os.listdir(folder) if name.endswith(".index")]
    return max(found, key=_age, default=None)


def none_there(place: str, random: Sequence[str] = ()) -> NoCheckpoint:
    """The error for a place without a checkpoint; `random` are the variables that would be random numbers."""
    told = f"; these variables would be random numbers: {_some(random)}" if random else ""
    if "://" not in place and not os.path.isdir(place):
        return NoCheckpoint(
            "there is no such checkpoint",
            received=f"{place}{told}",
            allowed="the folder of a trained model (its model_dir), or one checkpoint in it: model_dir/model.ckpt-1000",
        )
    holds = "" if "://" in place else f", which holds {_some(sorted(os.listdir(place))) or 'nothing'}"
    return NoCheckpoint(
        "the folder has no checkpoint",
        received=f"{place}{holds}{told}",
        allowed="a folder in which an Estimator was trained: it holds model.ckpt-…index and model.ckpt-…data-…",
        hint="train first; an export (saved_model.pb) is given as the model itself: penstock predict FOLDER …",
    )


def is_checkpoint(prefix: str) -> bool:
    return os.path.isfile(prefix + ".index") or (os.path.isfile(prefix) and os.path.basename(prefix) != "checkpoint")


def checkpoint_files(prefix: str) -> list[str]:
    """The files of a checkpoint that hold values, in a fixed order."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.(index|data-\d+-of-\d+)")
    names = [entry for entry in os.listdir(folder or ".") if pattern.fullmatch(entry)]
    return [os.path.join(folder, entry) for entry in sorted(names)] or [prefix]


def _noted(folder: str) -> str | None:
    try:
        with open(os.path.join(folder, "checkpoint"), encoding="utf-8") as file:
            match = re.search(r'^model_checkpoint_path:\s*"((?:[^"\\]|\\.)*)"', file.read(), re.MULTILINE)
    except OSError:
        return None
    if match is None:
        return None
    path = os.path.join(folder, match[1].replace('\\"', '"'))
    return path if is_checkpoint(path) else os.path.join(folder, os.path.basename(path))


def _age(prefix: str) -> tuple[int, float]:
    return _step_in_name(prefix), os.path.getmtime(prefix + ".index")


def _step_in_name(prefix: str) -> int:
    step = re.search(r"-(\d+)$", prefix)
    return int(step[1]) if step else -1


def _newest_remote(place: str) -> str | None:
    import tensorflow as tf

    if tf.io.gfile.exists(place + ".index"):
        return place
    noted = tf.train.latest_checkpoint(place)
    if noted is not None:
        return str(noted)
    found = [path[: -len(".index")] for path in tf.io.gfile.glob(f"{place.rstrip('/')}/*.index")]
    return max(found, key=_step_in_name, default=None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


@dataclass(frozen=True)
class Restoring:
    """How the variables of a graph get their values: made before the graph is closed, run with its session."""

    saver: Any
    checkpoint: str | None
    steps: tuple[Any, ...]
    """Operations to run once, one after the other: they initialise what the checkpoint does not hold."""
    init_fn: Any = None

    def run(self, session: Any) -> None:
        """Give every variable its value.

        Raises:
            ModelError: The checkpoint cannot be read, or does not fit after all.
        """
        import tensorflow as tf

        if self.checkpoint is not None:
            try:
                self.saver.restore(session, self.checkpoint)
            except (tf.errors.OpError, ValueError) as error:
                raise ModelError(
                    "the checkpoint cannot be restored", received=f"{self.checkpoint}: {one_line(error)}"
                ) from error
        for step in self.steps:
            session.run(step)
        if self.init_fn is not None:
            self.init_fn(session)


def plan_restoring(scaffold: Any, checkpoint: str | None) -> Restoring:
    """Compare the variables of the default graph with the checkpoint, and make the operations that restore them.

    Args:
        scaffold: What the `model_fn` says about initialising; its own saver and operations are used where it has some.
        checkpoint: The prefix of a checkpoint; None where the variables get their values otherwise.

    Raises:
        ModelError: The checkpoint lacks variables, or has them in other shapes.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    given_local = getattr(scaffold, "local_init_op", None)
    local = _local_operations() if given_local is None else [given_local]
    if checkpoint is None:
        given = getattr(scaffold, "init_op", None)
        everything = [v1.global_variables_initializer(), *_created(v1.GraphKeys.RESOURCES)] if given is None else given
        init_fn = getattr(scaffold, "init_fn", None)
        bound = (lambda session: init_fn(scaffold, session)) if init_fn is not None else None
        # Tables may be initialised from variables: they come after them.
        return Restoring(None, None, (everything, local), bound)
    saver = getattr(scaffold, "saver", None) or next(iter(v1.get_collection(v1.GraphKeys.SAVERS)), None)
    reader = _reader(checkpoint)
    if saver is not None:
        check_fits(checkpoint, reader, getattr(saver, "_var_list", None))
        return Restoring(saver, checkpoint, (local,) if local else ())
    saved = [*v1.global_variables(), *v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)]
    saved, unsaved = _without_unsaved_step(reader, saved)
    check_fits(checkpoint, reader, saved)
    saver = v1.train.Saver(saved, allow_empty=True)
    more = [*local, *(variable.initializer for variable in unsaved)]
    return Restoring(saver, checkpoint, (more,) if more else ())


def _local_operations() -> list[Any]:
    """What initialises local variables, tables and resources: nothing where there are none, to save a step."""
    import tensorflow as tf

    keys = tf.compat.v1.GraphKeys
    variables = [variable.initializer for variable in tf.compat.v1.local_variables()]
    return [*variables, *tf.compat.v1.get_collection(keys.TABLE_INITIALIZERS), *_created(keys.LOCAL_RESOURCES)]


def _created(key: str) -> list[Any]:
    import tensorflow as tf

    return [resource.create for resource in tf.compat.v1.get_collection(key)]


def _without_unsaved_step(reader: Any, saved: list[Any]) -> tuple[list[Any], list[Any]]:
    """Every Estimator's graph has a global step, but a checkpoint that was written without one has not."""
    import tensorflow as tf

    step = tf.compat.v1.train.get_global_step()
    if step is None or reader.has_tensor(step.op.name):
        return saved, []
    return [variable for variable in saved if variable is not step], [step]


def _reader(checkpoint: str) -> Any:
    import tensorflow as tf

    try:
        return tf.train.load_checkpoint(checkpoint)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ModelError("the checkpoint cannot be read", received=f"{checkpoint}: {one_line(error)}") from error


def check_fits(checkpoint: str, reader: Any, variables: Any) -> None:
    """Compare variables, a list or a dict by name in the checkpoint, with what the checkpoint holds.

    Raises:
        ModelError: Some are missing in it, or have other shapes there.
    """
    held = reader.get_variable_to_shape_map()
    if variables is None or _OBJECTS in held:
        return
    wanted = _wanted(variables)
    missing: list[str] = []
    other: list[str] = []
    for name, shape in wanted.items():
        if name not in held:
            missing.append(f"{name} {_shown(shape)}")
        elif shape is not None and list(shape) != list(held[name]):
            other.append(f"{name} is {_shown(held[name])} in the checkpoint, {_shown(shape)} in the model")
    if not missing and not other:
        return
    told = [*other, *(f"{name} is not in the checkpoint" for name in missing)]
    shown = "; ".join(told[:_SHOWN]) + (f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")
    unused = [f"{name} {_shown(shape)}" for name, shape in sorted(held.items()) if name not in wanted]
    raise ModelError(
        "the checkpoint does not fit the model_fn",
        received=f"{checkpoint}: {shown}",
        allowed=f"names that the checkpoint has, too: {', '.join(unused[:12])}" if missing and unused else None,
        hint="build the same variables with the same params as in training",
    )


def _wanted(variables: Any) -> dict[str, Any]:
    """The names under which variables are saved, with their shapes; None where a shape is not known."""
    named = variables.items() if isinstance(variables, dict) else ((None, variable) for variable in variables)
    wanted: dict[str, Any] = {}
    for name, variable in named:
        piece = getattr(variable, "_save_slice_info", None)
        if piece is not None:  # a part of a partitioned variable, which is saved as a whole
            wanted[name or piece.full_name] = list(piece.full_shape)
        elif hasattr(variable, "op") and hasattr(variable, "shape"):
            shape = variable.shape
            wanted[name or variable.op.name] = shape.as_list() if shape.is_fully_defined() else None
    return wanted


def _shown(shape: Any) -> str:
    return "[?]" if shape is None else f"[{', '.join(map(str, shape))}]"
