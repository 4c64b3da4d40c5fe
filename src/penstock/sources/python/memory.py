"""Arrays and tables that the caller already holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.columns import describe, take_positions, whole
from penstock.core.nesting import name_of
from penstock.core.protocols import Source, SourceTraits
from penstock.core.records import Array, Block, Column, Fragment, Span, TensorSpec
from penstock.core.sparse import SparseColumn
from penstock.errors import InputError
from penstock.sources.derived.wrapper import Around
from penstock.sources.python.array_like import as_column, flat, from_rows, from_series, is_array, is_nested
from penstock.sources.python.shared_columns import Layout, anonymous_file, buffers, map_columns, write_columns


class InMemory(Source):
    """Columns in memory, rows first. To reach another process they are copied once into memory that it maps.

    With `is_positional`, they are inputs of a model, in order; with `is_frame`, they are what one input is made of.
    """

    is_positional = False
    traits = SourceTraits()

    def __init__(
        self, columns: Mapping[str, Column | SparseColumn], *, is_positional: bool = False, is_frame: bool = False
    ) -> None:
        self.is_positional = is_positional
        self._columns = dict(columns)
        self.traits = SourceTraits(is_frame=is_frame, reads_at_random=not self.is_sparse)
        if not columns:
            raise InputError("the input has no columns", received="an empty dict or table")
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(
                "the arrays differ in their number of rows",
                received=", ".join(f"{name} {rows}" for name, rows in lengths.items()),
            )
        self._rows = next(iter(lengths.values()))

    @classmethod
    def from_table(cls, table: pa.Table) -> InMemory:
        if len(set(table.column_names)) != len(table.column_names):
            raise InputError("two columns have one name", received=", ".join(table.column_names[:12]))
        return cls({name: whole(table.column(name)) for name in table.column_names}, is_frame=True)

    def fragments(self) -> Sequence[Fragment]:
        """One fragment whose name is a digest of the content: the same arrays are the same job."""
        digest = hashlib.blake2b(digest_size=16)
        size = 0
        for name, column in self._columns.items():
            digest.update(f"{name} {_describe(name, column)}".encode())
            for buffer in _buffers(column):
                digest.update(buffer)
                size += len(buffer)
        return [Fragment(f"memory:{digest.hexdigest()}", size, 0)]

    def schema(self) -> dict[str, TensorSpec]:
        return {name: _describe(name, column) for name, column in self._columns.items()}

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        return even_spans(self._rows, rows_per_span)

    def pick(self, numbers: Array, start: int) -> Span:
        return Span(0, start, len(numbers), (numbers,))

    def origin(self, span: Span, row: int) -> str:
        return "memory"

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        if span.locator:
            yield Block(span.start, span.rows, {name: self._picked(name, span.locator[0]) for name in columns})
            return
        yield Block(span.start, span.rows, {name: self._columns[name][span.start : span.stop] for name in columns})

    def _picked(self, name: str, numbers: Array) -> Column:
        column = self._columns[name]
        assert not isinstance(column, SparseColumn)  # it does not read at random
        return take_positions(column, numbers)

    @property
    def is_sparse(self) -> bool:
        """Whether a column is sparse. Such a source is not put into shared memory, where it would be dense."""
        return any(isinstance(column, SparseColumn) for column in self._columns.values())

    def named(self, names: Sequence[str]) -> InMemory:
        """The same columns. If they have no names, they get those of the model's inputs, if there are as many."""
        if not self.is_positional or len(names) != len(self._columns):
            return self
        return InMemory(dict(zip(names, self._columns.values(), strict=True)), is_positional=True)

    def cut(self, start: int, stop: int) -> InMemory:
        """Some of the rows."""
        return InMemory(
            {name: column[start:stop] for name, column in self._columns.items()},
            is_positional=self.is_positional,
            is_frame=self.traits.is_frame,
        )

    def __len__(self) -> int:
        return self._rows

    def shared(self) -> SharedMemory:
        """A copy of this source that other processes can open."""
        dense = {
            name: column[:] if isinstance(column, SparseColumn) else column for name, column in self._columns.items()
        }
        return SharedMemory.holding(dense, is_positional=self.is_positional, is_frame=self.traits.is_frame)


def even_spans(total: int, rows_per_span: int) -> Iterator[Span]:
    """All rows, cut into spans of one size, the last one shorter."""
    for index, start in enumerate(range(0, total, rows_per_span)):
        yield Span(index, start, min(rows_per_span, total - start), ())


def shared(source: Source) -> tuple[Source, SharedMemory | None]:
    """The source with its arrays in shared memory, and that memory, if there are any; also inside another source."""
    if isinstance(source, InMemory) and not source.is_sparse:
        made = source.shared()
        return made, made
    if isinstance(source, Around):
        inside, memory = shared(source.source)
        return source.around(inside), memory
    return source, None


def _describe(name: str, column: Column | SparseColumn) -> TensorSpec:
    return column.describe(name) if isinstance(column, SparseColumn) else describe(name, column)


def _buffers(column: Column | SparseColumn) -> Iterator[Any]:
    if not isinstance(column, SparseColumn):
        yield from buffers(column)
        return
    for array in (column.rows, column.places, column.values):
        yield from buffers(array)


class SharedMemory(Source):
    """Columns in an anonymous file. Other processes inherit its descriptor; the kernel frees it with its last user."""

    is_positional = False
    traits = SourceTraits()

    def __init__(self, descriptor: int, layout: Layout, *, is_positional: bool, is_frame: bool) -> None:
        self.descriptor = descriptor
        self.is_positional = is_positional
        self.traits = SourceTraits(is_frame=is_frame, reads_at_random=True)
        self._layout = layout
        self._opened: InMemory | None = None

    @classmethod
    def holding(
        cls, columns: Mapping[str, Column], *, is_positional: bool = False, is_frame: bool = False
    ) -> SharedMemory:
        descriptor = anonymous_file()
        layout = write_columns(descriptor, {name: [column] for name, column in columns.items()})
        return cls(descriptor, layout, is_positional=is_positional, is_frame=is_frame)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def fragments(self) -> Sequence[Fragment]:
        return self._open().fragments()

    def schema(self) -> dict[str, TensorSpec]:
        return self._open().schema()

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        return self._open().divide(rows_per_span, most_rows)

    def pick(self, numbers: Array, start: int) -> Span:
        return self._open().pick(numbers, start)

    def origin(self, span: Span, row: int) -> str:
        return "memory"

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        return self._open().read(span, columns)

    def close(self) -> None:
        self._opened = None
        os.close(self.descriptor)

    def _open(self) -> InMemory:
        if self._opened is None:
            self._opened = InMemory(map_columns(self.descriptor, self._layout))
        return self._opened


def open_memory(data: Any, names: Sequence[str] = ()) -> InMemory:
    """The source behind arrays, lists and dicts of them inside each other, pandas frames and Arrow tables.

    Arrays without names are positional: they get `names`, those of the model's inputs, in order, if there are as many.
    A list of arrays has one for each input, as in `model.predict`, or the rows of the only input.

    Raises:
        InputError: The object is none of these.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if type(data).__module__.partition(".")[0] == "pandas":
        return _from_frame(data.to_frame() if hasattr(data, "to_frame") else data)
    if isinstance(data, pa.Table):
        return InMemory.from_table(data)
    if not isinstance(data, (Mapping, list, tuple)) and not is_array(data):
        raise InputError(
            "this input is not understood",
            received=type(data).__name__,
            allowed="a numpy array, a list or dict of arrays, a pandas DataFrame, an Arrow table, or paths of files",
        )
    if are_rows(data, names):
        data = from_rows(list(data))
    return _from_nested(data, names)


def _from_frame(frame: Any) -> InMemory:
    """The columns of a DataFrame. NaN among its floats is a value, as `model.predict` takes it; NA and None are not."""
    names = [str(name) for name in frame.columns]
    if len(set(names)) != len(names):
        raise InputError("two columns have one name", received=", ".join(names[:12]))
    return InMemory(
        {name: from_series(name, frame.iloc[:, number]) for number, name in enumerate(names)}, is_frame=True
    )


def are_rows(data: Any, names: Sequence[str]) -> bool:
    """Whether a list of arrays holds the rows of one input: there is only one, or they differ in length."""
    if not isinstance(data, (list, tuple)) or not is_nested(data) or not all(map(is_array, data)):
        return False
    if names:
        return len(names) == 1 and len(data) > 1
    return len({_num_rows(item) for item in data}) > 1


def _num_rows(value: Any) -> int:
    return int(value.shape[0]) if hasattr(value, "shape") else len(value)


def _from_nested(data: Any, names: Sequence[str]) -> InMemory:
    leaves = flat(data)
    own = [name_of(path) for path, _ in leaves]
    is_positional = not any(own)
    if len(names) == len(own) and (is_positional or not set(own) <= set(names)) and not isinstance(data, Mapping):
        labels: Sequence[str] = names
    else:
        labels = [name or f"x{number}" for number, name in enumerate(own)]
    columns = {
        label: as_column(value, repr(name) if name else "the input")
        for label, name, (_, value) in zip(labels, own, leaves, strict=True)
    }
    return InMemory(columns, is_positional=is_positional)
