"""The variables that a step reads and writes, as arrays: what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.errors import ModelError
from penstock.runtimes.frameworks import keras

_COPIES = "#"
"""In names of values that differ from device to device, the number of the device follows this sign."""


def variables_of(model: Any) -> dict[str, Any]:
    """Every variable of a step (weights, metrics, optimizer, seed), by a name that is the same in every process."""
    from keras.src.random.seed_generator import global_seed_generator

    groups = {
        "weights": model.variables,
        "metrics": model.metrics_variables,
        "optimizer": model.optimizer.variables if model.optimizer is not None else [],
        "seed": [global_seed_generator().state],
    }
    named: dict[str, Any] = {}
    known: set[int] = set()
    for group, variables in groups.items():
        for number, variable in enumerate(variables):
            if id(variable) not in known:
                known.add(id(variable))
                named[f"{group}/{number}"] = variable
    return named


def read_variables(variables: Mapping[str, Any]) -> dict[str, Array]:
    """The values of all variables. A variable that differs from device to device has a value for each device."""
    state: dict[str, Array] = {}
    for name, variable in variables.items():
        copies = [_as_array(copy) for copy in _copies(variable)]
        if all(np.array_equal(copy, copies[0]) for copy in copies[1:]) and not _is_summed(variable, copies):
            state[name] = copies[0]
        else:
            state.update({f"{name}{_COPIES}{number}": copy for number, copy in enumerate(copies)})
    return state


def write_variables(variables: Mapping[str, Any], state: Mapping[str, Array]) -> None:
    """Give all variables their values back.

    Raises:
        ModelError: The state is of another model. No variable has changed then.
    """
    kept = {name: [state[name]] if name in state else _saved_copies(name, state) for name in variables}
    for name, variable in variables.items():
        allowed = f"{variable.dtype} of shape {tuple(variable.shape)}"
        if not kept[name] or any(_described(value) != allowed for value in kept[name]):
            received = _described(kept[name][0]) if kept[name] else "nothing"
            raise _of_another_model(f"{name}: {received}", f"{allowed} ({variable.path})")
    for name in state:
        if name.partition(_COPIES)[0] not in variables:
            raise _of_another_model(f"{name}: {_described(state[name])}", "no such variable")
    for name, variable in variables.items():
        _write(variable, kept[name])


def _described(value: Array) -> str:
    return f"{value.dtype.name} of shape {value.shape}"


def _of_another_model(received: str, allowed: str) -> ModelError:
    return ModelError(
        "the checkpoint is of another model",
        received=received,
        allowed=allowed,
        hint="continue with the model and the optimizer that the checkpoint was written with",
    )


def _saved_copies(name: str, state: Mapping[str, Array]) -> list[Array]:
    saved: list[Array] = []
    while (key := f"{name}{_COPIES}{len(saved)}") in state:
        saved.append(state[key])
    return saved


def _write(variable: Any, saved: list[Array]) -> None:
    copies = _copies(variable)
    if len(copies) == 1:
        variable.assign(_whole(variable, saved))
        return
    if len(saved) != len(copies):
        first = _whole(variable, saved)
        rest = np.zeros_like(first) if _is_sum(variable) else first
        saved = [first, *[rest] * (len(copies) - 1)]
    for copy, value in zip(copies, saved, strict=True):
        copy.assign(value)


def _whole(variable: Any, saved: list[Array]) -> Array:
    """One value from the values of several devices: the run before had another number of devices."""
    if _is_sum(variable):
        return np.sum(saved, axis=0, dtype=saved[0].dtype)
    is_mean = len(saved) > 1 and keras.backend.is_float_dtype(variable.dtype)  # statistics of rows
    return np.mean(saved, axis=0, dtype=np.float64).astype(saved[0].dtype) if is_mean else saved[0]


def _is_sum(variable: Any) -> bool:
    return str(variable.aggregation) == "sum"


def _is_summed(variable: Any, copies: list[Array]) -> bool:
    return len(copies) > 1 and _is_sum(variable)


def _copies(variable: Any) -> list[Any]:
    """A variable's copies on the devices of a strategy. Without a strategy, the variable itself."""
    if keras.backend.backend() != "tensorflow":
        return [variable]
    return list(getattr(variable.value, "values", None) or [variable])


def _as_array(variable: Any) -> Array:
    if hasattr(variable, "numpy") and not hasattr(variable, "path"):
        return np.array(variable.numpy())
    return np.array(keras.ops.convert_to_numpy(variable))
