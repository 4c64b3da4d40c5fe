"""Restores the variables of a graph: finds the checkpoint, checks that it fits, and initialises everything else."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.errors import ModelError, one_line
from penstock.runtimes.frameworks import tf

_OF_SAVED_MODELS = "saved_model_initializers"
"""The graph collection of operations that initialise models which a `model_fn` loaded with `tf.saved_model.load`. They
run before a checkpoint is restored."""
_LOADING = ("Restore", "LoadAndRemapMatrix")
"""Beginnings of the names of operations that read checkpoints, in `init_from_checkpoint` and warm starts."""


class NoCheckpoint(ModelError, ValueError):
    """There is no trained model where one is needed. It is a ValueError, because the original Estimator raised one."""


def find_checkpoint(location: str) -> str:
    """The checkpoint that a path means: one by its prefix, or the newest of a folder. Only a URL needs TensorFlow.

    Raises:
        NoCheckpoint: There is none; the message names the folder and its files.
    """
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", location)
    if is_checkpoint(prefix):
        return prefix
    newest = newest_checkpoint(location)
    if newest is None:
        raise none_there(location)
    return newest


def newest_checkpoint(folder: str) -> str | None:
    """The newest checkpoint of a folder; training goes on from it, and all other work uses it.

    The folder's file `checkpoint` names it. If that file names a folder of another machine, the same name is looked for
    in this folder; if there is none, the steps in the files' names decide.
    """
    if "://" in folder:
        return _newest_remote(folder)
    if not os.path.isdir(folder):
        return None
    noted = _noted(folder)
    if noted is not None and is_checkpoint(noted):
        return noted
    prefixes = [os.path.join(folder, name[: -len(".index")]) for name in os.listdir(folder) if name.endswith(".index")]
    return max(prefixes, key=lambda prefix: (_step_in_name(prefix), os.path.getmtime(prefix + ".index")), default=None)


def none_there(location: str, random: Sequence[str] = ()) -> NoCheckpoint:
    """The error for a location without a checkpoint; `random` are the variables that would be random numbers."""
    remark = f"; these variables would be random numbers: {some_of(random)}" if random else ""
    if "://" not in location and not os.path.isdir(location):
        return NoCheckpoint(
            "there is no such checkpoint",
            received=f"{location}{remark}",
            allowed="the folder of a trained model (its model_dir), or one checkpoint in it: model_dir/model.ckpt-1000",
        )
    holds = "" if "://" in location else f", which holds {some_of(sorted(os.listdir(location))) or 'nothing'}"
    return NoCheckpoint(
        "the folder has no checkpoint",
        received=f"{location}{holds}{remark}",
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


def _step_in_name(prefix: str) -> int:
    step = re.search(r"-(\d+)$", prefix)
    return int(step[1]) if step else -1


def _newest_remote(location: str) -> str | None:
    if tf.io.gfile.exists(location + ".index"):
        return location
    noted = tf.train.latest_checkpoint(location)
    if noted is not None:
        return str(noted)
    prefixes = [path[: -len(".index")] for path in tf.io.gfile.glob(f"{location.rstrip('/')}/*.index")]
    return max(prefixes, key=_step_in_name, default=None)


@dataclass(frozen=True)
class Restoring:
    """How the variables of a graph get their values. It is made before the graph is finalized, and run in a session."""

    saver: Any = None
    checkpoint: str | None = None
    first: tuple[Any, ...] = ()
    """Operations that run one after the other and initialise everything that gets no value from a checkpoint."""
    fed: Any = None
    """The scaffold's `feed_dict` for them."""
    init_fn: Callable[[Any], None] | None = None
    local: Any = ()
    """Operations that initialise local variables and tables. They run last: tables may read variables."""
    fed_to_local: Any = None

    def restore(self, session: Any) -> None:
        """Give every variable its value.

        Raises:
            ModelError: The checkpoint cannot be read, or does not fit although it passed the check.
        """
        for step in self.first:
            session.run(step, self.fed)
        if self.checkpoint is not None:
            try:
                self.saver.restore(session, self.checkpoint)
            except (tf.errors.OpError, ValueError) as error:
                raise ModelError(
                    "the checkpoint cannot be restored", received=f"{self.checkpoint}: {one_line(error)}"
                ) from error
        if self.init_fn is not None:
            self.init_fn(session)

    def run(self, session: Any) -> None:
        """Give every variable its value, and initialise local variables, tables and resources."""
        self.restore(session)
        if self.local:
            session.run(self.local, self.fed_to_local)


def plan_restoring(scaffold: Any, checkpoint: str | None) -> Restoring:
    """Compare the variables of the default graph with the checkpoint, and make the operations that restore them.

    Args:
        scaffold: What the `model_fn` says about initialising; its own saver and operations are used where it has some.
        checkpoint: The prefix of a checkpoint; None where the variables are initialised without one.

    Raises:
        ModelError: The checkpoint lacks variables, or has them in other shapes.
    """
    v1 = tf.compat.v1
    local = _local_operations() if scaffold.local_init_op is None else [scaffold.local_init_op]
    fed_to_local = scaffold.local_init_feed_dict
    loaded = v1.get_collection(_OF_SAVED_MODELS)
    if checkpoint is None:
        usual = [v1.global_variables_initializer(), *_created(v1.GraphKeys.RESOURCES), *loaded]
        first = usual if scaffold.init_op is None else scaffold.init_op
        return Restoring(None, None, (first,), scaffold.init_feed_dict, scaffold.init_fn, local, fed_to_local)
    saver = _own_saver(scaffold)
    reader = _reader(checkpoint)
    if saver is not None:
        check_fits(checkpoint, reader, _saved_by(saver))
        return Restoring(saver, checkpoint, (loaded,) if loaded else (), local=local, fed_to_local=fed_to_local)
    saved, unsaved = _without_unsaved_step(reader, _saveable())
    check_fits(checkpoint, reader, saved)
    first = [*loaded, *(variable.initializer for variable in unsaved)]
    saver = v1.train.Saver(saved, allow_empty=True)
    return Restoring(saver, checkpoint, (first,) if first else (), local=local, fed_to_local=fed_to_local)


def session_creator(scaffold: Any, checkpoint: str | None, options: Any) -> Any:
    """The session creator of a `MonitoredSession`: it restores variables by `plan_restoring`.

    TensorFlow's own would restore a value of another shape in silence, and refuse a checkpoint without a global step.
    """

    class Restores(tf.compat.v1.train.SessionCreator):  # type: ignore[misc]
        _restoring: Restoring | None = None

        def create_session(self) -> Any:
            if self._restoring is None:  # hooks have begun before this: variables that they added are initialised too
                self._restoring = plan_restoring(scaffold, checkpoint)
                scaffold.finalize()
            session = tf.compat.v1.Session(config=options)
            try:
                self._restoring.run(session)
            except BaseException:
                session.close()
                raise
            return session

    return Restores()


class InitialValues(NamedTuple):
    """The names of a graph's variables that get no value from a checkpoint."""

    random: list[str]
    given: list[str]
    """Variables whose first value is set by the `model_fn`."""


def initial_values(scaffold: Any) -> InitialValues:
    """How the variables of the default graph begin if no checkpoint is restored: at random, or as the `model_fn` says.

    Variables that the scaffold initialises, or that take their values from another checkpoint, are left out.
    """
    if not (scaffold.init_op is None and scaffold.init_fn is None and scaffold.init_feed_dict is None):
        return InitialValues([], [])
    step = tf.compat.v1.train.get_global_step()
    values = InitialValues([], [])
    for variable in tf.compat.v1.global_variables():
        kinds = _operations_behind(variable.initializer)
        if any("Random" in kind or "TruncatedNormal" in kind for kind in kinds):
            values.random.append(variable.op.name)
        elif variable is not step and not any(kind.startswith(_LOADING) for kind in kinds):
            values.given.append(variable.op.name)
    return values


def _operations_behind(operation: Any) -> set[str]:
    """The types of all operations that an operation depends on."""
    seen, waiting = set(), [operation]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += [*(tensor.op for tensor in current.inputs), *current.control_inputs]
    return {current.type for current in seen}


def _own_saver(scaffold: Any) -> Any:
    """The saver that the scaffold or the graph has, made by the user or by training; None where there is none."""
    v1 = tf.compat.v1
    return as_saver(scaffold.saver or next(iter(v1.get_collection(v1.GraphKeys.SAVERS)), None))


def as_saver(saver: Any) -> Any:
    """The saver of a scaffold as a saver for graphs. A scaffold may also have a `tf.train.Checkpoint`, or None."""
    if not isinstance(saver, tf.train.Checkpoint):
        return saver
    from tensorflow.python.checkpoint.graph_view import ObjectGraphView

    return tf.compat.v1.train.Saver(ObjectGraphView(saver).frozen_saveable_objects(), sharded=True)


def _saved_by(saver: Any) -> Any:
    """The variables that a saver saves. They are not known (none) if it is an object of the user's without a list."""
    listed = getattr(saver, "_var_list", None)
    if listed is None:  # a saver that is not built yet saves all variables
        return _saveable()
    return listed if isinstance(listed, (dict, list, tuple)) else ()


def _saveable() -> list[Any]:
    v1 = tf.compat.v1
    return [*v1.global_variables(), *v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)]


def check_restorable(checkpoint: str, scaffold: Any) -> None:
    """Compare the variables of the default graph with the checkpoint from which TensorFlow is about to restore them.

    TensorFlow itself does not compare them: a variable takes a value of another shape without an error.

    Raises:
        ModelError: Variables are missing in the checkpoint, or have other shapes there.
    """
    saver = _own_saver(scaffold)
    check_fits(checkpoint, _reader(checkpoint), _saveable() if saver is None else _saved_by(saver))


def _local_operations() -> list[Any]:
    """Operations that initialise local variables, tables and resources. Without any, no session step is needed."""
    keys = tf.compat.v1.GraphKeys
    variables = [variable.initializer for variable in tf.compat.v1.local_variables()]
    return [*variables, *tf.compat.v1.get_collection(keys.TABLE_INITIALIZERS), *_created(keys.LOCAL_RESOURCES)]


def _created(key: str) -> list[Any]:
    return [resource.create for resource in tf.compat.v1.get_collection(key)]


def _without_unsaved_step(reader: Any, saved: list[Any]) -> tuple[list[Any], list[Any]]:
    """The variables to restore, and the global step where the checkpoint lacks it: every Estimator's graph has one."""
    step = tf.compat.v1.train.get_global_step()
    if step is None or reader.has_tensor(step.op.name):
        return saved, []
    return [variable for variable in saved if variable is not step], [step]


def _reader(checkpoint: str) -> Any:
    try:
        return tf.train.load_checkpoint(checkpoint)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ModelError("the checkpoint cannot be read", received=f"{checkpoint}: {one_line(error)}") from error


_SHOWN = 6
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""A key of checkpoints by `tf.train.Checkpoint`. Their names are not those of variables; TensorFlow matches them."""


class DoesNotFit(ModelError, ValueError):
    """A checkpoint lacks variables, or has them in other shapes."""


def _also(kind: Any) -> type[DoesNotFit]:
    """`DoesNotFit` as a class that is one of TensorFlow's errors, too: old code catches the errors of its restoring."""

    def as_plain(error: DoesNotFit) -> tuple[Any, ...]:  # another process may not have TensorFlow imported
        return DoesNotFit(error.problem, received=error.received, allowed=error.allowed, hint=error.hint).__reduce__()

    code = kind(None, None, "").error_code
    of_tensorflow = {"message": property(str), "op": None, "node_def": None, "error_code": code}
    return type("DoesNotFit", (DoesNotFit, kind), {**of_tensorflow, "__reduce__": as_plain})


def no_such_variable(checkpoint: str, name: str) -> DoesNotFit:
    """The error for the name of a variable that a checkpoint does not have."""
    held = sorted(tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map())
    return _also(tf.errors.NotFoundError)(
        "the checkpoint has no such variable", received=f"{checkpoint}: {name}", allowed=some_of(held)
    )


def check_fits(checkpoint: str, reader: Any, variables: Any) -> None:
    """Compare variables with the checkpoint. They are a list, or a dict by their names in the checkpoint.

    Raises:
        DoesNotFit: Some are missing in it, or have other shapes there.
    """
    held = reader.get_variable_to_shape_map()
    if _OBJECTS in held:
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
    problems = [*other, *(f"{name} is not in the checkpoint" for name in missing)]
    shown = some_of(problems, "; ")
    unused = [f"{name} {_shown(shape)}" for name, shape in sorted(held.items()) if name not in wanted]
    raise _also(tf.errors.NotFoundError if missing else tf.errors.InvalidArgumentError)(
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


def some_of(names: Sequence[str], between: str = ", ") -> str:
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return between.join([*names[:_SHOWN], *more])
