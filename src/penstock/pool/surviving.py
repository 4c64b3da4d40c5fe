"""When the model rejects a batch: the rows at fault are found and named, and the others keep their bits."""

from __future__ import annotations

import numpy as np

from penstock.core.batching import Batch
from penstock.core.protocols import Replica
from penstock.core.records import Array, Columns, RowFailure
from penstock.errors import ModelError, PenstockError, one_line

_FILL_CANDIDATES = 8


def predict_surviving(replica: Replica, batch: Batch, span_start: int) -> tuple[Columns, list[RowFailure]]:
    """The model's answers; where it rejects the batch, the rows at fault are found by bisection and named.

    Rows are masked and the shape stays, so that the other rows get the bits they always get.

    Raises:
        PenstockError: Not a matter of rows: out of memory, or the model rejects even an empty batch.
    """
    try:
        return replica.predict(batch.arrays), []
    except PenstockError:
        raise
    except Exception as error:
        return _bisect(replica, batch, span_start, error)


def _bisect(replica: Replica, batch: Batch, span_start: int, error: Exception) -> tuple[Columns, list[RowFailure]]:
    fill = _find_fill(replica, batch, error)
    alive = np.zeros(len(next(iter(batch.arrays.values()))), dtype=bool)
    failures: list[RowFailure] = []
    suspects = [(0, batch.rows)]
    while suspects:
        start, stop = suspects.pop()
        alive[start:stop] = True
        rejected = _reject(replica, _masked(batch.arrays, alive, fill))
        if rejected is None:
            continue
        alive[start:stop] = False
        if stop - start == 1:
            row = span_start + int(batch.positions[start])
            failures.append(RowFailure(row, "", "predict", type(rejected).__name__, one_line(rejected)))
            continue
        middle = (start + stop) // 2
        suspects += [(middle, stop), (start, middle)]
    return replica.predict(_masked(batch.arrays, alive, fill)), failures


def _find_fill(replica: Replica, batch: Batch, error: Exception) -> int | None:
    """What can stand in the place of a rejected row: zeros (None), or a real row of the batch where zeros will not do.

    Raises:
        ModelError: Nothing can: the model rejects this shape, not these rows.
    """
    nobody = np.zeros(len(next(iter(batch.arrays.values()))), dtype=bool)
    candidates: list[int] = np.unique(np.linspace(0, batch.rows - 1, _FILL_CANDIDATES, dtype=int)).tolist()
    for fill in (None, *candidates):
        if (problem := _reject(replica, _masked(batch.arrays, nobody, fill))) is None:
            return fill
    raise ModelError(
        "the model rejects these rows, and every other that was tried",
        received=one_line(error),
        hint="are these the columns it was trained on? `penstock inspect` shows what it takes",
    ) from problem


def _reject(replica: Replica, arrays: Columns) -> Exception | None:
    try:
        replica.predict(arrays)
    except PenstockError:
        raise
    except Exception as error:
        return error
    return None


def _masked(arrays: Columns, alive: Array, fill: int | None) -> Columns:
    """The batch with every row that is not alive replaced by row `fill`, or by zeros."""
    masked = {name: array.copy() for name, array in arrays.items()}
    for name, array in masked.items():
        nothing = b"" if array.dtype == object else 0
        array[~alive] = nothing if fill is None else arrays[name][fill]
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
