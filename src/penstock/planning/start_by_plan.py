"""Starting a job by a plan: the one that was asked for, one from the cache, one that is searched for now, or none."""

import contextlib
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from penstock.core import tuning
from penstock.core.agreement import CHECKED_ROWS
from penstock.core.plans import Plan, left_out_in_words
from penstock.core.protocols import Source, Tunable
from penstock.core.records import Device, ModelFile
from penstock.core.state import NONE
from penstock.core.tracing import SEARCH
from penstock.errors import DeviceError, ModelError, OutputError, UsageError, WorkersDied
from penstock.jobs import bring_up, states, steps
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request
from penstock.jobs.device_decoding import check_device
from penstock.jobs.placement import devices_for
from penstock.jobs.run_context import RunContext
from penstock.options.records import PredictOptions
from penstock.options.value_kinds import NO_PLAN
from penstock.planning import contender, outlook, prediction, store
from penstock.planning.candidates import Candidate, needs_conversion
from penstock.planning.clock import Clock
from penstock.planning.conversion import PATIENCE_S, convert_if_needed
from penstock.planning.search import Search
from penstock.private_cache import in_use
from penstock.runtimes.catalog import choose_runtime
from penstock.runtimes.keras.live import LiveModel

_MUCH_MORE_TIME = 2.0
"""If the search for a plan was cut short, a job that allows more than so many times as long a search makes another."""
_BATCHES_OF_A_LOOK = 9
_SLACK = 2.0
"""A search that is only for later jobs is small, and may take so many times as long as expected."""
_DOES_NOT_RUN = (ModelError, DeviceError, OutputError, WorkersDied)


def start(model: ModelFile | LiveModel, request: Request, context: RunContext, *, may_search: bool = True) -> Started:
    """Start a job by its plan; search for one where the job is long enough for that to pay."""
    if isinstance(model, LiveModel):
        return bring_up.start(model, request, context)
    return _PlannedStart(model, request, context).run(may_search)


def make_plan(
    model: ModelFile, source: Source, options: PredictOptions, context: RunContext, *, is_fresh: bool = False
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
    return _PlannedStart(model, Request(source, options), context).find_plan(is_fresh)


@dataclass
class _PlannedStart:
    """One start of a job."""

    model: ModelFile
    request: Request
    context: RunContext
    _cut_short: Plan | None = None
    """The plan of a search that was cut short, and goes on now."""

    @property
    def options(self) -> PredictOptions:
        return self.request.options

    @cached_property
    def step(self) -> str:
        """The key of a converted step in the cache. It is known before anything is loaded."""
        return store.step_key(self.model, self.request.source.schema(), self.options)

    def run(self, may_search: bool) -> Started:
        """Start the job as its manifest says, or by a known plan, or as asked for; search for a plan if that pays."""
        if self.request.resumed is not None:
            return self._start(self.request.runtime)
        check_device(self.options, self._devices)
        plan, broken = self._known_plan(), None
        if plan is not None and (self.options.plan is not None or not self._deserves_more(plan)):
            try:
                return self._start_soonest(plan) or self._start_by(plan)
            except _DOES_NOT_RUN as error:
                if self.options.plan is not None:
                    raise
                broken = plan
                self._note_broken(error)
        may_search = may_search and self.options.plan != NO_PLAN
        wants_answers = may_search or self.options.precision != "model"
        started = self._start(self.options.runtime, answers_rows=CHECKED_ROWS if wants_answers else 0)
        if broken is not None:
            store.forget(broken)  # only now: if nothing had run, the plan would not be to blame
        try:
            notes = self._compare_precision(started)
            may_search = may_search and can_search(started)
            return self._search_if_long(started, notes) if may_search else started
        except BaseException:
            started.close()
            raise

    def find_plan(self, is_fresh: bool) -> Plan:
        """The plan that is known, or one that is searched for now."""
        known = store.load_plan(self._key()) if self._may_keep and not is_fresh else None
        if known is not None and not (known.is_cut_short and known.budget_s < tuning.MOST_SEARCH_S):
            rows = self._num_rows(known.choice.batch_size)
            if not known.is_outgrown_by(rows):
                self.context.note("plan: found in the cache; `penstock plan --fresh` searches again")
                return known.for_rows(rows)
        if known is None and not is_fresh:
            self._note_nearest()
        self.context.note(f"loading {self.model.location}")
        with contextlib.closing(self._start(self.options.runtime, answers_rows=CHECKED_ROWS)) as started:
            if started.job.state != NONE:
                raise UsageError(
                    "there is no plan to search for: what this model answers depends on how it is run",
                    received=states.describe(started.prepared.state, started.job),
                    hint="penstock predict runs it as it is; --batch-size chooses another size",
                )
            notes = self._compare_precision(started)
            search = Search(self.step, started, self._num_rows(started.job.batch_size), self.context)
            return self._search(search, tuning.MOST_SEARCH_S, notes)

    @property
    def _may_keep(self) -> bool:
        """Whether a plan may be kept: not for a function of this process, which may change, nor for a stream."""
        return self.model.payload is None and self.request.source.traits.is_resumable

    def _devices(self) -> list[Device]:
        runtime = self.options.runtime or choose_runtime(self.model, None)
        return devices_for(self.options, None, None, runtime)

    def _key(self) -> str:
        return store.plan_key(self.step, self.options, self._devices())

    def _facts(self) -> dict[str, Any]:
        """All facts that a plan for this job depends on, by name."""
        return store.facts_of(self.model, self.request.source.schema(), self.options, self._devices())

    def _note_nearest(self) -> None:
        """Show that a plan is known for this model, and why it does not fit."""
        nearest = store.describe_nearest(self._facts()) if self._may_keep else None
        if nearest is not None:
            self.context.note(nearest)

    def _note_broken(self, error: Exception, instead: str = "the model's own framework") -> None:
        problem = str(error).splitlines()[0]
        self.context.note(f"plan: it did not run ({problem}); trying {instead}")

    def _num_rows(self, batch_size: int) -> int:
        source = steps.select_rows(self.request.source, self.options)
        return sum(span.rows for span in source.divide(batch_size))

    def _start(self, runtime: str | None, **settled: Any) -> Started:
        """Start the job on a runtime, or on the model's own; `settled` are other fields of its request."""
        with contextlib.ExitStack() as held:
            file = convert_if_needed(runtime, self.model, self.request, self.step, self.context, held)
            held.enter_context(in_use(file.location))
            started = bring_up.start(file, replace(self.request, **settled), self.context)
            started.held.push(held.pop_all())
        return started

    def _start_by(self, plan: Plan) -> Started:
        """Start the job by a plan. A converted step is found by its model, whatever path the plan names."""
        where = "`penstock plan` shows why" if self.options.plan is None else "as it was given"
        self.context.note(f"plan: {plan.choice} ({where})")
        for line in plan.notes:
            self.context.note(line)
        started = self._start(plan.choice.runtime, planned=plan.choice)
        started.plan = plan
        return started

    def _start_soonest(self, plan: Plan) -> Started | None:
        """Start a short job with what is done sooner than the plan's choice; None if nothing is, or does not run.

        A plan that the user gave is always followed.
        """
        soonest = self._soonest(plan) if self.options.plan is None else plan
        if soonest is plan:
            return None
        try:
            return self._start_by(soonest)
        except _DOES_NOT_RUN as error:
            if needs_conversion(self.model, soonest.choice.runtime):
                store.forget_conversion(store.conversion_folder(self.step))
            self._note_broken(error, plan.choice.runtime)
            return None

    def _soonest(self, plan: Plan) -> Plan:
        """The plan for this job: of the choices that can start at once, the one that is done soonest."""
        device, folder = self._devices()[0], store.conversion_folder(self.step)
        exact = replace(store.converted_model(self.model, folder), precision="model")
        ready = {
            trial.runtime
            for trial in plan.trials
            if not needs_conversion(self.model, trial.runtime)
            or (
                store.is_whole(folder) and store.is_agreed(folder, exact, trial.runtime, device, self.options.tolerance)
            )
        }
        soonest = plan.for_rows(self._num_rows(plan.choice.batch_size)).soonest(ready)
        if soonest.choice.setting == plan.choice.setting:
            return plan
        fastest, sooner = plan.choice.told_from(soonest.choice), soonest.choice.told_from(plan.choice)
        self.context.note(
            f"plan: {fastest} is the fastest, but with its start {sooner} is done sooner: about {soonest.seconds:.0f} s"
        )
        return soonest

    def _known_plan(self) -> Plan | None:
        """The plan of the file that was named, or the one that was found for such a job before."""
        if self.options.plan == NO_PLAN:
            return None
        if self.options.plan is not None:
            return self._named_plan()
        plan = store.load_plan(self._key()) if self._may_keep else None
        if plan is None:
            self._note_nearest()
        return plan

    def _named_plan(self) -> Plan:
        options = self.options
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
            others = store.differences(self._facts(), plan.made_for) if plan.made_for else []
            self.context.note(f"plan: it was not made for {', '.join(others[:3]) or 'this model, columns and options'}")
        return plan

    def _deserves_more(self, plan: Plan) -> bool:
        """Whether this job is so much longer than the one the plan was made for that another search pays."""
        rows = self._num_rows(plan.choice.batch_size)
        if plan.is_outgrown_by(rows):
            self.context.note(f"plan: the one that is known was made for {plan.rows:,} rows, and here are {rows:,}")
            return True
        if not plan.is_cut_short or plan.budget_s >= tuning.MOST_SEARCH_S:
            return False
        seconds = plan.for_rows(rows).seconds
        if tuning.Budget.of(seconds).seconds > _MUCH_MORE_TIME * plan.budget_s:
            self.context.note("plan: the search for the one that is known was cut short; this job allows a longer one")
            return True
        return bool(plan.left) and self._goes_on(plan, seconds)

    def _goes_on(self, plan: Plan, seconds: float) -> bool:
        """Whether it pays to try now the runtimes that the search for a plan had no time for."""
        kind, left = self._devices()[0].kind, ", ".join(plan.left)
        own_start_s = plan.own.start_s if plan.own is not None else 0.0
        own_name = plan.own.runtime if plan.own is not None else plan.choice.runtime
        gains = outlook.expected_gains(self.model.digest, own_name, kind, plan.family)
        tried = [Candidate(name, is_converted=needs_conversion(self.model, name)) for name in plan.left]
        folder = store.conversion_folder(self.step)
        ahead = outlook.Outlook.of(tried, gains, own_start_s, plan.parameters, folder)
        # The model's own framework has to be started and looked at first: others are compared with it.
        if ahead.budget(seconds, faster=plan.faster, first_s=own_start_s + outlook.LOOK_S).is_by_gain:
            self.context.note(f"plan: the search for it was cut short, and goes on now with {left}")
            self._cut_short = plan
            return True
        if plan.budget_s:
            self.context.note(f"plan: the search for it was cut short; going on with {left} would not pay here")
        return False

    def _search_if_long(self, started: Started, notes: tuple[str, ...]) -> Started:
        """Search for a plan and run the job by it; the job stays as it is where it is short, or nothing is better."""
        rows = self._num_rows(started.job.batch_size)
        search = Search(self.step, started, rows, self.context, is_for_job=True, known=self._cut_short)
        predicted_s, faster = rows / started.rows_per_second(), 1.0
        if self._cut_short is not None:
            predicted_s, faster = self._cut_short.for_rows(rows).seconds, self._cut_short.faster
        computed_s = min(predicted_s, rows / started.rows_computed_per_second())
        budget = search.outlook.budget(predicted_s, computed_s=computed_s, faster=faster, first_s=outlook.LOOK_S)
        if not budget.seconds and self._cut_short is not None:
            return self._switch_to(self._cut_short.for_rows(rows), started)
        if budget.seconds:
            why = f"the job would take about {predicted_s:.0f} s"
        else:
            budget = tuning.Budget(self._for_the_next_s(search, predicted_s))
            search.is_for_next = True
            why = (
                f"the next job like this may start without {started.recipe.runtime}, which took {started.start_s:.0f} s"
            )
        if not budget.seconds:
            short = f"rules of thumb, as about {predicted_s:.1f} s of work are too short for a search"
            is_slow_to_start = started.start_s > predicted_s and search.outlook.has_light
            most = f"{tuning.MOST_SEARCH_S / 60:.0f} minutes"
            later = (
                f"; such jobs may start sooner, without {started.recipe.runtime}, after a search of at most {most}: "
                f"{self.context.plan_command}"
            )
            self.context.note(f"plan: {short}{later if is_slow_to_start else ''}")
            return started
        self.context.note(f"plan: searching for about {budget.seconds:.0f} s; {why}")
        began = time.perf_counter()
        plan = self._search(search, budget.seconds, notes)
        self.context.note(f"plan: {plan.reason}")
        left_out = left_out_in_words(plan)
        if left_out:
            self.context.note(f"plan: left out: {left_out}")
        started = self._switch_to(plan, started)
        started.search_s = time.perf_counter() - began
        return started

    def _for_the_next_s(self, search: Search, predicted_s: float) -> float:
        """How long to search only for later jobs. The job's own processes are measured, too, and must survive that."""
        is_kept = self._may_keep and search.started.recipe.device_kind == "cpu"
        is_quick = _BATCHES_OF_A_LOOK * search.started.prepared.batch_seconds <= outlook.LOOK_S
        return _SLACK * search.outlook.for_the_next_s(predicted_s) if is_kept and is_quick else 0.0

    def _switch_to(self, plan: Plan, started: Started) -> Started:
        """The job by the plan of a search: on the running processes if the plan chose these, else on new ones."""
        assert isinstance(started.engine, Tunable)
        # Processes that failed while they were measured are not trusted with the job itself.
        if started.engine.is_up and not _has_failed(plan, started):
            if plan.choice == started.choice:
                started.plan = plan
                return started
            if not plan.is_sooner_than(started.choice, started.rows_per_second()):
                self.context.note("plan: starting it would take longer than it saves here; it is kept for other jobs")
                return started
        started.close()
        try:
            return self._start_by(plan)
        except _DOES_NOT_RUN as error:
            self._note_broken(error)
            started = self._start(self.options.runtime)
            store.forget(plan)
            return started

    def _search(self, search: Search, seconds: float, notes: tuple[str, ...]) -> Plan:
        clock = Clock(self.context.stop, seconds)
        result = search.run(clock)
        if self.context.meter.trace is not None:
            self.context.meter.trace.note(SEARCH, clock.began)
        plan = prediction.plan_of(result, search.started, search.rows)
        plan = replace(plan, search_s=round(clock.spent, 2), budget_s=seconds, notes=notes, step=self.step)
        if search.is_for_next:
            plan = replace(plan, budget_s=0.0, is_cut_short=True)  # a search for a longer job finds more
        if self._may_keep and (search.has_tried_light or not search.is_for_next):
            plan = replace(plan, key=self._key(), made_for=self._facts())
            store.save_plan(plan)
        return plan

    def _compare_precision(self, started: Started) -> tuple[str, ...]:
        """Show how far the answers are from those in full precision, where another precision was asked for."""
        setting = started.decision.setting
        if self.model.precision == "model" or started.is_streamed:
            return ()
        assert setting.model is not None
        whole = replace(setting, model=replace(setting.model, precision="model"))
        clock = Clock(self.context.stop, PATIENCE_S)
        whole = whole.placed(devices=setting.placement.devices[:1])
        engine, exact = contender.answer_first_rows(whole, started, self.context, clock)
        engine.close()
        proof = contender.proof_of(started.prepared, exact, 1.0)
        rows = f"in the first {len(exact.answered)} rows"
        note = (
            f"{self.model.precision}: answers differ by up to {proof.difference:.2g} of the spread of an output, {rows}"
        )
        note += f"; {proof.problem}" if proof.problem is not None else ""
        self.context.note(note)
        return (note,)


def can_search(started: Started) -> bool:
    """Whether a search could change how the job runs, if it is long enough for one."""
    options = started.options
    is_split = options.threads is not None or options.devices.cpu_replicas is not None
    is_pinned = None not in (options.runtime, options.batch_size) and is_split
    is_open = options.plan is None and started.plan is None and not is_pinned
    return is_open and not started.is_streamed and started.job.state == NONE


def _has_failed(plan: Plan, started: Started) -> bool:
    """Whether the job's present choice failed in the search for a plan."""
    present = started.choice
    return any(
        trial.rejected and not trial.rows_per_s
        for trial in plan.trials
        if (trial.runtime, trial.replicas) == (present.runtime, present.replicas)
        and trial.threads in (0, present.threads)
    )
