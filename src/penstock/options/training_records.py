"""Options of `evaluate`: what is measured, besides the model, the input and the options of `predict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.errors import UsageError
from penstock.options import value_kinds as kinds
from penstock.options.class_names import ClassNames
from penstock.options.records import NO_KEY, NOTHING, OPTIONS, PredictOptions, make_options
from penstock.options.table import AUTO, Kind, check_known, check_values, make, option, options_of

_measured = partial(option, group="What is measured")
_COLUMNS = "COLUMN, or OUTPUT=COLUMN for each output of a model that has several"


def _read_label(given: Any, flag: str) -> dict[str, str]:
    """The column of each output: `y` is `{"": "y"}`, which is the column of the only output."""
    if isinstance(given, Mapping):
        return dict(given)
    entries = [given] if isinstance(given, str) else given
    columns: dict[str, str] = {}
    for entry in entries:
        output, equals, column = entry.partition("=")
        name = output.strip() if equals else ""
        if equals and not name:
            raise UsageError(f"{flag} is not understood", received=f"{flag} {entry}", allowed=_COLUMNS)
        if name in columns:
            problem = f"{flag} is given twice for one output" if name else f"{flag} is given twice"
            raise UsageError(problem, received=f"{flag} {entry}", allowed=_COLUMNS)
        columns[name] = column if equals else entry
    return columns


def _check_label(name: str, value: Any) -> None:
    if not all(column.strip() for column in value.values()) or ("" in value and len(value) > 1):
        received = ", ".join(f"{output}={column}" if output else column for output, column in value.items())
        raise UsageError(f"{name} is not understood", received=f"{name}={received}", allowed=_COLUMNS)


LABEL = Kind(
    _read_label,
    _check_label,
    python="str | Mapping[str, str]",
    also=(Sequence[str],),
    metavar="COLUMN|OUTPUT=COLUMN",
    shell=kinds.REPEATABLE,
)
NAMES = kinds.names("NAME,…", "a name is given twice", has_commas=True)


@dataclass(frozen=True)
class EvaluateOptions:
    """What is measured. Names of metrics and losses are those of Keras; `OUTPUT=NAME` is for one output of several."""

    # fmt: off
    label: Mapping[str, str] = _measured(LABEL, NOTHING, NO_KEY, default={},
        help="The column of true answers; @folder is the name of a photo's folder. OUTPUT=COLUMN for several outputs. "
        "Repeatable.")
    labels: ClassNames = _measured(kinds.LABELS, NOTHING, NO_KEY, default=(),
        help="The names of the classes, for labels that are text: one a line, or JSON; of several outputs a list for "
        "each. Default: labels.json beside the model.")
    weight: str | None = _measured(kinds.text("COLUMN"), NOTHING, NO_KEY,
        help="The column of weights of rows, for the loss and weighted metrics.")
    metrics: tuple[str, ...] = _measured(NAMES, NOTHING, NO_KEY, default=(),
        help="Metrics of Keras by name: accuracy,auc. Default: what the model was compiled with.")
    loss: tuple[str, ...] = _measured(NAMES, NOTHING, NO_KEY, default=(),
        help="The loss of Keras by name. Default: what the model was compiled with.")
    per_class: bool = _measured(kinds.SWITCH, NOTHING, NO_KEY, default=False,
        help="Also precision, recall, F1 and the number of rows of every class.")
    confusion: bool = _measured(kinds.SWITCH, NOTHING, NO_KEY, default=False,
        help="Also the confusion matrix: true classes by predicted ones.")
    from_predictions: str | None = _measured(kinds.path("FOLDER"), NOTHING, NO_KEY,
        help="Evaluate what predict has written to FOLDER; MODEL and INPUT may be left out.")
    # fmt: on

    def __post_init__(self) -> None:
        check_values(self)


EVALUATE_OPTIONS = options_of(EvaluateOptions)

_OTHERS = (
    "estimator", "checkpoint", "params", "outputs", "top_k", "argmax", "labels", "postprocess", "squeeze", "rename",
    "format",
)  # fmt: skip
EVALUATED_WITH = tuple(name for name in OPTIONS if name not in _OTHERS)
"""The options of `predict` that `evaluate` has: metrics need whole outputs, under their own names."""

EVERY_OPTION = {**EVALUATE_OPTIONS, **OPTIONS}
"""Every option of `predict` and `evaluate`, by its keyword."""


def make_evaluation(
    given: Mapping[str, Any], function: Callable[..., Any] | None = None
) -> tuple[PredictOptions, EvaluateOptions]:
    """The options of an evaluation, from what was given in the shell or in Python; None counts as not given.

    Unless a runtime or a plan is given, the model's own framework predicts, so that the metrics are its own.

    Raises:
        UsageError: One is unknown, or not understood, or not allowed.
    """
    known = {**EVALUATE_OPTIONS, **{name: OPTIONS[name] for name in EVALUATED_WITH}}
    check_known(given, known, function)
    given = {name: value for name, value in given.items() if value is not None}
    own = {name: value for name, value in given.items() if name in EVALUATE_OPTIONS}
    others = {name: value for name, value in given.items() if name not in EVALUATE_OPTIONS}
    if others.get("runtime", AUTO) == AUTO and "plan" not in others:
        others["plan"] = kinds.NO_PLAN
    return make_options(others), make(EvaluateOptions, own)
