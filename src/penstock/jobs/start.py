"""From a model, an input and options to something that runs: the steps that every command shares."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

from penstock.core import batching, division, kinds, mapping, tuning
from penstock.core.agreement import ENOUGH_ROWS
from penstock.core.events import Asked, PaddingTrial, Prepared
from penstock.core.job import Job
from penstock.core.missing import bind_nulls
from penstock.core.plans import Choice, Plan
from penstock.core.protocols import Engine, Releases, Source
from penstock.core.records import STRING, Binding, Fragment, ModelFile, Placement, Recipe, Result, Signature, Span
from penstock.core.state import NONE, State
from penstock.engines.embedded import EmbeddedEngine
from penstock.engines.local import LocalEngine
from penstock.errors import InputError, ModelError, UsageError
from penstock.jobs import buckets as shapes
from penstock.jobs import placement as placing
from penstock.jobs import states, steps
from penstock.jobs.bind import bind, described_as_floats, fed_as_floats
from penstock.jobs.run_context import RunContext
from penstock.options.records import PredictOptions
from penstock.pool.devices import inventory as devices
from penstock.pool.devices.memory import available_bytes
from penstock.pool.processes.finisher_pool import FinishedHere, Finishers
from penstock.pool.processes.supervisor import Launch
from penstock.runtimes.catalog import on_the_first_that_loads
from penstock.runtimes.keras.live import LiveModel
from penstock.sources.derived.selection import SelectedRows
from penstock.sources.files import unchanged
from penstock.sources.images.search import find_images
from penstock.sources.python import memory
from penstock.sources.python.memory import SharedMemory
from penstock.telemetry.meter import Meter

_LEARN_ROWS = 16
_BATCHES_ON_THE_HOST = 8
"""Being read, waiting, being copied: about as many are in memory at the same time."""
CHECKED_ROWS = 64
"""How many answers are compared with those of the model's own framework, where that is asked for: as many as one batch
has of them, and of small batches more than one."""


@dataclass(frozen=True)
class Fixed:
    """What a resumed run takes from its manifest instead of deciding it again."""

    recipe: Recipe
    bindings: tuple[Binding, ...]
    sample: Span
    weights: str | None
    split: tuple[int, int] | None = None
    """Replicas on each device, and batches in flight in each."""

    @property
    def choice(self) -> Choice | None:
        if self.split is None:
            return None
        recipe = self.recipe
        return Choice(recipe.runtime, recipe.batch_size, recipe.threads, *self.split, recipe.precision)


@dataclass
class Started:
    """A job whose engine is up and whose step is compiled."""

    engine: Engine
    source: Source
    job: Job
    recipe: Recipe
    placement: Placement
    signature: Signature
    prepared: Prepared
    fed: list[str]
    """Which columns feed which inputs, in words."""
    options: PredictOptions
    sample: Span
    shared: SharedMemory | None = None
    notes: tuple[str, ...] = ()
    """What people should be told about how the model was loaded."""
    start_s: float = 0.0
    """From the start of the first replica's process to its compiled step."""
    plan: Plan | None = None
    search_s: float = 0.0
    """What finding the plan took, where it was not known before."""
    leases: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What it has reserved of its GPUs."""
    launch: Launch | None = None
    """What its processes are started with; None for a live model."""
    finisher: Finishers | FinishedHere | None = None
    """The user's function behind the model, once it was asked for."""

    def close(self) -> None:
        """End its processes and give back what it holds. May be called twice."""
        try:
            if self.finisher is not None:
                self.finisher.close()
            self.engine.close()
            if isinstance(self.source, Releases):
                self.source.close()
            if self.shared is not None:
                self.shared.close()
                self.shared = None
        finally:
            self.leases.close()

    @property
    def is_streamed(self) -> bool:
        """Whether the spans come as they come: their number is not known, and they cannot be read again."""
        return not self.source.traits.is_resumable

    @property
    def split(self) -> tuple[int, int]:
        """Replicas on each device, and batches in flight in each."""
        first, *_ = devices = self.placement.devices
        return sum(each.kind == "cpu" or each.uuid == first.uuid for each in devices), self.placement.lanes

    def results(self) -> Iterator[Result]:
        """The results of every span of the input, in order, for a job that writes none of them."""
        return unchanged.checked(self.engine.run(self.divide()), self.source, self.job.columns)

    def divide(self, part_rows: int | None = None) -> Iterator[Span]:
        """Every span of the input."""
        input_bytes = sum(binding.row_bytes for binding in shapes.sized(self.job.bindings, self.job.buckets))
        output_bytes = 8 + sum(spec.row_bytes for spec in self.prepared.outputs)
        rows = division.rows_per_span(
            self.job.batch_size, input_bytes, output_bytes, part_rows, self.prepared.rows_loaded_per_s
        )
        return iter(self.source.divide(rows, part_rows or division.PART_BYTES // output_bytes))

    def rows_per_second(self) -> float:
        """What the warm-up promises: an upper bound, as one batch says little about reading."""
        rows = self.job.batch_size if self.recipe.is_padded else self.prepared.first_rows
        computed = self.placement.replicas * rows / max(self.prepared.batch_seconds, 1e-6)
        loaded = self.prepared.rows_loaded_per_s
        return computed if loaded is None else min(computed, loaded * self.placement.most_loaders)


def start(
    model: ModelFile | LiveModel,
    source: Source,
    options: PredictOptions,
    meter: Meter,
    around: RunContext,
    *,
    fixed: Fixed | None = None,
    choice: Choice | None = None,
    answers_rows: int = 0,
) -> Started:
    """Start the engine, bind columns to inputs, decide the recipe and compile the step.

    The first replica loads while the source is looked at: importing a framework takes seconds. What `fixed` (of a job
    that is resumed) or `choice` (of a plan) say is not decided again. `answers_rows` of the answers are kept, to be
    compared with those of others.
    """
    source = steps.select_rows(source, options)
    _first_rows(source, 1)  # an empty input is told at once, before seconds of loading
    if isinstance(model, LiveModel):
        placement = placing.embedded_placement(model)
        engine: Engine = EmbeddedEngine(model.replicas, placement, meter.observe, around.stop, around.note)
        return _decide(engine, source, options, placement, (model.backend, devices.usable_cores()), fixed)
    recipe, choice = (fixed.recipe, fixed.choice) if fixed else (None, choice)
    wanted = recipe.runtime if recipe else choice.runtime if choice else options.runtime
    source, shared = memory.shared(source)
    descriptors = (shared.descriptor,) if shared is not None else ()

    def on(runtime: str) -> Started:
        chosen = placing.devices_for(options, recipe, choice, runtime)
        devices.check_precision(chosen[0], model.precision)
        with contextlib.ExitStack() as unless_started:
            chosen = unless_started.enter_context(placing.leased(chosen, model, options.memory_fraction, around))
            placement = placing.placement_on(chosen, choice)
            threads = placing.threads_for(options, recipe, choice, placement)
            launch = Launch(
                kinds.runtime(runtime).make(),
                model,
                threads,
                around.log,
                descriptors=descriptors,
                is_verbose=around.is_verbose,
            )
            engine = LocalEngine(launch, placement, meter.observe, around.stop, options.row_timeout, around.note)
            started = _decide(engine, source, options, placement, (runtime, threads), fixed, choice, answers_rows)
            started.leases = unless_started.pop_all()
            started.launch = launch
            return started

    began = time.perf_counter()
    try:
        started, told = on_the_first_that_loads(model, wanted, on)
    except BaseException:
        if shared is not None:
            shared.close()
        raise
    started.shared = shared
    started.start_s = time.perf_counter() - began
    # This says all that a runtime's own note on itself would.
    started.notes = (told,) if told is not None else started.notes
    if model.kind == "builder" and model.weights is None:
        started.notes += (f"the weights are those that {model.location} gives; --weights FILE loads others",)
    return started


def _decide(
    engine: Engine,
    source: Source,
    options: PredictOptions,
    placement: Placement,
    runtime_and_threads: tuple[str, int],
    fixed: Fixed | None,
    choice: Choice | None = None,
    answers_rows: int = 0,
) -> Started:
    """Everything that needs a loaded model: bindings, batch size, the compiled step."""
    try:
        source.schema()  # looked at while the first replica loads
        signature = engine.load()
        if fixed is not None and fixed.weights != signature.weights:
            raise ModelError(
                "the function built another model than when this job began",
                received=f"weights {signature.weights}",
                allowed=f"weights {fixed.weights}",
                hint="load the weights from a file, or set a seed; or start again with --overwrite",
            )
        source = source.fitted_to(signature.inputs)
        preprocess = steps.make_preprocess(source, signature, options)
        if preprocess is not None:
            source = source.with_floats(sorted(described_as_floats(preprocess.takes) - set(options.keep)))
            preprocess = engine.learn(source, preprocess, _first_rows(source, _LEARN_ROWS))
        else:
            source = find_images(source, signature, options.inputs, options.reading, options.keep)
        options = steps.keep_by_default(options, source)
        columns = preprocess.gives if preprocess is not None else source.schema()
        bindings = fixed.bindings if fixed else bind(signature, source, columns, options)
        if fixed is None:
            bindings = bind_nulls(bindings, signature, options.nulls, has_function=preprocess is not None)
        if preprocess is None:  # else bindings name what the function gives, which is not in the file
            source = source.with_floats(sorted(fed_as_floats(bindings) - set(options.keep)))
        given = options.buckets
        buckets = fixed.recipe.buckets if fixed else shapes.choose_buckets(source, bindings, preprocess, given)
        largest = shapes.sized(bindings, buckets)
        kind = placement.devices[0].kind
        if fixed is not None:
            batch_size = fixed.recipe.batch_size
        elif choice is not None:
            batch_size = choice.batch_size if signature.fixed_batch else _no_larger_than(source, choice.batch_size)
        else:
            batch_size = choose_batch_size(signature, largest, source, options, kind)
        is_padded = fixed.recipe.is_padded if fixed else options.padding != "never"
        seed = states.seed_of(options, is_live=isinstance(engine, EmbeddedEngine))
        job = Job(source, bindings, options.keep, batch_size, preprocess, buckets, options.trace is not None, seed=seed)
        placement = placing.with_loaders(placement, job, options.loaders)
        if fixed is not None and fixed.recipe.state != NONE:
            job, placement = states.settled(job, placement, signature, fixed.recipe.state)
        is_decided = fixed is not None or choice is not None or options.batch_size is not None
        if not is_decided and signature.fixed_batch is None and kind == "cpu":
            job = _bearable(engine, job, placement)
        runtime, threads = runtime_and_threads
        asked = Asked(
            max(answers_rows, CHECKED_ROWS if options.check else 0),
            is_alone=answers_rows > 0 and bool(buckets) and job.state == NONE,
            tolerance=options.tolerance if buckets and fixed is None and options.padding == "auto" else None,
            learn_rows=_LEARN_ROWS if options.postprocess is not None else 0,
        )
        sample = fixed.sample if fixed else _first_rows(job.source, _sample_rows(job, asked))
        unpadded = _without_padding(job, runtime, signature)
        job = job if is_padded or not buckets else unpadded
        job, prepared, told_padding = _prepare(engine, job, unpadded, placement, sample, asked)
        if prepared.state.kind != NONE and job.state == NONE:
            _refuse_late_state(prepared.state, fixed)
            size = size_with_state(signature, largest, options, job.batch_size, is_chosen=is_decided)
            job = replace(job, batch_size=size)
            job, placement = states.settled(job, placement, signature, states.kind_of(prepared.state, seed))
            if buckets and options.padding != "always":
                # No trial tells what padding does to a model that answers differently each time.
                job = _without_padding(job, runtime, signature)
            asked = replace(asked, is_alone=False, tolerance=None)
            sample = _first_rows(job.source, _sample_rows(job, asked))
            prepared = engine.prepare(job, placement, sample, asked)
        recipe = Recipe(
            runtime,
            kind,
            job.batch_size,
            threads,
            options.precision,
            buckets,
            is_padded=job.fewest_rows is None,
            state=job.state,
        )
        is_positional = source.is_positional or source.traits.is_frame
        fed = mapping.told(bindings, options.inputs, is_positional=is_positional)
        notes = signature.notes + _tell_padding(told_padding, job, runtime)
        if job.state != NONE:
            notes += (states.told(prepared.state, job),)
        wanted = options.batch_size
        if fixed is None and wanted is not None and job.batch_size < _useful_size(job, source, wanted):
            told = f"--batch-size {wanted:,} is more than the memory of this machine holds"
            notes += (f"{told}: batches of {job.batch_size:,}",)
        return Started(
            engine, job.source, job, recipe, placement, signature, prepared, fed, options, sample, notes=notes
        )
    except BaseException:
        engine.close()
        raise


def _sample_rows(job: Job, asked: Asked) -> int:
    return max(job.batch_size, ENOUGH_ROWS) if asked.answers_rows else job.batch_size


def _without_padding(job: Job, runtime: str, signature: Signature) -> Job:
    """The job with rows of one size in each batch. Where each shape is compiled, there is one for each size."""
    has_one_shape = kinds.runtime(runtime).compiles_each_size or signature.fixed_batch is not None
    return replace(job, fewest_rows=job.batch_size if has_one_shape else 1)


def _prepare(
    engine: Engine, job: Job, unpadded: Job, placement: Placement, sample: Span, asked: Asked
) -> tuple[Job, Prepared, PaddingTrial | None]:
    """Compile the step; where it is asked whether padding changes an answer and it does, without padding.

    The last value is the trial that led to that.
    """
    if asked.tolerance is None:
        return job, engine.prepare(job, placement, sample, asked), None
    try:
        prepared = engine.prepare(job, placement, sample, asked)
        if prepared.state.kind != NONE:
            return job, prepared, None
        trial = prepared.padding or PaddingTrial(problem="no row was tried")
        if trial.is_harmless(asked.tolerance):
            return job, prepared, None
    except ModelError as error:
        trial = PaddingTrial(problem=error.received or error.problem)
    return unpadded, engine.prepare(unpadded, placement, sample, replace(asked, tolerance=None)), trial


def _tell_padding(trial: PaddingTrial | None, job: Job, runtime: str) -> tuple[str, ...]:
    """Why rows of different sizes do not share a batch."""
    if trial is None:
        return ()
    if trial.problem is not None:
        why = f"it could not be found out whether padding changes the answers ({trial.problem})"
    elif trial.difference == float("inf"):
        why = "padding changes the answers"
    else:
        why = f"padding changes the answers, by up to {trial.difference:.2g} of the spread of an output"
    told = f"rows of different sizes: {why}; each batch holds rows of one size"
    if kinds.runtime(runtime).compiles_each_size:
        told += f", and {runtime} compiles once for each size"
    return (told,)


def _refuse_late_state(state: State, fixed: Fixed | None) -> None:
    if fixed is not None:
        raise ModelError(
            "the model changes when it is called, and did not when this job began",
            received=str(state),
            hint="are these the versions that began it? start again with --overwrite",
        )


def _bearable(engine: Engine, job: Job, placement: Placement) -> Job:
    """The job, with smaller batches where one by the rule of thumb would keep a CPU busy for long."""
    few = replace(job, batch_size=tuning.TRIED_ROWS)
    if job.batch_size <= 2 * few.batch_size or not job.source.traits.is_resumable:
        return job
    try:
        few_s = engine.prepare(few, placement, _first_rows(job.source, few.batch_size)).batch_seconds
    except ModelError:
        return job  # it rejects these few rows: a whole batch tells more
    return replace(job, batch_size=tuning.bearable_size(job.batch_size, few_s))


def choose_batch_size(
    signature: Signature, bindings: Sequence[Binding], source: Source, options: PredictOptions, device_kind: str
) -> int:
    if signature.fixed_batch is not None:
        if options.batch_size not in (None, signature.fixed_batch):
            raise UsageError(
                "the model takes batches of one size only",
                received=f"--batch-size {options.batch_size}",
                allowed=str(signature.fixed_batch),
            )
        return signature.fixed_batch
    if options.batch_size is not None:
        return min(_no_larger_than(source, options.batch_size), _most_on_the_host(bindings, options))
    row_bytes = sum(binding.row_bytes for binding in bindings)
    has_images = any(len(binding.shape) >= 3 for binding in bindings)
    bounds = batching.IMAGES_ON_A_CPU if has_images and device_kind == "cpu" else ()
    most = batching.most_rows_of_outputs(_output_bytes(signature, options))
    size = min(most, batching.default_batch_size(row_bytes, None, *bounds))
    rows = sum(span.rows for span in itertools.islice(source.divide(size), 2))
    return min(most, batching.default_batch_size(row_bytes, rows, *bounds))


def size_with_state(
    signature: Signature, bindings: Sequence[Binding], options: PredictOptions, present: int, *, is_chosen: bool
) -> int:
    """The rows of a batch of a model that changes when it is called.

    Its answers depend on it: it is what was asked for, however few rows a file has.
    """
    if options.batch_size is not None and signature.fixed_batch is None:
        present = min(options.batch_size, _most_on_the_host(bindings, options))
    return states.batch_size(signature, present, is_chosen=is_chosen)


def _most_on_the_host(bindings: Sequence[Binding], options: PredictOptions) -> int:
    """The rows of a batch that this machine can hold as often as batches are in flight."""
    row_bytes = sum(binding.row_bytes for binding in bindings)
    return max(1, int(options.memory_fraction * available_bytes()) // (_BATCHES_ON_THE_HOST * max(1, row_bytes)))


def _useful_size(job: Job, source: Source, size: int) -> int:
    """How many rows of a batch size that was asked for the batches of a job could have, if memory were no matter."""
    return size if job.state != NONE else _no_larger_than(source, size)


def _no_larger_than(source: Source, size: int) -> int:
    """A batch size that was asked or planned for; of few rows no more than holds them all. A stream has any number.

    No batch has rows of two spans, and what it lacks is padded: so it is made for the largest of the first spans, not
    for all their rows. Two neighbours count as one: where a source joins small files, they have more than `size` rows.
    """
    if not source.traits.is_resumable:
        return size
    rows = before = seen = 0
    for span in source.divide(size):
        rows, before, seen = max(rows, before + span.rows), span.rows, seen + span.rows
        if seen >= size:
            break
    return min(size, 1 << max(0, rows - 1).bit_length())


def _output_bytes(signature: Signature, options: PredictOptions) -> int:
    """What a row of the outputs takes, as far as the model declares them; next to nothing of those that are ranked."""
    kept = [spec for spec in signature.outputs if not options.outputs or spec.name in options.outputs]
    if options.argmax or options.top_k is not None:
        kept = [spec for spec in kept if spec.shape is None or len(spec.shape) != 1 or spec.dtype == STRING]
    return sum(spec.row_bytes for spec in kept)


def _first_rows(source: Source, batch_size: int) -> Span:
    first = next(iter(source.divide(batch_size)), None)
    if first is None:
        is_selected = isinstance(source, SelectedRows)
        raise InputError(
            "no row is left of the input" if is_selected else "the input has no rows",
            received=", ".join(f.path for f in source.fragments()[:3]),
            hint="--skip leaves out all of it" if is_selected else None,
        )
    return first


def fingerprint(digest: str, fragments: Iterable[Fragment], request: Mapping[str, Any]) -> str:
    """A digest of everything that decides the output."""
    parts = [digest, [[f.path, f.size, f.mtime_ns] for f in fragments], dict(request)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def versions(runtime: str) -> dict[str, str]:
    """The versions that a manifest records."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    for name in ("penstock", "numpy", "pyarrow", "keras"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found | {runtime: kinds.runtime(runtime).package.version or "not installed as a package"}
