"""The rows of an output folder, read back from every format that `predict` writes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from penstock.core.columns import join, take_positions
from penstock.core.protocols import Source
from penstock.core.records import STRING, Array, Column, OutputSchema, TensorSpec
from penstock.errors import InputError, OutputError
from penstock.sinks.csv import names_in_header
from penstock.sinks.staging import ROW
from penstock.sources.catalog import open_files
from penstock.sources.files.paths import open_binary
from penstock.sources.tables.npy import NPY_COLUMN

READ_ROWS = 8192
_CSV_BYTES = 4 << 20
Rows = dict[str, Column]


@dataclass(frozen=True)
class WrittenParts:
    """Parts of one format, in the order of their rows.

    Args:
        suffix: The suffix of their file names.
        schema: Their columns besides `row`.
        addresses: The files of each part, by their names in the output folder.
    """

    suffix: str
    schema: OutputSchema
    addresses: Sequence[Mapping[str, str]]

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """Blocks of `row` and these columns, in order.

        Raises:
            OutputError: A file does not have the content that was written.
        """
        specs = {spec.name: spec for spec in self.schema.columns if spec.name in names}
        try:
            yield from _READERS[self.suffix](self.addresses, {ROW: TensorSpec(ROW, "int64", ()), **specs})
        except (ValueError, KeyError) as error:  # the errors of Arrow and of json are subclasses of these
            raise OutputError("the predictions cannot be read", received=str(error).splitlines()[0]) from error


def is_readable(suffix: str) -> bool:
    """Whether parts of this format can be read back. Formats of plugins cannot."""
    return suffix in _READERS


Specs = Mapping[str, TensorSpec]
Reader = Callable[[Sequence[Mapping[str, str]], Specs], Iterator[Rows]]


def _files(parts: Sequence[Mapping[str, str]]) -> list[str]:
    return [address for part in parts for address in part.values()]


def _read_tables(parts: Sequence[Mapping[str, str]], specs: Specs) -> Iterator[Rows]:
    source = open_files(_files(parts))
    for span in source.divide(READ_ROWS):
        for block in source.read(span, list(specs)):
            yield dict(block.columns)  # type: ignore[arg-type]


def _read_arrays(parts: Sequence[Mapping[str, str]], specs: Specs) -> Iterator[Rows]:
    """Of npy parts, which have a folder for each column."""
    paths = {name: [part[f"{name}/{_base(part)}"] for part in parts] for name in specs}
    readers = {name: RowReader(open_files(paths[name]), NPY_COLUMN) for name in specs}
    numbers = open_files(paths[ROW])
    for span in numbers.divide(READ_ROWS):
        places = np.arange(span.start, span.start + span.rows)
        yield {name: reader.take(places) for name, reader in readers.items()}


def _base(part: Mapping[str, str]) -> str:
    return next(iter(part)).rpartition("/")[2]


def _read_json(parts: Sequence[Mapping[str, str]], specs: Specs) -> Iterator[Rows]:
    for path in _files(parts):
        with open_binary(path) as file:
            while lines := list(itertools.islice(file, READ_ROWS)):
                records = [json.loads(line) for line in lines]
                yield {name: _column(spec, [record[name] for record in records]) for name, spec in specs.items()}


def _column(spec: TensorSpec, values: list[Any]) -> Column:
    """A column from plain Python values. A float that is not finite is null in JSON, and becomes NaN here."""
    is_fraction = spec.dtype.startswith("float") or spec.dtype == "bfloat16"
    if is_fraction and spec.shape is not None and None not in spec.shape and not spec.varies and None not in values:
        return np.array(values, "float32" if spec.dtype in ("float16", "bfloat16") else spec.dtype)
    if is_fraction and spec.shape == ():
        return np.array(values, "float64")
    return pa.array(values)


def _read_csv(parts: Sequence[Mapping[str, str]], specs: Specs) -> Iterator[Rows]:
    header = {name: names_in_header(spec) for name, spec in specs.items()}
    types = {each: kind for name, spec in specs.items() if (kind := _csv_type(spec)) for each in header[name]}
    convert = pacsv.ConvertOptions(
        column_types=types,
        include_columns=list(itertools.chain.from_iterable(header.values())),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    for path in _files(parts):
        with (
            open_binary(path) as file,
            pacsv.open_csv(
                file,
                pacsv.ReadOptions(block_size=_CSV_BYTES, use_threads=False),
                pacsv.ParseOptions(newlines_in_values=True),
                convert,
            ) as reader,
        ):
            for batch in reader:
                if batch.num_rows:
                    yield {name: _from_fields(spec, batch, header[name]) for name, spec in specs.items()}


def _csv_type(spec: TensorSpec) -> pa.DataType | None:
    """The type of a field; None for a type that Arrow detects itself, such as a date."""
    if spec.dtype == STRING or (names_in_header(spec) == [spec.name] and spec.shape != ()):
        return pa.large_string()
    if spec.dtype in ("float16", "bfloat16"):
        return pa.float32()
    try:
        return pa.from_numpy_dtype(spec.dtype)
    except (TypeError, pa.ArrowException):
        return None


def _from_fields(spec: TensorSpec, batch: pa.RecordBatch, fields: Sequence[str]) -> Column:
    if fields != [spec.name]:
        return np.stack([batch.column(name).to_numpy(zero_copy_only=False) for name in fields], axis=1)
    column = batch.column(spec.name)
    if spec.shape == ():
        return column
    texts = column.to_pylist()  # a matrix, a long vector or a list, as JSON
    return _column(spec, [None if text is None else json.loads(text) for text in texts])


_READERS: dict[str, Reader] = {
    ".parquet": _read_tables,
    ".arrow": _read_tables,
    ".npy": _read_arrays,
    ".jsonl": _read_json,
    ".csv": _read_csv,
}


class RowReader:
    """Reads a column of a source only as far as it is needed. Row numbers must grow from call to call."""

    def __init__(self, source: Source, name: str) -> None:
        self._blocks = self._read(source, name)
        self._held: list[tuple[int, Column]] = []

    @staticmethod
    def _read(source: Source, name: str) -> Iterator[tuple[int, Column]]:
        for span in source.divide(READ_ROWS):
            for block in source.read(span, [name]):
                yield block.start, block.columns[name]  # type: ignore[misc]

    def take(self, rows: Array) -> Column:
        """The values of these rows.

        Raises:
            InputError: The input has fewer rows.
        """
        last = int(rows[-1])
        while not self._held or self._held[-1][0] + len(self._held[-1][1]) <= last:
            block = next(self._blocks, None)
            if block is None:
                raise InputError("the input has fewer rows than the predictions", received=f"row {last}")
            self._held.append(block)
        self._held = [(start, column) for start, column in self._held if start + len(column) > int(rows[0])]
        start = self._held[0][0]
        return take_positions(join([column for _, column in self._held]), rows - start)
