"""When the model rejects a batch: the rows at fault are found and named, and the others keep their bits.

Rows are masked and the shape stays, so that the other rows get the bits they always get.
"""

import numpy as np

from penstock.core.protocols import Replica
from penstock.core.records import Array, Columns
from penstock.errors import ModelError, PenstockError, one_line

_FILL_CANDIDATES = 8

Rejected = dict[int, tuple[str, str]]
"""For rows without an answer: the place in a batch to the name of the error and the reason."""


class ShapeRejected(ModelError):
    """The model rejects batches of this shape, whatever is in them."""


def answer(replica: Replica, arrays: Columns, rows: int, spares: Columns) -> tuple[Columns, Rejected]:
    """The answers of one batch, or of a piece of it, and the rows that the model rejects.

    Args:
        replica: The live model.
        arrays: The batch.
        rows: How many of its rows are real.
        spares: Rows that can stand in the place of rejected ones.

    Raises:
        PenstockError: No row is to blame: there is no memory, or the model rejects even an empty batch.
    """
    rejected: Rejected = {}
    try:
        outputs = replica.predict(arrays)
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        outputs, rejected = _bisect(replica, arrays, rows, spares, error)
    check_rows(outputs, size_of(arrays))
    return outputs, rejected


def _bisect(
    replica: Replica, arrays: Columns, rows: int, spares: Columns, error: Exception
) -> tuple[Columns, Rejected]:
    fill = _find_fill(replica, arrays, spares, error)
    alive = np.zeros(size_of(arrays), dtype=bool)
    failures: Rejected = {}
    suspects = [(0, rows)]
    while suspects:
        start, stop = suspects.pop()
        alive[start:stop] = True
        rejected = _reject(replica, masked(arrays, alive, fill))
        if rejected is None:
            continue
        alive[start:stop] = False
        if stop - start == 1:
            failures[start] = (type(rejected).__name__, one_line(rejected))
            continue
        middle = (start + stop) // 2
        suspects += [(middle, stop), (start, middle)]
    return replica.predict(masked(arrays, alive, fill)), failures


def _find_fill(replica: Replica, arrays: Columns, spares: Columns, error: Exception) -> Columns | None:
    """What replaces a rejected row: zeros (None), or a real row of the batch where the model rejects zeros."""
    no_row = np.zeros(size_of(arrays), dtype=bool)
    places = np.unique(np.linspace(0, size_of(spares) - 1, _FILL_CANDIDATES, dtype=int)).tolist()
    for fill in (None, *(row_at(spares, place) for place in places)):
        if (problem := _reject(replica, masked(arrays, no_row, fill))) is None:
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


def size_of(arrays: Columns) -> int:
    """The rows of a batch, those that fill it up included."""
    return len(next(iter(arrays.values())))


def row_at(arrays: Columns, place: int) -> Columns:
    """One row of a batch."""
    return {name: array[place] for name, array in arrays.items()}


def masked(arrays: Columns, alive: Array, fill: Columns | None) -> Columns:
    """The batch with every row that is not alive replaced by the row `fill`, or by zeros."""
    changed = {name: array.copy() for name, array in arrays.items()}
    for name, array in changed.items():
        nothing = b"" if array.dtype == object else 0
        array[~alive] = nothing if fill is None else fill[name]
    return changed


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
