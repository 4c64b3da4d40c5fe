"""JSON lines: one object a line. Types are taken from the beginning of the first file."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from penstock.core.columns import describe, whole
from penstock.core.deferred import IS_NULL
from penstock.core.kinds import SourceFormat
from penstock.core.protocols import Source, with_changes
from penstock.core.records import Block, RowFailure, Span, TensorSpec
from penstock.errors import InputError
from penstock.sources.tables.lines import BOM, Excerpt, LineFiles, parse_surviving

_SAMPLE_BYTES = 1 << 20
_DEEPEST = 500
_BRACKETS = np.zeros(256, np.int8)
_BRACKETS[[ord("["), ord("{")]] = 1
_BRACKETS[[ord("]"), ord("}")]] = -1


class JsonLines(LineFiles, Source):
    """JSON lines files. A key that a line lacks is a null; a key that the first lines lack does not exist."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        self._types: pa.Schema | None = None
        self._schema: dict[str, TensorSpec] = {}

    def schema(self) -> dict[str, TensorSpec]:
        if self._types is None:
            sample = self._sample()
            self._types = sample.schema
            self._schema = {name: describe(name, whole(sample.column(name))) for name in sample.schema.names}
        return self._schema

    def with_floats(self, columns: Sequence[str]) -> JsonLines:
        """Whole numbers as floats, also inside lists: a column that begins with 1, 2, 3 may go on with 2.5."""
        self.schema()
        fields = [
            pa.field(field.name, _with_floats(field.type)) if field.name in columns else field
            for field in self._types or ()
        ]
        return with_changes(self, _types=pa.schema(fields))

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        self.schema()
        return super().divide(rows_per_span, most_rows)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        self.schema()
        assert self._types is not None
        excerpt = self.excerpt(span)
        wanted = pa.schema([self._types.field(name) for name in columns])
        failures: tuple[RowFailure, ...] = ()
        try:
            table = _parse(excerpt.raw, wanted) if _is_plain(excerpt.raw) else None
        except pa.ArrowInvalid:
            table = None
        if table is None or table.num_rows != span.rows:
            table, failures = self._parse_by_line(excerpt, span, wanted)
        read = {name: whole(table.column(name)) for name in columns}
        yield Block(span.start, span.rows, read, failures, self._explain_null(excerpt))

    def _explain_null(self, excerpt: Excerpt) -> Callable[[str, int], str]:
        """Whether a missing value is a `null`, or a key that is not there."""
        records: list[bytes] = []

        def explain_null(column: str, position: int) -> str:
            if not records:
                records.extend(self.records(excerpt))
            found = json.loads(records[position].removeprefix(BOM))
            return IS_NULL if column in found else "is missing: the line has no such key"

        return explain_null

    def _parse_by_line(
        self, excerpt: Excerpt, span: Span, schema: pa.Schema
    ) -> tuple[pa.Table, tuple[RowFailure, ...]]:
        """Parse line by line, so that a broken one fails alone. Slow."""
        records = self.records(excerpt)
        lines = [line.removeprefix(BOM) for line in records]
        nothing = pa.table({field.name: pa.nulls(1, field.type) for field in schema})
        table, reasons = parse_surviving(lines, lambda some: _parse_lines(some, schema), nothing)
        return table, excerpt.failures(records, reasons, span.start)

    def _sample(self) -> pa.Table:
        path = self.sample_path()
        raw = self.head(path, _SAMPLE_BYTES)
        if _is_plain(raw):
            try:
                return pajson.read_json(io.BytesIO(raw.removeprefix(BOM)))
            except pa.ArrowInvalid:
                pass  # one broken line among the first must not hide the others
        tables = [table for line in raw.splitlines() if (table := _parse_alone(line)) is not None]
        if not tables:
            raise InputError("the file cannot be read as JSON lines", received=path, allowed="one JSON object a line")
        usual, _ = Counter(str(table.schema) for table in tables).most_common(1)[0]
        return pa.concat_tables([table for table in tables if str(table.schema) == usual])


def _parse(raw: bytes, schema: pa.Schema) -> pa.Table:
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read_options = pajson.ReadOptions(use_threads=False, block_size=max(1 << 20, len(raw) + 1))
    return pajson.read_json(io.BytesIO(raw.removeprefix(BOM)), read_options=read_options, parse_options=options)


def _is_plain(raw: bytes) -> bool:
    """Whether Arrow's parser can be trusted with these lines.

    It ends the process on a line `null` and on very deep nesting, and takes bytes that are not UTF-8 for text.
    """
    values = np.frombuffer(raw.removeprefix(BOM), np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(values == ord("\n")) + 1))
    firsts = values[starts[starts < len(values)]]
    if not np.isin(firsts, (ord("{"), ord("\n"), ord("\r"))).all():
        return False
    depth = np.cumsum(_BRACKETS[values], dtype=np.int64)
    if len(depth) and int(depth.max()) - min(0, int(depth.min())) > _DEEPEST:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse_lines(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    for line in lines:
        _load_object(line)
    return _parse(b"\n".join(line.strip(b"\r\n") for line in lines), schema)


def _parse_alone(line: bytes) -> pa.Table | None:
    """One line as a table, with the types that it has by itself; None for a line that is broken."""
    try:
        _load_object(line)
        return pajson.read_json(io.BytesIO(line))
    except (ValueError, pa.ArrowInvalid):
        return None


def _with_floats(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_with_floats(kind.value_type))
    return pa.float64() if pa.types.is_integer(kind) else kind


def _load_object(line: bytes) -> None:
    """Raise ValueError with a reason unless the line is one JSON object."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")


FORMAT = SourceFormat((".jsonl", ".ndjson"), lambda paths, reading: JsonLines(paths))
