"""Reference check: the model's own framework predicts the first rows of a job again on the CPU, one by one."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from penstock.core import agreement
from penstock.core.agreement import CHECKED_ROWS, LEAST_LOOSENED, NO_NOISE, Noise
from penstock.core.messages import Asked, Prepared
from penstock.core.protocols import Tunable
from penstock.core.records import ModelFile
from penstock.core.state import NONE
from penstock.errors import ModelError, UsageError
from penstock.jobs.bring_up import Started, prepare_beside
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.pool.devices.inventory import cpu_device, usable_cores
from penstock.runtimes.catalog import own_runtime


def check_answers(model: ModelFile, started: Started, context: RunContext) -> str:
    """Compare what the compiled step gave for the first rows with a reference; returns the result in words.

    Raises:
        ModelError: They differ by more than the tolerance, and by more than the reference's own noise explains; names
            the output, the row and both values.
        UsageError: The input can be read only once.
    """
    if started.is_streamed:
        raise UsageError(
            "--check reads the first rows twice", received="an input that can be read only once", hint="leave it out"
        )
    if not started.prepared.answered:
        return "not checked: all of the first rows failed"
    name = own_runtime(model, started.recipe.runtime)
    if started.job.state != NONE and (name != started.recipe.runtime or not started.prepared.state.is_repeatable):
        return (
            f"not checked: the model changes when it is called, and {name} on the CPU would draw or keep something else"
        )
    with _reference(model, name, started, context) as (engine, theirs):
        noise, problem = NO_NOISE, _problem_of(started, theirs, NO_NOISE)
        if problem is not None and started.job.state == NONE and started.options.tolerance >= LEAST_LOOSENED:
            noise = engine.find_noise(CHECKED_ROWS, context.stop)
            problem = _problem_of(started, theirs, noise)
    tolerance = started.options.tolerance
    if problem is not None:
        raise ModelError(
            "the answers are not those of the model's own framework",
            received=problem,
            allowed=f"a difference of at most {tolerance:g} of each output's spread, or twice its framework's noise",
            hint=f"the other side is {name} on one CPU device; --tolerance allows more",
        )
    rows = f"{len(started.prepared.answered)} rows are as {name} on the CPU gives "
    rows += "each of them alone" if started.job.state == NONE else "them in the same batches"
    allowed = f"{tolerance:g} of the spread" if noise is NO_NOISE else f"twice its own noise against {noise.how}"
    return f"checked: {rows}, within {allowed}"


def _problem_of(started: Started, theirs: Prepared, noise: Noise) -> str | None:
    """Where the answers differ by more than is allowed, in words."""
    ours = started.prepared
    assert ours.answers is not None
    # The answers of a model with state to single rows prove nothing: those to the same batches, in order, do.
    expected = theirs.alone if started.job.state == NONE else theirs.answers
    assert expected is not None
    problem = _failed_on_one_side(ours, theirs)
    if problem is None:
        differing = agreement.compare(ours.answers, expected, started.options.tolerance, noise)
        problem = str(replace(differing, row=ours.answered[differing.row])) if differing is not None else None
    return problem


@contextlib.contextmanager
def _reference(
    model: ModelFile, runtime: str, started: Started, context: RunContext
) -> Iterator[tuple[Tunable, Prepared]]:
    """The same first rows on one CPU device, each of them alone."""
    # Whole outputs: near ties may rank differently, and only whole outputs show that both are right.
    answers = replace(model.answers, top_k=None, argmax=False, labels=()) if model.answers is not None else None
    placement = replace(started.placement, devices=(cpu_device(),), lanes=1)
    setting = Setting(runtime, replace(model, answers=answers), usable_cores(), placement)
    asked = Asked(CHECKED_ROWS, is_alone=started.job.state == NONE)
    engine, prepared = prepare_beside(started, setting, started.job, asked, context.unseen(context.stop))
    with contextlib.closing(engine):
        yield engine, prepared


def _failed_on_one_side(ours: Prepared, theirs: Prepared) -> str | None:
    for rows, others, where in ((ours, theirs, "there"), (theirs, ours, "here")):
        # Both sides stop after so many rows: rows after the last one that both looked at show nothing.
        last = max(others.answered, default=-1)
        missing = [row for row in rows.answered if row not in others.answered and row <= last]
        if missing or (rows.answered and not others.answered):
            return f"row {missing[0] if missing else rows.answered[0]}: it fails {where} only"
    return None
