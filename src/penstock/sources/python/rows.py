"""Columns from rows that are Python objects. The first row decides what all others have to be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.columns import describe
from penstock.core.records import Array, Column, TensorSpec
from penstock.errors import one_line

Bad = dict[int, tuple[str, str]]
"""Position to the kind of error and the reason."""


class BadRow(ValueError):
    """A row that is unlike the first one."""


@dataclass(frozen=True)
class Raised:
    """Takes the place of a row that could not be read."""

    error: BaseException


class RowTemplate:
    """The columns that single rows are gathered into.

    A row is a dict (columns by key), a tuple (columns `x0`, `x1`, …) or one value (`x0`): an array, a number, text.
    """

    def __init__(self, first: Any) -> None:
        values, self.is_positional = values_of(first)
        if not values:
            raise BadRow("is an empty " + type(first).__name__)
        self._cells = {name: _cell(as_value(value)) for name, value in values.items()}

    def schema(self) -> dict[str, TensorSpec]:
        return {name: describe(name, cell.finish(cell.buffer(0))) for name, cell in self._cells.items()}

    @property
    def row_bytes(self) -> int:
        return sum(spec.row_bytes for spec in self.schema().values())

    def gather(self, rows: Sequence[Any]) -> tuple[dict[str, Column], Bad]:
        """Columns with one entry for each row; a bad one has zeros or nulls in its place, and a reason."""
        buffers = {name: cell.buffer(len(rows)) for name, cell in self._cells.items()}
        bad: Bad = {}
        for position, row in enumerate(rows):
            try:
                self._put(buffers, position, row)
            except BadRow as error:
                bad[position] = "BadRow", str(error)
            except (Exception, SystemExit) as error:  # an object of the user may raise anything
                bad[position] = type(error).__name__, one_line(error)
        return {name: cell.finish(buffers[name]) for name, cell in self._cells.items()}, bad

    def _put(self, buffers: Mapping[str, Any], position: int, row: Any) -> None:
        if isinstance(row, Raised):
            raise row.error
        values, is_positional = values_of(row)
        if is_positional != self.is_positional or (is_positional and len(values) != len(self._cells)):
            raise BadRow(f"is {_shape_of_row(row)}, and the first row is not")
        for name, cell in self._cells.items():
            if name not in values:
                raise BadRow(f"has no value {name!r}")
            try:
                cell.put(buffers[name], position, as_value(values[name]))
            except BadRow as error:
                raise BadRow(f"value {name!r} {error}") from None


def values_of(row: Any) -> tuple[dict[str, Any], bool]:
    """The values of a row by column, and whether columns have no names, only places."""
    if isinstance(row, Mapping):
        return {str(name): value for name, value in row.items()}, False
    values = row if isinstance(row, tuple) or (isinstance(row, list) and not _is_vector(row)) else (row,)
    return {f"x{number}": value for number, value in enumerate(values)}, True


def _is_vector(row: list[Any]) -> bool:
    """Whether a list is one value: all numbers, all text or all lists. Anything else is a row of several values."""
    return any(all(isinstance(item, kinds) for item in row) for kinds in ((int, float, np.number), (str, bytes), list))


def _shape_of_row(row: Any) -> str:
    return f"a {type(row).__name__}" + (f" of {len(row)}" if isinstance(row, (tuple, list)) else "")


def as_value(value: Any) -> Any:
    """A tensor of any library, an image of PIL or a list as a numpy array; other things as they are."""
    if isinstance(value, (np.ndarray, np.generic, str, bytes, int, float)) or value is None:
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu()  # torch: numpy takes neither what has a gradient nor what is on a GPU
    if callable(getattr(value, "numpy", None)):
        return value.numpy()
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if isinstance(value, (list, tuple)):
        try:
            return np.asarray(value)
        except ValueError:
            return value  # ragged
    return value


class _Cell(Protocol):
    """What the values of one column are, and where they are gathered."""

    def buffer(self, rows: int) -> Any: ...

    def put(self, buffer: Any, position: int, value: Any) -> None: ...

    def finish(self, buffer: Any) -> Column: ...


def _cell(value: Any) -> _Cell:
    if isinstance(value, (str, bytes)):
        return _Texts(())
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        array = np.asarray(value)
        if array.dtype.kind in "biufc" or (array.dtype.kind == "V" and array.dtype.names is None):
            return _Numbers(array.dtype.newbyteorder("="), array.shape)
        if array.dtype.kind in "US" or (array.dtype.kind == "O" and _are_texts(array)):
            return _Texts(array.shape)
    return _Things(pa.array([_plain(value)]).type)


def _are_texts(array: Array) -> bool:
    return array.size > 0 and all(isinstance(item, (str, bytes)) for item in array.ravel().tolist())


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@dataclass(frozen=True)
class _Numbers:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def buffer(self, rows: int) -> tuple[Array, list[int]]:
        """The values, and the places of those that are missing."""
        return np.zeros((rows, *self.shape), self.dtype), []

    def put(self, buffer: tuple[Array, list[int]], position: int, value: Any) -> None:
        values, missing = buffer
        if value is None and self.shape == ():
            missing.append(position)  # `nulls` decides later what is fed in its place
            return
        array = np.asarray(value)
        if array.shape != self.shape:
            raise BadRow(f"has the shape {array.shape}, not {self.shape}")
        if array.dtype != self.dtype and not self._takes(value, array.dtype):
            raise BadRow("is null" if value is None else f"is {array.dtype}, not {self.dtype}")
        values[position] = array

    def _takes(self, value: Any, dtype: np.dtype[Any]) -> bool:
        """Whether a value can be stored without loss. A number of Python has no dtype of its own."""
        if isinstance(value, (int, float)) and not isinstance(value, np.generic):
            kinds = "f" if isinstance(value, float) else "b" if isinstance(value, bool) else "fiu"
            is_within = self.dtype.kind not in "iu" or np.iinfo(self.dtype).min <= value <= np.iinfo(self.dtype).max
            return self.dtype.kind in kinds and is_within
        return np.can_cast(dtype, self.dtype, "safe")

    def finish(self, buffer: tuple[Array, list[int]]) -> Column:
        values, missing = buffer
        if not missing:
            return values
        mask = np.zeros(len(values), bool)
        mask[missing] = True
        return pa.array(values, mask=mask)


@dataclass(frozen=True)
class _Texts:
    shape: tuple[int, ...]

    def buffer(self, rows: int) -> Array:
        return np.full((rows, *self.shape), "", object)

    def put(self, buffer: Array, position: int, value: Any) -> None:
        array = np.asarray(value, object)
        if array.shape != self.shape:
            raise BadRow(f"has the shape {array.shape}, not {self.shape}")
        for item in array.ravel().tolist():
            if not isinstance(item, (str, bytes)) and (item is not None or self.shape):
                raise BadRow("is null" if item is None else f"is {item!r:.40}, not text")
        buffer[position] = array if self.shape else array.item()

    def finish(self, buffer: Array) -> Column:
        return buffer


@dataclass(frozen=True)
class _Things:
    """What is neither numbers nor text: dates, dicts, ragged lists. It can be kept, and some of it fed."""

    kind: pa.DataType

    def buffer(self, rows: int) -> list[Any]:
        return [None] * rows

    def put(self, buffer: list[Any], position: int, value: Any) -> None:
        try:
            buffer[position] = pa.scalar(_plain(value), self.kind).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BadRow(f"is not {self.kind}: {one_line(error)}") from error

    def finish(self, buffer: list[Any]) -> Column:
        return pa.array(buffer, self.kind)
