"""Tables in files that are made of groups of rows: Parquet's row groups, Arrow's record batches.

A span is a run of whole groups, or a piece of a very large one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from penstock.core.columns import describe, whole
from penstock.core.records import Block, Column, Span, TensorSpec
from penstock.errors import InputError
from penstock.sources.files.file_source import FileSource, SpanCutter, even_parts, origin_of_run
from penstock.sources.files.paths import fail_empty

WHOLE_ROW_GROUP = 8
"""A group of up to this many spans is not cut: it can only be decoded from the front."""

BROKEN = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises for a damaged file; the last one for names of columns that are no text."""


class RowGroupFiles(FileSource):
    """Files with the same columns. Subclasses open the files of their format."""

    format_name: ClassVar[str]
    """For messages: `a Parquet file`."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        self._schema: dict[str, TensorSpec] | None = None
        self._row_groups: list[list[int]] = []

    def scan_file(self, path: str) -> tuple[pa.Schema, list[int]]:
        """The columns of a file, and the rows of each of its groups."""
        raise NotImplementedError

    def open_group(self, file: int, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a group in order, in pieces."""
        raise NotImplementedError

    def schema(self) -> dict[str, TensorSpec]:
        if self._schema is None:
            self._schema = self._scan()
        return self._schema

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        self.schema()
        span = SpanCutter()
        for run, group in self._runs(rows_per_span, most_rows or WHOLE_ROW_GROUP * rows_per_span):
            rows = run[3]
            if group is not None or span.rows + rows > rows_per_span:
                yield from span.cut()
            span.add(run, rows)
            if group is not None:
                yield from span.cut(group)
        yield from span.cut()
        if not span.start:
            raise fail_empty(self.paths)

    def _runs(self, rows_per_span: int, most_rows: int) -> Iterator[tuple[tuple[Any, ...], str | None]]:
        """(file, group, first row in it, rows) for every group or piece of one, with the name of the group if cut."""
        most_rows = max(rows_per_span, min(most_rows, WHOLE_ROW_GROUP * rows_per_span))
        for file, row_groups in enumerate(self._row_groups):
            for number, rows in enumerate(row_groups):
                if not rows:
                    continue
                if rows <= most_rows:
                    yield (file, number, 0, rows), None
                    continue
                for first, taken in even_parts(rows, most_rows // rows_per_span * rows_per_span, rows_per_span):
                    yield (file, number, first, taken), f"{file}:{number}"

    def origin(self, span: Span, row: int) -> str:
        before = [sum(self._row_groups[file][:number]) for file, number, _, _ in span.locator]
        runs = [(run[0], run[2] + skipped, run[3]) for run, skipped in zip(span.locator, before, strict=True)]
        return origin_of_run(self.paths, span.start, runs, row)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        row = span.start
        for file, number, first, rows in span.locator:
            try:
                for piece in self._read_run(file, number, first, rows, columns, span.group):
                    taken = len(next(iter(piece.values())))
                    yield Block(row, taken, piece)
                    row += taken
            except BROKEN as error:
                raise self.damaged(self.paths[file], f"group {number} of its rows: {error}") from error

    def _read_run(
        self, file: int, number: int, first: int, rows: int, columns: Sequence[str], group: str | None
    ) -> Iterator[Mapping[str, Column]]:
        if group is None:
            yield from _Group(self.open_group(file, number, columns)).read(rows)
            return
        key = (file, number, tuple(columns))
        with self._streams.at(key, first, lambda: _Group(self.open_group(file, number, columns))) as stream:
            yield from stream.read(rows)

    def _scan(self) -> dict[str, TensorSpec]:
        first: pa.Schema | None = None
        row_groups: list[list[int]] = []
        for path in self.paths:
            try:
                schema, groups = self.scan_file(path)
                columns = _types(schema)
            except BROKEN as error:
                raise self.damaged(path, str(error)) from error
            if first is not None and columns != _types(first):
                raise InputError(
                    "the files differ in their columns",
                    received=f"{path}: {_names(schema)}",
                    allowed=f"as in {self.paths[0]}: {_names(first)}",
                )
            if len(columns) != len(schema.names):
                raise InputError("two columns have one name", received=f"{path}: {_names(schema)}")
            first = schema if first is None else first
            row_groups.append(groups)
        assert first is not None
        self._row_groups = row_groups
        sample = self._first_rows(first)
        return {name: describe(name, whole(sample.column(name))) for name in first.names}

    def _first_rows(self, schema: pa.Schema) -> pa.Table:
        """A few rows, from which the lengths of lists are learnt."""
        for file, row_groups in enumerate(self._row_groups):
            number = next((number for number, rows in enumerate(row_groups) if rows), None)
            if number is not None:
                try:
                    first = next(self.open_group(file, number, schema.names), None)
                except BROKEN as error:
                    raise self.damaged(self.paths[file], str(error)) from error
                if first is None:
                    raise self.damaged(self.paths[file], f"group {number} of its rows is empty")
                return pa.Table.from_batches([first.slice(0, 16)])
        return schema.empty_table()

    def damaged(self, path: str, reason: str) -> InputError:
        first_line = reason.splitlines()[0] if reason else "unreadable"
        return InputError(
            f"the file is damaged or not {self.format_name}",
            received=f"{path}: {first_line}",
            hint="write it again, or leave it out",
        )


class _Group:
    """One group, decoded from front to back."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None

    def read(self, rows: int) -> Iterator[Mapping[str, Column]]:
        while rows:
            batch = self._left if self._left is not None else next(self._batches, None)
            if batch is None:
                raise pa.ArrowInvalid("it has fewer rows than it had")
            self._left = batch.slice(rows) if batch.num_rows > rows else None
            batch = batch.slice(0, rows)
            rows -= batch.num_rows
            if batch.num_rows:
                yield dict(zip(batch.schema.names, batch.columns, strict=True))

    def skip(self, rows: int) -> None:
        for _ in self.read(rows):
            pass


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns by name: their order may differ between files."""
    return {field.name: field.type for field in schema}


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in list(schema)[:12])
