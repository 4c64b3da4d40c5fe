"""What happens to rows before the model sees them: which are taken, the user's function, scaling on the device."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import replace
from typing import Any

from penstock.core.output_selection import Answers
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Source
from penstock.core.records import Shape, Signature, TensorSpec
from penstock.core.scaling import PRESETS, Scaling
from penstock.errors import UsageError
from penstock.models.modules import digest_of_module
from penstock.options.records import Nulls, PredictOptions, ReadOptions
from penstock.sources.derived.folder_names import FOLDER, FolderNames
from penstock.sources.derived.selection import sample, select


def select_rows(source: Source, options: PredictOptions) -> Source:
    """The rows that the job takes, with the names of their folders where these are kept."""
    if FOLDER in options.keep:
        source = FolderNames(source)
    if options.sample is not None:
        return sample(source, options.sample, options.sample_by, options.seed)
    if options.skip or options.limit is not None:
        return select(source, skip=options.skip, limit=options.limit)
    return source


def keep_by_default(options: PredictOptions, source: Source) -> PredictOptions:
    """A source of files keeps `path`: without it nobody knows which prediction is whose."""
    wanted = [name for name in source.keeps if name not in options.keep]
    return replace(options, keep=(*options.keep, *wanted))


def make_preprocess(source: Source, signature: Signature, options: PredictOptions) -> Preprocess | None:
    """The user's function. Images come to it in the size that the model takes, where that is known."""
    function = options.preprocess if options.preprocess is not None else options.preprocess_row
    if function is None:
        return None
    made = replace(Preprocess.of(function, is_by_row=options.preprocess_row is not None), nulls=options.nulls)
    images = [spec.shape for spec in signature.inputs if spec.shape is not None and len(spec.shape) == 3]
    size = images[0] if len(images) == 1 else (None, None, None)
    return replace(made, takes={name: _sized(spec, size) for name, spec in source.schema().items()})


def _sized(spec: TensorSpec, size: Shape) -> TensorSpec:
    """A column of images, what is open in its size taken from the model. Other columns as they are."""
    if spec.encoding != "image" or spec.shape is None or None in size[:2]:
        return spec
    channels = spec.shape[2] or (size[2] if size[2] in (1, 3, 4) else None)
    height, width = size[:2] if None in spec.shape[:2] else spec.shape[:2]
    return replace(spec, shape=(height, width, channels))


def make_scaling(options: PredictOptions) -> Scaling | None:
    if options.preset is not None:
        return PRESETS[options.preset]
    if options.scale is None and options.offset is None:
        return None
    return Scaling(options.scale or (1.0,), options.offset or (0.0,))


def make_answers(options: PredictOptions) -> Answers | None:
    answers = Answers(options.outputs, options.top_k, options.argmax, options.labels)
    return None if answers == Answers() else answers


def as_request(options: PredictOptions) -> dict[str, Any]:
    """These options as the fingerprint covers them and a resumed run reads them again: plain JSON."""
    function = options.preprocess if options.preprocess is not None else options.preprocess_row
    reading = dataclasses.asdict(options.reading)
    return {
        "reading": {name: list(value) if isinstance(value, tuple) else value for name, value in reading.items()},
        "preprocess": _describe_function(function, "preprocess"),
        "preprocess_is_by_row": options.preprocess_row is not None,
        "postprocess": _describe_function(options.postprocess, "postprocess"),
        "nulls": dataclasses.asdict(options.nulls),
        "preset": options.preset,
        "scale": _list(options.scale),
        "offset": _list(options.offset),
        "buckets": _list(options.buckets),
        "padding": options.padding,
        "skip": options.skip,
        "limit": options.limit,
        "sample": options.sample,
        "sample_by": options.sample_by,
        "seed": options.seed,
        "row_timeout": options.row_timeout,
    }


_AS_THEY_ARE = ("preset", "padding", "skip", "limit", "sample", "sample_by", "seed", "row_timeout")


def from_request(request: dict[str, Any]) -> dict[str, Any]:
    """The keywords of PredictOptions behind `as_request`.

    Raises:
        UsageError: The function was of the process that began the job.
    """
    reading = dict(request["reading"])
    for name in ("image_size", "images"):
        reading[name] = tuple(reading[name]) if reading[name] is not None else None
    located = {name: _located(request[name], name) for name in ("preprocess", "postprocess")}
    name = "preprocess_row" if request["preprocess_is_by_row"] else "preprocess"
    keywords = {key: request[key] for key in _AS_THEY_ARE}
    for key in ("scale", "offset", "buckets"):
        keywords[key] = tuple(request[key]) if request[key] is not None else None
    functions = {name: located["preprocess"], "postprocess": located["postprocess"]}
    return keywords | functions | {"reading": ReadOptions(**reading), "nulls": Nulls(**request["nulls"])}


def _located(function: dict[str, Any] | None, stage: str) -> str | None:
    """Where a function of a job is found again."""
    if function is not None and function["by_value"]:
        raise UsageError(
            f"the {stage}ing function of this job was of the script that began it",
            received=function["location"],
            hint="call penstock.predict again with the same arguments",
        )
    return function["location"] if function is not None else None


def _list(values: Any) -> list[Any] | None:
    return None if values is None else list(values)


def _describe_function(function: Any, stage: str) -> dict[str, Any] | None:
    """A function by its name and what is in it: a changed one makes another job."""
    if function is None:
        return None
    if callable(function):
        made = Preprocess.of(function, is_by_row=False)
        return {"location": made.location, "by_value": True, "digest": _digest(made.payload or b"")}
    return {"location": function, "by_value": False, "digest": _digest_of_named(function.partition(":")[0], stage)}


def _digest_of_named(module: str, stage: str) -> str:
    found = digest_of_module(module)
    if found is None:
        raise UsageError(
            f"the module of the {stage}ing function is not found",
            received=module,
            allowed="module:function, importable from this folder",
        )
    return found


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]
