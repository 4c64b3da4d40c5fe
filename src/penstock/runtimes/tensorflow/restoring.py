"""The variables of a graph, restored from a checkpoint: which one, whether it fits, what else must be initialised."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.errors import ModelError, one_line
from penstock.runtimes.frameworks import tf

_OF_SAVED_MODELS = "saved_model_initializers"
"""What initialises the models that a `model_fn` loaded with `tf.saved_model.load`. A checkpoint comes after it."""
_LOADING = ("Restore", "LoadAndRemapMatrix")
"""Operations that read checkpoints: those of `init_from_checkpoint` and of warm starts."""


class NoCheckpoint(ModelError, ValueError):
    """There is no trained model where one is needed. The original raised ValueError."""


def find_checkpoint(location: str) -> str:
    """The checkpoint that a path means: one by its prefix, or the newest of a folder. Imports no framework.

    Raises:
        NoCheckpoint: There is none; the folder and what is in it are named.
    """
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", location)
    if is_checkpoint(prefix):
        return prefix
    newest = newest_checkpoint(location)
    if newest is None:
        raise none_there(location)
    return newest


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
    """How the variables of a graph get their values: made before the graph is closed, run with its session."""

    saver: Any = None
    checkpoint: str | None = None
    first: tuple[Any, ...] = ()
    """Operations to run one after the other: they initialise what no checkpoint gives a value to."""
    fed: Any = None
    """What the scaffold feeds to them."""
    init_fn: Callable[[Any], None] | None = None
    local: Any = ()
    """What initialises local variables and tables. Tables may be initialised from variables: this comes last."""
    fed_to_local: Any = None

    def restore(self, session: Any) -> None:
        """Give every variable its value.

        Raises:
            ModelError: The checkpoint cannot be read, or does not fit after all.
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
        checkpoint: The prefix of a checkpoint; None where the variables get their values otherwise.

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
    """What makes the session of a `MonitoredSession`: it restores as everything here does.

    TensorFlow's own would restore a value of another shape in silence, and refuse a checkpoint without a global step.
    """

    class Restores(tf.compat.v1.train.SessionCreator):  # type: ignore[misc]
        _restoring: Restoring | None = None

        def create_session(self) -> Any:
            if self._restoring is None:  # hooks have begun by now: what they added to the graph is initialised too
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
    """The variables of a graph, by name, that no checkpoint gives a value to."""

    random: list[str]
    given: list[str]
    """Those that begin with what the `model_fn` says."""


def initial_values(scaffold: Any) -> InitialValues:
    """What the variables of the default graph begin with, where no checkpoint is restored.

    Those that the scaffold initialises itself, or that take their values out of another checkpoint, do not count.
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
    """The kinds of operation that one depends on."""
    seen, waiting = set(), [operation]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += [*(tensor.op for tensor in current.inputs), *current.control_inputs]
    return {current.type for current in seen}


def _own_saver(scaffold: Any) -> Any:
    """The saver that the user made, or training; None where there is none."""
    v1 = tf.compat.v1
    return as_saver(scaffold.saver or next(iter(v1.get_collection(v1.GraphKeys.SAVERS)), None))


def as_saver(saver: Any) -> Any:
    """What a scaffold names as its saver, as one for graphs: a scaffold may name a `tf.train.Checkpoint`, or None."""
    if not isinstance(saver, tf.train.Checkpoint):
        return saver
    from tensorflow.python.checkpoint.graph_view import ObjectGraphView

    return tf.compat.v1.train.Saver(ObjectGraphView(saver).frozen_saveable_objects(), sharded=True)


def _saved_by(saver: Any) -> Any:
    """The variables that a saver saves; none where it does not tell: an object of the user's that acts as a saver."""
    listed = getattr(saver, "_var_list", None)
    if listed is None:  # a saver that is not built yet saves all there will be
        return _saveable()
    return listed if isinstance(listed, (dict, list, tuple)) else ()


def _saveable() -> list[Any]:
    v1 = tf.compat.v1
    return [*v1.global_variables(), *v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)]


def check_restorable(checkpoint: str, scaffold: Any) -> None:
    """Compare the variables of the default graph with the checkpoint that TensorFlow is about to restore them from.

    TensorFlow does not: a variable takes a value of another shape, and everything after it goes wrong in silence.

    Raises:
        ModelError: Which variables are missing in it, or have other shapes.
    """
    saver = _own_saver(scaffold)
    check_fits(checkpoint, _reader(checkpoint), _saveable() if saver is None else _saved_by(saver))


def _local_operations() -> list[Any]:
    """What initialises local variables, tables and resources: nothing where there are none, to save a step."""
    keys = tf.compat.v1.GraphKeys
    variables = [variable.initializer for variable in tf.compat.v1.local_variables()]
    return [*variables, *tf.compat.v1.get_collection(keys.TABLE_INITIALIZERS), *_created(keys.LOCAL_RESOURCES)]


def _created(key: str) -> list[Any]:
    return [resource.create for resource in tf.compat.v1.get_collection(key)]


def _without_unsaved_step(reader: Any, saved: list[Any]) -> tuple[list[Any], list[Any]]:
    """Every Estimator's graph has a global step, but a checkpoint that was written without one has not."""
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
"""In checkpoints of `tf.train.Checkpoint`, whose names are not those of variables: TensorFlow matches them itself."""


class DoesNotFit(ModelError, ValueError):
    """A checkpoint lacks variables, or has them in other shapes."""


def _also(kind: Any) -> type[DoesNotFit]:
    """`DoesNotFit` that is one of TensorFlow's errors, too: old code catches the error that its restoring raised."""

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
    """Compare variables, a list or a dict by name in the checkpoint, with what the checkpoint holds.

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
