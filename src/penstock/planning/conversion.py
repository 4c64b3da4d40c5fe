"""Conversion: the file that a runtime reads, which is the model itself or its converted step."""

import contextlib
from dataclasses import replace

from penstock.core import kinds
from penstock.core.agreement import CHECKED_ROWS
from penstock.core.protocols import Tunable
from penstock.core.records import ModelFile
from penstock.errors import DeviceError, ModelError
from penstock.jobs import bring_up
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request
from penstock.jobs.placement import devices_for
from penstock.jobs.run_context import RunContext
from penstock.planning import contender, store
from penstock.planning.candidates import can_convert, needs_conversion
from penstock.planning.clock import Clock
from penstock.private_cache import in_use
from penstock.runtimes.tensorflow.to_onnx import cannot_write
from penstock.telemetry.meter import Meter

PATIENCE_S = 1800.0
"""The longest wait for processes whose work the job needs before it begins."""


def convert_if_needed(
    runtime: str | None,
    model: ModelFile,
    request: Request,
    step: str,
    context: RunContext,
    held: contextlib.ExitStack,
) -> ModelFile:
    """The file that a runtime reads: the model itself, or its converted step, made and compared now if it is missing.

    `step` is the key of the converted step in the cache, and `held` keeps it from being cleared. Without a runtime, the
    file is the model itself.

    Raises:
        DeviceError: A package is missing.
        ModelError: The model does not convert, or its converted step gives other answers.
    """
    if runtime is None or not needs_conversion(model, runtime):
        return model
    for package in (kinds.runtime(runtime).package, kinds.CONVERTER):
        if not package.is_installed:
            raise DeviceError(
                f"{package.distributions[0]} is not installed",
                received=f"the runtime {runtime} for a model of kind {model.kind}",
                hint=package.install,
            )
    folder = store.conversion_folder(step)
    file = store.converted_model(model, folder)
    exact = replace(file, precision="model")
    device = devices_for(request.options, None, None, runtime)[0]
    held.enter_context(in_use(folder))
    if not store.is_whole(folder):
        context.note("converting the model")
        _convert_and_compare(exact, runtime, model, request, context, held)
    elif not store.is_agreed(folder, exact, runtime, device, request.options.tolerance):
        context.note("comparing the converted model with the model's own framework")
        _convert_and_compare(exact, runtime, model, request, context, held)
    store.touch(folder)
    of_nan = store.difference_of_nan(folder, exact, runtime, device)
    if of_nan is not None:
        context.note(f"{runtime}: {of_nan}")
    return file


def _convert_and_compare(
    file: ModelFile,
    runtime: str,
    model: ModelFile,
    request: Request,
    context: RunContext,
    held: contextlib.ExitStack,
) -> None:
    """Convert the model to `file`, unless that is done, and check that this gives the model's answers."""
    options, is_asked_for = replace(request.options, runtime=None, precision="model"), bool(request.options.runtime)
    own_request = Request(request.source, options, answers_rows=CHECKED_ROWS)
    own = bring_up.start(replace(model, precision="model"), own_request, replace(context, meter=Meter()))
    with contextlib.closing(own):
        clock = Clock(context.stop, PATIENCE_S)
        problem = None if store.is_whole(file.location) else _convert(own, model, file.location, clock)
        if problem is not None:
            raise ModelError("the model does not convert", received=problem, hint="another --runtime runs it as it is")
        held.enter_context(in_use(file.location))
        setting = replace(own.decision.setting, runtime=runtime, model=file).placed(devices=own.placement.devices[:1])
        contender.start(setting, own, options.tolerance, context, clock, is_asked_for=is_asked_for).engine.close()


def _convert(own: Started, model: ModelFile, folder: str, clock: Clock) -> str | None:
    """Have the model's own framework write its step to `folder`; returns why it cannot, in words, or None."""
    if not can_convert(model, own.recipe.runtime):
        return f"it is loaded by {own.recipe.runtime}, and only TensorFlow's steps are converted"
    assert isinstance(own.engine, Tunable)
    try:
        with store.staged(folder) as staging:
            return own.engine.convert(staging, clock)
    except OSError as error:
        raise cannot_write(error) from None
