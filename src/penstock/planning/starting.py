"""A job, started by its plan: the one that was asked for, a cached one, one that is searched for now, or none."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import Any

from penstock.core import kinds, tuning
from penstock.core.plans import Plan
from penstock.core.protocols import Source
from penstock.core.records import ModelFile, TensorSpec
from penstock.core.state import NONE
from penstock.core.tracing import SEARCH
from penstock.engines.local import LocalEngine
from penstock.errors import DeviceError, ModelError, UsageError, WorkersDied
from penstock.jobs import placement, steps
from penstock.jobs import start as jobs
from penstock.jobs.run_context import RunContext
from penstock.jobs.start import CHECKED_ROWS, Fixed, Started
from penstock.options.kinds import NO_PLAN
from penstock.options.records import PredictOptions
from penstock.planning import contender, prediction, store
from penstock.planning.candidates import can_convert, needs_conversion
from penstock.planning.clock import Clock
from penstock.planning.contender import Beside, Setting, choice_of
from penstock.planning.search import Search
from penstock.runtimes.catalog import choose_runtime
from penstock.runtimes.keras.live import LiveModel
from penstock.runtimes.tensorflow.to_onnx import cannot_write
from penstock.telemetry.meter import Meter

_PATIENCE_S = 1800.0
_MUCH_MORE_TIME = 2.0
"""A plan that was cut short is searched for again by a job that allows so many times as long a search."""
_DOES_NOT_RUN = (ModelError, DeviceError, WorkersDied)


def start(
    model: ModelFile | LiveModel,
    source: Source,
    options: PredictOptions,
    meter: Meter,
    around: RunContext,
    *,
    fixed: Fixed | None = None,
    may_search: bool = True,
) -> Started:
    """Start a job by its plan; searches for one where the job is long enough for that to pay."""
    if isinstance(model, LiveModel):
        return jobs.start(model, source, options, meter, around, fixed=fixed)
    return _begun(model, source, options, meter, around).run(fixed, may_search)


def make_plan(
    model: ModelFile, source: Source, options: PredictOptions, around: RunContext, *, is_fresh: bool = False
) -> Plan:
    """The plan for a job, searched for whatever its length, unless it is known already.

    Raises:
        UsageError: The input can be read only once.
    """
    for name in ("plan", "trace"):
        if getattr(options, name) is not None:
            raise UsageError(f"a search takes no --{name}", received=f"{name}={getattr(options, name)}")
    if not source.traits.is_resumable:
        raise UsageError("this input can be read only once: nothing would be left to predict after a search")
    return _begun(model, source, options, Meter(), around).explain(is_fresh)


def _begun(model: ModelFile, source: Source, options: PredictOptions, meter: Meter, around: RunContext) -> _Start:
    """Known before anything is loaded is the step; while it is loaded, a source may learn more about its columns."""
    columns = dict(source.schema())
    return _Start(model, source, options, meter, around, store.step_key(model, columns, options), columns)


@dataclass
class _Start:
    """One start of a job.

    Args:
        model: The model as it was given.
        source: The input.
        options: What was asked for.
        meter: Told of what the job does.
        around: What processes are started with.
        step: What a converted step is kept under.
        columns: Those of the input, as they were known when `step` was made.
    """

    model: ModelFile
    source: Source
    options: PredictOptions
    meter: Meter
    around: RunContext
    step: str
    columns: dict[str, TensorSpec]

    def run(self, fixed: Fixed | None, may_search: bool) -> Started:
        """The job, as its manifest says; or by a plan at hand; or as it was asked for, after a search if that pays."""
        if fixed is not None:
            return self._begin(self._file_for(fixed.recipe.runtime), fixed=fixed)
        plan = self._plan_at_hand()
        broken: Plan | None = None
        if plan is not None and (self.options.plan is not None or not self._deserves_more(plan)):
            try:
                return self._by_plan(plan)
            except _DOES_NOT_RUN as error:
                if self.options.plan is not None:
                    raise
                broken = plan
                self._tell_broken(error)
        may_search = may_search and self.options.plan != NO_PLAN
        file = self._file_for(self.options.runtime)
        wants_answers = may_search or self.options.precision != "model"
        started = self._begin(file, answers_rows=CHECKED_ROWS if wants_answers else 0)
        if broken is not None:
            store.forget(broken)  # only now: where nothing runs, it is not the plan's fault
        try:
            notes = self._told_precision(file, started)
            may_search = may_search and not started.is_streamed and started.job.state == NONE
            return self._searched(file, started, notes) if may_search else started
        except BaseException:
            started.close()
            raise

    def explain(self, is_fresh: bool) -> Plan:
        """The plan that is known, or one that is searched for now."""
        known = store.load_plan(self._key()) if self._may_keep and not is_fresh else None
        if known is not None and not (known.is_cut_short and known.budget_s < tuning.MOST_SEARCH_S):
            rows = self._num_rows(known.choice.batch_size)
            if not known.is_outgrown_by(rows):
                self.around.note("plan: found in the cache; --fresh searches again")
                return known.for_rows(rows)
        if known is None and not is_fresh:
            self._tell_nearest()
        self.around.note(f"loading {self.model.location}")
        file = self._file_for(self.options.runtime)
        with contextlib.closing(self._begin(file, answers_rows=CHECKED_ROWS)) as started:
            if started.job.state != NONE:
                raise UsageError(
                    "there is no plan to search for: what this model answers depends on how it is run",
                    received=started.notes[-1],
                    hint="penstock predict runs it as it is; --batch-size chooses another size",
                )
            notes = self._told_precision(file, started)
            return self._search(file, started, self._num_rows(started.job.batch_size), tuning.MOST_SEARCH_S, notes)

    @property
    def _may_keep(self) -> bool:
        """Of a function of this process nothing tells whether it changed, and a stream is not read twice."""
        return self.model.payload is None and self.source.traits.is_resumable

    def _key(self) -> str:
        runtime = self.options.runtime or choose_runtime(self.model, None)
        devices = placement.devices_for(self.options, None, None, runtime)
        return store.plan_key(self.step, self.options, devices)

    def _facts(self) -> dict[str, Any]:
        """What a plan for this job would be made for, by name."""
        runtime = self.options.runtime or choose_runtime(self.model, None)
        devices = placement.devices_for(self.options, None, None, runtime)
        return store.facts_of(self.model, self.columns, self.options, devices)

    def _tell_nearest(self) -> None:
        """Say that there is a plan, and why it is not taken."""
        told = store.tell_nearest(self._facts()) if self._may_keep else None
        if told is not None:
            self.around.note(told)

    def _num_rows(self, batch_size: int) -> int:
        return sum(span.rows for span in steps.select_rows(self.source, self.options).divide(batch_size))

    def _begin(self, file: ModelFile, **how: object) -> Started:
        return jobs.start(file, self.source, self.options, self.meter, self.around, **how)  # type: ignore[arg-type]

    def _plan_at_hand(self) -> Plan | None:
        """The plan of the file that was named, or the one that was found for such a job before."""
        options = self.options
        if options.plan == NO_PLAN:
            return None
        if options.plan is None:
            found = store.load_plan(self._key()) if self._may_keep else None
            if found is None:
                self._tell_nearest()
            return found
        for name in ("runtime", "batch_size", "threads", "replicas_per_device"):
            if getattr(options, name) is not None:
                raise UsageError("a plan says this already", received=f"a plan and {name}={getattr(options, name)}")
        plan = options.plan if isinstance(options.plan, Plan) else store.read_plan(options.plan)
        if plan.choice.precision != options.precision:
            raise UsageError(
                "the plan is for another precision",
                received=f"--plan of {plan.choice.precision}, --precision {options.precision}",
                hint=f"--precision {plan.choice.precision}",
            )
        if plan.step != self.step:
            told = store.differences(self._facts(), plan.made_for) if plan.made_for else []
            self.around.note(f"plan: it was not made for {', '.join(told[:3]) or 'this model, columns and options'}")
        return plan

    def _deserves_more(self, plan: Plan) -> bool:
        """Whether a plan was made for so much less than this job that it is worth another search."""
        rows = self._num_rows(plan.choice.batch_size)
        if plan.is_outgrown_by(rows):
            self.around.note(f"plan: the one that is known was made for {plan.rows:,} rows, and here are {rows:,}")
            return True
        if not plan.is_cut_short or plan.budget_s >= tuning.MOST_SEARCH_S:
            return False
        return tuning.Budget.of(plan.for_rows(rows).seconds).seconds > _MUCH_MORE_TIME * plan.budget_s

    def _by_plan(self, plan: Plan) -> Started:
        """The job as a plan says. What was converted is found by the model, whatever path the plan names."""
        where = "`penstock plan` shows why" if self.options.plan is None else "as it was given"
        self.around.note(f"plan: {plan.choice} ({where})")
        for line in plan.notes:
            self.around.note(line)
        started = self._begin(self._file_for(plan.choice.runtime), choice=plan.choice)
        started.plan = plan
        return started

    def _tell_broken(self, error: Exception) -> None:
        told = str(error).splitlines()[0]
        self.around.note(f"plan: it did not run ({told}); trying the model's own framework")

    def _searched(self, file: ModelFile, started: Started, notes: tuple[str, ...]) -> Started:
        """The job as the search says; as it was started where it is too short for one, or nothing better was found."""
        options = started.options
        is_split = options.threads is not None or options.devices.cpu_replicas is not None
        if None not in (options.runtime, options.batch_size) and is_split:
            return started
        rows = self._num_rows(started.job.batch_size)
        predicted_s = rows / started.rows_per_second()
        budget = tuning.Budget.of(predicted_s)
        if not budget.seconds:
            self.around.note(f"plan: rules of thumb, as about {predicted_s:.1f} s of work are too short for a search")
            return started
        self.around.note(
            f"plan: searching for at most {budget.seconds:.0f} s; the job would take about {predicted_s:.0f} s"
        )
        began = time.perf_counter()
        plan = self._search(file, started, rows, budget.seconds, notes)
        self.around.note(f"plan: {plan.reason}")
        begun = self._by_what_was_found(file, started, plan)
        begun.search_s = time.perf_counter() - began
        return begun

    def _by_what_was_found(self, file: ModelFile, started: Started, plan: Plan) -> Started:
        """The job by the plan of a search: what is up already where that is it, or its processes anew."""
        present = choice_of(started, file)
        own = [
            trial
            for trial in plan.trials
            if (trial.runtime, trial.replicas) == (present.runtime, present.replicas)
            and trial.threads in (0, present.threads)
        ]
        # What was measured up to a failure is not trusted with the job itself.
        has_failed = any(trial.rejected for trial in own)
        assert isinstance(started.engine, LocalEngine)
        if started.engine.is_up and not has_failed:
            if plan.choice == present:
                started.plan = plan
                return started
            saved_s = plan.rows / started.rows_per_second() - plan.rows / max(plan.rate_of(plan.choice), 1e-9)
            if saved_s < plan.start_s:
                self.around.note("plan: starting it would take longer than it saves here; it is kept for other jobs")
                return started
        started.close()
        try:
            return self._by_plan(plan)
        except _DOES_NOT_RUN as error:
            self._tell_broken(error)
            begun = self._begin(file)
            store.forget(plan)
            return begun

    def _search(self, file: ModelFile, started: Started, rows: int, seconds: float, notes: tuple[str, ...]) -> Plan:
        clock = Clock(self.around.stop, seconds)
        found = Search(file, self.step, started, rows, self.around, clock).run()
        if self.meter.trace is not None:
            self.meter.trace.note(SEARCH, clock.began)
        plan = prediction.plan_of(found, started, rows)
        plan = replace(plan, search_s=round(clock.spent, 2), budget_s=seconds, notes=notes, step=self.step)
        if self._may_keep:
            plan = replace(plan, key=self._key(), made_for=self._facts())
            store.save_plan(plan)
        return plan

    def _file_for(self, runtime: str | None) -> ModelFile:
        """The file that a runtime reads: the model itself, or its converted step, made now where it is not there."""
        if runtime is None or not needs_conversion(self.model, runtime):
            return self.model
        for package in (kinds.runtime(runtime).package, kinds.CONVERTER):
            if not package.is_installed:
                raise DeviceError(
                    f"{package.distributions[0]} is not installed",
                    received=f"the runtime {runtime} for a model of kind {self.model.kind}",
                    hint=package.install,
                )
        folder = store.conversion_folder(self.step)
        file = store.converted_model(self.model, folder)
        exact = replace(file, precision="model")
        kind = placement.devices_for(self.options, None, None, runtime)[0].kind
        if not store.is_whole(folder):
            self.around.note("converting the model")
            self._convert_and_compare(folder, exact, runtime)
        elif not store.is_agreed(folder, exact, runtime, kind, self.options.tolerance):
            self.around.note("comparing the converted model with the model's own framework")
            self._convert_and_compare(folder, exact, runtime)
        store.touch(folder)
        return file

    def _convert_and_compare(self, folder: str, file: ModelFile, runtime: str) -> None:
        """Convert the model, where that is not done, and see that what comes out gives its answers.

        Raises:
            ModelError: It does not convert, or answers something else.
        """
        options = replace(self.options, runtime=None, precision="model")
        model = replace(self.model, precision="model")
        own = jobs.start(model, self.source, options, Meter(), self.around, answers_rows=CHECKED_ROWS)
        with contextlib.closing(own):
            assert isinstance(own.engine, LocalEngine)
            clock = Clock(self.around.stop, _PATIENCE_S)
            problem: str | None = f"it is loaded by {own.recipe.runtime}, and only TensorFlow's steps are converted"
            if store.is_whole(folder):
                problem = None
            elif can_convert(self.model, own.recipe.runtime):
                try:
                    with store.staged(folder) as staging:
                        problem = own.engine.convert(staging, clock)
                except OSError as error:
                    raise cannot_write(error) from None
            if problem is not None:
                raise ModelError(
                    "the model does not convert", received=problem, hint="another --runtime runs it as it is"
                )
            setting = Setting(runtime, file, own.recipe.threads, own.placement.devices[:1], own.placement.lanes)
            contender.start(setting, Beside.of(own), options.tolerance, self.around, clock).engine.close()

    def _told_precision(self, file: ModelFile, started: Started) -> tuple[str, ...]:
        """How far the answers are from the model's own, where another precision was asked for; people are told."""
        if self.model.precision == "model" or started.is_streamed:
            return ()
        whole = replace(file, precision="model")
        setting = Setting(
            started.recipe.runtime,
            whole,
            started.recipe.threads,
            started.placement.devices[:1],
            started.placement.lanes,
        )
        clock = Clock(self.around.stop, _PATIENCE_S)
        engine, exact = contender.open_engine(setting, Beside.of(started), self.around, clock)
        engine.close()
        proof = contender.proof_of(started.prepared, exact, 1.0)
        rows = f"in the first {len(exact.answered)} rows"
        told = (
            f"{self.model.precision}: answers differ by up to {proof.difference:.2g} of the spread of an output, {rows}"
        )
        told += f"; {proof.problem}" if proof.problem is not None else ""
        self.around.note(told)
        return (told,)
