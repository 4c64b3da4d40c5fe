"""Assembly of the batches of a span into its result: in the order of the input, without the rows that failed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.core.batching import Batch
from penstock.core.columns import join, storage_of, take_positions, take_rows, to_arrow, to_lists
from penstock.core.records import KEPT, Array, Column, Result, RowFailure, Shape, Span, TensorSpec
from penstock.errors import ModelError

Answered = tuple[range | Array, Mapping[str, Column], Mapping[str, Column]]
"""Where the rows of a batch lie in their span, what the model gave for them, and their kept columns."""
AS_LISTS = ""
"""What an output follows if the model alone decides the length of its rows: no input has this name."""


def to_result(span: Span, batches: Sequence[Answered], failures: Sequence[RowFailure]) -> Result:
    """The result of a whole span. `batches` may lack a batch in which every row failed.

    `failures` have the job's numbers of rows; those of the result have the numbers of the whole input.
    """
    columns: dict[str, Column] = {}
    if batches:
        columns = {name: join([outputs[name] for _, outputs, _ in batches]) for name in batches[0][1]}
        columns |= {KEPT + name: join([kept[name] for _, _, kept in batches]) for name in batches[0][2]}
    present: Array | None = None
    if not all(isinstance(positions, range) for positions, _, _ in batches):
        present = np.concatenate([np.asarray(positions) for positions, _, _ in batches])
        order = np.argsort(present)
        present = present[order]
        if (np.diff(present) <= 0).any():
            raise RuntimeError(f"a row of span {span.index} is in two batches")
        columns = {name: take_positions(column, order) for name, column in columns.items()}
    if failures:
        alive = np.ones(span.rows, dtype=bool)
        alive[[failure.row - span.start for failure in failures]] = False
        alive = alive if present is None else alive[present]
        columns = {name: take_rows(column, alive) for name, column in columns.items()}
    numbered = tuple(replace(failure, row=span.number(failure.row)) for failure in failures)
    return Result(span, columns, numbered)


def answers(follows: Mapping[str, str], name: str, output: Array, batch: Batch) -> Column:
    """The rows of an output. Where its length follows an input, each row is cut to the length that its own input gives.

    That may differ from the length of the input row: one more for a token in front, or fewer because of a kernel.
    """
    if not isinstance(output, np.ndarray):
        return output  # lists already
    followed = follows.get(name)
    if followed == AS_LISTS:
        return to_lists([output])
    lengths = batch.lengths.get(followed) if followed is not None else None
    if followed is None or lengths is None:
        return output
    return _as_lists(output, lengths + (output.shape[1] - batch.arrays[followed].shape[1]))


Rows = Shape | None
"""The shape of an output's rows; None for lists."""


def rows_of(column: Column) -> Rows:
    """The shape of a column's rows."""
    return tuple(column.shape[1:]) if isinstance(column, np.ndarray) else None


def as_rows(spec: TensorSpec) -> Rows:
    """The shape of the rows of a column, by its spec."""
    return None if spec.varies else spec.shape


def check_one_shape(name: str, rows: Rows, before: Rows) -> None:
    """Refuse an output whose rows have another shape than those of the first batch: a part has one schema.

    Raises:
        ModelError: With both shapes.
    """
    if rows == before:
        return
    shapes = ["lists" if each is None else str(each) for each in (before, rows)]
    raise ModelError(
        "an output of the model has another shape from batch to batch",
        received=f"{name}: rows of {shapes[0]}, then of {shapes[1]}",
        allowed="one shape for all rows",
        hint="leave it out: --outputs takes the names of the others",
    )


def _as_lists(output: Array, lengths: Array) -> Column:
    """An output with one answer for each value of a padded row, without the padding.

    Where no row of a batch has an answer, the values in their place may be shorter than the rows.
    """
    lengths = np.clip(lengths, 0, output.shape[1])
    rows = [row[:length] for row, length in zip(output, lengths.tolist(), strict=True)]
    flat = to_arrow(np.concatenate(rows)) if rows else to_arrow(output.reshape(-1, *output.shape[2:])[:0])
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return pa.LargeListArray.from_arrays(to_arrow(offsets), storage_of(flat))
