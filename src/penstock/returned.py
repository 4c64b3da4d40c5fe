"""Predictions that are handed back instead of written: arrays, and streams of blocks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np
import pyarrow as pa

from penstock import jobs, placing, states, steps, written
from penstock.binding import as_lenient_as_keras, bind
from penstock.checking import check_answers
from penstock.core import division, tuning
from penstock.core.answering import shown, squeezed, with_labels
from penstock.core.columns import OPAQUE, is_list, join
from penstock.core.finishing import Postprocess
from penstock.core.protocols import Source
from penstock.core.records import KEPT, STRING, Array, Column, Job, ModelFile, Placement, Result, Signature
from penstock.core.state import NONE
from penstock.core.stopping import StopFlag
from penstock.engines.embedded import EmbeddedEngine
from penstock.errors import InputError, UsageError
from penstock.opening import log_without_folder, open_data, open_model
from penstock.options import PredictOptions
from penstock.planning import starting
from penstock.pool.keeping import Keeper
from penstock.pool.loading import load_batches
from penstock.runtimes.live import LiveModel, is_live_keras_model, wrap_live
from penstock.sinks.staging import ROW
from penstock.sources.memory import InMemory, is_list_of_arrays
from penstock.surroundings import Surroundings
from penstock.telemetry.meter import Meter


def predict_arrays(model: Any, data: Any, options: PredictOptions, *, is_verbose: bool) -> Any:
    """What `model.predict(data)` returns, for every kind of model and data."""
    if is_live_keras_model(model):
        return _predict_live(model, data, options)
    opened, _, _ = open_model(model, options, needs_digest=False)
    source, _ = open_data(data, options.reading)
    with log_without_folder(is_verbose) as log:
        started = _start(opened, source, options, log, is_verbose)
        with contextlib.closing(started):
            if options.check and isinstance(opened, ModelFile):
                check_answers(opened, started, log=log, stop=StopFlag())
            columns = _answers(started)
    if options.postprocess is not None:
        return _pack(columns, "single" if list(columns) == [Postprocess.only] else "dict")
    return _pack(columns, "dict" if options.top_k or options.argmax else started.signature.structure)


def _start(
    model: ModelFile | LiveModel, source: Source, options: PredictOptions, log: IO[Any], is_verbose: bool
) -> jobs.Started:
    around = Surroundings(log, StopFlag(), is_verbose=is_verbose)
    return starting.start(model, source, options, Meter(), around)


def _predict_live(model: Any, data: Any, options: PredictOptions) -> Any:
    """The drop-in for `model.predict`: no process, no file, and for a small array hardly any work of our own."""
    for name in ("devices", "threads", "runtime", "rename", "check"):
        if getattr(options, name) != getattr(PredictOptions(), name):
            raise UsageError(
                "a live model runs as its framework was set up: there is nothing to choose, to rename or to compare",
                received=f"{name}={getattr(options, name)}",
                hint="save the model and give its path, or give output=…",
            )
    scaling, answers = steps.make_scaling(options), steps.make_answers(options)
    live = wrap_live(model, as_list=is_list_of_arrays(data), scaling=scaling, answers=answers)
    signature = live.replicas[0].signature
    source, _ = open_data(data, options.reading, [spec.name for spec in signature.inputs])
    if isinstance(source, InMemory) and _is_plain(options) and _is_fed_as_it_is(source, signature):
        columns_out = _predict_columns(live, source, signature, options)
    else:
        with log_without_folder(False) as log:
            started = jobs.start(live, source, options, Meter(), Surroundings(log, StopFlag()))
            with contextlib.closing(started):
                columns_out = _answers(started)
    if options.postprocess is not None:
        return _pack(columns_out, "single" if list(columns_out) == [Postprocess.only] else "dict")
    if options.outputs or options.top_k or options.argmax:
        return columns_out
    for spec in signature.outputs:
        if spec.dtype == "bfloat16" and spec.name in columns_out:
            # It travelled as float32, which holds it exactly; `model.predict` returns it as it is.
            import ml_dtypes

            columns_out[spec.name] = columns_out[spec.name].astype(ml_dtypes.bfloat16)
    return live.replicas[0].call.unpack(columns_out)


def _is_plain(options: PredictOptions) -> bool:
    """Whether this is a call such as `model.predict` takes it, with nothing that must be looked at first."""
    likely = {name: getattr(options, name) for name in ("inputs", "batch_size", "preset", "scale", "offset")}
    return options == PredictOptions(**likely)


def _is_fed_as_it_is(source: InMemory, signature: Signature) -> bool:
    """Whether no column has to be looked into: text may be the paths of images, and a struct may hold them."""
    columns = source.schema().values()
    if any(spec.varies for spec in columns):
        return False  # whether such rows may be padded is found out first
    needs_look = any(spec.dtype in (STRING, OPAQUE) for spec in columns)
    return not needs_look or any(spec.dtype == STRING for spec in signature.inputs)


def _predict_columns(
    live: LiveModel, source: InMemory, signature: Signature, options: PredictOptions
) -> dict[str, Any]:
    bindings = bind(as_lenient_as_keras(signature, source.schema()), source, source.schema(), options)
    size = jobs.choose_batch_size(signature, bindings, source, options, live.devices[0].kind)
    job, placement = Job(source, bindings, options.keep, size), placing.embedded_placement(live)
    job, placement = _with_state(live, job, placement, options)
    if options.batch_size is None and signature.fixed_batch is None and job.state == NONE:
        job = replace(job, batch_size=_bearable(live, job))
    engine = EmbeddedEngine(live.replicas, placement, Meter().observe, StopFlag())
    engine.take(job)
    row_bytes = sum(binding.row_bytes for binding in bindings)
    spans = list(job.source.divide(division.rows_per_span(job.batch_size, row_bytes, 1)))
    if not spans:
        raise InputError("the input has no rows", received="arrays without rows")
    with contextlib.closing(engine):
        return _gather(engine.run(spans), options)


def _with_state(live: LiveModel, job: Job, placement: Placement, options: PredictOptions) -> tuple[Job, Placement]:
    """The job as the model's state wants it; known by the first rows of these shapes, which are not run for it."""
    shapes = tuple(spec.shape for spec in job.source.schema().values())
    if shapes not in live.states:
        first = next(iter(job.source.divide(job.batch_size)), None)
        if first is None:
            return job, placement
        live.states[shapes] = Keeper(live.replicas[0]).look(next(load_batches(job, first)))
    found = live.states[shapes]
    if found.kind == NONE:
        return job, placement
    signature, seed = live.replicas[0].signature, states.seed_of(options, is_live=True)
    size = states.batch_size(signature, job.batch_size, is_chosen=options.batch_size is not None)
    job = replace(job, seed=seed, batch_size=size)
    return states.settled(job, placement, signature, states.kind_of(found, seed))


def _bearable(live: LiveModel, job: Job) -> int:
    """The batch size by the rule of thumb, or a smaller one of a model that would be busy with it for long."""
    if job.batch_size <= 2 * tuning.TRIED_ROWS or live.devices[0].kind != "cpu":
        return job.batch_size
    shapes = tuple(spec.shape for spec in job.source.schema().values())
    if shapes not in live.few_s:
        few = replace(job, batch_size=tuning.TRIED_ROWS)
        batch = next(load_batches(few, next(iter(job.source.divide(few.batch_size)))))
        # What a model rejects is told by the run itself.
        with contextlib.suppress(Exception):
            for _ in range(2):
                began = time.perf_counter()
                live.replicas[0].predict(dict(batch.arrays))
                live.few_s[shapes] = time.perf_counter() - began
    return tuning.bearable_size(job.batch_size, live.few_s.get(shapes, 0.0))


def _answers(started: jobs.Started) -> dict[str, Any]:
    """All answers, as the user's function makes them where there is one."""
    finisher = written.finisher_of(started)
    if finisher is None:
        return _gather(started.results(), started.options)
    given = finisher.function.gives
    results = (
        replace(result, columns={name: result.columns[name] for name in given if result.columns})
        for result in written.finished(started, started.results())
    )
    return _gather(results, replace(started.options, labels=(), top_k=None, argmax=False, squeeze=False))


def _gather(results: Iterator[Result], options: PredictOptions) -> dict[str, Any]:
    """All results as one array for each output.

    Raises:
        InputError: A row failed; there is no failures file here that could name it.
    """
    gathered: dict[str, list[Column]] = {}
    for result in results:
        if result.failures:
            first = result.failures[0]
            raise InputError(
                f"{len(result.failures)} rows of {result.span.rows} failed",
                received=f"row {first.row}: {first.reason}",
                hint="with an output folder, failed rows are recorded and the others are written",
            )
        for name, column in with_labels(result.columns, options.labels).items():
            if not name.startswith(KEPT):
                gathered.setdefault(name, []).append(squeezed(column) if options.squeeze else column)
    return {shown(name): _joined(pieces) for name, pieces in gathered.items()}


def _joined(pieces: list[Column]) -> Array:
    if len(pieces) == 1 and isinstance(pieces[0], np.ndarray):
        return pieces[0] if pieces[0].flags.writeable else pieces[0].copy()
    return _to_numpy(join(pieces))


def _pack(columns: dict[str, Any], structure: str) -> Any:
    # A model without declared outputs says only by its answers that there are several.
    if structure == "dict" or (structure == "single" and len(columns) > 1):
        return columns
    values = list(columns.values())
    return values if structure == "list" else values[0]


def stream_blocks(
    model: ModelFile | LiveModel, source: Source, options: PredictOptions, *, is_verbose: bool
) -> Iterator[dict[str, Any]]:
    """The predictions of every span in order, with `row` and the kept columns."""
    with log_without_folder(is_verbose) as log:
        started = _start(model, source, options, log, is_verbose)
        with contextlib.closing(started):
            if options.check and isinstance(model, ModelFile):
                check_answers(model, started, log=log, stop=StopFlag())
            for shown in written.finished(started, started.results()):
                yield {ROW: shown.row_numbers(), **{name: _to_numpy(c) for name, c in shown.columns.items()}}


def _to_numpy(column: Column) -> Array:
    """A column as an array: lists of one length in every row as one, others as an array of arrays."""
    if isinstance(column, np.ndarray):
        return column
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    shape, inner = [len(column)], column
    while is_list(inner.type) and not inner.null_count:
        lengths = inner.value_lengths().to_numpy(zero_copy_only=False)
        if len(lengths) and (lengths != lengths[0]).any():
            break
        shape.append(int(lengths[0]) if len(lengths) else 0)
        inner = inner.flatten()
    if is_list(inner.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    flat: Array = inner.to_numpy(zero_copy_only=False)
    return flat.reshape(shape)
