"""A job, started by its plan: the one that was asked for, a cached one, one that is searched for now, or none."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from penstock import jobs, placing, registry
from penstock.core import tuning
from penstock.core.plans import Choice, Plan
from penstock.core.protocols import Source
from penstock.core.records import Binding, ModelFile
from penstock.engines.local import LocalEngine
from penstock.errors import DeviceError, ModelError, UsageError
from penstock.jobs import CHECKED_ROWS, Fixed, Started
from penstock.options import NO_PLAN, PredictOptions
from penstock.packages import CONVERTER, PACKAGES
from penstock.planning import contender, prediction, store
from penstock.planning.candidates import can_convert, needs_conversion
from penstock.planning.clock import Clock
from penstock.planning.contender import Setting
from penstock.planning.search import Search, beside
from penstock.runtimes.live import LiveModel
from penstock.surroundings import Surroundings
from penstock.telemetry.meter import Meter

_CONVERSION_LIMIT_S = 1800.0


def start(
    model: ModelFile | LiveModel,
    source: Source,
    options: PredictOptions,
    meter: Meter,
    around: Surroundings,
    *,
    fixed: Fixed | None = None,
    may_search: bool = True,
) -> Started:
    """Start a job by its plan; searches for one where the job is long enough for that to pay."""
    if isinstance(model, LiveModel):
        return _begin(model, source, options, meter, around, fixed=fixed)
    if fixed is not None:
        file = _as_read_by(model, fixed.recipe.runtime, source, options, around, fixed.bindings)
        return _begin(file, source, options, meter, around, fixed=fixed)
    plan = _plan_at_hand(model, source, options, around)
    if plan is not None:
        try:
            return _by_plan(plan, model, source, options, meter, around)
        except (ModelError, DeviceError) as error:
            if options.plan is not None:
                raise
            store.forget(plan)
            around.note(f"plan: the one found before does not run any more ({error.problem})")
    if options.runtime is not None and needs_conversion(model, options.runtime):
        file = _as_read_by(model, options.runtime, source, options, around, None)
        return _begin(file, source, options, meter, around)
    rows_wanted = CHECKED_ROWS if may_search or options.precision != "model" else 0
    started = _begin(model, source, options, meter, around, answers_rows=rows_wanted)
    try:
        _tell_precision(model, started, around)
        if not may_search or options.plan == NO_PLAN or started.is_streamed:
            return started
        return _searched(model, source, started, meter, around)
    except BaseException:
        started.close()
        raise


def make_plan(
    model: ModelFile, source: Source, options: PredictOptions, around: Surroundings, *, is_fresh: bool = False
) -> Plan:
    """The plan for a job, searched for whatever its length, unless it is known already.

    Raises:
        UsageError: The input can be read only once.
    """
    key = _key(model, source, options)
    known = store.load_plan(key) if key is not None and not is_fresh else None
    if known is not None:
        around.note("plan: found in the cache; --fresh searches again")
        return known
    started = _begin(model, source, options, Meter(), around, answers_rows=CHECKED_ROWS)
    with contextlib.closing(started):
        if started.is_streamed:
            raise UsageError("this input can be read only once: there is nothing left to predict after a search")
        return _search(model, started, around, tuning.MOST_SEARCH_S, key)


def _begin(
    model: ModelFile | LiveModel,
    source: Source,
    options: PredictOptions,
    meter: Meter,
    around: Surroundings,
    *,
    fixed: Fixed | None = None,
    choice: Choice | None = None,
    answers_rows: int = 0,
) -> Started:
    return jobs.start(model, source, options, meter, around, fixed=fixed, choice=choice, answers_rows=answers_rows)


def _plan_at_hand(model: ModelFile, source: Source, options: PredictOptions, around: Surroundings) -> Plan | None:
    """The plan of the file that was named, or the one that was found for such a job before."""
    if options.plan == NO_PLAN:
        return None
    if options.plan is not None:
        for name in ("runtime", "batch_size", "threads", "replicas_per_device"):
            if getattr(options, name) is not None:
                raise UsageError(
                    "a plan says this already", received=f"plan={options.plan} and {name}={getattr(options, name)}"
                )
        return store.read_plan(options.plan)
    key = _key(model, source, options)
    plan = store.load_plan(key) if key is not None else None
    if plan is not None:
        around.note(f"plan: {plan.choice} (found before; `penstock plan` shows why)")
    return plan


def _key(model: ModelFile, source: Source, options: PredictOptions) -> str | None:
    """What the plan is kept under; None for a function of this process, of which nothing tells whether it changed."""
    if model.payload is not None or not getattr(source, "is_resumable", True):
        return None
    runtime = options.runtime or registry.choose_runtime(model, None)
    devices = placing.devices_for(options, None, None, runtime)
    return store.plan_key(model, source.schema(), options, devices, store.installed())


def _by_plan(
    plan: Plan, model: ModelFile, source: Source, options: PredictOptions, meter: Meter, around: Surroundings
) -> Started:
    choice = plan.choice
    if choice.precision != options.precision:
        raise UsageError(
            "the plan is for another precision",
            received=f"--plan of {choice.precision}, --precision {options.precision}",
            hint=f"--precision {choice.precision}",
        )
    file = model
    if choice.converted is not None:
        file = _as_read_by(model, choice.runtime, source, options, around, None, folder=choice.converted)
    started = _begin(file, source, options, meter, around, choice=choice)
    started.plan = plan
    return started


def _searched(model: ModelFile, source: Source, started: Started, meter: Meter, around: Surroundings) -> Started:
    """The job as the search says; as it was started where it is too short for one, or nothing better was found."""
    options = started.options
    is_decided = None not in (options.runtime, options.batch_size) and (
        options.threads is not None or options.devices.cpu_replicas is not None
    )
    if is_decided:
        return started
    rows = sum(span.rows for span in started.divide())
    predicted_s = rows / started.rows_per_second()
    budget = tuning.Budget.of(predicted_s)
    if not budget.seconds:
        around.note(f"plan: rules of thumb, as about {predicted_s:.1f} s of work are too short for a search")
        return started
    around.note(f"plan: searching for at most {budget.seconds:.0f} s, as this would take about {predicted_s:.0f} s")
    plan = _search(model, started, around, budget.seconds, _key(model, source, options))
    around.note(f"plan: {plan.choice}; {plan.reason}")
    if plan.choice == _own_choice(started) and _is_up(started):
        started.plan = plan
        return started
    started.close()
    return _by_plan(plan, model, source, options, meter, around)


def _search(model: ModelFile, started: Started, around: Surroundings, seconds: float, key: str | None) -> Plan:
    clock = Clock(around.stop, seconds)
    rows = sum(span.rows for span in started.divide())
    found = Search(model, started, rows, around, clock).run()
    plan = prediction.plan_of(found, started, rows, clock.spent)
    if key is not None:
        plan = replace(plan, key=key)
        store.save_plan(plan)
    return plan


def _is_up(started: Started) -> bool:
    return isinstance(started.engine, LocalEngine) and started.engine.is_up


def _own_choice(started: Started) -> Choice:
    """What the job runs by already."""
    devices = started.placement.devices
    each = sum(device.index == devices[0].index for device in devices) if devices[0].kind == "gpu" else len(devices)
    recipe = started.recipe
    return Choice(recipe.runtime, recipe.batch_size, recipe.threads, each, started.placement.lanes, recipe.precision)


def _as_read_by(
    model: ModelFile,
    runtime: str,
    source: Source,
    options: PredictOptions,
    around: Surroundings,
    bindings: tuple[Binding, ...] | None,
    folder: str | None = None,
) -> ModelFile:
    """The file that a runtime reads: the model itself, or its converted step, made now where it is not there."""
    if not needs_conversion(model, runtime):
        return model
    for package in (PACKAGES[runtime], CONVERTER):
        if not package.is_installed:
            raise DeviceError(
                f"{package.distributions[0]} is not installed", received=f"--runtime {runtime}", hint=package.install
            )
    folder = folder if bindings is None else store.conversion_folder(model, bindings)
    if folder is not None and store.is_whole(folder):
        store.touch(folder)
        return store.converted_model(model, folder)
    around.note("converting the model")
    own = _begin(model, source, replace(options, runtime=None), Meter(), around, answers_rows=CHECKED_ROWS)
    with contextlib.closing(own):
        folder = store.conversion_folder(model, own.job.bindings)
        if not store.is_whole(folder):
            _convert(model, own, folder)
        converted = store.converted_model(model, folder)
        _check_converted(converted, runtime, own, around)
    return converted


def _convert(model: ModelFile, own: Started, folder: str) -> None:
    assert isinstance(own.engine, LocalEngine)
    problem: str | None = "only TensorFlow's models are converted"
    if can_convert(model, own.recipe.runtime):
        with store.staged(folder) as staging:
            problem = own.engine.convert(staging)
    if problem is not None:
        raise ModelError("the model does not convert", received=problem, hint="another --runtime runs it as it is")


def _check_converted(converted: ModelFile, runtime: str, own: Started, around: Surroundings) -> None:
    """What was converted must give the answers of the model's own framework."""
    setting = Setting(runtime, converted, own.recipe.threads, own.placement.devices[:1], own.placement.lanes)
    clock = Clock(around.stop, _CONVERSION_LIMIT_S)
    contender.start(setting, beside(own), own.options.tolerance, around, clock).engine.close()


def _tell_precision(model: ModelFile, started: Started, around: Surroundings) -> None:
    """How far the answers are from the model's own, where another precision was asked for."""
    if model.precision == "model" or started.is_streamed:
        return
    whole = replace(model, precision="model")
    setting = Setting(
        started.recipe.runtime, whole, started.recipe.threads, started.placement.devices[:1], started.placement.lanes
    )
    engine, exact = contender.open_engine(setting, beside(started), around, Clock(around.stop, _CONVERSION_LIMIT_S))
    engine.close()
    proof = contender.proof_of(started.prepared, exact, 1.0)
    told = f"{model.precision}: answers differ by up to {proof.difference:.2g} of the spread of an output"
    rows = f"in the first {len(exact.answered)} rows"
    around.note(f"{told} {rows}" + (f"; {proof.problem}" if proof.problem is not None else ""))
