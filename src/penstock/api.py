"""The Python twins of the commands."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, TypedDict, Unpack

import numpy as np

from penstock import folders, jobs, registry
from penstock.core import division
from penstock.core.protocols import Source
from penstock.core.records import Array, Column, Job, ModelFile, Placement, Result, Span
from penstock.core.stopping import StopFlag
from penstock.engines.embedded import EmbeddedEngine
from penstock.errors import InputError, OutputError, UsageError
from penstock.models import builder
from penstock.options import DeviceRequest, PredictOptions
from penstock.runtimes.keras_call import digest_of_weights
from penstock.runtimes.live import LiveModel, is_live_keras_model, wrap_live
from penstock.sinks.staging import ROW
from penstock.sources.memory import is_list_of_arrays, open_memory
from penstock.storage.committer import is_finished, whole_records
from penstock.storage.disk import internal
from penstock.storage.journal import read_records
from penstock.storage.lock import is_locked
from penstock.storage.manifest import load_manifest
from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Bars, Lines, Progress, Silent
from penstock.telemetry.summary import Summary


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


def make_options(keywords: Keywords) -> PredictOptions:
    """Options from keywords; what is None counts as not given."""
    given: dict[str, Any] = {name: value for name, value in keywords.items() if value is not None}
    unknown = set(given) - set(Keywords.__annotations__)
    if unknown:
        raise UsageError(
            "unknown option", received=", ".join(sorted(unknown)), allowed=", ".join(Keywords.__annotations__)
        )
    if "devices" in given:
        given["devices"] = DeviceRequest.parse(given["devices"])
    if "inputs" in given:
        given["inputs"] = {
            name: (columns,) if isinstance(columns, str) else tuple(columns)
            for name, columns in given["inputs"].items()
        }
    if "keep" in given:
        keep = given["keep"]
        given["keep"] = (keep,) if isinstance(keep, str) else tuple(keep)
    return PredictOptions(**given)


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
        output: The folder to write to. Without it the predictions are returned.
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
        return _predict_in_memory(model, data, options, is_verbose=verbose)
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
    opened, digest, location = _open_model(model, options)
    source, inputs = _open_data(data)
    request = {
        "model": location,
        "inputs": inputs,
        "columns": {name: list(columns) for name, columns in options.inputs.items()},
        "keep": list(options.keep),
        "rename": dict(options.rename),
        "signature": options.signature,
        "runtime": options.runtime,
        "batch_size": options.batch_size,
        "threads": options.threads,
        "format": options.format,
        "part_rows": options.part_rows,
        "trust_model": options.trust_model,
    }
    return folders.FolderJob(opened, digest, source, output, options, request, overwrite, is_verbose)


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
    manifest = load_manifest(folder)
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
        **{
            key: request[key]
            for key in ("signature", "runtime", "batch_size", "threads", "format", "part_rows", "trust_model")
        },
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
    manifest = load_manifest(folder)
    if manifest is None:
        raise OutputError("the folder holds no job of penstock", received=folder)
    records = whole_records(folder, read_records(internal(folder, "journal")))
    state = "finished" if is_finished(manifest, records) else "running" if is_locked(folder) else "unfinished"
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
    opened, _, _ = _open_model(model, options, needs_digest=False)
    source, _ = _open_data(data)
    return _stream(opened, source, options, is_verbose=verbose)


def _stream(
    model: ModelFile | LiveModel, source: Source, options: PredictOptions, *, is_verbose: bool
) -> Iterator[dict[str, Any]]:
    with _log(is_verbose) as log:
        started = jobs.start(model, source, options, Meter(), log=log, stop=StopFlag(), is_verbose=is_verbose)
        with contextlib.closing(started):
            for result in started.engine.run(started.divide()):
                shown = jobs.renamed(result, options)
                yield {ROW: shown.row_numbers(), **{name: _to_numpy(c) for name, c in shown.columns.items()}}


def _to_numpy(column: Column) -> Array:
    return column if isinstance(column, np.ndarray) else np.asarray(column.to_numpy(zero_copy_only=False))


def inspect(target: str, *, signature: str | None = None, runtime: str | None = None) -> dict[str, Any]:
    """What a model takes and gives, or what an input holds.

    Returns:
        For a model: `kind`, `inputs`, `outputs`, `signatures`, `parameters`, `writer`. For an input: `files`, `rows`,
        `columns`.
    """
    file = registry.find_model(target, signature=signature, trust=False)
    return _inspect_model(file, runtime) if file is not None else _inspect_input(target)


def _inspect_model(file: ModelFile, runtime: str | None) -> dict[str, Any]:
    from penstock.engines.local import LocalEngine
    from penstock.pool.devices import cpu_device
    from penstock.pool.supervisor import Launch

    name = registry.choose_runtime(file, runtime)
    with _log(False) as log:
        launch = Launch(registry.RUNTIMES[name], file, 1, log)
        with contextlib.closing(
            LocalEngine(launch, Placement((cpu_device(),), 1, 1), Meter().observe, StopFlag())
        ) as engine:
            signature = engine.load()
    return {
        "model": file.location,
        "kind": file.kind,
        "written_by": registry.writer_of(file) or signature.writer,
        "signature": signature.name,
        "other_signatures": list(signature.others),
        "inputs": {spec.name: str(spec) for spec in signature.inputs},
        "outputs": {spec.name: str(spec) for spec in signature.outputs},
        "batch": signature.fixed_batch,
        "parameters": signature.parameters,
        "runtimes": [name for name in file.runtimes if registry.is_installed(name)],
    }


def _inspect_input(target: str) -> dict[str, Any]:
    if not os.path.exists(target) and not any(mark in target for mark in "*?["):
        raise InputError("no such model, file or folder", received=target)
    source = registry.open_files([target])
    schema = source.schema()
    rows = sum(span.rows for span in source.divide(1 << 16))
    fragments = source.fragments()
    return {
        "input": target,
        "files": len(fragments),
        "bytes": sum(fragment.size for fragment in fragments),
        "rows": rows,
        "columns": {name: str(spec) for name, spec in schema.items()},
    }


def devices() -> list[dict[str, Any]]:
    """Every device, its memory, and which runtimes can use it or why not."""
    from penstock.pool.probe import devices_with_runtimes

    return devices_with_runtimes(list(registry.RUNTIMES))


def _open_model(
    model: Any, options: PredictOptions, needs_digest: bool = True
) -> tuple[ModelFile | LiveModel, str, str | None]:
    """The model, its digest, and the place where a later process would find it."""
    if isinstance(model, (str, os.PathLike)):
        file = registry.open_model(os.fspath(model), signature=options.signature, trust=options.trust_model)
        return file, file.digest, file.location
    if is_live_keras_model(model):
        return wrap_live(model, as_list=False), digest_of_weights(model) if needs_digest else "", None
    if callable(model):
        file = builder.from_function(model)
        return file, file.digest, None
    raise UsageError(
        "this is not a model",
        received=type(model).__name__,
        allowed="a Keras model, a path, 'module:function', or a function that builds a Keras model",
    )


def _open_data(data: Any) -> tuple[Source, list[str] | None]:
    """The source, and the arguments with which a later process would open it again."""
    if not _is_paths(data):
        return open_memory(data), None
    paths = [data] if isinstance(data, (str, os.PathLike)) else data
    arguments = [os.path.abspath(os.fspath(path)) for path in paths]
    return registry.open_files(arguments), arguments


def _is_paths(data: Any) -> bool:
    items = data if isinstance(data, (list, tuple)) else [data]
    return bool(items) and all(isinstance(item, (str, os.PathLike)) for item in items)


def _predict_in_memory(model: Any, data: Any, options: PredictOptions, *, is_verbose: bool) -> Any:
    if is_live_keras_model(model):
        return _predict_live(model, data, options)
    opened, _, _ = _open_model(model, options, needs_digest=False)
    source, _ = _open_data(data)
    with _log(is_verbose) as log:
        started = jobs.start(opened, source, options, Meter(), log=log, stop=StopFlag(), is_verbose=is_verbose)
        with contextlib.closing(started):
            spans = started.divide()
            columns = _gather(started.engine.run(spans), spans)
    return _pack(columns, started.signature.structure)


def _predict_live(model: Any, data: Any, options: PredictOptions) -> Any:
    """The drop-in for `model.predict`: no process, no file, and for a small array hardly any work of our own."""
    for name in ("devices", "threads", "runtime", "rename"):
        if getattr(options, name) != getattr(PredictOptions(), name):
            raise UsageError(
                "a live model runs as its framework was set up, and its outputs have no names to change",
                received=f"{name}={getattr(options, name)}",
                hint="save the model and give its path, or give output=…",
            )
    live = wrap_live(model, as_list=is_list_of_arrays(data))
    signature = live.replicas[0].signature
    names = [spec.name for spec in signature.inputs]
    source: Source = _open_data(data)[0] if _is_paths(data) else open_memory(data, names)
    bindings = jobs.bind(jobs.as_lenient_as_keras(signature, source.schema()), source, options)
    batch_size = jobs.choose_batch_size(signature, bindings, source, options)
    engine = EmbeddedEngine(live.replicas, jobs.embedded_placement(live), Meter().observe, StopFlag())
    engine.take(Job(source, bindings, options.keep, batch_size))
    row_bytes = sum(binding.row_bytes for binding in bindings)
    spans = list(source.divide(division.rows_per_span(batch_size, row_bytes, 1)))
    if not spans:
        raise InputError("the input has no rows", received=f"{type(data).__name__} without rows")
    with contextlib.closing(engine):
        columns_out = _gather(engine.run(spans), spans)
    for spec in signature.outputs:
        if spec.dtype == "bfloat16" and spec.name in columns_out:
            # It travelled as float32, which holds it exactly; `model.predict` returns it as it is.
            import ml_dtypes

            columns_out[spec.name] = columns_out[spec.name].astype(ml_dtypes.bfloat16)
    return live.replicas[0].call.unpack(columns_out)


def _gather(results: Iterator[Result], spans: Sequence[Span]) -> dict[str, Any]:
    """All results as one array for each output.

    Raises:
        InputError: A row failed; there is no failures file here that could name it.
    """
    total = spans[-1].stop
    gathered: dict[str, Any] = {}
    for result in results:
        if result.failures:
            first = result.failures[0]
            raise InputError(
                f"{len(result.failures)} rows of {result.span.rows} failed",
                received=f"row {first.row}: {first.reason}",
                hint="with an output folder, failed rows are recorded and the others are written",
            )
        for name, column in result.columns.items():
            array = _to_numpy(column)
            if len(spans) == 1:
                gathered[name] = array if array.flags.writeable else array.copy()
                continue
            if name not in gathered:
                gathered[name] = np.empty((total, *array.shape[1:]), array.dtype)
            gathered[name][result.span.start : result.span.stop] = array
    return gathered


def _pack(columns: dict[str, Any], structure: str) -> Any:
    if structure == "dict":
        return columns
    values = list(columns.values())
    return values if structure == "list" else values[0]


def _progress(wanted: bool | Progress | None) -> Progress:
    if wanted is None or wanted is True:
        return Bars() if sys.stderr.isatty() else Lines()
    return Silent() if wanted is False else wanted


@contextlib.contextmanager
def _log(is_verbose: bool) -> Iterator[IO[Any]]:
    """Where replicas write when there is no output folder: a file without a name, or the terminal."""
    with os.fdopen(os.dup(2), "wb", buffering=0) if is_verbose else tempfile.TemporaryFile(buffering=0) as log:
        yield log
