"""CSV files. Types are taken from the beginning of the first file and hold for all of it."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.core.columns import describe, whole
from penstock.core.kinds import SourceFormat
from penstock.core.protocols import with_changes
from penstock.core.records import TensorSpec
from penstock.errors import InputError
from penstock.options.records import ReadOptions
from penstock.sources.files.paths import open_binary, read_bytes
from penstock.sources.tables.lines import TableLines, may_be_long_ids

_SAMPLE_BYTES = 1 << 20
_HEADER_BYTES = 64 << 10
_LONGEST_FIELD = 1 << 30
_LONGEST_HEADER = 16 << 20
"""A header that is longer has a stray quote, which makes the rows a part of it."""
_MOST_COLUMNS = 100_000
_MOSTLY = 0.9
_WHOLE = r"^\s*[+-]?\d+\s*$"
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_MISSING = [
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "<NA>",
    "N/A",
    "NA",
    "NULL",
    "None",
    "n/a",
    "null",
    "-1.#IND",
    "1.#IND",
    "1.#QNAN",
]
"""What stands for a missing value where numbers are read. `nan` is not among them: it is a number."""
_CONVERSION = re.compile(
    r"In CSV column #(\d+): CSV conversion error to (.+?): (?:invalid value '(.*)'|invalid UTF8 data)", re.DOTALL
)
_UNCLOSED = "a quote opens a field in this line and is never closed"
_CONVERT = "`iconv -f LATIN1 -t UTF-8 OLD > NEW` converts one (UTF-16 and CP1252 are others to try)"


class CsvFiles(TableLines):
    """CSV (comma) and TSV (tab) files with the same header, or all without one: then columns are called f0, f1, …."""

    def __init__(self, paths: Sequence[str], reading: ReadOptions | None = None) -> None:
        self._separator = "\t" if paths and paths[0].lower().endswith(".tsv") else ","
        self._header = (reading or ReadOptions()).header
        super().__init__(paths, self._separator, has_header=self._header != "no")
        self._types: dict[str, pa.DataType] = {}
        self._schema: dict[str, TensorSpec] | None = None

    def schema(self) -> dict[str, TensorSpec]:
        if self._schema is None:
            sample = self._sample()
            # A column that is empty at the beginning may hold anything later: text holds everything.
            kinds = [pa.string() if pa.types.is_null(kind) else kind for kind in sample.schema.types]
            types = dict(zip(sample.schema.names, kinds, strict=True))
            columns = {name: whole(sample.column(name)).cast(kind) for name, kind in types.items()}
            self._check_headers(list(types))
            self._types = types
            self._schema = {name: _describe(name, column) for name, column in columns.items()}
        return self._schema

    def remarks(self) -> list[str]:
        """A remark where text is not UTF-8."""
        self.schema()
        odd = [name for name, kind in self._types.items() if pa.types.is_binary(kind)]
        shown = f"the text of {', '.join(odd[:4])} is not UTF-8: it is fed as the bytes that stand there; {_CONVERT}"
        return [shown] if odd else []

    def with_floats(self, columns: Sequence[str]) -> CsvFiles:
        """These columns as floats: one that begins with 1, 2, 3 may go on with 2.5."""
        self.schema()
        # Arrow does not read `True` as a number; a bool becomes 1 or 0 where it is fed.
        floats = {name: pa.float64() for name in columns if not pa.types.is_boolean(self._types[name])}
        return with_changes(self, _types={**self._types, **floats})

    def _explain_null(self, record: bytes, column: str) -> str:
        field = self._fields(record, "replace")[0][list(self._types).index(column)]
        return f"is missing: {field!r}" if field else "is missing: the field is empty"

    def _sample(self) -> pa.Table:
        path = self.sample_path()
        names = self._names(path)
        if len(names) > _MOST_COLUMNS:
            received = f"{path}: {len(names):,}"
            raise InputError(
                "the file has too many columns",
                received=received,
                allowed=f"{_MOST_COLUMNS:,}",
                hint="write them as one array: a .npy file, or a list column in Parquet",
            )
        if len(set(names)) != len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise InputError("two columns have one name", received=f"{path}: {twice[:100]}")
        head = self.head(path, _SAMPLE_BYTES)
        try:
            return self._parse_sample(head, names)
        except pa.ArrowInvalid:
            pass  # a broken record among the first must not hide the others
        edges = [0, *(self._record_ends(head, is_last=True)[0] + 1).tolist(), len(head)]
        records = [head[start:stop] for start, stop in itertools.pairwise(edges)]
        whole_ones = [record for record in records if [len(row) for row in self._fields(record)] == [len(names)]]
        try:
            return self._parse_sample(b"".join(whole_ones), names)
        except pa.ArrowInvalid as error:
            raise InputError("the file cannot be read as CSV", received=f"{path}: {error}") from error

    def _parse_sample(self, raw: bytes, names: Sequence[str]) -> pa.Table:
        block_bytes = max(1 << 20, len(raw) + 1)  # a header that crosses the edge of a block is not understood
        reading = pacsv.ReadOptions(column_names=None if self.has_header else names, block_size=block_bytes)
        options = pacsv.ParseOptions(delimiter=self._separator, newlines_in_values=True)

        def parse(types: Mapping[str, pa.DataType]) -> pa.Table:
            convert = pacsv.ConvertOptions(null_values=_MISSING, column_types=types)
            return pacsv.read_csv(io.BytesIO(raw), read_options=reading, parse_options=options, convert_options=convert)

        table = parse({})
        long = [name for name in table.column_names if may_be_long_ids(table.column(name))]
        if not long:
            return table
        texts = parse(dict.fromkeys(long, pa.string()))
        ids = [name for name in long if _are_whole(texts.column(name))]
        return parse(dict.fromkeys(ids, pa.string())) if ids else table

    def _check_headers(self, expected: list[str]) -> None:
        alike = b""
        for path in self.paths:
            if alike and read_bytes(path, 0, len(alike)) == alike:
                continue  # of a hundred thousand files, nearly all begin with the same bytes
            names = self._names(path)
            if names and names != expected:
                raise InputError(
                    "the files differ in their header" if self.has_header else "the files differ in their columns",
                    received=f"{path}: {_shown_difference(names, expected)}",
                    allowed=f"as in {self.paths[0]}: {_shown_difference(expected, names)}",
                )
            if names and self.has_header and not alike:
                alike = self._header_line(path)

    def _names(self, path: str) -> list[str]:
        """The names of the columns: those of the header, or f0, f1, … where there is none.

        Raises:
            InputError: The first line is not UTF-8, has a quote that is never closed, or may be a row.
        """
        first = self._first_line(path)
        if self._header == "no":
            return [f"f{number}" for number in range(len(first))]
        if self._header == "auto" and _looks_like_a_row(first):
            raise InputError(
                "the file seems to have no header: its first line is numbers",
                received=f"{path}: {self._separator.join(first)[:100]}",
                hint="--header no: it is a row, of columns f0, f1, …; --header yes: it is the names of the columns",
            )
        return first

    def _header_line(self, path: str) -> bytes:
        """The header line as it stands in the file; empty if it is blank, has quotes or is very long."""
        line = read_bytes(path, 0, _HEADER_BYTES).partition(b"\n")[0] + b"\n"
        return line if line.strip() and b'"' not in line and len(line) < _HEADER_BYTES else b""

    def _first_line(self, path: str) -> list[str]:
        csv.field_size_limit(_LONGEST_FIELD)
        raw = open_binary(path, _HEADER_BYTES)
        with io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            lines: list[str] = []
            reader = csv.reader(_first_lines(file, lines), delimiter=self._separator)
            first = next((row for row in reader if row), [])
        header = "".join(lines).encode(errors="surrogateescape")
        if len(header) >= _LONGEST_HEADER or (self._is_unclosed(header) and self.has_header):
            raise InputError(
                "the header has no end",
                received=f"{path}: {self._separator.join(first)[:60]} …",
                allowed=f"a header of {_LONGEST_HEADER >> 20} MB",
                hint="is a quote opened in it and never closed?",
            )
        try:
            self._separator.join(first).encode()
        except UnicodeEncodeError:
            shown = self._separator.join(first).encode(errors="surrogateescape")
            raise InputError(
                "the file is not UTF-8", received=f"{path}: {shown[:60]!r}", allowed="UTF-8 text", hint=_CONVERT
            ) from None
        return first

    def _parse(self, raw: bytes, columns: Sequence[str]) -> pa.Table:
        if self._is_unclosed(raw[raw.rfind(b"\n", 0, -1) + 1 :]):
            raise pa.ArrowInvalid(_UNCLOSED)  # Arrow would take it for text that ends with the data
        return self._parse_closed(raw, columns)

    def _parse_closed(self, raw: bytes, columns: Sequence[str]) -> pa.Table:
        return pacsv.read_csv(
            io.BytesIO(raw),
            read_options=pacsv.ReadOptions(
                column_names=list(self._types), use_threads=False, block_size=max(1 << 20, min(len(raw) + 1, 1 << 30))
            ),
            parse_options=pacsv.ParseOptions(delimiter=self._separator, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                column_types=dict(self._types),
                include_columns=list(columns),
                strings_can_be_null=False,
                null_values=_MISSING,
            ),
        )

    def _in_words(self, reason: str) -> str:
        """A reason with the name of its column, where Arrow counts columns."""
        match = _CONVERSION.match(reason)
        if match is None:
            return reason
        name, kind, text = list(self._types)[int(match[1])], match[2], match[3]
        if text is None:
            return f"column {name!r} is not UTF-8"
        if kind.startswith(("int", "uint", "float", "double")):
            kind = "a whole number, as the first ones are" if _is_number(text) else "a number"
        return f"column {name!r} is {text!r}, not {kind}"

    def _parse_records(self, records: Sequence[bytes], columns: Sequence[str]) -> pa.Table:
        """Check each record, then parse all with the same parser as `_parse`, so that fields are read the same way."""
        width = len(self._types)
        for record in records:
            if self._is_unclosed(record):
                raise ValueError(_UNCLOSED)
            rows = self._fields(record)
            if len(rows) != 1:
                raise ValueError("a carriage return in the middle of a record")
            if len(rows[0]) != width:
                raise ValueError(f"{len(rows[0])} fields, not {width}")
        return self._parse_closed(b"".join(record.rstrip(b"\r\n") + b"\n" for record in records), columns)

    def _is_unclosed(self, record: bytes) -> bool:
        return b'"' in record and bool(self._record_ends(record.rstrip(b"\r\n") + b"\n", is_last=True)[1])

    def _fields(self, record: bytes, errors: str = "surrogateescape") -> list[list[str]]:
        csv.field_size_limit(_LONGEST_FIELD)
        text = io.StringIO(record.decode("utf-8", errors=errors), newline="")
        return list(csv.reader(text, delimiter=self._separator))


def _are_whole(column: pa.ChunkedArray) -> bool:
    """Whether text is whole numbers. As fractions, ids of 20 digits would lose the last of them."""
    is_whole = pc.or_(pc.equal(column, ""), pc.match_substring_regex(column, _WHOLE))
    return bool(pc.all(is_whole).as_py())


def _describe(name: str, column: pa.Array) -> TensorSpec:
    """A column of text is float64 if nearly all of its first values are numbers: other text then fails only its row."""
    spec = describe(name, column)
    if not pa.types.is_string(column.type) and not pa.types.is_binary(column.type):
        return spec
    values = [value for value in column.to_pylist() if value]
    numbers = sum(_is_number(value) for value in values)
    return replace(spec, dtype="float64") if values and numbers >= _MOSTLY * len(values) else spec


def _first_lines(file: TextIO, taken: list[str]) -> Iterator[str]:
    """The lines of a file, up to the longest header; every line that was yielded is in `taken`, too."""
    left = _LONGEST_HEADER
    while left > 0 and (line := file.readline(left)):
        left -= len(line)
        taken.append(line)
        yield line


def _shown_difference(names: Sequence[str], others: Sequence[str]) -> str:
    """Some of the names, from the first one that differs."""
    first = next((place for place, pair in enumerate(zip(names, others, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(names), len(others)) if first is None else first
    start = first if first > 8 else 0
    shown = ", ".join(name[:60] for name in names[start : start + 12])
    return f"{len(names):,} columns, {'… ' if start else ''}{shown}{' …' if len(names) > start + 12 else ''}"


def _looks_like_a_row(first: Sequence[str]) -> bool:
    """Whether a first line is no header but a row: it holds fractions, or nothing but numbers.

    0, 1, 2, … are the names that pandas gives.
    """
    if len(first) > 1 and list(first) == [str(number) for number in range(len(first))]:
        return False
    numbers = [field.strip() for field in first if _NUMBER.fullmatch(field)]
    has_fractions = any(not field.lstrip("+-").isdigit() for field in numbers)
    return has_fractions or (bool(first) and len(numbers) == len(first))


def _is_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


FORMAT = SourceFormat((".csv", ".tsv"), CsvFiles)
