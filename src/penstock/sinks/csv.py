"""CSV parts: a header, then a line a row. A vector is written as a column for each of its values."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.core.columns import to_arrow
from penstock.core.protocols import PartWriter
from penstock.core.records import STRING, Column, OutputSchema, Result, Span, TensorSpec
from penstock.errors import UsageError
from penstock.sinks.jsonl import plain, to_list
from penstock.sinks.staging import ROW, FilePart, OneFileSink, check_names

MOST_VALUES = 1000
"""A vector of more values is written as JSON in one field: a table of so many columns would be hard to use."""


class CsvSink(OneFileSink):
    """One CSV file for each part, each with its header: `row`, the outputs, the kept columns.

    A vector `p` of three values is written as `p_0`, `p_1`, `p_2`. What has no place in a table (matrices, lists whose
    length differs from row to row) is JSON in one field; raw bytes are base64.
    """

    suffix = ".csv"

    def check(self, schema: OutputSchema) -> None:
        check_names(schema)
        spread = tuple(replace(spec, name=name) for spec in schema.columns for name in names_in_header(spec))
        count = sum(len(names_in_header(spec)) for spec in schema.columns[: schema.num_outputs])
        try:
            check_names(OutputSchema(spread, count))
        except UsageError as error:
            raise UsageError(
                "two columns would have one name: a vector is written as a column for each value",
                received=error.received,
                hint=error.hint,
            ) from None

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> CsvPart:
        return CsvPart(os.path.join(folder, name + self.suffix), schema)

    def merge(self, parts: Sequence[Mapping[str, str]], writer: PartWriter, spans: Sequence[Span]) -> dict[str, str]:
        assert isinstance(writer, CsvPart)
        return writer.finish_merged(parts, _records, _row_of)


class CsvPart(FilePart):
    """A part of a header and lines."""

    def __init__(self, path: str, schema: OutputSchema) -> None:
        super().__init__(path)
        self._specs = {spec.name: spec for spec in schema.columns}

    def write(self, result: Result) -> None:
        columns: dict[str, pa.Array] = {ROW: to_arrow(result.row_numbers())}
        for name, column in result.columns.items():
            columns |= _fields(self._specs[name], column)
        table = pa.table(columns)
        if self._writer is None:
            self._writer = pacsv.CSVWriter(self._path, table.schema)
        self._writer.write_table(table)


SINK = CsvSink()


def _records(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The records of a file: quoted text may have line ends in it."""
    record = b""
    for line in lines:
        record += line
        if not record.count(b'"') % 2:
            yield record
            record = b""


def _row_of(record: bytes) -> int:
    """The row of a record; -1 for the header, which comes first."""
    field = record[: record.find(b",")]
    return int(field) if field.isdigit() else -1


def names_in_header(spec: TensorSpec) -> list[str]:
    """What a column is called in the header: one name, or one for each value of a vector."""
    if spec.varies or spec.shape is None or len(spec.shape) != 1 or spec.shape[0] is None:
        return [spec.name]
    count = spec.shape[0]
    return [f"{spec.name}_{place}" for place in range(count)] if count <= MOST_VALUES else [spec.name]


def _fields(spec: TensorSpec, column: Column) -> Iterator[tuple[str, pa.Array]]:
    """The file's columns for one column: one, or one for each value of a vector."""
    names = names_in_header(spec)
    if names == [spec.name]:
        yield spec.name, _field(spec, column)
        return
    if not isinstance(column, np.ndarray):
        vectors = column.storage if isinstance(column, pa.ExtensionArray) else column
        for place, name in enumerate(names):
            yield name, _field(spec, pc.list_element(vectors, place))  # `flatten` would leave out rows that are null
        return
    for place, name in enumerate(names):
        yield name, _field(spec, np.ascontiguousarray(column[:, place]))


def _field(spec: TensorSpec, column: Column) -> pa.Array:
    """A column as it is written into one field: numbers, text and dates as they are, all else as text."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        return _texts(json.dumps(value, default=plain) for value in to_list(column))
    values = to_arrow(column)
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if pa.types.is_float16(kind):
        return values.cast(pa.float32())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _texts(None if value is None else base64.b64encode(value).decode() for value in values.to_pylist())
    if pa.types.is_string(kind) or (spec.dtype == STRING and pa.types.is_null(kind)):
        return values.cast(pa.large_string())
    if pa.types.is_primitive(kind) or pa.types.is_large_string(kind) or pa.types.is_decimal(kind):
        return values
    return _texts(None if value is None else json.dumps(value, default=plain) for value in to_list(column))


def _texts(values: Any) -> pa.Array:
    return pa.array(values, pa.large_string())
