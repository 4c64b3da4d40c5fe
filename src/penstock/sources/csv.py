"""CSV files with a header line. Types are taken from the beginning of the first file and hold for all of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pacsv

from penstock.core.columns import describe, whole
from penstock.core.records import Block, Fragment, RowFailure, Span, TensorSpec
from penstock.errors import InputError
from penstock.sources.lines import BOM, Excerpt, LineFiles

_SAMPLE_BYTES = 1 << 20


class CsvFiles:
    """CSV (comma) and TSV (tab) files with the same header."""

    suffixes = (".csv", ".tsv")

    def __init__(self, paths: Sequence[str]) -> None:
        self._lines = LineFiles(paths, quoted=True, header=True)
        self._delimiter = "\t" if paths and paths[0].lower().endswith(".tsv") else ","
        self._types: dict[str, pa.DataType] | None = None
        self._schema: dict[str, TensorSpec] = {}

    def fragments(self) -> Sequence[Fragment]:
        return self._lines.fragments()

    def schema(self) -> dict[str, TensorSpec]:
        if self._types is None:
            sample = self._sample()
            # A column that is empty at the beginning may hold anything later: text holds everything.
            kinds = [pa.string() if pa.types.is_null(kind) else kind for kind in sample.schema.types]
            self._types = dict(zip(sample.schema.names, kinds, strict=True))
            columns = {name: whole(sample.column(name)).cast(kind) for name, kind in self._types.items()}
            self._schema = {name: describe(name, column) for name, column in columns.items()}
            self._check_headers()
        return self._schema

    def divide(self, rows_per_span: int) -> Iterator[Span]:
        self.schema()
        return self._lines.spans(rows_per_span)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        self.schema()
        excerpt = self._lines.excerpt(span)
        try:
            table = self._parse(excerpt.raw, columns)
            failures: tuple[RowFailure, ...] = ()
        except pa.ArrowInvalid:
            table = None
        if table is None or table.num_rows != span.rows:
            table, failures = self._parse_by_record(excerpt, span, columns)
        yield Block(span.start, span.rows, {name: whole(table.column(name)) for name in columns}, failures)

    def _sample(self) -> pa.Table:
        path = self._lines.paths[0]
        raw = self._lines.head(path, _SAMPLE_BYTES)
        if not raw.strip():
            raise InputError("the file is empty", received=path, allowed="a header line, then one line a row")
        names = self._header(path)
        if len(set(names)) != len(names):
            raise InputError("two columns have one name", received=f"{path}: {', '.join(names)}")
        try:
            options = pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
            options.invalid_row_handler = lambda row: "skip"
            return pacsv.read_csv(io.BytesIO(raw), parse_options=options)
        except pa.ArrowInvalid as error:
            raise InputError("the file cannot be read as CSV", received=f"{path}: {error}") from error

    def _check_headers(self) -> None:
        expected = list(self._types or ())
        for path in self._lines.paths:
            if (names := self._header(path)) != expected:
                raise InputError(
                    "the files differ in their header",
                    received=f"{path}: {', '.join(names)}",
                    allowed=f"as in {self._lines.paths[0]}: {', '.join(expected)}",
                )

    def _header(self, path: str) -> list[str]:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            return next(csv.reader(file, delimiter=self._delimiter), [])

    def _parse(self, raw: bytes, columns: Sequence[str]) -> pa.Table:
        assert self._types is not None
        return pacsv.read_csv(
            io.BytesIO(raw),
            read_options=pacsv.ReadOptions(column_names=list(self._types), use_threads=False, block_size=1 << 24),
            parse_options=pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                column_types=dict(self._types), include_columns=list(columns), strings_can_be_null=False
            ),
        )

    def _parse_by_record(
        self, excerpt: Excerpt, span: Span, columns: Sequence[str]
    ) -> tuple[pa.Table, tuple[RowFailure, ...]]:
        """The slow road: one record at a time, so that a broken one takes no other down."""
        assert self._types is not None
        names = list(self._types)
        values: dict[str, list[object]] = {name: [] for name in columns}
        failures: list[RowFailure] = []
        text = excerpt.raw.removeprefix(BOM).decode("utf-8", errors="surrogateescape")
        records = [record for record in csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter) if record]
        records += [[]] * (span.rows - len(records))
        for position, record in enumerate(records[: span.rows]):
            row = span.start + position
            try:
                if len(record) != len(names):
                    raise ValueError(f"{len(record)} fields, not {len(names)}")
                fields = dict(zip(names, record, strict=True))
                parsed = {name: _convert(name, fields[name], self._types[name]) for name in columns}
            except ValueError as error:
                failures.append(excerpt.failure(row, "read", type(error).__name__, str(error)))
                parsed = dict.fromkeys(columns)
            for name in columns:
                values[name].append(parsed[name])
        arrays = {name: pa.array(values[name], _widened(self._types[name])) for name in columns}
        return pa.table(arrays), tuple(failures)


def _widened(kind: pa.DataType) -> pa.DataType:
    """A whole number at the beginning of a file may turn out to be a fraction further down."""
    return pa.float64() if pa.types.is_integer(kind) else kind


def _convert(name: str, field: str, kind: pa.DataType) -> object:
    try:
        if pa.types.is_string(kind):
            return field.encode("utf-8", errors="surrogateescape").decode("utf-8")
        if field == "":
            return None
        return pa.array([field]).cast(_widened(kind))[0].as_py()
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        shown = field.encode("utf-8", errors="replace").decode()
        raise ValueError(f"column {name!r}: {shown[:60]!r} is not {kind}") from error
