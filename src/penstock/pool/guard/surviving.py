"""When the model rejects a batch: the rows at fault are found and named, and the others keep their bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.protocols import Replica
from penstock.core.records import Array, Columns, RowFailure
from penstock.core.state import VARIABLES
from penstock.errors import InputError, ModelError, PenstockError, one_line
from penstock.pool.guard.fitting import Fitting, Rejected

_FILL_CANDIDATES = 8


class ShapeRejected(ModelError):
    """The model rejects batches of this shape, whatever is in them."""


def predict_surviving(replica: Replica, batch: Batch, span_start: int) -> tuple[Columns, list[RowFailure]]:
    """The model's answers; where it rejects the batch, the rows at fault are found by bisection and named.

    Rows are masked and the shape stays, so that the other rows get the bits they always get. Where the memory allows
    only smaller batches, each is bisected by itself.

    Raises:
        PenstockError: Not a matter of rows: no memory at all, or the model rejects even an empty batch.
    """
    if isinstance(replica, Fitting) and replica.state == VARIABLES:
        return _predict_in_turn(replica.replica, batch), []
    if isinstance(replica, Fitting):
        return _predict_fitting(replica, batch, span_start)
    outputs, rejected = _answer(replica, batch.arrays, batch.rows, _real(batch))
    return outputs, _to_failures(rejected, batch, span_start)


def _predict_in_turn(replica: Replica, batch: Batch) -> Columns:
    """The answers of a model that every call changes: each batch is run once, whole, or the job ends.

    Raises:
        InputError: A row cannot be fed. Whatever stood in its place would change the answers of the rows after it.
        ModelError: The model rejects the batch. Trying which rows it rejects would change it.
    """
    if batch.failures:
        failure = batch.failures[0]
        raise InputError(
            "a row failed, and the model keeps state: the answers of all rows after it depend on it",
            received=f"row {failure.row}: {failure.reason}",
            hint="mend the row, or leave it out of the input",
        )
    try:
        return replica.predict(batch.arrays)
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(
            "the model rejects a batch, and it keeps state: the rows at fault cannot be looked for",
            received=one_line(error),
            hint="mend the rows, or leave them out of the input",
        ) from error


def _predict_fitting(fitting: Fitting, batch: Batch, span_start: int) -> tuple[Columns, list[RowFailure]]:
    def row_at(place: int) -> int:
        return span_start + int(batch.positions[place])

    def step(piece: Columns, real: int) -> tuple[Columns, Rejected]:
        outputs, rejected = _answer(fitting.replica, piece, real, _real(batch))
        check_rows(outputs, len(next(iter(piece.values()))))
        return outputs, rejected

    arrays, left_out = batch.arrays, {}
    if fitting.left_out:
        known = ((place, fitting.left_out.get(row_at(place))) for place in range(batch.rows))
        left_out = {place: failure for place, failure in known if failure is not None}
    if left_out:
        alive = np.ones(len(next(iter(arrays.values()))), dtype=bool)
        alive[list(left_out)] = False
        arrays = _masked(arrays, alive, _row(arrays, int(np.argmax(alive[: batch.rows]))))
    pieced = fitting.in_pieces(arrays, batch.rows, step, row_at, left_out)
    batch.reduced_to = pieced.reduced_to
    rejected = pieced.rejected | {place: (failure.error, failure.reason) for place, failure in left_out.items()}
    return pieced.outputs, _to_failures(dict(sorted(rejected.items())), batch, span_start)


def predict_one_size(replica: Replica, batch: Batch, span_start: int) -> tuple[Columns | None, list[RowFailure]]:
    """As `predict_surviving`, of a batch that has a shape of its own: where the model rejects that, only its rows fail.

    There are no answers then, not even for the shape of those that others get.
    """
    try:
        return predict_surviving(replica, batch, span_start)
    except ShapeRejected as error:
        told = ("ModelError", error.received or error.problem)
        return None, _to_failures(dict.fromkeys(range(batch.rows), told), batch, span_start)


Predict = Callable[[Replica, Batch, int], tuple[Columns | None, list[RowFailure]]]


def predictor_of(job: Job) -> Predict:
    """How the batches of a job are predicted: where each size has a shape of its own, one may be rejected by itself."""
    return predict_surviving if job.fewest_rows is None else predict_one_size


def _to_failures(rejected: Rejected, batch: Batch, span_start: int) -> list[RowFailure]:
    return [
        RowFailure(span_start + int(batch.positions[place]), "", "predict", error, reason)
        for place, (error, reason) in rejected.items()
    ]


def _answer(replica: Replica, arrays: Columns, rows: int, spares: Columns) -> tuple[Columns, Rejected]:
    """The answers of one batch, or of a piece of it. `spares` are rows that can stand in the place of rejected ones."""
    try:
        outputs = replica.predict(arrays)
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        return _bisect(replica, arrays, rows, spares, error)
    return outputs, {}


def _bisect(
    replica: Replica, arrays: Columns, rows: int, spares: Columns, error: Exception
) -> tuple[Columns, Rejected]:
    fill = _find_fill(replica, arrays, spares, error)
    alive = np.zeros(len(next(iter(arrays.values()))), dtype=bool)
    failures: Rejected = {}
    suspects = [(0, rows)]
    while suspects:
        start, stop = suspects.pop()
        alive[start:stop] = True
        rejected = _reject(replica, _masked(arrays, alive, fill))
        if rejected is None:
            continue
        alive[start:stop] = False
        if stop - start == 1:
            failures[start] = (type(rejected).__name__, one_line(rejected))
            continue
        middle = (start + stop) // 2
        suspects += [(middle, stop), (start, middle)]
    return replica.predict(_masked(arrays, alive, fill)), failures


def _find_fill(replica: Replica, arrays: Columns, spares: Columns, error: Exception) -> Columns | None:
    """What can stand in the place of a rejected row: zeros (None), or a real row of the batch where zeros will not do.

    Raises:
        ShapeRejected: Nothing can: it is not a matter of these rows.
    """
    nobody = np.zeros(len(next(iter(arrays.values()))), dtype=bool)
    last = len(next(iter(spares.values()))) - 1
    places = np.unique(np.linspace(0, last, _FILL_CANDIDATES, dtype=int)).tolist()
    for fill in (None, *(_row(spares, place) for place in places)):
        if (problem := _reject(replica, _masked(arrays, nobody, fill))) is None:
            return fill
    raise ShapeRejected(
        "the model rejects these rows, and every other that was tried",
        received=one_line(error),
        hint="are these the columns it was trained on? `penstock inspect` shows what it takes",
    ) from problem


def _reject(replica: Replica, arrays: Columns) -> Exception | None:
    try:
        replica.predict(arrays)
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        return error
    return None


def _real(batch: Batch) -> Columns:
    return {name: array[: batch.rows] for name, array in batch.arrays.items()}


def _row(arrays: Columns, place: int) -> Columns:
    return {name: array[place] for name, array in arrays.items()}


def _masked(arrays: Columns, alive: Array, fill: Columns | None) -> Columns:
    """The batch with every row that is not alive replaced by the row `fill`, or by zeros."""
    masked = {name: array.copy() for name, array in arrays.items()}
    for name, array in masked.items():
        nothing = b"" if array.dtype == object else 0
        array[~alive] = nothing if fill is None else fill[name]
    return masked


def check_rows(outputs: Columns, batch_size: int) -> None:
    """Refuse outputs that cannot be divided into rows.

    Raises:
        ModelError: An output does not have one row for each row of the batch.
    """
    for name, output in outputs.items():
        shape = output.shape if isinstance(output, np.ndarray) else (len(output),)
        if not shape or shape[0] != batch_size:
            raise ModelError(
                "an output of the model does not have one row for each row of the input",
                received=f"{name}: shape {shape} for a batch of {batch_size}",
                allowed=f"({batch_size}, …)",
                hint=_explained(shape, batch_size, [other for other in outputs if other != name]),
            )


def _explained(shape: tuple[int, ...], batch_size: int, others: list[str]) -> str:
    if shape and batch_size > 1 and shape[0] > batch_size and shape[0] % batch_size == 0:
        times = shape[0] // batch_size
        why = (
            f"it seems to have {times} rows for each, run together: they must be one more dimension, (rows, {times}, …)"
        )
    else:
        why = "outputs that sum over the batch cannot be divided among devices"
    return f"{why}; to leave it out: --outputs {','.join(others)}" if others else why
