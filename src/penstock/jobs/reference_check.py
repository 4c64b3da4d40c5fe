"""Reference check: the first rows of a job once more, one by one, by the model's own framework on the CPU."""

from dataclasses import replace

from penstock.core import agreement
from penstock.core.agreement import CHECKED_ROWS
from penstock.core.messages import Asked, Prepared
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
        ModelError: They differ by more than the tolerance; names the output, the row and both values.
        UsageError: The input can be read only once.
    """
    if started.is_streamed:
        raise UsageError(
            "--check reads the first rows twice", received="an input that can be read only once", hint="leave it out"
        )
    name = own_runtime(model, started.recipe.runtime)
    if started.job.state != NONE and (name != started.recipe.runtime or not started.prepared.state.is_repeatable):
        return (
            f"not checked: the model changes when it is called, and {name} on the CPU would draw or keep something else"
        )
    theirs = _reference(model, name, started, context)
    ours = started.prepared
    assert ours.answers is not None
    # What a model that keeps state answers to a row alone says nothing: the same batches, in order, do.
    expected = theirs.alone if started.job.state == NONE else theirs.answers
    assert expected is not None
    tolerance = started.options.tolerance
    problem = _failed_on_one_side(ours, theirs)
    if problem is None:
        differing = agreement.compare(ours.answers, expected, tolerance)
        problem = str(replace(differing, row=ours.answered[differing.row])) if differing is not None else None
    if problem is not None:
        raise ModelError(
            "the answers are not those of the model's own framework",
            received=problem,
            allowed=f"a difference of at most {tolerance:g} of each output's spread",
            hint=f"the other side is {name} on one CPU device; --tolerance allows more",
        )
    rows = f"{len(ours.answered)} rows are as {name} on the CPU gives "
    rows += "each of them alone" if started.job.state == NONE else "them in the same batches"
    return f"checked: {rows}, within {tolerance:g} of the spread"


def _reference(model: ModelFile, runtime: str, started: Started, context: RunContext) -> Prepared:
    """The same first rows on one CPU device, each of them alone."""
    # Whole outputs: near ties may rank differently, and only whole outputs show that both are right.
    answers = replace(model.answers, top_k=None, argmax=False, labels=()) if model.answers is not None else None
    placement = replace(started.placement, devices=(cpu_device(),), lanes=1)
    setting = Setting(runtime, replace(model, answers=answers), usable_cores(), placement)
    asked = Asked(CHECKED_ROWS, is_alone=started.job.state == NONE)
    engine, prepared = prepare_beside(started, setting, started.job, asked, context.unseen(context.stop))
    engine.close()
    return prepared


def _failed_on_one_side(ours: Prepared, theirs: Prepared) -> str | None:
    for rows, others, where in ((ours, theirs, "there"), (theirs, ours, "here")):
        # Both stop at so many rows: what lies behind the last that both looked at says nothing.
        last = max(others.answered, default=-1)
        missing = [row for row in rows.answered if row not in others.answered and row <= last]
        if missing or (rows.answered and not others.answered):
            return f"row {missing[0] if missing else rows.answered[0]}: it fails {where} only"
    return None
