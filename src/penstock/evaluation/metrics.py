"""Loss and metrics of Keras over predictions that come in order: exact for every metric, never a mean of means.

Replicas only predict. Their answers are put in order and folded into the metrics in one place. So the result does not
depend on the number of replicas, on their batches or on a short last batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.core.output_selection import LOGITS
from penstock.core.records import Array
from penstock.errors import InputError, PenstockError, one_line
from penstock.evaluation.class_counts import ClassCounts
from penstock.evaluation.compiled_metrics import depends_on_batches, losses_of, reset_metrics, stand_in
from penstock.evaluation.fold_step import FoldStep
from penstock.evaluation.label_fitting import AS_CLASSES, LabelRule, check_weights, fit_labels
from penstock.evaluation.metric_records import (
    INPUT,
    LABEL,
    PREDICTION,
    ROW,
    WEIGHT,
    FoldShape,
    MetricRequest,
    MetricResults,
)
from penstock.options.class_names import names_of
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.call import KerasCall

KERAS_BATCH = 32
"""The rows of a batch of `model.evaluate` where no batch size is given."""
_FOLD_BYTES = 32 << 20
_MOST_FOLD_ROWS = 8192


class Fold:
    """Loss and metrics of columns that come in order.

    Args:
        model: The compiled model; None where there is none, and the request names losses and metrics.
        request: What is measured.
        shape: The columns and their structures.
    """

    def __init__(self, model: Any, request: MetricRequest, shape: FoldShape) -> None:
        self._model = model
        self._request = request
        self._shape = shape
        self._is_begun = False
        self._step = FoldStep(model)
        self._rows = 0
        self._rules: dict[str, LabelRule] = {}
        self._counts: dict[str, ClassCounts] = {}
        self._held = _BatchBuffer(1)
        self._call: KerasCall | None = None

    def add(self, columns: Mapping[str, Array]) -> None:
        """Take the next rows.

        Raises:
            InputError: Labels do not fit the loss or a metric.
        """
        if not len(next(iter(columns.values()))):
            return
        if not self._is_begun:
            self._begin(columns)
        for batch in self._held.add(columns):
            self._update(batch)

    def finish(self) -> MetricResults:
        """The results.

        Raises:
            InputError: There was no row.
        """
        for batch in self._held.rest():
            self._update(batch)
        if not self._rows:
            raise InputError("there is no row to evaluate", received="no rows")
        model = self._model
        found = {name: _plain(value) for name, value in model.get_metrics_result().items()}
        if not self._step.has_loss:
            found.pop("loss", None)
        counts, request = self._counts, self._request
        return MetricResults(
            self._rows,
            found,
            {name: each.per_class() for name, each in counts.items()} if request.per_class else None,
            {name: each.confusion() for name, each in counts.items()} if request.confusion else None,
        )

    def _begin(self, first: Mapping[str, Array]) -> None:
        request, shape = self._request, self._shape
        real = self._model
        is_tested = bool(shape.inputs)
        if not is_tested:
            self._rules = self._rules_for(first)
            vectors = [name for name, rule in self._rules.items() if rule.form == AS_CLASSES]
            if request.loss or request.metrics or real is None:
                self._model = stand_in(real, request, shape, vectors)
            if request.per_class or request.confusion:
                self._counts = self._new_counts(first)
        self._step = FoldStep(self._model)
        reset_metrics(self._model)
        self._held = _BatchBuffer(self._batch_rows(first))
        self._is_begun = True

    def _rules_for(self, first: Mapping[str, Array]) -> dict[str, LabelRule]:
        """The rule for the labels of every output. The loss decides it, or else the metrics."""
        rules: dict[str, LabelRule] = {}
        names = self._shape.predictions.names
        for place, name in enumerate(names):
            if LABEL + name not in first:
                continue
            losses = losses_of(self._model, self._request, name, place, len(names))
            predictions, labels = first[PREDICTION + name], first[LABEL + name]
            rules[name] = LabelRule.of(losses, labels, predictions, is_lenient=self._request.is_lenient)
        return rules

    def _new_counts(self, first: Mapping[str, Array]) -> dict[str, ClassCounts]:
        counts: dict[str, ClassCounts] = {}
        for name, rule in self._rules.items():
            shape, classes = first[PREDICTION + name].shape[1:], names_of(self._request.classes, name)
            threshold, has_others = 0.0 if rule.has_logits else 0.5, len(self._rules) > 1
            counts[name] = ClassCounts(name, shape, threshold, classes, has_others=has_others)
        return counts

    def _batch_rows(self, first: Mapping[str, Array]) -> int:
        """The rows of a batch: those of Keras if the result depends on batches, else a number that is fast to fold."""
        if self._shape.inputs or depends_on_batches(self._model):
            return self._shape.batch_rows or self._request.batch_size or KERAS_BATCH
        row_bytes = sum(array.nbytes // max(1, len(array)) for array in first.values())
        return max(KERAS_BATCH, min(_MOST_FOLD_ROWS, _FOLD_BYTES // max(1, row_bytes)))

    def _update(self, batch: dict[str, Array]) -> None:
        shape = self._shape
        rows = len(batch[ROW])
        for name, rule in self._rules.items():
            labels = fit_labels(rule, name, batch[LABEL + name], batch[PREDICTION + name], batch[ROW])
            batch[LABEL + name] = labels
            if name in self._counts:
                self._counts[name].add(labels, batch[PREDICTION + name], rule.ignored)
        if self._request.is_lenient and WEIGHT in batch:
            check_weights(batch[WEIGHT], batch[ROW])
        labels = shape.labels.pack(batch, LABEL)
        weights = shape.weights.pack(batch, WEIGHT)
        try:
            if shape.inputs:
                self._test(batch, labels, weights)
            else:
                logits = {LOGITS + name: batch.get(LOGITS + name) for name in shape.predictions.names}
                predictions = shape.predictions.pack(batch, PREDICTION)
                self._step(labels, predictions, weights, shape.predictions.pack(logits, LOGITS))
        except PenstockError:
            raise
        except Exception as error:
            raise _not_fitting(error, batch) from error
        self._rows += rows

    def _test(self, batch: Mapping[str, Array], labels: Any, weights: Any) -> None:
        if self._call is None:
            self._call = KerasCall(self._model, scaling=self._shape.scaling)
        call = self._call
        inputs = {
            name: call.scale(name, batch[INPUT + name], lambda array: array.astype(np.float32))
            for name in self._shape.inputs
        }
        with _going_on(self._model):
            self._model.test_on_batch(call.pack(inputs), labels, sample_weight=weights)
        self._step.has_loss = True


@contextmanager
def _going_on(model: Any) -> Iterator[None]:
    """Inside the context, metrics add batches up: normally, Keras's `test_on_batch` resets them for each batch."""
    object.__setattr__(model, "reset_metrics", lambda: None)
    try:
        yield
    finally:
        vars(model).pop("reset_metrics", None)


def _not_fitting(error: Exception, batch: Mapping[str, Array]) -> InputError:
    shapes = ", ".join(
        f"{name.partition(':')[0]} {name.partition(':')[2]} {array.dtype}{list(array.shape[1:])}".replace("  ", " ")
        for name, array in batch.items()
        if name.startswith((LABEL, PREDICTION, WEIGHT))
    )
    return InputError(
        "the labels do not fit the loss or a metric",
        received=f"{shapes}: {one_line(error)}",
        hint="--metrics and --loss choose others by name",
    )


def _plain(value: Any) -> Any:
    """A result as a number, or as lists of them."""
    array = np.asarray(keras.ops.convert_to_numpy(value) if not isinstance(value, (int, float)) else value)
    return float(array.reshape(())) if array.size == 1 else array.tolist()


class _BatchBuffer:
    """Collects rows into batches of one size. The last batch may be short."""

    def __init__(self, rows: int) -> None:
        self._size = rows
        self._pieces: list[dict[str, Array]] = []
        self._rows = 0

    def add(self, columns: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        if self._pieces and any(array.shape[1:] != self._pieces[0][name].shape[1:] for name, array in columns.items()):
            yield from self.rest()  # rows of another shape cannot be in the same batch
        self._pieces.append(dict(columns))
        self._rows += len(next(iter(columns.values())))
        if self._rows < self._size:
            return
        joined = self._joined()
        whole = self._rows - self._rows % self._size
        for start in range(0, whole, self._size):
            yield {name: array[start : start + self._size] for name, array in joined.items()}
        self._rows -= whole
        self._pieces = [{name: array[whole:] for name, array in joined.items()}] if self._rows else []

    def rest(self) -> Iterator[dict[str, Array]]:
        if self._rows:
            yield self._joined()
            self._pieces, self._rows = [], 0

    def _joined(self) -> dict[str, Array]:
        if len(self._pieces) == 1:
            return self._pieces[0]
        return {name: np.concatenate([piece[name] for piece in self._pieces]) for name in self._pieces[0]}
