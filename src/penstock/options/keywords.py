"""Options as keywords of the Python twins, checked and turned into the options of a job."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from penstock.core.plans import Plan
from penstock.errors import UsageError
from penstock.options.parsing import parse_size, read_labels, text_of_constant
from penstock.options.records import DeviceRequest, ModelOptions, Nulls, PredictOptions, ReadOptions

_READING = tuple(field.name for field in dataclasses.fields(ReadOptions))
_AUTO = [(name, "auto") for name in ("runtime", "batch_size", "replicas_per_device", "threads", "loaders")]
"""What is found out where nothing else is said; `auto` says it, as in the shell."""
_LOADING = tuple(field.name for field in dataclasses.fields(ModelOptions))


class PredictKeywords(TypedDict, total=False):
    """The options of `predict`, as its command has them, without what it takes by position."""

    inputs: Mapping[str, str | Sequence[str]]
    keep: Sequence[str]
    rename: Mapping[str, str]
    signature: str
    runtime: str
    precision: str
    devices: str
    replicas_per_device: int | str
    memory_fraction: float
    plan: str | os.PathLike[str] | Plan
    trace: str | os.PathLike[str]
    threads: int
    format: str
    part_rows: int
    max_failures: float
    trust_model: bool
    weights: str | os.PathLike[str]
    custom_objects: str | Sequence[str]
    constants: Mapping[str, Any]
    estimator: bool
    checkpoint: str | os.PathLike[str]
    params: Mapping[str, Any]
    as_example: bool
    outputs: str | Sequence[str]
    top_k: int
    argmax: bool
    labels: str | os.PathLike[str] | Sequence[str]
    squeeze: bool
    check: bool
    tolerance: float
    image_size: int | tuple[int, int] | str
    resize: str
    interpolation: str
    fast_decode: bool
    color: str
    images: str | Sequence[str]
    features: Mapping[str, str]
    header: str
    nulls: str | float | Sequence[str | float]
    preprocess: str | Callable[..., Any]
    preprocess_row: str | Callable[..., Any]
    postprocess: str | Callable[..., Any]
    preset: str
    scale: float | Sequence[float]
    offset: float | Sequence[float]
    loaders: int
    row_timeout: float
    buckets: Sequence[int]
    padding: str
    skip: int
    limit: int
    sample: int
    sample_by: str
    seed: int


class Keywords(PredictKeywords, total=False):
    """The options of `predict`, `stream` and `plan`, as their commands have them."""

    batch_size: int | str


def make_options(keywords: Keywords) -> PredictOptions:
    """Options from keywords; what is None counts as not given."""
    given: dict[str, Any] = {
        name: value for name, value in keywords.items() if value is not None and (name, value) not in _AUTO
    }
    unknown = sorted(set(given) - set(Keywords.__annotations__))
    if unknown:
        close = difflib.get_close_matches(unknown[0], Keywords.__annotations__, n=1)
        raise UsageError(
            "unknown option",
            received=", ".join(unknown),
            allowed=", ".join(Keywords.__annotations__),
            hint=f"did you mean {close[0]!r}?" if close else None,
        )
    # `model` is the place of the function then; in the shell it is the option that names it.
    given["estimator"] = bool(given.get("estimator")) or "checkpoint" in given
    if "devices" in given:
        given["devices"] = DeviceRequest.parse(given["devices"])
    if "inputs" in given:
        given["inputs"] = {
            name: (columns,) if isinstance(columns, str) else tuple(columns)
            for name, columns in given["inputs"].items()
        }
    for name in ("keep", "images", "outputs", "custom_objects"):
        if name in given:
            given[name] = (given[name],) if isinstance(given[name], str) else tuple(given[name])
    for name in ("scale", "offset", "buckets"):
        if name in given:
            given[name] = tuple(given[name]) if isinstance(given[name], Sequence) else (given[name],)
    if "nulls" in given:
        is_one = isinstance(given["nulls"], (str, float, int))
        given["nulls"] = Nulls.parse([given["nulls"]] if is_one else given["nulls"])
    if "image_size" in given:
        given["image_size"] = _size(given["image_size"])
    if "labels" in given:
        is_path = isinstance(given["labels"], (str, os.PathLike))
        given["labels"] = read_labels(os.fspath(given["labels"])) if is_path else tuple(given["labels"])
    if "constants" in given:
        given["constants"] = {name: text_of_constant(value) for name, value in given["constants"].items()}
    for name in ("weights", "checkpoint", "plan", "trace"):
        if name in given and not isinstance(given[name], Plan):
            given[name] = os.fspath(given[name])
    given["reading"] = ReadOptions(**{name: given.pop(name) for name in _READING if name in given})
    given["loading"] = ModelOptions(**{name: given.pop(name) for name in _LOADING if name in given})
    return PredictOptions(**given)


def _size(given: Any) -> tuple[int, int]:
    if isinstance(given, str):
        return parse_size(given)
    if isinstance(given, int):
        return (given, given)
    height, width = given
    return (int(height), int(width))
