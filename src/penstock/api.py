"""The Python twins of the commands."""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from penstock import folders, registry, steps
from penstock.errors import OutputError, UsageError
from penstock.estimator import Estimator
from penstock.estimator.opening import file_of, open_estimator
from penstock.inspection import describe_data, describe_input, describe_model
from penstock.models.belongings import with_belongings
from penstock.opening import check_size, open_data, open_model
from penstock.option_texts import parse_size, read_labels, text_of_constant
from penstock.options import DeviceRequest, ModelOptions, PredictOptions, ReadOptions
from penstock.pool.probe import devices_with_runtimes
from penstock.returned import predict_arrays, stream_blocks
from penstock.sources.streaming import Rows as Rows
from penstock.storage.committer import is_finished, whole_records
from penstock.storage.manifest import load_manifest
from penstock.storage.places import place_of
from penstock.telemetry.progress import Bars, Lines, Progress, Silent
from penstock.telemetry.summary import Summary

_READING = tuple(field.name for field in dataclasses.fields(ReadOptions))
_REQUESTED = (
    "signature", "runtime", "batch_size", "threads", "format", "part_rows", "trust_model",
    "as_example", "top_k", "argmax",
)  # fmt: skip
"""Options that are plain JSON as they are, and change the output."""
_LOADING = tuple(field.name for field in dataclasses.fields(ModelOptions))


class Keywords(TypedDict, total=False):
    """The options of `predict` and `stream`, as their commands have them."""

    inputs: Mapping[str, str | Sequence[str]]
    keep: Sequence[str]
    rename: Mapping[str, str]
    signature: str
    runtime: str
    batch_size: int
    devices: str
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
    check: bool
    tolerance: float
    image_size: int | tuple[int, int] | str
    resize: str
    color: str
    images: str | Sequence[str]
    features: Mapping[str, str]
    preprocess: str | Callable[..., Any]
    preprocess_row: str | Callable[..., Any]
    preset: str
    scale: float | Sequence[float]
    offset: float | Sequence[float]
    loaders: int
    row_timeout: float
    buckets: Sequence[int]
    skip: int
    limit: int
    sample: int
    sample_by: str
    seed: int


def make_options(keywords: Keywords) -> PredictOptions:
    """Options from keywords; what is None counts as not given."""
    given: dict[str, Any] = {name: value for name, value in keywords.items() if value is not None}
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
    if "image_size" in given:
        given["image_size"] = _size(given["image_size"])
    if "labels" in given:
        is_path = isinstance(given["labels"], (str, os.PathLike))
        given["labels"] = read_labels(os.fspath(given["labels"])) if is_path else tuple(given["labels"])
    if "constants" in given:
        given["constants"] = {name: text_of_constant(value) for name, value in given["constants"].items()}
    for name in ("weights", "checkpoint"):
        if name in given:
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


def predict(
    model: Any,
    data: Any,
    *,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    verbose: bool = False,
    **keywords: Unpack[Keywords],
) -> Any:
    """Predict every row of `data`, in order, on every device.

    Args:
        model: A live Keras model, a `.keras` file, a SavedModel folder, `module:function`, or a function that builds
            a Keras model.
        data: Arrays (one, a list or a dict of them), a pandas or Arrow table, or paths of files, folders and globs.
        output: The folder, or the URL of a remote prefix, to write to. Without it the predictions are returned.
        overwrite: Remove another job of penstock that is in the folder.
        progress: Show progress; by default only where there is an output folder and a terminal or log to show it on.
        verbose: Let the frameworks write to the log all they want to.
        **keywords: As the options of `penstock predict`.

    Returns:
        Without `output`, what `model.predict(data)` returns: an array, or a list or dict of them. With `output`, a
        Summary.

    Raises:
        PenstockError: See `penstock.errors` for the tree.

    Example:
        >>> y = penstock.predict(model, x)                                             # doctest: +SKIP
        >>> penstock.predict("model.keras", "rows.parquet", output="predictions/")     # doctest: +SKIP
    """
    began = time.perf_counter()
    options = make_options(keywords)
    if output is None and options.keep:
        raise UsageError(
            "without an output folder only the predictions are returned",
            received=f"keep={', '.join(options.keep)}",
            hint="give output=…, or use penstock.stream, which yields kept columns, too",
        )
    if output is None:
        return predict_arrays(_resolved(model, options), data, options, is_verbose=verbose)
    return predict_to_folder(
        model,
        data,
        os.fspath(output),
        options,
        progress=_progress(progress),
        overwrite=overwrite,
        is_verbose=verbose,
        began=began,
    )


def predict_to_folder(
    model: Any,
    data: Any,
    output: str,
    options: PredictOptions,
    *,
    progress: Progress,
    overwrite: bool = False,
    is_verbose: bool = False,
    began: float | None = None,
) -> Summary:
    """`predict` with an output folder, its options checked already."""
    task = make_task(model, data, output, options, overwrite=overwrite, is_verbose=is_verbose)
    return folders.run(task, progress, time.perf_counter() if began is None else began)


def make_task(
    model: Any,
    data: Any,
    output: str,
    options: PredictOptions,
    *,
    overwrite: bool = False,
    is_verbose: bool = False,
) -> folders.FolderJob:
    """The job behind a call, with the description that its fingerprint covers."""
    opened, digest, location = open_model(_resolved(model, options), options)
    source, inputs = open_data(data, options.reading)
    request = {
        "model": location,
        "inputs": inputs,
        "columns": {name: list(columns) for name, columns in options.inputs.items()},
        "keep": list(options.keep),
        "rename": dict(options.rename),
        **{name: getattr(options, name) for name in _REQUESTED},
        "outputs": list(options.outputs),
        "labels": list(options.labels),
        "loading": dataclasses.asdict(options.loading) | {"custom_objects": list(options.loading.custom_objects)},
        **steps.as_request(options),
    }
    return folders.FolderJob(opened, digest, source, output, options, request, overwrite, is_verbose)


def _resolved(model: Any, options: PredictOptions) -> Any:
    """An Estimator, or the place of a `model_fn`, as the description of a model; any other model as it is."""
    loading = options.loading
    if loading.estimator:
        return open_estimator(os.fspath(model), loading.checkpoint, loading.params)
    return file_of(model) if isinstance(model, Estimator) else model


def resume(
    output: str | os.PathLike[str],
    *,
    devices: str = "all",
    max_failures: float | None = None,
    progress: bool | Progress | None = None,
    verbose: bool = False,
) -> Summary:
    """Go on with the job in a folder, on whatever devices of its kind are here now (`devices` may name others).

    Raises:
        OutputError: The folder holds no job, or one whose input was in memory.
    """
    began = time.perf_counter()
    folder = os.fspath(output)
    manifest = load_manifest(place_of(folder))
    if manifest is None:
        raise OutputError("the folder holds no job of penstock", received=folder)
    request = manifest.request
    if request["inputs"] is None or request["model"] is None:
        raise OutputError(
            "the model or the input of this job was in memory",
            received=folder,
            hint="call penstock.predict again with the same model, the same data and the same output",
        )
    options = PredictOptions(
        inputs={name: tuple(columns) for name, columns in request["columns"].items()},
        keep=tuple(request["keep"]),
        rename=request["rename"],
        devices=DeviceRequest.parse(devices),
        max_failures=manifest.max_failures if max_failures is None else max_failures,
        **{name: request[name] for name in _REQUESTED},
        outputs=tuple(request["outputs"]),
        labels=tuple(request["labels"]),
        loading=ModelOptions(**request["loading"] | {"custom_objects": tuple(request["loading"]["custom_objects"])}),
        **steps.from_request(request),
    )
    return predict_to_folder(
        request["model"],
        request["inputs"],
        folder,
        options,
        progress=_progress(progress),
        is_verbose=verbose,
        began=began,
    )


def status(output: str | os.PathLike[str]) -> dict[str, Any]:
    """How far the job in a folder is. Touches nothing.

    Returns:
        `state` (`running`, `unfinished` or `finished`), `rows`, `committed`, `failed`, `parts`, `recipe`.
    """
    folder = os.fspath(output)
    place = place_of(folder)
    manifest = load_manifest(place)
    if manifest is None:
        raise OutputError("the folder holds no job of penstock", received=folder)
    records = whole_records(place, place.records())
    state = "finished" if is_finished(manifest, records) else "running" if place.is_locked() else "unfinished"
    return {
        "output": folder,
        "state": state,
        "rows": manifest.rows,
        "committed": sum(record.rows for record in records),
        "failed": sum(record.failed for record in records),
        "parts": sum(bool(record.files) for record in records),
        "model": manifest.request["model"],
        "recipe": manifest.recipe.as_json(),
    }


def stream(model: Any, data: Any, *, verbose: bool = False, **keywords: Unpack[Keywords]) -> Iterator[dict[str, Any]]:
    """Yield predictions block by block, in order, holding no more than the plan allows.

    Yields:
        A dict with `row` (the index of each row in the whole input), the outputs and the kept columns. A row that
        failed leaves a gap in `row`.

    Example:
        >>> for block in penstock.stream("model.keras", "rows.parquet"):    # doctest: +SKIP
        ...     print(block["row"][0], block["score"].mean())
    """
    options = make_options(keywords)
    opened, _, _ = open_model(_resolved(model, options), options, needs_digest=False)
    source, _ = open_data(data, options.reading)
    return stream_blocks(opened, source, options, is_verbose=verbose)


def inspect(
    target: Any,
    *,
    signature: str | None = None,
    runtime: str | None = None,
    trust_model: bool = False,
    custom_objects: str | Sequence[str] = (),
    weights: str | None = None,
    constants: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a model file takes and gives, or what an input holds: files, or what else `predict` takes as data.

    Returns:
        For a model: `kind`, `written_by`, `inputs`, `outputs`, `other_signatures`, `parameters`, `bytes`,
        `needs_trust`, `runtimes` and `run_it`, the command. For an input: `files`, `rows`, `columns`.
    """
    if not isinstance(target, (str, os.PathLike)):
        return describe_data(open_data(target, ReadOptions())[0])
    target = os.fspath(target)
    check_size(target, DeviceRequest("cpu"))
    # It is only looked at: what needs trust is told, and not loaded unless it is given.
    file = registry.find_model(target, signature=signature, trust=True)
    if file is None and os.path.isfile(os.path.join(target, "checkpoint")):
        registry.open_model(target)  # says what a folder of checkpoints is good for
    if file is None:
        return describe_input(target)
    modules = (custom_objects,) if isinstance(custom_objects, str) else tuple(custom_objects)
    texts = {name: text_of_constant(value) for name, value in (constants or {}).items()}
    file = with_belongings(replace(file, trust=trust_model, constants=texts), weights, modules, trust=trust_model)
    return describe_model(file, runtime, target)


def devices() -> list[dict[str, Any]]:
    """Every device, its memory, and which runtimes can use it or why not."""
    return devices_with_runtimes(list(registry.RUNTIMES))


def _progress(wanted: bool | Progress | None) -> Progress:
    if wanted is None or wanted is True:
        return Bars() if sys.stderr.isatty() else Lines()
    return Silent() if wanted is False else wanted
