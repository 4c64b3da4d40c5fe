"""Whether a checkpoint has what a graph needs: the same variables, in the same shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import ModelError

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
    import tensorflow as tf

    held = sorted(tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map())
    return _also(tf.errors.NotFoundError)(
        "the checkpoint has no such variable", received=f"{checkpoint}: {name}", allowed=some_of(held)
    )


def check_fits(checkpoint: str, reader: Any, variables: Any) -> None:
    """Compare variables, a list or a dict by name in the checkpoint, with what the checkpoint holds.

    Raises:
        DoesNotFit: Some are missing in it, or have other shapes there.
    """
    import tensorflow as tf

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
    told = [*other, *(f"{name} is not in the checkpoint" for name in missing)]
    shown = some_of(told, "; ")
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
