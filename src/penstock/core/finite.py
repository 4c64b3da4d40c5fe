"""Answers that are no numbers: they are written as they are, and counted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from penstock.core.columns import leaves
from penstock.core.records import Array, Column


def count_not_finite(columns: Iterable[Column]) -> int:
    """How many rows hold a NaN or an infinity in any of these columns, which have the same rows."""
    found = [mask for column in columns if (mask := _not_finite(column)) is not None]
    return int(np.count_nonzero(np.logical_or.reduce(found))) if found else 0


def _not_finite(column: Column) -> Array | None:
    """Which rows hold a NaN or an infinity; None where none does."""
    ends: Array | None = None
    if not isinstance(column, np.ndarray):
        values, ends = leaves(column)
        if not pa.types.is_floating(values.type):
            return None
        column = values.to_numpy(zero_copy_only=False)
    if column.dtype.kind not in "fc" or not column.size or _is_surely_finite(column):
        return None
    bad = ~np.isfinite(column)
    if ends is None:
        return np.asarray(bad.reshape(len(bad), -1).any(axis=1))
    before = np.concatenate(([0], np.cumsum(bad)))
    return np.asarray(before[ends[1:]] > before[ends[:-1]])


def _is_surely_finite(values: Array) -> bool:
    """One pass without a copy: a sum is finite only where all of its terms are. One that overflows proves nothing."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum()))
