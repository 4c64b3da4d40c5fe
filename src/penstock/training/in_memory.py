"""`penstock.fit(model, x, y)`: a live model trained in this process, on data that the caller has."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, TypedDict

import numpy as np

from penstock.errors import PenstockError, UsageError
from penstock.evaluation.compiled_metrics import losses_of
from penstock.evaluation.label_fitting import check_classes
from penstock.evaluation.metric_records import MetricRequest
from penstock.options.fit_records import ALL_REDUCE
from penstock.options.table import AUTO
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.training.callbacks import KerasCallbacks, flat_callbacks
from penstock.runtimes.keras.training.given_data import DataArguments, GivenData, pack_given, split_off
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, StepSettings
from penstock.runtimes.keras.training.learning_rate import scaled_learning_rate
from penstock.runtimes.keras.training.opening import open_trainer
from penstock.runtimes.keras.training.user_step import load_step
from penstock.training import loop
from penstock.training.batch_size import FIRST_SIZE, described, find_batch_size


@dataclass(frozen=True)
class FitRequest:
    """The arguments of `model.fit` besides the data for training, and Penstock's own ones."""

    epochs: int = 1
    initial_epoch: int = 0
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | list[int] = 1
    num_devices: int | None = None
    settings: StepSettings = field(default_factory=StepSettings)
    on_nan: str = loop.STOP
    scale_lr: str | None = None


class FitKeywords(TypedDict, total=False):
    """The keyword arguments of `model.fit`, and those for steps."""

    validation_split: float
    validation_data: Any
    shuffle: bool | str
    class_weight: Mapping[int, float]
    sample_weight: Any
    initial_epoch: int
    steps_per_epoch: int
    validation_steps: int
    validation_batch_size: int
    validation_freq: int | list[int]
    step: str | Callable[..., Any]
    all_reduce: str


_OF_DATA = {
    "sample_weight": "sample_weight",
    "class_weight": "class_weight",
    "shuffle": "shuffle",
    "steps_per_epoch": "steps",
}
_COMPILED = "model.compile(…) says it for a live model; penstock.fit takes it for files"
_BEFORE_TRAINING = {
    "mixed_precision": "keras.config.set_dtype_policy('mixed_bfloat16') before a live model is made; "
    "penstock.fit takes it for files",
    **dict.fromkeys(("loss", "metrics", "optimizer", "learning_rate", "clip_norm"), _COMPILED),
}
_OF_STEPS = {"step", "all_reduce"}
_OF_TRAINING = {each.name for each in fields(FitRequest)} - {"settings"}


def with_keywords(
    given: DataArguments, request: FitRequest, keywords: Mapping[str, Any]
) -> tuple[DataArguments, FitRequest]:
    """The data and the request, completed with the other arguments of `model.fit`.

    Raises:
        UsageError: `model.fit` has no such argument.
    """
    unknown = keywords.keys() - _OF_DATA.keys() - _OF_TRAINING - _OF_STEPS
    if unknown:
        known = [*_OF_DATA, *_OF_TRAINING, *_OF_STEPS]
        close = difflib.get_close_matches(min(unknown), known, n=1)
        hint = f"did you mean {close[0]}?" if close else None
        hint = next((_BEFORE_TRAINING[name] for name in sorted(unknown) if name in _BEFORE_TRAINING), hint)
        raise UsageError("model.fit has no such argument", received=", ".join(sorted(unknown)), hint=hint)
    of_data = {_OF_DATA[name]: value for name, value in keywords.items() if name in _OF_DATA}
    of_training = {name: value for name, value in keywords.items() if name in _OF_TRAINING}
    of_steps = {name: value for name, value in keywords.items() if name in _OF_STEPS}
    if "step" in of_steps:
        of_steps["step"] = load_step(of_steps["step"])
    settings = replace(request.settings, **of_steps)
    return replace(given, **of_data), replace(request, settings=settings, **of_training)


_WARM_UP_STEPS = 500
"""The steps of a warm-up where the number of steps of an epoch is not known."""


def _say(remark: str) -> None:
    print(f"penstock: {remark}", file=sys.stderr)


def fit_in_memory(
    model: Any, given: DataArguments, request: FitRequest, keywords: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """Train as `model.fit` does, on every device of the process. `keywords` are its other arguments.

    Returns:
        Keras's History.

    Raises:
        ModelError: The model is not compiled, or its loss is NaN or infinite.
        InputError: A label is out of range.
        UsageError: `model.fit` has no such argument, or takes no such value, or labels are text.
    """
    given, request = with_keywords(given, request, keywords)
    _check(request)
    try:
        return _fit(model, given, request)
    except PenstockError:
        raise
    except Exception as error:
        _check_labels(model, given.y)  # a model that was not built before is built now, and has a shape
        # A user's step may take text, so text is refused only after training has failed.
        text = _text_in(given.y)
        if text is None:
            raise
        raise UsageError(
            "labels that are text have no numbers yet",
            received=f"y with {text!r:.60}",
            allowed="numbers",
            hint="names, y = numpy.unique(y, return_inverse=True); or train on files, where label='COLUMN' may be text",
        ) from error


def _text_in(labels: Any) -> str | None:
    """The first label that is text; None where there is none."""
    for leaf in keras.tree.flatten(labels):
        array = np.asarray(leaf) if isinstance(leaf, str) or hasattr(leaf, "__array__") else np.empty(0)
        first = array.flat[0] if array.size and array.dtype.kind in "USTO" else None
        if isinstance(first, (str, bytes)):
            return first.decode(errors="replace") if isinstance(first, bytes) else str(first)
    return None


def _fit(model: Any, given: DataArguments, request: FitRequest) -> Any:
    given, held_back = split_off(given, request.validation_split, request.validation_data)
    say = _say if request.verbose != 0 else loop.say_nothing
    if given.batch_size == AUTO:
        found = _measured(model, given, request)
        say(described(found))
        given = replace(given, batch_size=found)
    data = GivenData(given)
    trainer = open_trainer(model, pack_given, data.first(), request.settings, request.num_devices)
    trainer.on_remark = say
    for remark in trainer.remarks:
        say(remark)
    try:
        _check_labels(trainer.model, given.y)
        validation = None
        if held_back is not None:
            size = request.validation_batch_size or given.batch_size
            held_back = replace(held_back, batch_size=size, steps=request.validation_steps)
            validation = GivenData(held_back, is_begun_anew=True)
        callbacks = _callbacks(trainer, request, data.steps)
        read = data.read if data.array_rows is not None else None
        schedule = loop.Schedule(request.epochs, request.validation_freq, request.on_nan, on_skip=say, read=read)
        loop.train(trainer, data, callbacks, schedule, validation=validation)
    finally:
        trainer.close()
    return model.history


def _check_labels(model: Any, labels: Any) -> None:
    """Check classes in memory at the start: frameworks name no row, and JAX trains on wrong classes without an error.

    Raises:
        InputError: A class is out of range.
    """
    shape = getattr(model, "output_shape", None)  # a tuple if there is only one output and its shape is known
    is_plain = isinstance(labels, np.ndarray) or hasattr(labels, "to_numpy")
    if is_plain and isinstance(shape, tuple) and None not in shape[1:]:
        output = (getattr(model, "output_names", None) or ["output"])[0]
        check_classes(losses_of(model, MetricRequest(), output, 0, 1), output, np.asarray(labels), shape[1:])


def _measured(model: Any, given: DataArguments, request: FitRequest) -> int:
    """A batch size, found by timing steps. It draws no random numbers that decide the order of rows."""
    data = GivenData(replace(given, batch_size=FIRST_SIZE, shuffle=False))
    rows = data.array_rows
    if rows is None:
        raise UsageError(
            "the data comes in batches of its own",
            received=f'batch_size="{AUTO}", x of {type(given.x).__name__}',
            hint=f'batch_size="{AUTO}" is for arrays and for files',
        )
    return find_batch_size(model, data.first(), rows, request.settings, request.num_devices)


def _check(request: FitRequest) -> None:
    if request.on_nan not in (loop.STOP, loop.SKIP, loop.IGNORE):
        allowed = ", ".join((loop.STOP, loop.SKIP, loop.IGNORE))
        raise UsageError("unknown on_nan", received=f"on_nan={request.on_nan!r}", allowed=allowed)
    if request.settings.all_reduce not in ALL_REDUCE:
        received = f"all_reduce={request.settings.all_reduce!r}"
        raise UsageError("unknown all_reduce", received=received, allowed=", ".join(ALL_REDUCE))
    pieces = request.settings.accumulate
    if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
        raise UsageError(
            "accumulate is how many pieces a batch is worked on in",
            received=f"accumulate={pieces!r}",
            allowed="1 or more",
        )


def _callbacks(trainer: KerasTrainer, request: FitRequest, steps: int | None) -> KerasCallbacks:
    callbacks = request.callbacks
    if request.scale_lr is not None:
        # The warm-up lasts for the first epoch.
        warm_up = scaled_learning_rate(trainer.model, request.scale_lr, trainer.num_devices, steps or _WARM_UP_STEPS)
        callbacks = [warm_up, *flat_callbacks(callbacks)]
    return KerasCallbacks(
        trainer.model,
        callbacks,
        verbose=request.verbose,
        epochs=request.epochs,
        steps=steps,
        initial_epoch=request.initial_epoch,
    )
