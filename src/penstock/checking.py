"""The same answers: the first rows of a job, predicted once more by the model's own framework on one CPU."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import IO, Any

from penstock import registry
from penstock.core import agreement
from penstock.core.records import ModelFile, Placement
from penstock.core.stopping import StopFlag
from penstock.engines.local import LocalEngine
from penstock.errors import ModelError, UsageError
from penstock.jobs import CHECKED_ROWS, Started
from penstock.pool.devices import cpu_device, usable_cores
from penstock.pool.supervisor import Launch
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
    ours = started.prepared.answers
    assert ours is not None
    name = registry.own_runtime(model, started.recipe.runtime)
    placement = Placement((cpu_device(),), loaders=1, lanes=1)
    # Whole outputs: near ties may rank differently, and only whole outputs show that both are right.
    whole = replace(model, answers=None)
    descriptors = (started.shared.descriptor,) if started.shared is not None else ()
    launch = Launch(registry.RUNTIMES[name], whole, usable_cores(), log, descriptors=descriptors)
    with contextlib.closing(
        LocalEngine(launch, placement, Meter().observe, stop, started.options.row_timeout)
    ) as engine:
        engine.load()
        reading = replace(started.placement, devices=placement.devices, lanes=1)
        theirs = engine.prepare(started.job, reading, started.sample, CHECKED_ROWS).answers
    assert theirs is not None
    tolerance = started.options.tolerance
    found = agreement.compare(ours, theirs, tolerance, model.answers)
    if found is not None:
        raise ModelError(
            "the answers are not those of the model's own framework",
            received=str(found),
            allowed=f"a difference of at most {tolerance:g} of each output's spread",
            hint=f"the other side is {name} on one CPU device; --tolerance allows more",
        )
    rows = max((len(column) for column in ours.values()), default=0)
    return f"checked: {rows} rows are as {name} on the CPU gives them, within {tolerance:g} of each output's spread"
