"""The user's own function behind the model: outputs and kept columns in, the columns that are written out.

The rules of the function before the model hold here, too: a row on which the function raises, or for which it gives
another type than for the first rows, is found by halving, and fails alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.columns import OPAQUE, describe, join, take_positions, to_arrow
from penstock.core.preprocessing import Preprocess, WrongAnswer
from penstock.core.records import STRING, Array, Block, Column, RowFailure, TensorSpec, Watch


@dataclass(frozen=True)
class Postprocess(Preprocess):
    """The function, and what it is known to give. Its columns have one type in all rows, because a file needs one."""

    stage: ClassVar[str] = "postprocess"
    only: ClassVar[str] = "output"

    def on(self, columns: Mapping[str, Column]) -> Postprocess:
        """The same function for these columns."""
        return replace(self, takes={name: describe(name, column) for name, column in columns.items()})

    def _call(self, block: Block, watch: Watch) -> Block:
        # It gets copies: it may write into them, may get the same rows again, and must not change kept columns.
        arrays = {name: column.copy() for name, column in block.columns.items() if isinstance(column, np.ndarray)}
        return super()._call(replace(block, columns={**block.columns, **arrays}), watch)

    def _check(self, made: Mapping[str, Column], rows: int) -> None:
        super()._check(made, rows)
        for name, spec in self.gives.items():
            given = describe(name, made[name])
            if not _holds(made[name], given, spec):
                raise WrongAnswer(f"column {name!r} is {given}, not {spec} as for the first rows")


@dataclass(frozen=True)
class Finished:
    """The rows of a result after the function: the columns of those that did not fail, and failures by place."""

    columns: Mapping[str, Column]
    failures: tuple[RowFailure, ...]


def finish(function: Postprocess, columns: Mapping[str, Column], kept: Sequence[str], watch: Watch) -> Finished:
    """Apply the function. Kept columns are written, too, unless it gives one of that name."""
    rows = len(next(iter(columns.values())))
    pieces: list[Mapping[str, Column]] = []
    failures: list[RowFailure] = []
    for made in function.apply(Block(0, rows, columns), watch):
        failures += made.failures
        if not made.failures:
            pieces.append(made.columns)  # type: ignore[arg-type]
    if not pieces:
        return Finished({}, tuple(failures))
    given = {name: _typed(join([piece[name] for piece in pieces]), spec) for name, spec in function.gives.items()}
    failed = [failure.row for failure in failures]
    alive = np.setdiff1d(np.arange(rows), failed)
    for name in kept:
        if name not in given:
            given[name] = take_positions(columns[name], alive) if failed else columns[name]
    return Finished(given, tuple(failures))


def _holds(column: Column, given: TensorSpec, spec: TensorSpec) -> bool:
    """Whether a column can have the type of the first rows without a change of its values."""
    if given.dtype == spec.dtype or STRING in (given.dtype, spec.dtype) or OPAQUE in (given.dtype, spec.dtype):
        return True
    if not isinstance(column, np.ndarray):
        column = _flat(column)
    if column.dtype.kind == "f" and np.dtype(spec.dtype).kind == "f":
        return True
    with np.errstate(invalid="ignore"):
        return bool((column.astype(spec.dtype) == column).all())


def _flat(column: pa.Array) -> Array:
    while pa.types.is_nested(column.type):
        column = column.flatten()
    values: Array = column.to_numpy(zero_copy_only=False)
    return values


def _typed(column: Column, spec: TensorSpec) -> Column:
    """A column as it is written to the file. Text is an Arrow array, as in every result."""
    if not isinstance(column, np.ndarray):
        return column.cast(_retyped(column.type, spec.dtype)) if spec.dtype not in (STRING, OPAQUE) else column
    if column.dtype.kind in "OSU":
        return to_arrow(column)
    return column.astype(spec.dtype, copy=False)


def _retyped(kind: pa.DataType, dtype: str) -> pa.DataType:
    """The same type of lists with values of another dtype."""
    if pa.types.is_large_list(kind):
        return pa.large_list(_retyped(kind.value_type, dtype))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_retyped(kind.value_type, dtype), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_retyped(kind.value_type, dtype))
    return pa.from_numpy_dtype(np.dtype(dtype))
