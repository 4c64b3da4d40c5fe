"""JSON lines: one object a line. Types are taken from the beginning of the first file."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from penstock.core.columns import describe, whole
from penstock.core.deferred import IS_NULL
from penstock.core.kinds import SourceFormat
from penstock.core.protocols import with_changes
from penstock.core.records import Array, TensorSpec
from penstock.errors import InputError
from penstock.sources.tables.lines import BOM, TableLines, may_be_long_ids

_SAMPLE_BYTES = 1 << 20
_DEEPEST = 500
_BRACKETS = np.zeros(256, np.int8)
_BRACKETS[[ord("["), ord("{")]] = 1
_BRACKETS[[ord("]"), ord("}")]] = -1


class JsonLines(TableLines):
    """JSON lines files. A key that a line lacks is a null; a key that the first lines lack does not exist."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        self._types: dict[str, pa.DataType] = {}
        self._schema: dict[str, TensorSpec] | None = None
        self._long: list[str] = []

    def schema(self) -> dict[str, TensorSpec]:
        if self._schema is None:
            sample = self._sample()
            self._long = [name for name in sample.column_names if may_be_long_ids(sample.column(name))]
            # A key that is null in the first lines may hold anything later: most likely text.
            kinds = [pa.string() if pa.types.is_null(kind) else kind for kind in sample.schema.types]
            self._types = dict(zip(sample.schema.names, kinds, strict=True))
            self._schema = {name: describe(name, whole(sample.column(name))) for name in sample.schema.names}
        return self._schema

    def remarks(self) -> list[str]:
        """A remark if whole numbers lose digits: as JSON, Arrow reads those of more than 64 bits as fractions."""
        self.schema()
        lost = "whole numbers of more than 64 bits are read as fractions, with 15 digits; as text they keep all of them"
        return [f"{', '.join(self._long[:4])}: {lost}"] if self._long else []

    def with_floats(self, columns: Sequence[str]) -> JsonLines:
        """Whole numbers as floats, also inside lists: a column that begins with 1, 2, 3 may go on with 2.5."""
        self.schema()
        return with_changes(self, _types={**self._types, **{name: _with_floats(self._types[name]) for name in columns}})

    def _parse(self, raw: bytes, columns: Sequence[str]) -> pa.Table:
        if not _is_plain(raw):
            raise pa.ArrowInvalid("lines that Arrow's parser must not see")
        return self._parse_plain(raw, columns)

    def _parse_plain(self, raw: bytes, columns: Sequence[str]) -> pa.Table:
        schema = pa.schema([(name, self._types[name]) for name in columns])
        options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        return pajson.read_json(io.BytesIO(raw.removeprefix(BOM)), _one_block(raw), options)

    def _parse_records(self, records: Sequence[bytes], columns: Sequence[str]) -> pa.Table:
        lines = [record.removeprefix(BOM).strip(b"\r\n") for record in records]
        for line in lines:
            _load_object(line)
        return self._parse_plain(b"\n".join(lines), columns)

    def _explain_null(self, record: bytes, column: str) -> str:
        """Whether a missing value is a `null`, or a key that is not there."""
        return IS_NULL if column in json.loads(record.removeprefix(BOM)) else "is missing: the line has no such key"

    def _sample(self) -> pa.Table:
        path = self.sample_path()
        raw = self.head(path, _SAMPLE_BYTES)
        if _is_plain(raw):
            try:
                return pajson.read_json(io.BytesIO(raw.removeprefix(BOM)), _one_block(raw))
            except pa.ArrowInvalid:
                pass  # one broken line among the first must not hide the others
        tables = [table for line in raw.splitlines() if (table := _parse_alone(line)) is not None]
        if not tables:
            raise InputError("the file cannot be read as JSON lines", received=path, allowed="one JSON object a line")
        return _together(tables)


def _one_block(raw: bytes) -> pajson.ReadOptions:
    """Read everything as one block: a line that crosses the edge of a block cannot be parsed."""
    return pajson.ReadOptions(use_threads=False, block_size=max(1 << 20, len(raw) + 1))


def _is_plain(raw: bytes) -> bool:
    """Whether Arrow's parser can be trusted with these lines.

    The parser crashes the process on a line `null` and on very deep nesting, and accepts text that is not UTF-8.
    """
    values = np.frombuffer(raw.removeprefix(BOM), np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(values == ord("\n")) + 1))
    firsts = values[starts[starts < len(values)]]
    if not np.isin(firsts, (ord("{"), ord("\n"), ord("\r"))).all():
        return False
    if _is_deep(values) and any(_is_deep(values[start:stop]) for start, stop in pairwise([*starts, len(values)])):
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_deep(values: Array) -> bool:
    """Whether brackets in these bytes may be nested deeply. Those inside of text count, too."""
    depth = np.cumsum(_BRACKETS[values], dtype=np.int64)
    return bool(len(depth)) and int(depth.max()) - min(0, int(depth.min())) > _DEEPEST


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Lines as one table, with the types that hold for all of them: whole numbers and fractions are fractions.

    Lines that contradict more common ones are left out.
    """
    alike: dict[str, list[pa.Table]] = {}
    for table in tables:
        alike.setdefault(str(table.schema), []).append(table)
    merged = pa.schema([])
    taken: list[list[pa.Table]] = []
    for group in sorted(alike.values(), key=len, reverse=True):
        try:
            merged = pa.unify_schemas([merged, group[0].schema], promote_options="permissive")
        except pa.ArrowException:
            continue
        taken.append(group)
    try:
        return pa.concat_tables(chain.from_iterable(taken), promote_options="permissive")
    except pa.ArrowException:  # a whole number with more digits than a fraction can hold
        return pa.concat_tables(taken[0])


def _parse_alone(line: bytes) -> pa.Table | None:
    """One line as a table, with the types that it has by itself; None for a line that is broken."""
    try:
        _load_object(line)
        return pajson.read_json(io.BytesIO(line), _one_block(line))
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
