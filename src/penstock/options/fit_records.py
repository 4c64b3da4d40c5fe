"""Options of `fit` on files: what is learned and how, besides the model, the input and options of `predict`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.errors import UsageError
from penstock.options import value_kinds as kinds
from penstock.options.records import NO_KEY, NOTHING, OPTIONS, OUTPUT, RAY, PredictOptions, make_options
from penstock.options.table import AUTO, Kind, check_known, check_values, make, option, options_of
from penstock.options.training_records import EVERY_OPTION as EVERY_OTHER
from penstock.options.training_records import LABEL, NAMES

_learned = partial(option, group="What is learned")
_trained = partial(option, group="How it is trained")
_held_out = partial(option, group="Validation")
_kept = partial(option, group="What is kept")

_SHARE = kinds.number("SHARE", lambda share: 0.0 < share < 1.0, "above 0, below 1")
_POSITIVE = kinds.number("X", lambda value: 0.0 < value < float("inf"), "a number above 0")
ALL_REDUCE = ("auto", "nccl", "hierarchical", "one-device")
_EVERY = "N (steps), or Ns, Nm, Nh (seconds, minutes, hours)"
_MINUTES = {"s": 1 / 60, "m": 1.0, "h": 60.0}


@dataclass(frozen=True)
class Every:
    """An interval, as a number of steps or of minutes; one of them is None."""

    steps: int | None = None
    minutes: float | None = None

    @classmethod
    def parse(cls, text: str) -> Every:
        """Read `500` (steps), `10m` or `1h`.

        >>> Every.parse("10m"), Every.parse("500")
        (Every(steps=None, minutes=10.0), Every(steps=500, minutes=None))
        """
        match = re.fullmatch(r"([0-9]{1,9})([smh]?)", text.strip())
        if match is None or int(match[1]) == 0:
            raise UsageError("checkpoint_every is not understood", received=f"checkpoint_every={text}", allowed=_EVERY)
        number = int(match[1])
        return cls(minutes=number * _MINUTES[match[2]]) if match[2] else cls(steps=number)


def _read_every(given: Any, flag: str) -> Every:
    if isinstance(given, Every):
        return given
    return Every(**given) if isinstance(given, Mapping) else Every.parse(str(given))


_CHECKPOINTS = Kind(_read_every, python="int | str", also=(Mapping[str, Any], Every), metavar="N|Nm")

_PATHS = kinds.names("INPUT")


@dataclass(frozen=True)
class FitOptions:
    """What is learned and how. Names of losses, metrics and optimizers are those of Keras."""

    # fmt: off
    label: Mapping[str, str] = _learned(LABEL, OUTPUT, NO_KEY, default={},
        help="The column of true answers; @folder is the name of a photo's folder. OUTPUT=COLUMN for several outputs. "
        "Repeatable.")
    weight: str | None = _learned(kinds.text("COLUMN"), OUTPUT, NO_KEY,
        help="The column of weights of rows, for the loss and weighted metrics.")
    class_weights: str | None = _learned(kinds.choice("balanced"), OUTPUT, NO_KEY,
        help="balanced: all classes count alike, however many rows they have.")
    loss: tuple[str, ...] = _learned(NAMES, OUTPUT, NO_KEY, default=(),
        help="The loss of Keras by name. Default: what the model was compiled with, or what fits the labels.")
    metrics: tuple[str, ...] = _learned(NAMES, OUTPUT, NO_KEY, default=(),
        help="Metrics of Keras by name: accuracy,auc. Default: what the model was compiled with.")

    epochs: int = _trained(kinds.count(), OUTPUT, NO_KEY, default=1,
        help="How often to go through the rows.")
    batch_size: int | str = _trained(kinds.COUNT_OR_MEASURED, OUTPUT, NO_KEY, default=32,
        help="Rows of one step, on all devices together. auto: as many as give nearly the most rows a second, with at "
        "least 20 steps an epoch; the learning rate is not changed.")
    step: str | Callable[..., Any] | None = _trained(kinds.FUNCTION, OUTPUT, NO_KEY,
        help="A step of your own: a function of model, x, y, sample_weight that returns the loss, or the loss and the "
        "predictions.")
    optimizer: str | None = _trained(kinds.text("NAME"), OUTPUT, NO_KEY,
        help="The optimizer of Keras by name. Default: what the model was compiled with, or adam.")
    learning_rate: float | None = _trained(_POSITIVE, OUTPUT, NO_KEY,
        help="Default: that of the optimizer.")
    scale_lr: str | None = _trained(kinds.choice("linear", "sqrt"), OUTPUT, NO_KEY,
        help="In the course of the first epoch, multiply the learning rate by the number of devices, or its root.")
    clip_norm: float | None = _trained(_POSITIVE, OUTPUT, NO_KEY,
        help="Scale gradients down to this norm, all of them together.")
    mixed_precision: str | None = _trained(kinds.choice("mixed_bfloat16", "mixed_float16"), OUTPUT, NO_KEY,
        help="Layers compute in 16 bits, weights and outputs stay float32. Default: as the model was saved or built.")
    accumulate: int = _trained(kinds.count(), OUTPUT, NO_KEY, default=1,
        help="Work on each batch in so many pieces, to save memory. The weights change once.")
    all_reduce: str = _trained(kinds.choice(*ALL_REDUCE), OUTPUT, NO_KEY, default="auto",
        help="How several devices of TensorFlow add gradients up. auto: NCCL on GPUs.")
    shuffle: bool = _trained(kinds.YES_OR_NO, OUTPUT, NO_KEY, default=True, flag="--shuffle/--no-shuffle",
        help="Every epoch has the rows in another order, which the seed decides. This is the default.")
    seed: int = _trained(kinds.WHOLE, OUTPUT, NO_KEY, default=0,
        help="Decides the order of rows, the split, new weights and what random layers draw.")
    on_nan: str = _trained(kinds.choice("stop", "skip", "ignore"), OUTPUT, NO_KEY, default="stop",
        help="When the loss is NaN or infinite: stop and name step and rows, skip (undo) the step, or ignore it.")
    workers: int | None = _trained(kinds.count(), NOTHING, NO_KEY,
        help="With --engine ray: how many processes train together, on a machine each where there are enough. Default: "
        "one on each machine.")
    cache: str | None = _trained(kinds.choice("memory", "disk"), OUTPUT, NO_KEY,
        help="Keep decoded rows: read once, then in any order.")

    validation: tuple[str, ...] = _held_out(_PATHS, OUTPUT, NO_KEY, default=(),
        help="Rows to measure with after every epoch: files, folders, globs. Repeatable.")
    validation_split: float | None = _held_out(_SHARE, OUTPUT, NO_KEY,
        help="Hold back this share of the rows, drawn by the seed, to measure with after every epoch.")
    stratify: bool = _held_out(kinds.SWITCH, OUTPUT, NO_KEY, default=False,
        help="Every class has its share on both sides of --validation-split.")
    early_stopping: int | None = _held_out(kinds.count(), OUTPUT, NO_KEY,
        help="Stop when the (validation) loss has not improved for N epochs, and keep the best weights.")

    checkpoint_every: Any = _kept(_CHECKPOINTS, NOTHING, NO_KEY,
        help="Write a checkpoint after so many steps, or minutes (10m). Default: every 20 s to 5 min, as they cost.")
    keep_checkpoints: int = _kept(kinds.count(), NOTHING, NO_KEY, default=2,
        help="How many checkpoints stay.")
    log_every: int | None = _kept(kinds.count(), NOTHING, NO_KEY,
        help="Write loss and metrics to FOLDER/steps.csv after so many steps, too.")
    tensorboard: bool = _kept(kinds.SWITCH, NOTHING, NO_KEY, default=False,
        help="Write the curves for TensorBoard to FOLDER/tensorboard, too.")
    # fmt: on

    def __post_init__(self) -> None:
        check_values(self)
        if self.validation and self.validation_split is not None:
            raise UsageError(
                "rows to measure with are given, or held back, not both",
                received="validation and validation_split",
                allowed="one of them",
            )
        if self.stratify and self.validation_split is None:
            raise UsageError("stratify says how rows are held back, but not how many", hint="--validation-split 0.1")
        if self.cache is not None and self.validation:
            raise UsageError("a cache holds one input", received="cache and validation", hint="--validation-split 0.1")


FIT_OPTIONS = options_of(FitOptions)
BACKENDS = ("tensorflow", "jax", "torch")
"""The runtimes that train: the backends of Keras, best first."""
_OF_PREDICT = (
    "runtime", "weights", "custom_objects", "trust_model", "inputs", "preprocess", "preprocess_row", "preset", "scale",
    "offset", "image_size", "resize", "interpolation", "fast_decode", "color", "images", "features", "header", "nulls",
    "buckets", "max_failures", "devices", "memory_fraction", "threads", "loaders", "row_timeout", "hang_timeout",
    "start_timeout", "trace", "engine", "address", "resources",
)  # fmt: skip
FITTED_WITH = {
    **{name: OPTIONS[name] for name in _OF_PREDICT},
    "runtime": replace(
        OPTIONS["runtime"],
        kind=replace(OPTIONS["runtime"].kind, choices=lambda: BACKENDS),
        help="The backend of Keras that trains; auto: that of KERAS_BACKEND, or the first that is installed.",
    ),
    "engine": replace(
        OPTIONS["engine"], help="local: this machine. ray: workers on the machines of a Ray cluster, with Keras on JAX."
    ),
    "resources": replace(
        OPTIONS["resources"],
        help="What each worker takes on its Ray node (CPU=8; default: its share of all CPUs and GPUs), or a label that "
        "a node has. Repeatable.",
    ),
}
"""The options of `predict` that `fit` has: how the model is loaded, how rows are read, and where it runs."""

EVERY_OPTION = {**FIT_OPTIONS, **EVERY_OTHER}
"""Every option of every command, by its keyword."""


def make_fit(given: Mapping[str, Any], function: Callable[..., Any] | None = None) -> tuple[PredictOptions, FitOptions]:
    """The options of training on files, from what was given in the shell, in Python or in a request.

    Raises:
        UsageError: One is unknown, or not understood, or not allowed.
    """
    known = {**FIT_OPTIONS, **FITTED_WITH}
    check_known(given, known, function)
    given = {name: value for name, value in given.items() if value is not None}
    own = {name: value for name, value in given.items() if name in FIT_OPTIONS}
    options = make_options({name: value for name, value in given.items() if name not in own})
    asked = make(FitOptions, own)
    if options.cluster.engine == RAY:
        _check_on_cluster(asked)
    elif asked.workers is not None:
        raise UsageError("workers is for clusters", received=f"workers={asked.workers}", hint="give --engine ray, too")
    return options, asked


def _check_on_cluster(asked: FitOptions) -> None:
    """Refuse options that do not work with several workers.

    Raises:
        UsageError: The batch size is to be measured, or a cache is to be on disk.
    """
    if asked.batch_size == AUTO:
        raise UsageError(
            "several workers need one batch size",
            received="batch_size=auto, engine=ray",
            hint="measure it on one machine, without --engine ray; then give --batch-size N",
        )
    if asked.cache == "disk":
        raise UsageError(
            "workers do not share a cache on disk",
            received="cache=disk, engine=ray",
            hint="--cache memory: each has one",
        )
