"""Columns of lists whose lengths differ, as one run of values and the places where rows end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.core.columns import to_array
from penstock.core.deferred import IS_NULL, BadRows
from penstock.core.feeds import Ragged
from penstock.core.records import Column, Shape


def to_ragged(column: Column, dtype: str, shape: Shape) -> tuple[Ragged, BadRows]:
    """The rows of a column of lists. `shape` is that of a row: its first dimension varies, the others must not.

    A row that is null, or holds something that does not fit, is named in the second value.
    """
    inner = shape[1:]
    if isinstance(column, np.ndarray):
        values, bad = to_array(column, dtype, (column.shape[1], *inner))
        return Ragged(values.reshape(-1, *values.shape[2:]), np.arange(len(column) + 1) * column.shape[1]), bad
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    values, bad_values = to_array(column.flatten(), dtype, inner)
    bad = BadRows()
    for null in np.flatnonzero(~column.is_valid().to_numpy(zero_copy_only=False)):
        bad[int(null)] = IS_NULL
    for position, reason in bad_values.items():
        row = int(np.searchsorted(offsets, position, side="right")) - 1
        bad.setdefault(row, f"has a value that {reason}")
    return Ragged(values, offsets), bad
