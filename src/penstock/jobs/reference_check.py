"""The same answers: the first rows of a job, predicted once more, one by one, by the model's own framework."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import IO, Any

from penstock.core import agreement, kinds
from penstock.core.events import Asked, Prepared
from penstock.core.records import ModelFile
from penstock.core.state import NONE
from penstock.core.stopping import StopFlag
from penstock.engines.local import LocalEngine
from penstock.errors import ModelError, UsageError
from penstock.jobs.start import CHECKED_ROWS, Started
from penstock.pool.devices.inventory import cpu_device, usable_cores
from penstock.pool.processes.supervisor import Launch
from penstock.runtimes.catalog import own_runtime
from penstock.telemetry.meter import Meter


def check_answers(model: ModelFile, started: Started, *, log: IO[Any], stop: StopFlag) -> str:
    """Compare what the compiled step gave for the first rows with a reference; returns what was found, in words.

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
    theirs = _reference(model, name, started, log, stop)
    ours = started.prepared
    assert ours.answers is not None
    # What a model that keeps state answers to a row alone says nothing: the same batches, in order, do.
    expected = theirs.alone if started.job.state == NONE else theirs.answers
    assert expected is not None
    tolerance = started.options.tolerance
    problem = _failed_on_one_side(ours, theirs)
    if problem is None:
        found = agreement.compare(ours.answers, expected, tolerance)
        problem = str(replace(found, row=ours.answered[found.row])) if found is not None else None
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


def _reference(model: ModelFile, runtime: str, started: Started, log: IO[Any], stop: StopFlag) -> Prepared:
    """The same first rows on one CPU device, each of them alone."""
    # Whole outputs: near ties may rank differently, and only whole outputs show that both are right.
    answers = replace(model.answers, top_k=None, argmax=False, labels=()) if model.answers is not None else None
    descriptors = (started.shared.descriptor,) if started.shared is not None else ()
    whole = replace(model, answers=answers)
    launch = Launch(kinds.runtime(runtime).make(), whole, usable_cores(), log, descriptors=descriptors)
    placement = replace(started.placement, devices=(cpu_device(),), lanes=1)
    with contextlib.closing(
        LocalEngine(launch, placement, Meter().observe, stop, started.options.row_timeout)
    ) as engine:
        engine.load()
        return engine.prepare(
            started.job, placement, started.sample, Asked(CHECKED_ROWS, is_alone=started.job.state == NONE)
        )


def _failed_on_one_side(ours: Prepared, theirs: Prepared) -> str | None:
    for rows, others, where in ((ours, theirs, "there"), (theirs, ours, "here")):
        # Both stop at so many rows: what lies behind the last that both looked at says nothing.
        last = max(others.answered, default=-1)
        missing = [row for row in rows.answered if row not in others.answered and row <= last]
        if missing or (rows.answered and not others.answered):
            return f"row {missing[0] if missing else rows.answered[0]}: it fails {where} only"
    return None
