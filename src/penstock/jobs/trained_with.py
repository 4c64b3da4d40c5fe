"""What a model was trained with, if `penstock fit` has written it: its rows should be fed in the same way again."""

from __future__ import annotations

import os
from typing import Any

from penstock.errors import PenstockError
from penstock.jobs import steps
from penstock.options.records import OPTIONS, PredictOptions
from penstock.storage.fit_manifest import load_fit_manifest
from penstock.storage.places import place_of

_FED = (
    "preprocess", "preprocess_row", "preset", "scale", "offset", "image_size", "resize", "interpolation", "fast_decode",
    "color",
)  # fmt: skip


def fed_otherwise(model: str | None, options: PredictOptions) -> list[str]:
    """A line about the options that a model was trained with and that this job does not have, if there are any."""
    folder = os.path.dirname(os.path.abspath(model)) if model is not None and "://" not in model else ""
    if not folder or not os.path.isdir(os.path.join(folder, "_penstock")):
        return []
    try:
        manifest = load_fit_manifest(place_of(folder))
    except PenstockError:
        return []  # the model is whole without it
    if manifest is None:
        return []
    now = steps.as_request(options)
    missing = [_shown(name, then) for name in _FED if (then := manifest.request.get(name)) != now[name]]
    return (
        [f"the model was trained with {' '.join(missing)}, and this job feeds it otherwise: give the same options"]
        if missing
        else []
    )


def _shown(name: str, value: Any) -> str:
    """An option as the shell has it; one that training did not have as its absence."""
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
