"""The drop-in for `model.evaluate`: labels are passed as arrays, or come with the batches of a dataset."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.commands.evaluate import Folding, judge_for, request_of
from penstock.commands.in_memory import Wanted, run_context, running
from penstock.core.records import Array, Result
from penstock.errors import InputError, ModelError, UsageError
from penstock.evaluation.compiled_metrics import reason_for_test_step
from penstock.evaluation.metric_records import LABEL, WEIGHT, FoldShape, MetricRequest, Structure
from penstock.jobs.open import is_paths, open_both
from penstock.options.records import PredictOptions
from penstock.options.training_records import EvaluateOptions
from penstock.runtimes.keras.live import is_live_keras_model

_ONE = "single"


@dataclass(frozen=True)
class EvaluateArguments:
    """The arguments of `model.evaluate` that the caller passed."""

    x: Any
    y: Any = None
    sample_weight: Any = None
    steps: int | None = None
    callbacks: Any = None
    return_dict: bool = False


def evaluate(
    model: Any, passed: EvaluateArguments, options: PredictOptions, asked: EvaluateOptions, wanted: Wanted
) -> Any:
    """The same values as `model.evaluate` returns, or an Evaluation if classes are counted.

    Raises:
        UsageError: There are no labels.
    """
    request = replace(request_of(asked, options, asked.labels), is_lenient=False)
    began = time.perf_counter()
    is_live = is_live_keras_model(model)
    if is_live and (reason := _reason_for_keras(model, passed, request)) is not None:
        return _by_keras(model, passed, options, request, wanted, reason)
    targets, data = _targets_of(passed)
    opened = open_both(model, data, options, needs_digest=False, logits=True)
    with (
        run_context(wanted.is_verbose) as context,
        contextlib.closing(judge_for(model, opened.file, request, options, context)) as judge,
        running(opened, wanted, context) as run,
    ):
        folding = Folding(judge, targets, None)
        measured = folding.run(run)
    if asked.per_class or asked.confusion:
        return folding.evaluation(measured, time.perf_counter() - began)
    found = measured.metrics
    if passed.return_dict:
        return found
    if is_live and not (asked.metrics or asked.loss):
        return model._flatten_metrics_in_order(found)
    values = list(found.values())
    return values[0] if len(values) == 1 else values


def _reason_for_keras(model: Any, passed: EvaluateArguments, request: MetricRequest) -> str | None:
    """Why Keras itself must evaluate a live model, in words; None if its predictions are enough."""
    if any(kind.__module__.partition(".")[0] == "tf_keras" for kind in type(model).__mro__):
        return "it is a model of tf_keras"
    if passed.callbacks or passed.steps is not None:
        return "callbacks and steps are for batches in order"
    if passed.y is None and any(None in tensor.shape[2:] for tensor in getattr(model, "inputs", None) or ()):
        return "the batches of a dataset may differ in shape"
    return None if request.loss or request.metrics else reason_for_test_step(model)


def _by_keras(
    model: Any, passed: EvaluateArguments, options: PredictOptions, request: MetricRequest, wanted: Wanted, reason: str
) -> Any:
    """Call the model's own `evaluate`, which goes in order on one device."""
    if request.loss or request.metrics or request.per_class or request.confusion:
        raise ModelError(
            "only the compiled loss and metrics of this model can be had",
            received=reason,
            hint="compile it with the metrics you want",
        )
    if not model.compiled:
        raise ModelError(
            "there is nothing to measure: the model was not compiled", hint="model.compile(loss=…, metrics=[…])"
        )
    wanted.progress.note(f"evaluated by Keras in order on one device, because {reason}")
    more = {"sample_weight": passed.sample_weight, "steps": passed.steps, "callbacks": passed.callbacks}
    return model.evaluate(
        passed.x, passed.y, batch_size=options.batch_size, verbose=0, return_dict=passed.return_dict, **more
    )


def _targets_of(passed: EvaluateArguments) -> tuple[_GivenTargets, Any]:
    """The object that gives labels and weights, and the input without them."""
    if passed.y is not None:
        weights = _flat(passed.sample_weight) if passed.sample_weight is not None else {}
        return _GivenTargets(_flat(passed.y), weights), passed.x
    batches = _batches(passed.x)
    if batches is None:
        raise UsageError(
            "evaluation compares with true answers",
            received="neither y nor label",
            hint="give y, or name the column of the input that holds them: label='COLUMN'",
        )
    if passed.sample_weight is not None:
        raise UsageError("a dataset brings its own sample weights", received="sample_weight", hint="(x, y, weights)")
    targets = _StreamedTargets()
    return targets, targets.inputs(batches)


def _batches(data: Any) -> Iterable[Any] | None:
    """The batches of a dataset or generator; None for arrays, tables and paths, which have no labels of their own."""
    is_table = type(data).__module__.partition(".")[0] in ("numpy", "pandas", "pyarrow", "polars")
    if data is None or isinstance(data, (Mapping, list, tuple)) or is_table or hasattr(data, "shape") or is_paths(data):
        return None
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return data if hasattr(data, "__iter__") else (data[place] for place in range(len(data)))
    return data if hasattr(data, "__iter__") else None


def _flat(given: Any) -> dict[str, Array]:
    """Arrays by name. In a list, the name is the place; a single array has the name ""."""
    if isinstance(given, Mapping):
        return {str(name): _array(value) for name, value in given.items()}
    if isinstance(given, (list, tuple)) and given and all(hasattr(each, "shape") for each in given):
        return {str(place): _array(value) for place, value in enumerate(given)}
    return {"": _array(given)}


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise InputError(
            "labels and weights are arrays of numbers, rows first",
            received=f"{type(value).__name__} of {array.dtype}",
            hint="text is read from columns: label='COLUMN', labels=[…]",
        )
    return array


class _GivenTargets:
    """Labels and weights that were passed whole, by row number."""

    def __init__(self, labels: Mapping[str, Array], weights: Mapping[str, Array]) -> None:
        self._labels = labels
        self._weights = weights
        self._names: dict[str, str] = {}

    def shape(self, outputs: Structure, inputs: tuple[str, ...], specs: Mapping[str, Any]) -> FoldShape:
        """The shape of the fold. Labels in a list belong to the outputs in order, labels in a dict by name."""
        labels, self._names = _named("y", list(self._labels), outputs)
        weights, _ = _named("sample_weight", list(self._weights), outputs)
        return FoldShape(outputs, labels, weights, inputs)

    def read(self, result: Result) -> tuple[dict[str, Array], Mapping[int, str]]:
        return self._read(result.row_numbers()), {}

    def _read(self, numbers: Array) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for prefix, arrays in ((LABEL, self._labels), (WEIGHT, self._weights)):
            for name, array in arrays.items():
                if len(numbers) and numbers[-1] >= len(array):
                    raise InputError(
                        "x and y differ in their number of rows",
                        received=f"at least {int(numbers[-1]) + 1:,} rows, and {len(array):,} labels or weights",
                    )
                found[prefix + self._key(prefix, name)] = array[numbers]
        return found

    def _key(self, prefix: str, name: str) -> str:
        return self._names[name] if prefix == LABEL else name

    def check_whole(self, rows: int) -> None:
        """Check that there are as many labels as rows.

        Raises:
            InputError: There are more labels than rows.
        """
        for name, array in {**self._labels, **self._weights}.items():
            if len(array) != rows:
                received = f"{rows:,} rows, and {len(array):,} in {name or 'y or sample_weight'}"
                raise InputError("x and y differ in their number of rows", received=received)


def _named(what: str, names: list[str], outputs: Structure) -> tuple[Structure, dict[str, str]]:
    """The structure of the arrays that were passed, and the output of each.

    Raises:
        UsageError: The names are not those of the model's outputs.
    """
    if not names:
        return Structure(_ONE, ()), {}
    if names == [""]:
        # A single array of weights is for all outputs; a single array of labels is for the only output.
        if what == "y" and len(outputs.names) > 1:
            raise UsageError(
                "the model has several outputs", received="y is one array", allowed=", ".join(outputs.names)
            )
        name = outputs.names[0] if what == "y" else ""
        return Structure(_ONE, (name,)), {"": name}
    if names == [str(place) for place in range(len(outputs.names))]:
        pairs = dict(zip(names, outputs.names if what == "y" else names, strict=True))
        kind = outputs.kind if what == "y" and outputs.kind != _ONE else "list"
        return Structure(kind, tuple(pairs.values())), pairs
    if what == "y" and set(names) != set(outputs.names):
        raise UsageError("y is not by the model's outputs", received=", ".join(names), allowed=", ".join(outputs.names))
    return Structure("dict", tuple(names)), {name: name for name in names}


class _StreamedTargets(_GivenTargets):
    """Labels and weights that come with the batches of a stream. They are kept until their predictions arrive."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self._waiting: deque[tuple[int, dict[str, Array], dict[str, Array]]] = deque()
        self._pulled = 0

    def inputs(self, batches: Iterable[Any]) -> Iterator[tuple[Any]]:
        """Yield the inputs of every batch, and keep its labels and weights.

        Raises:
            InputError: A batch has no labels.
        """
        for batch in batches:
            parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
            if not 2 <= len(parts) <= 3:
                raise InputError(
                    "a batch has no labels",
                    received=f"a {type(batch).__name__} of {len(parts)}",
                    allowed="(x, y) or (x, y, sample_weight)",
                )
            labels = _flat(parts[1])
            weights = _flat(parts[2]) if len(parts) == 3 and parts[2] is not None else {}
            if not self._labels:
                self._labels, self._weights = labels, weights  # for their names, and for the number of rows of a batch
            self._waiting.append((self._pulled, labels, weights))
            self._pulled += len(next(iter(labels.values())))
            yield (parts[0],)

    def shape(self, outputs: Structure, inputs: tuple[str, ...], specs: Mapping[str, Any]) -> FoldShape:
        """The shape of the fold, with batches as large as the first one."""
        rows = len(next(iter(self._labels.values())))
        return replace(super().shape(outputs, inputs, specs), batch_rows=rows)

    def _read(self, numbers: Array) -> dict[str, Array]:
        pieces: list[dict[str, Array]] = []
        first, last = int(numbers[0]), int(numbers[-1])
        while self._waiting and self._waiting[0][0] <= last:
            start, labels, weights = self._waiting[0]
            rows = len(next(iter(labels.values())))
            here = numbers[(numbers >= start) & (numbers < start + rows)] - start
            if len(here):
                named = {LABEL + self._key(LABEL, name): array[here] for name, array in labels.items()}
                pieces.append(named | {WEIGHT + name: array[here] for name, array in weights.items()})
            if start + rows > last + 1:
                break
            self._waiting.popleft()
        if not pieces:
            raise InputError("x and y of a batch differ in their number of rows", received=f"row {first}")
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def check_whole(self, rows: int) -> None:
        if rows != self._pulled:
            received = f"{rows:,} rows, and {self._pulled:,} labels"
            raise InputError("x and y differ in their number of rows", received=received)
