"""What a model was trained with, if `penstock fit` has written it: its rows should be fed in the same way again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.core import mapping
from penstock.core.protocols import Source
from penstock.core.records import Binding
from penstock.errors import InputError, PenstockError
from penstock.jobs import steps
from penstock.options.records import OPTIONS, PredictOptions
from penstock.storage.disk import INTERNAL
from penstock.storage.fit_manifest import load_fit_manifest, read_result
from penstock.storage.places import place_of

_FUNCTIONS = ("preprocess", "preprocess_row")
_FED = (
    *_FUNCTIONS, "preset", "scale", "offset", "image_size", "resize", "interpolation", "fast_decode", "color",
)  # fmt: skip


def columns_fed(bindings: Iterable[Binding]) -> dict[str, list[str]]:
    """The columns of every input that is made of columns only, in their order."""
    return {each.input: list(each.columns) for each in bindings if each.mask_of is None and not each.features}


def inputs_of_training(model: str | None, source: Source, options: PredictOptions) -> tuple[PredictOptions, list[str]]:
    """The options with `--input` as training had it, where none is given and this input has such columns.

    Returns:
        The options, and a line that says what was taken from training.
    """
    training = None if options.inputs or source.is_positional else _training_of(model)
    given = training.request.get("inputs") if training is not None else None
    if training is None or not given:
        return options, []
    now = steps.as_request(options)
    if any(training.request.get(name) != now[name] for name in _FUNCTIONS):
        return options, []  # the names are those of columns that another function gives
    if all(now[name] is None for name in _FUNCTIONS) and any(
        not _has_columns(source, name, columns) for name, columns in given.items()
    ):
        return options, []
    taken = " ".join(_input(name, columns) for name, columns in given.items())
    inputs = {name: tuple(columns) for name, columns in given.items()}
    return replace(options, inputs=inputs), [f"inputs are fed as in training: {taken}"]


def fed_otherwise(model: str | None, request: Mapping[str, Any], bindings: Iterable[Binding] = ()) -> list[str]:
    """A line that says in what this job differs from how a model was trained, if it does.

    Args:
        model: Its location.
        request: The options of this job that are compared, as `steps.as_request` gives them.
        bindings: What feeds the inputs in this job, where columns have names.
    """
    training = _training_of(model)
    if training is None:
        return []
    asked = [name for name in _FED if name in request]
    differing = [_shown(name, then) for name in asked if (then := training.request.get(name)) != request[name]]
    given = training.request.get("inputs") or {}
    for name, columns in columns_fed(bindings).items():
        then = training.columns.get(name, columns)
        # A column with the input's own name holds what was stacked from columns in training.
        if columns not in (then, [name]):
            differing.append(_input(name, given.get(name, then)))
    if not differing:
        return []
    return [f"the model was trained with {' '.join(differing)}, and this job feeds it otherwise: give the same options"]


@dataclass(frozen=True)
class _Training:
    """What is known of the job that wrote a model: its options, and the columns that fed every input."""

    request: dict[str, Any]
    columns: dict[str, list[str]]


def _training_of(model: str | None) -> _Training | None:
    """The training job that wrote a model; None if there was none, or it cannot be read: the model needs no record."""
    if model is None or "://" in model or not os.path.exists(model):
        return None
    folder = os.path.dirname(os.path.abspath(model))
    if not os.path.isdir(os.path.join(folder, INTERNAL)):
        return None
    place = place_of(folder)
    try:
        manifest = load_fit_manifest(place)
        return None if manifest is None else _Training(manifest.request, (read_result(place) or {}).get("inputs", {}))
    except PenstockError:
        return None


def _has_columns(source: Source, name: str, columns: Sequence[str]) -> bool:
    try:
        return bool(mapping.expand(source.schema(), name, columns))
    except InputError:
        return False


def _input(name: str, columns: Sequence[str]) -> str:
    return f"--input {name}={mapping.shortened(columns, ',')}"


def _shown(name: str, value: Any) -> str:
    """An option as on the command line; `no --flag` for an option that training did not have."""
    option = OPTIONS[name]
    if value is None or value is False:
        return f"no {option.flag}"
    if option.kind.is_switch:
        return option.flag
    if isinstance(value, dict):
        value = value["location"]
    if isinstance(value, list):
        value = ("x" if name == "image_size" else ",").join(f"{each:g}" for each in value)
    return f"{option.flag} {value}"
