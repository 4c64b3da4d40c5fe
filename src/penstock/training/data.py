"""Training data from arrays and files."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.columns import describe
from penstock.core.job import Job
from penstock.core.records import Binding, Columns, RowFailure
from penstock.core.shuffling import AllRows, RowSet
from penstock.sources.derived.shuffled import Order, RandomRows
from penstock.sources.python.memory import InMemory
from penstock.training.cutting import INPUT, TARGET, WEIGHT, rows_per_chunk
from penstock.training.row_stream import RowStream, ThisProcess


def from_arrays(
    inputs: Columns,
    targets: Columns | None = None,
    weights: Columns | None = None,
    *,
    batch_size: int,
    seed: int | None,
    rows: RowSet | None = None,
    failures: Iterable[RowFailure] = (),
) -> RowStream:
    """Training data from arrays that are in memory, by the names of the model's inputs and outputs.

    Args:
        inputs: Rows first, all with as many rows.
        targets: What the model is to answer.
        weights: What the loss of every row counts.
        batch_size: Rows of a global batch.
        seed: Decides the order of rows; None for the order that they have.
        rows: Which rows; all where it is None.
        failures: Rows that are left out, because another run found them bad.
    """
    columns = {
        role + name: array
        for role, arrays in ((INPUT, inputs), (TARGET, targets), (WEIGHT, weights))
        for name, array in (arrays or {}).items()
    }
    held = InMemory(columns)
    bindings = tuple(
        Binding(name, (name,), spec.dtype, spec.shape or ())
        for name, spec in ((name, describe(name, column)) for name, column in columns.items())
    )
    source = RandomRows(held, Order(rows or AllRows(len(held)), seed))
    chunk = rows_per_chunk(batch_size, sum(binding.row_bytes for binding in bindings), len(held))
    job = Job(source, bindings, (), chunk)
    return RowStream(job, source, batch_size, ThisProcess(job), failures)
