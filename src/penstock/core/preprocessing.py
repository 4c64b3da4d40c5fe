"""The user's own function between the source and the model: a block of columns in, a block of columns out.

It runs in a loader. A row on which it raises, or for which it gives the wrong shape, is found by halving the block, and
fails alone.
"""

import importlib
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import cloudpickle
import numpy as np
import pyarrow as pa

from penstock.core.columns import OPAQUE, common_shape, describe, is_list, objects, to_array
from penstock.core.deferred import Deferred
from penstock.core.missing import dtype_for_a_function, filled
from penstock.core.records import STRING, Array, Block, Column, RowFailure, SourceColumn, TensorSpec, Watch
from penstock.errors import UsageError, one_line
from penstock.options.records import Nulls

ONLY = "x0"
"""The name of the column where the function returns an array instead of a dict."""

MOST_ROWS = 1024


class WrongAnswer(ValueError):
    """The function returned something that is not a block of the expected columns."""


class Uneven(ValueError):
    """Rows of a column of lists that cannot be one array: they are handed to the function in smaller blocks."""


class Undecodable(ValueError):
    """A row that the function never saw, because it does not decode."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class Preprocess:
    """A function, and what it is known to give.

    Arrays that it gives have one shape in every row; lists may have another length in every row.

    Args:
        location: `module:function`, or the name of a function that travels by value.
        payload: That function, pickled.
        is_by_row: It takes one row, a dict of single values, instead of a block.
        nulls: What it gets in the place of missing values. By default it gets None, and decides itself what to do.
        takes: The columns of the source. Lists that had one length in all of the first rows are arrays of that shape.
        gives: Its own columns, learnt from the first rows; every later row must agree.
    """

    stage: ClassVar[str] = "preprocess"
    """What it is called in failures and messages."""
    only: ClassVar[str] = ONLY

    location: str
    payload: bytes | None = None
    is_by_row: bool = False
    nulls: Nulls = field(default_factory=Nulls)
    takes: Mapping[str, TensorSpec] = field(default_factory=dict)
    gives: Mapping[str, TensorSpec] = field(default_factory=dict)

    @classmethod
    def of(cls, function: str | Callable[..., Any], *, is_by_row: bool = False) -> Self:
        if not callable(function):
            return cls(function, None, is_by_row)
        name = getattr(function, "__qualname__", type(function).__qualname__)  # an object that can be called has none
        return cls(f"{function.__module__}:{name}", cloudpickle.dumps(function), is_by_row)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function itself; imported where it runs."""
        if self.payload is not None:
            return cloudpickle.loads(self.payload)  # type: ignore[no-any-return]
        module, _, name = self.location.partition(":")
        try:
            imported = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # A worker ignores SIGINT: there only the module itself can have raised this.
            if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                raise
            raise UsageError(
                f"the {self.stage}ing function cannot be imported",
                received=f"{self.location}: {one_line(error)}",
                allowed="module:function, importable from this folder",
                hint=f"without the suffix: {module.removesuffix('.py')}:{name}" if module.endswith(".py") else None,
            ) from error
        if not callable(imported):
            raise UsageError("this is not a function", received=f"{self.stage} {self.location}")
        return imported  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "function"}

    def learn(self, blocks: Sequence[Block], watch: Watch) -> Self:
        """The same function, with the columns that it takes and gives, learnt from the first rows.

        It is not called where the columns that it gives are known already.

        Raises:
            UsageError: The function fails on every one of these rows, or cannot be imported.
        """
        # Decided for the column, not for the rows of one call: a row must not depend on the rows that come with it.
        takes = {name: _taken(spec, [block.columns[name] for block in blocks]) for name, spec in self.takes.items()}
        ready = replace(self, takes=takes)
        # Imported here, once: an import that fails is then one error, not a failure of every row.
        vars(ready)["function"] = self.function
        if self.gives:
            return ready
        first: RowFailure | None = None
        empty: dict[str, TensorSpec] | None = None
        for block, position in _readable(blocks):
            for tried in ready.apply(rows_of(block, position, position + 1), watch):
                if tried.failures:
                    first = first or tried.failures[0]
                    continue
                made = _plain(tried.columns)
                gives = {name: describe(name, column) for name, column in made.items()}
                is_open = any(spec.varies and spec.dtype == OPAQUE for spec in gives.values())
                if not is_open and not any(map(_says_nothing, made.values())):
                    return replace(ready, gives=gives)
                empty = empty or gives  # None, or a list without values, does not show the type of other rows
        if empty is not None:
            return replace(ready, gives=empty)
        raise UsageError(
            f"the {self.stage}ing function fails on every one of the first rows",
            received=f"{self.location}: row {first.row}: {first.reason}" if first else self.location,
            allowed="a dict of arrays with rows first, one entry for each row" if not self.is_by_row else "a dict",
        )

    def apply(self, block: Block, watch: Watch) -> Iterator[Block]:
        """What the function makes of a block, in order; rows that fail keep their place with zeros."""
        step = 1 if watch.is_careful else MOST_ROWS
        pieces = [(at, min(at + step, block.rows)) for at in range(0, block.rows, step)][::-1]
        failed_before = {failure.row: failure for failure in block.failures} | dict(watch.poisoned)
        while pieces:
            start, stop = pieces.pop()
            first = block.start + start
            failed = next(
                (failed_before[row] for row in range(first, first + stop - start) if row in failed_before), None
            )
            if failed is None:
                try:
                    made = self._call(rows_of(block, start, stop), watch)
                except watch.about_rows as error:
                    failed = _failure(first, error, self.stage)
                else:
                    yield made
                    continue
            if stop - start > 1:
                middle = (start + stop) // 2
                pieces += [(middle, stop), (start, middle)]
            else:
                yield self._nothing(first, failed)

    def _call(self, block: Block, watch: Watch) -> Block:
        watch.begin(block.start, block.rows)
        columns = {name: self._given(name, column) for name, column in block.columns.items()}
        try:
            if self.is_by_row:
                answers = []
                for position in range(block.rows):
                    watch.begin(block.start + position, 1)
                    answers.append(self._as_dict(self.function({name: c[position] for name, c in columns.items()})))
                given = _stacked(answers)
            else:
                given = self._as_dict(self.function(columns))
        finally:
            watch.end()
        made = {str(name): self._typed(str(name), _as_column(value)) for name, value in given.items()}
        self._check(made, block.rows)
        return Block(block.start, block.rows, made)

    def _typed(self, name: str, column: Column) -> Column:
        """The column of a block. If all its values are None, it gets the type that the column has in other blocks."""
        spec = self.gives.get(name)
        if spec is None or not _says_nothing(column) or spec.shape != () or spec.dtype == OPAQUE:
            return column
        kind = pa.string() if spec.dtype == STRING else pa.from_numpy_dtype(np.dtype(spec.dtype))
        return pa.nulls(len(column), kind)

    def _given(self, name: str, column: SourceColumn) -> Array:
        """A column as the function gets it."""
        spec = self.takes[name]
        if isinstance(column, (Deferred, np.ndarray)) or spec.dtype == OPAQUE:
            return _for_the_user(column, spec)
        if spec.dtype == STRING:
            return _for_the_user(filled(column, self.nulls, STRING), spec)
        array = _for_the_user(filled(column, self.nulls, "float64"), spec)
        is_number = array.dtype.kind in "biuf" and self.nulls.numbers != "fail"
        return array.astype(dtype_for_a_function(spec.dtype, self.nulls), copy=False) if is_number else array

    def _check(self, made: Mapping[str, Column], rows: int) -> None:
        for name, column in made.items():
            if len(column) != rows:
                raise WrongAnswer(f"column {name!r} has {len(column)} rows, not {rows}")
        if not self.gives:
            return
        if made.keys() != self.gives.keys():
            raise WrongAnswer(f"it gives the columns {', '.join(made)}, not {', '.join(self.gives)}")
        for name, column in made.items():
            spec, expected = describe(name, column), self.gives[name]
            if not _agrees(spec, expected):
                raise WrongAnswer(f"column {name!r} is {spec}, not {expected} as for the first rows")

    def _as_dict(self, given: Any) -> Mapping[Any, Any]:
        if isinstance(given, Mapping):
            if not given:
                raise WrongAnswer("it returned an empty dict")
            return given
        if given is None:
            raise WrongAnswer("it returned None")
        return {self.only: given}

    def _nothing(self, row: int, failure: RowFailure) -> Block:
        return Block(row, 1, {name: _zeros(spec) for name, spec in self.gives.items()}, (failure,))


def _agrees(spec: TensorSpec, expected: TensorSpec) -> bool:
    if spec.varies and spec.dtype == OPAQUE:  # lists, all of them empty
        return expected.varies
    if (spec.dtype == STRING) != (expected.dtype == STRING) or spec.varies != expected.varies:
        return False
    if spec.shape is None or expected.shape is None or expected.varies:
        return True
    return spec.shape == expected.shape


def _says_nothing(column: Column) -> bool:
    return isinstance(column, pa.Array) and pa.types.is_null(column.type)


def _zeros(spec: TensorSpec) -> Column:
    if spec.dtype == OPAQUE:
        return pa.array([[]]) if spec.varies else pa.nulls(1)
    if spec.varies:
        kind = pa.string() if spec.dtype == STRING else pa.from_numpy_dtype(np.dtype(spec.dtype))
        for _ in spec.shape or ():
            kind = pa.list_(kind)
        return pa.array([[]], kind)
    shape = (1, *(length or 0 for length in spec.shape or ()))
    return np.full(shape, b"", object) if spec.dtype == STRING else np.zeros(shape, spec.dtype)


def rows_of(block: Block, start: int, stop: int) -> Block:
    """A piece of a block, without its failures."""
    return Block(
        block.start + start, stop - start, {name: column[start:stop] for name, column in block.columns.items()}
    )


def _plain(columns: Mapping[str, SourceColumn]) -> dict[str, Column]:
    return {name: column for name, column in columns.items() if not isinstance(column, Deferred)}


def _failure(row: int, error: BaseException, stage: str) -> RowFailure:
    if isinstance(error, Undecodable):
        return RowFailure(row, "", "load", error.kind, str(error))
    return RowFailure(row, "", stage, type(error).__name__, one_line(error) + _place_of(error))


def _place_of(error: BaseException) -> str:
    """Where in the user's own code an exception was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if not frames:
        return ""
    _, _, name = frames[-1].filename.rpartition("/")
    return f" ({name}, line {frames[-1].lineno})"


def _readable(blocks: Sequence[Block]) -> Iterator[tuple[Block, int]]:
    """Every row that could be read: its block, and its place in it."""
    for block in blocks:
        unread = {failure.row for failure in block.failures}
        yield from ((block, place) for place in range(block.rows) if block.start + place not in unread)


def _taken(spec: TensorSpec, first: Sequence[SourceColumn]) -> TensorSpec:
    """The column as the function gets it: lists that have one length in all of the first rows become an array."""
    lists = [column.drop_null() for column in first if isinstance(column, pa.Array)]
    shapes = {common_shape(column) for column in lists if len(column)}
    if not spec.varies or len(shapes) != 1 or None in shapes:
        return spec
    return replace(spec, shape=shapes.pop(), varies=False)


def _for_the_user(column: SourceColumn, takes: TensorSpec) -> Array:
    """A column as a function of the user gets it: numbers as arrays, text as str, images and audio decoded."""
    if isinstance(column, Deferred):
        return _decoded(column, takes)
    if isinstance(column, np.ndarray):
        return column
    spec = describe("", column)
    if spec.varies and not takes.varies:
        return _even(column, spec)
    is_regular = spec.shape is not None and None not in spec.shape and not spec.varies
    if spec.dtype != STRING and is_regular and not column.null_count:
        try:
            return to_array(column, spec.dtype, spec.shape or ())[0]
        except (ValueError, TypeError):
            pass  # dates and the like: as Python objects, below
    return objects(column.to_pylist())


def _even(column: pa.Array, spec: TensorSpec) -> Array:
    """Lists of one length as one array. A row of another length becomes an array alone."""
    shape = common_shape(column)
    if shape is None and len(column) > 1:
        raise Uneven
    if shape is None:
        return objects(column.to_pylist())
    if spec.dtype in (STRING, OPAQUE):
        while is_list(column.type):
            column = column.flatten()
        return objects(column.to_pylist()).reshape(-1, *shape)
    return to_array(column, spec.dtype, shape)[0]


def _decoded(column: Deferred, takes: TensorSpec) -> Array:
    """Decoded rows: of one shape, or each in its own. Raises for the first that does not decode."""
    rows: list[Array] = []
    for position, size in enumerate(np.maximum(column.sizes(), 1).tolist()):
        # Sizes are those of the first dimensions; an open dimension after them is the number of channels.
        natural = (*size, *([3] * len(takes.shape or ())))
        shape = tuple(
            own if length is None else length for length, own in zip(takes.shape or (), natural, strict=False)
        )
        out = np.empty((1, *shape), takes.dtype)
        bad = column[position : position + 1].fill(out, lambda _: None)
        if bad:
            raise Undecodable(bad.errors.get(0, "BadValue"), bad[0])
        rows.append(out[0])
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    return objects(rows)


def _stacked(rows: Sequence[Mapping[Any, Any]]) -> Mapping[Any, Any]:
    names = rows[0].keys()
    for row in rows:
        if row.keys() != names:
            raise WrongAnswer(f"it gives the columns {', '.join(map(str, row))}, not {', '.join(map(str, names))}")
    return {name: [row[name] for row in rows] for name in names}


def _as_column(value: Any) -> Column:
    if isinstance(value, pa.ChunkedArray):
        return value.combine_chunks()
    if isinstance(value, pa.Array):
        return value
    if hasattr(value, "numpy") and not isinstance(value, np.ndarray):
        value = value.numpy()  # a tensor of any framework
    if isinstance(value, list) and value:
        if all(isinstance(row, list) for row in value):
            return _lists(value)  # lists may have another length in the next row; arrays have one shape
        if all(isinstance(row, (str, bytes)) for row in value):
            return objects(value)  # numpy would make all as long as the longest, and drop zero bytes at their ends
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return _lists(value)
    if array.ndim == 0:
        raise WrongAnswer("it returned a single value, not one for each row")
    is_text = array.dtype.kind == "O" and all(isinstance(item, (str, bytes)) for item in array.ravel().tolist())
    return array if is_text or array.dtype.kind != "O" else _lists(value)


def _lists(rows: Any) -> pa.Array:
    return pa.array([row if isinstance(row, list) else np.asarray(row).tolist() for row in rows])
