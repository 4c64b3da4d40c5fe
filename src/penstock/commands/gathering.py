"""Gathers results into arrays, and handles rows that failed."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import is_list, join
from penstock.core.output_selection import shown, squeezed, with_labels
from penstock.core.records import KEPT, Array, Column, Result, RowFailure
from penstock.errors import InputError, TooManyFailures, UsageError
from penstock.options.class_names import ClassNames

ON_ERROR = ("raise", "skip", "nan")


def check_on_error(value: str | None) -> None:
    """Refuse an unknown way to treat failed rows.

    Raises:
        UsageError: The value is not in ON_ERROR.
    """
    if value not in (None, *ON_ERROR):
        raise UsageError("unknown on_error", received=f"on_error={value!r}", allowed=", ".join(map(repr, ON_ERROR)))


@dataclass
class Gathered:
    """The outputs of all results, one after the other.

    Args:
        on_error: At a failed row, `raise` an error, `skip` the row, or put `nan` in its place.
        labels: The names of the classes.
        squeeze: Whether vectors of one value become plain values.
    """

    on_error: str = "raise"
    labels: ClassNames = ()
    squeeze: bool = False
    pieces: dict[str, list[Column]] = field(default_factory=dict)
    rows: int = 0
    failures: list[RowFailure] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Add a result.

        Raises:
            InputError: A row failed, and `on_error` is `raise`.
        """
        if result.failures:
            self._note(result)
        self.rows += result.span.rows
        columns = filled(result) if result.failures and self.on_error == "nan" else result.columns
        for name, column in with_labels(columns, self.labels).items():
            if not name.startswith(KEPT):
                self.pieces.setdefault(name, []).append(squeezed(column) if self.squeeze else column)

    def take(self, others: Gathered) -> None:
        """Add all results that another `Gathered` has."""
        self.rows += others.rows
        self.failures += others.failures
        for name, pieces in others.pieces.items():
            self.pieces.setdefault(name, []).extend(pieces)

    def joined(self) -> dict[str, Column]:
        return {shown(name): join(pieces) for name, pieces in self.pieces.items()}

    def columns(self) -> dict[str, Column]:
        """All that was gathered, one column for each output. A warning names failed rows.

        Raises:
            TooManyFailures: No row is left.
        """
        if self.failures:
            first = self.failures[0]
            example = f"row {first.row}: {first.reason}"
            if len(self.failures) == self.rows:
                raise TooManyFailures(f"all of the {self.rows:,} rows failed", received=example)
            done = "left out" if self.on_error == "skip" else "NaN"
            count = f"{len(self.failures):,} of {self.rows:,} rows failed and are {done}"
            warnings.warn(f"{count}; the first one is {example}", stacklevel=caller())
        return self.joined()

    def _note(self, result: Result) -> None:
        first = result.failures[0]
        if self.on_error == "raise":
            raise InputError(
                f"{len(result.failures)} rows of {result.span.rows} failed",
                received=f"row {first.row}: {first.reason}",
                hint="on_error='skip' leaves failed rows out, on_error='nan' puts NaN in their place; "
                "with an output folder they are recorded, and the others are written",
            )
        self.failures += result.failures


def caller() -> int:
    """How many frames lie between a warning and the code that called penstock."""
    ours, frame, depth = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame, depth = frame.f_back, depth + 1
    return depth


def filled(result: Result) -> dict[str, Column]:
    """The columns of a result with every row of its span: failed rows are NaN, or None in text and lists."""
    runs = result.span.numbers or ((result.span.start, result.span.rows),)
    numbers = np.concatenate([np.arange(first, first + rows, dtype=np.int64) for first, rows in runs])
    is_there = ~np.isin(numbers, [failure.row for failure in result.failures])
    return {name: spread(column, is_there) for name, column in result.columns.items()}


def spread(column: Column, is_there: Array) -> Column:
    """A column with room for rows that are not there: NaN, or None in text and lists. Whole numbers become floats."""
    if not isinstance(column, np.ndarray):
        places = np.cumsum(is_there) - 1
        return column.take(pa.array([place if there else None for place, there in zip(places, is_there, strict=True)]))
    if column.dtype.kind in "OSU":
        whole: Array = np.full((len(is_there), *column.shape[1:]), None, object)
    else:
        kind = column.dtype if column.dtype.kind == "f" else np.dtype(np.float64)
        whole = np.full((len(is_there), *column.shape[1:]), np.nan, kind)
    whole[is_there] = column
    return whole


def to_numpy(column: Column) -> Array:
    """A column as an array. Lists of different lengths become an array of arrays."""
    if isinstance(column, np.ndarray):
        return column if column.flags.writeable else column.copy()
    if isinstance(column, pa.FixedShapeTensorArray) and len(column) and not column.null_count:
        return np.array(column.to_numpy_ndarray())
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    shape, inner = [len(column)], column
    while is_list(inner.type) and not inner.null_count:
        lengths = inner.value_lengths().to_numpy(zero_copy_only=False)
        if len(lengths) and (lengths != lengths[0]).any():
            break
        shape.append(int(lengths[0]) if len(lengths) else 0)
        inner = inner.flatten()
    if is_list(inner.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    flat: Array = inner.to_numpy(zero_copy_only=False)
    return flat.reshape(shape)


def to_ragged_tensor(column: Column) -> Any:
    """A column of lists as a ragged tensor of TensorFlow."""
    import tensorflow as tf

    if isinstance(column, np.ndarray):
        return tf.RaggedTensor.from_tensor(column)
    if not is_list(column.type):
        return to_numpy(column)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    inner = column.flatten()
    is_inner_ragged = is_list(inner.type) and not _is_uniform(inner)
    values = to_ragged_tensor(inner) if is_inner_ragged else to_numpy(inner)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def _is_uniform(column: pa.Array) -> bool:
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return not len(lengths) or bool((lengths == lengths[0]).all())
