"""Predicts batches one after the other: for Keras callbacks, and for streams whose batches differ in shape.

`model.predict` does the same, and this is no faster: nothing overlaps.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.commands.gathering import Gathered
from penstock.core.protocols import Source
from penstock.core.records import Column, Result
from penstock.errors import UsageError
from penstock.sources.python.memory import InMemory
from penstock.sources.python.streaming import StreamedRows

KERAS_BATCH = 32
"""The batch size of `model.predict` where none is given."""

PredictBatch = Callable[[InMemory], Iterator[Result]]
Unpack = Callable[[Mapping[str, Column]], Any]


class Hooks:
    """The callbacks of a caller, as Keras calls them while it predicts.

    Args:
        model: The model that the callbacks get.
        callbacks: One callback, a list of them, or a `CallbackList` of Keras.
        steps: How many batches there will be; None where this is not known.
    """

    def __init__(self, model: Any, callbacks: Any, steps: int | None) -> None:
        self._model = model
        self._list = _callback_list(model, callbacks, steps)
        self._each = max(1, int(getattr(model, "steps_per_execution", None) or 1))
        self._step = 0

    @property
    def batches_at_once(self) -> int:
        """How many batches Keras runs between two calls of the callbacks: a setting of `compile`."""
        return self._each

    def begin(self) -> None:
        self._model.stop_predicting = False
        self._list.on_predict_begin()

    def begin_batch(self) -> None:
        self._list.on_predict_batch_begin(self._step)

    def end_batch(self, outputs: Any) -> bool:
        """Call the callbacks. Returns whether to go on. Like Keras, this counts a shorter last group as a whole one."""
        self._step += self._each
        self._list.on_predict_batch_end(self._step - 1, {"outputs": outputs})
        return not getattr(self._model, "stop_predicting", False)

    def end(self) -> None:
        self._list.on_predict_end()


def _callback_list(model: Any, callbacks: Any, steps: int | None) -> Any:
    if hasattr(callbacks, "on_predict_batch_begin") and hasattr(callbacks, "append"):
        return callbacks
    each = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    odd = next((one for one in each if not hasattr(one, "on_predict_batch_end")), None)
    if odd is not None:
        raise UsageError(
            "this is no callback of Keras",
            received=f"callbacks: {type(odd).__name__}",
            allowed="keras.callbacks.Callback, or a list of them",
        )
    if any(kind.__module__.partition(".")[0] == "tf_keras" for kind in type(model).__mro__):
        import tf_keras as keras
    else:
        import keras

    return keras.callbacks.CallbackList(list(each), add_progbar=False, model=model, epochs=1, steps=steps)


def batches_of(source: Source, batch_size: int) -> Iterator[InMemory]:
    """Every batch of the input, as a source of its own. A stream has batches already; other inputs are cut.

    Raises:
        UsageError: A column has encoded rows, which are decoded only on their way to the model.
    """
    if isinstance(source, StreamedRows):
        for piece in source.batches():
            yield InMemory(piece.columns, is_positional=piece.is_positional)
        return
    if isinstance(source, InMemory):
        for start in range(0, len(source), batch_size):
            yield source.cut(start, start + batch_size)
        return
    names = list(source.schema())
    for span in source.divide(batch_size):
        for block in source.read(span, names):
            odd = [name for name, column in block.columns.items() if not isinstance(column, (np.ndarray, pa.Array))]
            if odd:
                raise UsageError(
                    "callbacks are for arrays, tables and batches from Python",
                    received=f"a column of encoded rows: {odd[0]}",
                    hint="leave callbacks out, or decode the rows beforehand",
                )
            yield InMemory(dict(block.columns), is_positional=source.is_positional)  # type: ignore[arg-type]


def in_steps(
    batches: Iterator[InMemory],
    predict: PredictBatch,
    gathered: Gathered,
    hooks: Hooks | None,
    unpack: Unpack,
) -> None:
    """Predict every batch and gather the answers. Before and after each group of batches, the hooks are called."""
    remaining, rows = iter(batches), 0
    if hooks is not None:
        hooks.begin()
    # A stream may be endless, or wait for input: the next batch is read only when it is needed.
    while (batch := next(remaining, None)) is not None:
        if hooks is not None:
            hooks.begin_batch()
        others = itertools.islice(remaining, hooks.batches_at_once - 1 if hooks is not None else 0)
        done = Gathered(gathered.on_error, gathered.labels, gathered.squeeze)
        for each in itertools.chain([batch], others):
            for result in predict(each):
                done.add(_at(result, rows))
            rows += len(each)
        gathered.take(done)
        if hooks is not None and not hooks.end_batch(unpack(done.joined())):
            break
    if hooks is not None:
        hooks.end()


def _at(result: Result, first_row: int) -> Result:
    """The result of a batch, with row numbers of the whole input."""
    failures = tuple(replace(failure, row=failure.row + first_row) for failure in result.failures)
    span = replace(result.span, start=result.span.start + first_row)
    return replace(result, span=span, failures=failures)
