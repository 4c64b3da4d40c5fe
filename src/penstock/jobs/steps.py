"""Steps before and behind the model: selected rows, the user's function, scaling, ranking; options as plain JSON."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.core.output_selection import Answers
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Source
from penstock.core.records import Scaling, Shape, Signature, TensorSpec
from penstock.core.scaling import PRESETS
from penstock.errors import UsageError
from penstock.models.digest import of_module
from penstock.options import table
from penstock.options.records import OPTIONS, PredictOptions, make_options
from penstock.options.table import Decides, Option
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
    """The options with the columns that a source keeps by default: `path`, where each row is a file."""
    wanted = [name for name in source.keeps if name not in options.keep]
    return replace(options, keep=(*options.keep, *wanted))


def make_preprocess(source: Source, signature: Signature, options: PredictOptions) -> Preprocess | None:
    """The user's function, if there is one. It gets images in the size that the model takes, where that is known."""
    function = options.preprocess if options.preprocess is not None else options.preprocess_row
    if function is None:
        return None
    preprocess = replace(Preprocess.of(function, is_by_row=options.preprocess_row is not None), nulls=options.nulls)
    images = [spec.shape for spec in signature.inputs if spec.shape is not None and len(spec.shape) == 3]
    size = images[0] if len(images) == 1 else (None, None, None)
    return replace(preprocess, takes={name: _sized(spec, size) for name, spec in source.schema().items()})


def _sized(spec: TensorSpec, size: Shape) -> TensorSpec:
    """A column; a column of images gets the model's size where the files leave it open."""
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


def make_answers(options: PredictOptions, *, logits: bool) -> Answers | None:
    answers = Answers(options.outputs, options.top_k, options.argmax, options.labels, logits)
    return None if answers == Answers() else answers


def as_json(options: Any, wanted: Callable[[Option], bool]) -> dict[str, Any]:
    """The options that are wanted as plain JSON. A function is described by its content: a change makes another job."""
    return table.as_json(options, wanted, _describe_function)


def as_request(options: PredictOptions) -> dict[str, Any]:
    """The options that decide the output, as the fingerprint covers them and a resumed run reads them again."""
    return as_json(options, lambda option: option.decides is Decides.OUTPUT)


def from_request(request: Mapping[str, Any], **others: Any) -> PredictOptions:
    """The options behind `as_request`, and `others` that a resumed run may choose.

    Raises:
        UsageError: A function existed only in the process that began the job.
    """
    return make_options({name: value for name, value in request.items() if name in OPTIONS} | others)


def _describe_function(function: Any, name: str) -> dict[str, Any] | None:
    if function is None:
        return None
    if callable(function):
        made = Preprocess.of(function, is_by_row=False)
        return {"location": made.location, "by_value": True, "digest": _digest(made.payload or b"")}
    return {"location": function, "by_value": False, "digest": _digest_of_named(function.partition(":")[0], name)}


def _digest_of_named(module: str, name: str) -> str:
    digest = of_module(module)
    if digest is None:
        raise UsageError(
            f"the module of --{name.replace('_', '-')} is not found",
            received=module,
            allowed="module:function, importable from this folder",
        )
    return digest


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]
