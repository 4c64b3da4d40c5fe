"""Training data of arrays, for tests."""

from __future__ import annotations

from typing import Any

from penstock.core.records import Columns
from penstock.training.cutting import INPUT, TARGET, WEIGHT
from penstock.training.data import from_columns
from penstock.training.row_stream import RowStream


def from_arrays(
    inputs: Columns, targets: Columns | None = None, weights: Columns | None = None, **how: Any
) -> RowStream:
    """Training data from arrays by the names of the model's inputs and outputs; `how` as `from_columns` takes it."""
    columns = {
        role + name: array
        for role, arrays in ((INPUT, inputs), (TARGET, targets), (WEIGHT, weights))
        for name, array in (arrays or {}).items()
    }
    return from_columns(columns, **how)
