"""Predictions that are returned instead of written: arrays, and streams of blocks."""

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.commands.batch_by_batch import KERAS_BATCH, Hooks, batches_of, in_steps
from penstock.commands.gathering import Gathered, caller, filled, to_numpy, to_ragged_tensor
from penstock.core import division, tuning
from penstock.core.columns import OPAQUE
from penstock.core.job import Job
from penstock.core.postprocessing import Postprocess
from penstock.core.protocols import Source
from penstock.core.records import STRING, Column, ModelFile, Placement, Result, Signature
from penstock.core.state import NONE
from penstock.core.stopping import StopFlag
from penstock.engines.embedded import EmbeddedEngine
from penstock.errors import InputError, UsageError
from penstock.jobs import output_columns, states
from penstock.jobs import placement as placing
from penstock.jobs.batch_size import choose_batch_size, size_with_state
from penstock.jobs.bind import as_lenient_as_keras, bind
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request
from penstock.jobs.open import OpenedJob, log_without_folder, open_both, open_live
from penstock.jobs.reference_check import check_answers
from penstock.jobs.run_context import RunContext
from penstock.options.records import PredictOptions
from penstock.planning import start_by_plan
from penstock.pool.guard.keeping import Keeper
from penstock.pool.loading import load_batches
from penstock.runtimes.keras.live import LiveModel, is_live_keras_model
from penstock.sinks.staging import ROW
from penstock.sources.python.memory import InMemory
from penstock.sources.python.streaming import StreamedRows
from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Progress, Silent


@dataclass(frozen=True)
class Wanted:
    """How predictions are returned.

    Args:
        on_error: What happens to failed rows. With None, they raise an error for arrays, and are left out of a stream.
        steps: How many batches to take; None for all.
        callbacks: Callbacks of Keras, called for every batch.
        progress: Shows the run.
        is_verbose: Whether all output of the frameworks is shown.
    """

    on_error: str | None = None
    steps: int | None = None
    callbacks: Any = None
    progress: Progress = field(default_factory=Silent)
    is_verbose: bool = False


def predict_arrays(model: Any, data: Any, options: PredictOptions, wanted: Wanted) -> Any:
    """What `model.predict(data)` returns, for every kind of model and data."""
    if is_live_keras_model(model):
        return _predict_live(model, data, options, wanted)
    if wanted.callbacks:
        raise UsageError(
            "callbacks are called with a live model",
            received=type(model).__name__,
            hint="load the model with Keras, and give it",
        )
    opened = open_both(model, data, options, needs_digest=False)
    source, options = _only(opened.source, opened.options, wanted.steps)
    with run_context(wanted.is_verbose) as context:
        started = _start(opened.model, source, options, context)
        with contextlib.closing(started):
            _describe_training(opened, started, wanted.progress)
            columns = _gather(started, wanted, context.meter)
    numpy = {name: to_numpy(column) for name, column in columns.items()}
    if options.postprocess is not None:
        return _pack(numpy, "single" if list(columns) == [Postprocess.only] else "dict")
    return _pack(numpy, "dict" if options.top_k or options.argmax else started.signature.structure)


def _only(source: Source, options: PredictOptions, steps: int | None) -> tuple[Source, PredictOptions]:
    """The source and options, changed so that only so many batches are taken."""
    if steps is None:
        return source, options
    if isinstance(source, StreamedRows):
        return source.with_batches(steps), options
    if isinstance(source, InMemory):
        # Keras divides all rows into so many batches, unless a batch size is given.
        return (source if options.batch_size is None else source.cut(0, steps * options.batch_size)), options
    rows = steps * (options.batch_size or KERAS_BATCH)
    return source, replace(options, limit=rows if options.limit is None else min(rows, options.limit))


@contextlib.contextmanager
def run_context(is_verbose: bool) -> Iterator[RunContext]:
    with log_without_folder(is_verbose) as log:
        yield RunContext(log, StopFlag(), is_verbose=is_verbose, meter=Meter(is_written=False))


def _start(model: ModelFile | LiveModel, source: Source, options: PredictOptions, context: RunContext) -> Started:
    """Start a job, with the user's function behind the model. If `options.check` is set, check its answers."""
    started = start_by_plan.start(model, Request(source, options), context)
    try:
        if options.check and isinstance(model, ModelFile):
            check_answers(model, started, context)
        output_columns.start_finisher(started, context.meter)
    except BaseException:
        started.close()
        raise
    return started


def _describe_training(opened: OpenedJob, started: Started, progress: Progress) -> None:
    for line in opened.notes:
        progress.note(line)
    for line in output_columns.describe_training(opened.location, started):
        warnings.warn(line, stacklevel=caller())  # the progress of a short call may not be shown at all


def _predict_live(model: Any, data: Any, options: PredictOptions, wanted: Wanted) -> Any:
    """The drop-in for `model.predict`. It starts no process and writes no file, and is quick for a small array."""
    if options.rename:
        raise UsageError(
            "arrays that are returned have no names to change",
            received=f"rename={options.rename}",
            hint="give output=…, or use penstock.stream",
        )
    opened = open_live(model, data, options)
    live = opened.model
    assert isinstance(live, LiveModel)
    source, options = _only(opened.source, options, wanted.steps)
    signature, call = live.replicas[0].signature, live.replicas[0].call
    if wanted.callbacks or _is_taken_batch_by_batch(source, signature):
        columns = _predict_batch_by_batch(model, live, source, options, wanted)
    elif isinstance(source, InMemory) and _is_plain(options) and _is_fed_as_it_is(source, signature):
        columns = _predict_columns(live, source, signature, options, wanted)
    else:
        with run_context(False) as context:
            started = _start(live, source, options, context)
            with contextlib.closing(started):
                columns = _gather(started, wanted, context.meter)
    if options.postprocess is not None:
        numpy = {name: to_numpy(column) for name, column in columns.items()}
        return _pack(numpy, "single" if list(columns) == [Postprocess.only] else "dict")
    if options.outputs or options.top_k or options.argmax:
        return {name: to_numpy(column) for name, column in columns.items()}
    return call.unpack(_as_the_model_gave(columns, live))


def _as_the_model_gave(columns: Mapping[str, Column], live: LiveModel) -> dict[str, Any]:
    """Outputs in the types of `model.predict`: ragged tensors stay ragged, and bfloat16 stays bfloat16."""
    call = live.replicas[0].call
    outputs = {
        name: to_ragged_tensor(column) if name in call.ragged_outputs else to_numpy(column)
        for name, column in columns.items()
    }
    for spec in live.replicas[0].signature.outputs:
        if spec.dtype == "bfloat16" and spec.name in outputs:
            # The values came as float32, which represents every bfloat16 exactly.
            import ml_dtypes

            outputs[spec.name] = outputs[spec.name].astype(ml_dtypes.bfloat16)
    return outputs


def _is_taken_batch_by_batch(source: Source, signature: Signature) -> bool:
    """Whether a stream's batches may have rows of shapes that cannot be padded to one another."""
    if not isinstance(source, StreamedRows):
        return False
    if not signature.inputs:
        return source.is_mixed()
    return any(spec.shape is not None and None in spec.shape[1:] for spec in signature.inputs)


def _predict_batch_by_batch(
    model: Any, live: LiveModel, source: Source, options: PredictOptions, wanted: Wanted
) -> dict[str, Column]:
    size = options.batch_size or KERAS_BATCH
    steps = -(-len(source) // size) if isinstance(source, InMemory) else wanted.steps
    hooks = Hooks(model, wanted.callbacks, steps) if wanted.callbacks else None
    gathered = Gathered(wanted.on_error or "raise", options.labels, options.squeeze)

    def predict(batch: InMemory) -> Iterator[Result]:
        live.refresh()  # a callback may have changed the weights
        fitting = replace(options, batch_size=None if options.batch_size is None else len(batch))
        named = batch.named([spec.name for spec in live.replicas[0].call.own_inputs])
        yield from _results_of_columns(live, named, live.replicas[0].signature, fitting, Meter(is_written=False))

    in_steps(
        batches_of(source, size),
        predict,
        gathered,
        hooks,
        lambda columns: live.replicas[0].call.unpack(_as_the_model_gave(columns, live)),
    )
    if not gathered.rows:
        raise InputError("the input has no rows", received="no batches")
    return gathered.columns()


def _is_plain(options: PredictOptions) -> bool:
    """Whether a call has only such options that arrays can go to the model without further preparation."""
    likely = {name: getattr(options, name) for name in ("inputs", "batch_size", "preset", "scale", "offset")}
    return options == PredictOptions(**likely)


def _is_fed_as_it_is(source: InMemory, signature: Signature) -> bool:
    """Whether no values must be examined first: text may be paths of images, and a struct may hold images."""
    columns = source.schema().values()
    if any(spec.varies for spec in columns):
        return False  # it must first be found out whether these rows may be padded
    needs_look = any(spec.dtype in (STRING, OPAQUE) for spec in columns)
    return not needs_look or any(spec.dtype == STRING for spec in signature.inputs)


def _predict_columns(
    live: LiveModel, source: InMemory, signature: Signature, options: PredictOptions, wanted: Wanted
) -> dict[str, Column]:
    meter = Meter(is_written=False)
    gathered = Gathered(wanted.on_error or "raise", options.labels, options.squeeze)
    with contextlib.ExitStack() as shown:
        for number, result in enumerate(_results_of_columns(live, source, signature, options, meter)):
            meter.failed += len(result.failures)
            gathered.add(result)
            if number == 0 and result.span.rows < len(source):
                # The display begins only now: a call with a single span must not wait for it.
                shown.enter_context(_shown(wanted.progress, meter, len(source)))
    return gathered.columns()


def _results_of_columns(
    live: LiveModel, source: InMemory, signature: Signature, options: PredictOptions, meter: Meter
) -> Iterator[Result]:
    bindings = bind(as_lenient_as_keras(signature, source.schema()), source, source.schema(), options)
    size = choose_batch_size(signature, bindings, source, options, live.devices[0].kind)
    job, placement = Job(source, bindings, options.keep, size), placing.embedded_placement(live)
    job, placement = _with_state(live, job, placement, options)
    if options.batch_size is None and signature.fixed_batch is None and job.state == NONE:
        job = replace(job, batch_size=_shrink_if_slow(live, job))
    engine = EmbeddedEngine(live.replicas, placement, meter.observe, StopFlag())
    engine.take(job)
    row_bytes = sum(binding.row_bytes for binding in bindings)
    spans = list(job.source.divide(division.rows_per_span(job.batch_size, row_bytes, 1)))
    if not spans:
        raise InputError("the input has no rows", received="arrays without rows")
    with contextlib.closing(engine):
        yield from engine.run(spans)


def _with_state(live: LiveModel, job: Job, placement: Placement, options: PredictOptions) -> tuple[Job, Placement]:
    """The job and placement, changed as the model's state requires. The first rows of these shapes show the state."""
    shapes = tuple(spec.shape for spec in job.source.schema().values())
    if shapes not in live.states:
        first = next(iter(job.source.divide(job.batch_size)), None)
        if first is None:
            return job, placement
        live.states[shapes] = Keeper(live.replicas[0]).look(next(load_batches(job, first)))
    state = live.states[shapes]
    if state.kind == NONE:
        return job, placement
    signature, seed = live.replicas[0].signature, states.seed_of(options, is_live=True)
    is_chosen = options.batch_size is not None
    size = size_with_state(signature, job.bindings, options, job.batch_size, is_chosen=is_chosen)
    job = replace(job, seed=seed, batch_size=size)
    return states.settled(job, placement, signature, states.kind_of(state, seed))


def _shrink_if_slow(live: LiveModel, job: Job) -> int:
    """The batch size by the rule of thumb, or a smaller one if a batch of that size would take long on a CPU."""
    if job.batch_size <= 2 * tuning.TRIED_ROWS or live.devices[0].kind != "cpu":
        return job.batch_size
    shapes = tuple(spec.shape for spec in job.source.schema().values())
    if shapes not in live.few_s:
        few = replace(job, batch_size=tuning.TRIED_ROWS)
        batch = next(load_batches(few, next(iter(job.source.divide(few.batch_size)))))
        # If the model rejects these rows, the run itself raises the error.
        with contextlib.suppress(Exception):
            for _ in range(2):
                began = time.perf_counter()
                live.replicas[0].predict(dict(batch.arrays))
                live.few_s[shapes] = time.perf_counter() - began
    return tuning.size_if_slow(job.batch_size, live.few_s.get(shapes, 0.0))


@dataclass(frozen=True)
class Running:
    """A running job: its results in order, and the signature of the model.

    `started` is None for arrays that a live model takes as they are.
    """

    results: Iterator[Result]
    signature: Signature
    started: Started | None = None


@contextlib.contextmanager
def running(opened: OpenedJob, wanted: Wanted, context: RunContext) -> Iterator[Running]:
    """Run a job whose results are not returned to the caller. If possible, it goes the short way of `predict`."""
    model, source, options = opened.model, opened.source, opened.options
    meter = context.meter
    if isinstance(model, LiveModel) and isinstance(source, InMemory) and _is_plain(options):
        signature = model.replicas[0].signature
        if _is_fed_as_it_is(source, signature):
            with _shown(wanted.progress, meter, len(source)):
                yield Running(_results_of_columns(model, source, signature, options, meter), signature)
            return
    started = _start(model, source, options, context)
    with contextlib.closing(started), _shown(wanted.progress, meter, _num_rows(started)):
        yield Running(started.results(), started.signature, started)


def _num_rows(started: Started) -> int:
    """How many rows a job has; 0 where that is not known."""
    return 0 if started.is_streamed else sum(span.rows for span in started.divide())


def _gather(started: Started, wanted: Wanted, meter: Meter) -> dict[str, Column]:
    """All answers, one column for each output, through the user's function where there is one."""
    options, results = started.options, started.results()
    gathered = Gathered(wanted.on_error or "raise", options.labels, options.squeeze)
    if started.finisher is not None:
        gathered = Gathered(wanted.on_error or "raise")
        given = started.finisher.function.gives
        results = (
            replace(result, columns={name: result.columns[name] for name in given if result.columns})
            for result in output_columns.finished(started, results)
        )
    with _shown(wanted.progress, meter, _num_rows(started)):
        for result in results:
            meter.failed += len(result.failures)
            gathered.add(result)
    return gathered.columns()


@contextlib.contextmanager
def _shown(progress: Progress, meter: Meter, total: int) -> Iterator[None]:
    meter.begin()
    progress.begin(meter, total, 0)
    try:
        yield
    finally:
        progress.end()


def _pack(columns: dict[str, Any], structure: str) -> Any:
    # If a model declares no outputs, only its answers show that there are several.
    if structure == "dict" or (structure == "single" and len(columns) > 1):
        return columns
    values = list(columns.values())
    return values if structure == "list" else values[0]


def stream_blocks(model: Any, data: Any, options: PredictOptions, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The predictions of every span in order, with `row` and the kept columns.

    The model and the data are opened at once, so that the call raises their errors, not its first block.
    """
    opened = open_both(model, data, options, needs_digest=False)
    source, options = _only(opened.source, opened.options, wanted.steps)
    return _blocks(replace(opened, source=source, options=options), wanted)


def _blocks(opened: OpenedJob, wanted: Wanted) -> Iterator[dict[str, Any]]:
    with run_context(wanted.is_verbose) as context:
        meter = context.meter
        started = _start(opened.model, opened.source, opened.options, context)
        with contextlib.closing(started), _shown(wanted.progress, meter, _num_rows(started)):
            _describe_training(opened, started, wanted.progress)
            for result in output_columns.finished(started, started.results()):
                meter.failed += len(result.failures)
                yield _block(result, wanted.on_error or "skip")


def _block(result: Result, on_error: str) -> dict[str, Any]:
    if result.failures and on_error == "raise":
        Gathered("raise").add(result)
    if result.failures and on_error == "nan":
        result = replace(result, columns=filled(result), failures=())
    return {ROW: result.row_numbers(), **{name: to_numpy(column) for name, column in result.columns.items()}}
