"""Bringing a job up: the engine loads the model, answers what decisions depend on, and compiles the step."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.core import division, kinds
from penstock.core.agreement import Noise
from penstock.core.decoding import Undecoded
from penstock.core.job import Job
from penstock.core.messages import Asked, PaddingTrial, Prepared
from penstock.core.plans import Choice, Plan
from penstock.core.protocols import Engine, Source, StepNotKept, Tunable
from penstock.core.records import ModelFile, Placement, Recipe, Result, Signature, Span
from penstock.core.state import NONE
from penstock.core.stillness import DEFAULT_TIMEOUTS, Timeouts
from penstock.engines.embedded import EmbeddedEngine
from penstock.engines.local import LocalEngine
from penstock.errors import ModelError
from penstock.jobs import buckets as shapes
from penstock.jobs import decide as decisions
from penstock.jobs import placement as placing
from penstock.jobs import steps
from penstock.jobs.decide import Decision, Fitted, Request, first_rows
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.options.records import PredictOptions
from penstock.pool.devices import inventory
from penstock.pool.devices.near import find_near_cores
from penstock.pool.processes.finisher_pool import FinishedHere, Finishers
from penstock.pool.processes.supervisor import Launch
from penstock.runtimes.catalog import on_the_first_that_loads
from penstock.runtimes.keras.live import LiveModel
from penstock.sources.files import unchanged
from penstock.sources.python import memory


@dataclass
class Started:
    """A job whose engine is up and whose step is compiled."""

    engine: Engine
    decision: Decision
    prepared: Prepared
    start_s: float = 0.0
    """Seconds from the start of the first replica's process to its compiled step."""
    launch: Launch | None = None
    """What its processes are started with; None for a live model."""
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What it has reserved: memory of its GPUs, and shared memory."""
    finisher: Finishers | FinishedHere | None = None
    """The user's function behind the model, once it is started."""
    plan: Plan | None = None
    noise: Noise | None = None
    """How far its answers to the first rows are from the truth, once that was measured."""
    search_s: float = 0.0
    """How long the search for the plan took."""

    def close(self) -> None:
        """End its processes and give back what it holds. May be called twice."""
        with self.held:
            if self.finisher is not None:
                self.finisher.close()
            self.engine.close()
            if self.is_streamed:
                self.source.close()

    @property
    def plan_in_words(self) -> str:
        """The plan and its reason; empty where there is none."""
        return f"{self.plan.choice}; {self.plan.reason}" if self.plan is not None else ""

    def memory_events(self) -> tuple[str, ...]:
        """Where memory ran out and what was done about it, in words."""
        short = self.engine.shortages().items()
        return tuple(f"{shortage} ({times}×)" if times > 1 else str(shortage) for shortage, times in short)

    @property
    def job(self) -> Job:
        return self.decision.job

    @property
    def source(self) -> Source:
        source: Source = self.job.source
        return source

    @property
    def options(self) -> PredictOptions:
        return self.decision.options

    @property
    def recipe(self) -> Recipe:
        return self.decision.recipe

    @property
    def placement(self) -> Placement:
        return self.decision.placement

    @property
    def signature(self) -> Signature:
        return self.decision.signature

    @property
    def is_streamed(self) -> bool:
        """Whether spans are not known beforehand and cannot be read again."""
        return not self.source.traits.is_resumable

    @property
    def split(self) -> tuple[int, int]:
        """Replicas on each device, and batches in flight in each."""
        return self.placement.replicas_per_device, self.placement.lanes

    @property
    def choice(self) -> Choice:
        """The settings that it runs with, as a plan has them."""
        return self.decision.setting.choice(self.recipe.batch_size, self.placement.lanes)

    def results(self) -> Iterator[Result]:
        """The results of every span of the input, in order, for a job that writes none of them."""
        return unchanged.checked(self.engine.run(self.divide()), self.source, self.job.columns)

    def divide(self, part_rows: int | None = None) -> Iterator[Span]:
        """Every span of the input."""
        return iter(self.source.divide(*self.division(part_rows)))

    def division(self, part_rows: int | None = None) -> tuple[int, int]:
        """The rows of a span, and the most rows where the format needs larger spans."""
        input_bytes = sum(binding.row_bytes for binding in shapes.sized(self.job.bindings, self.job.buckets))
        output_bytes = 8 + sum(spec.row_bytes for spec in self.prepared.outputs)
        rows = division.rows_per_span(
            self.job.batch_size, input_bytes, output_bytes, part_rows, self.prepared.rows_loaded_per_s
        )
        return rows, part_rows or max(1, division.PART_BYTES // output_bytes)

    def rows_per_second(self) -> float:
        """The rows a second that the warm-up promises: an upper bound, because one batch shows little about reading."""
        loaded = self.prepared.rows_loaded_per_s
        computed = self.rows_computed_per_second()
        return computed if loaded is None else min(computed, loaded * self.placement.most_loaders)

    def rows_computed_per_second(self) -> float:
        """The rows a second that the model could do if it never waited for rows."""
        rows = self.job.batch_size if self.recipe.is_padded else self.prepared.first_rows
        return self.placement.replicas * rows / max(self.prepared.batch_seconds, 1e-6)


def start(model: ModelFile | LiveModel, request: Request, context: RunContext) -> Started:
    """Start an engine for a model and bring the job up on it.

    The first replica loads while the source is looked at: importing a framework takes seconds.
    """
    request = replace(request, source=steps.select_rows(request.source, request.options))
    first_rows(request.source, 1)  # an empty input is refused at once, before seconds of loading
    if isinstance(model, ModelFile):
        return _start_processes(model, request, context)
    setting = Setting(model.backend, None, inventory.usable_cores(), placing.embedded_placement(model))
    engine = EmbeddedEngine(model.replicas, setting.placement, context.meter.observe, context.stop, context.note)
    return bring_up(engine, request, setting)


def _start_processes(model: ModelFile, request: Request, context: RunContext) -> Started:
    """The job on the runtime that is asked for, or on the first that does not refuse the model."""
    with contextlib.ExitStack() as held:
        source, shared = memory.shared(request.source)
        if shared is not None:
            held.callback(shared.close)
        request = replace(request, source=source)
        descriptors = (shared.descriptor,) if shared is not None else ()

        def on(runtime: str) -> Started:
            try:
                return _start_on(runtime, model, request, context, descriptors)
            except StepNotKept as error:
                context.note(f"{error.problem}: starting without that ({error.received})")
                return _start_on(runtime, model, request, context, descriptors)

        began = time.perf_counter()
        started, fallback = on_the_first_that_loads(model, request.runtime, on)
        started.start_s = time.perf_counter() - began
        started.held.push(held.pop_all())
    notes = started.decision.notes
    if fallback is not None:
        # The fallback's line replaces the runtime's own notes, which would say the same.
        notes = (fallback, *notes[len(started.signature.notes) :])
    if model.kind == "builder" and model.weights is None:
        notes += (f"the weights are those that {model.location} gives; --weights FILE loads others",)
    started.decision = replace(started.decision, notes=notes)
    return started


def _start_on(
    runtime: str, model: ModelFile, request: Request, context: RunContext, descriptors: Sequence[int]
) -> Started:
    options = request.options
    devices = placing.devices_for(options, request.recipe, request.choice, runtime)
    inventory.check_precision(devices[0], model.precision)
    with contextlib.ExitStack() as held:
        devices = held.enter_context(placing.leased(devices, model, options.memory_fraction, context))
        placement = placing.placement_on(devices, request.choice)
        threads = placing.threads_for(options, request.recipe, request.choice, placement)
        setting = Setting(runtime, model, threads, placement)
        engine, launch = open_engine(setting, context, descriptors, timeouts_of(options))
        started = bring_up(engine, request, setting)
        started.launch = launch
        started.held = held.pop_all()
        return started


def timeouts_of(options: PredictOptions) -> Timeouts:
    """How long the processes of a job may take."""
    return Timeouts(options.row_timeout, options.hang_timeout, options.start_timeout)


def open_engine(
    setting: Setting,
    context: RunContext,
    descriptors: Sequence[int] = (),
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    *,
    is_trial: bool = False,
) -> tuple[Tunable, Launch]:
    """Start the first process of a setting: the one place where a local engine is put together.

    Processes inherit `descriptors`, which are shared memory. With `is_trial`, the first death ends the run.
    """
    assert setting.model is not None
    launch = Launch(
        kinds.runtime(setting.runtime).make(),
        setting.model,
        setting.threads,
        context.log,
        descriptors=descriptors,
        is_verbose=context.is_verbose,
        near=find_near_cores(setting.placement),
    )
    observe, stop = context.meter.observe, context.stop
    engine = LocalEngine(launch, setting.placement, observe, stop, timeouts, context.note, is_trial=is_trial)
    return engine, launch


def prepare_beside(
    started: Started, setting: Setting, job: Job, asked: Asked, context: RunContext
) -> tuple[Tunable, Prepared]:
    """Start processes of another setting beside a job; they compile the step for `job` and answer its first rows."""
    assert started.launch is not None
    timeouts = timeouts_of(started.options)
    engine, _ = open_engine(setting, context, started.launch.descriptors, timeouts, is_trial=True)
    try:
        engine.load()
        return engine, engine.prepare(job, setting.placement, started.decision.sample, asked)
    except BaseException:
        engine.close()
        raise


def bring_up(engine: Engine, request: Request, setting: Setting) -> Started:
    """Load the model, decide, and compile the step. An engine that does not come up is closed."""
    try:
        request.source.schema()  # looked at while the first replica loads
        signature = engine.load()
        fitted = _learn(engine, decisions.fit(request, signature))
        decision = decisions.decide(fitted, signature, request, setting)
        decision = _shrink_if_slow(engine, decision)
        try:
            decision, prepared = _compile(engine, decision)
        except Undecoded as error:
            decision, prepared = _compile(engine, decisions.without_decoder(decision, error))
        if prepared.state.kind != NONE and decision.job.state == NONE:
            decision = decisions.with_state(decision, prepared.state)
            prepared = _prepare(engine, decision)
        return Started(engine, decisions.with_last_notes(decision, prepared.state), prepared)
    except BaseException:
        engine.close()
        raise


def _learn(engine: Engine, fitted: Fitted) -> Fitted:
    """Run the user's function on the first rows, to find out what it gives."""
    if fitted.preprocess is None:
        return fitted
    sample = first_rows(fitted.source, decisions.LEARN_ROWS)
    return replace(fitted, preprocess=engine.learn(fitted.source, fitted.preprocess, sample))


def _shrink_if_slow(engine: Engine, decision: Decision) -> Decision:
    few = decisions.with_few_rows(decision)
    if few is None:
        return decision
    try:
        few_s = engine.prepare(few, decision.placement, first_rows(few.source, few.batch_size)).batch_seconds
    except (ModelError, Undecoded):
        return decision  # these few rows do not run: the whole batch is tried
    return decisions.shrink_if_slow(decision, few_s)


def _compile(engine: Engine, decision: Decision) -> tuple[Decision, Prepared]:
    """Compile the step; without padding where padding is on trial and changes an answer."""
    tolerance = decision.asked.tolerance
    if tolerance is None:
        return decision, _prepare(engine, decision)
    try:
        prepared = _prepare(engine, decision)
        trial = prepared.padding or PaddingTrial(problem="no row was tried")
        if prepared.state.kind != NONE or trial.is_harmless(tolerance):
            return decision, prepared
    except ModelError as error:
        trial = PaddingTrial(problem=error.received or error.problem)
    decision = decisions.without_padding(decision, trial)
    return decision, _prepare(engine, decision)


def _prepare(engine: Engine, decision: Decision) -> Prepared:
    return engine.prepare(decision.job, decision.placement, decision.sample, decision.asked)
