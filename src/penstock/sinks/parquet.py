"""Parquet parts: `row`, the outputs, the kept columns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.columns import to_arrow
from penstock.core.records import OutputSchema, Result
from penstock.sinks.staging import ROW, check_names, fsync_file

_ROW_GROUP_BYTES = 16 << 20
_TRIED_BYTES = 1 << 18
_WORTH_IT = 0.85
"""Lists of numbers are compressed where a piece of them shrinks to less than this. Predictions are often noise: then
compressing takes half of the time and saves a tenth of the bytes (measured: 72 MB/s with it, 153 without)."""


class ParquetSink:
    """One Parquet file for each part."""

    suffix = ".parquet"

    def check(self, schema: OutputSchema) -> None:
        check_names(schema)

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> ParquetPart:
        return ParquetPart(os.path.join(folder, name + self.suffix))


class ParquetPart:
    """Small results are gathered until they make a row group worth reading."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None
        self._gathered: list[pa.Table] = []
        self._bytes = 0

    def write(self, result: Result) -> None:
        columns = {ROW: to_arrow(result.row_numbers())}
        columns |= {name: to_arrow(column) for name, column in result.columns.items()}
        table = pa.table(columns)
        self._gathered.append(table)
        self._bytes += table.nbytes
        # Whether text is all UTF-8, or raw bytes, is known at the end of the part.
        has_text = any(pa.types.is_large_string(field.type) for field in table.schema)
        if self._bytes >= _ROW_GROUP_BYTES and not has_text:
            self._flush()

    def finish(self) -> dict[str, str]:
        self._flush()
        assert self._writer is not None
        self._writer.close()
        fsync_file(self._path)
        return {self._path: os.path.basename(self._path)}

    def abandon(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):  # the disk may be full
                self._writer.close()

    def _flush(self) -> None:
        if not self._gathered:
            return
        table = _joined(self._gathered)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path,
                table.schema,
                **_how_compressed(table),
                # Predictions hardly repeat, and `row` counts up: dictionaries would only cost time.
                use_dictionary=[field.name for field in table.schema if pa.types.is_large_string(field.type)],
                column_encoding={ROW: "DELTA_BINARY_PACKED"},
            )
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._gathered, self._bytes = [], 0


def _how_compressed(table: pa.Table) -> dict[str, Any]:
    """zstd but for lists of numbers that do not shrink; statistics but for lists, where they help nobody."""
    compression: dict[str, str] = {}
    with_statistics: list[str] = []
    for field, column in zip(table.schema, table.columns, strict=True):
        is_list = _is_list(field.type)
        kind = "none" if is_list and not _shrinks(column) else "zstd"
        leaves = list(_leaves(field.name, field.type))
        compression |= dict.fromkeys(leaves, kind)
        with_statistics += [] if is_list else leaves
    levels = {leaf: 1 for leaf, kind in compression.items() if kind == "zstd"}
    return {"compression": compression, "compression_level": levels, "write_statistics": with_statistics}


def _is_list(kind: pa.DataType) -> bool:
    """Lists of numbers, of one length or of many, in lists or not."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = kind.value_type
        return bool(pa.types.is_floating(inner) or pa.types.is_integer(inner)) or _is_list(inner)
    return False


def _shrinks(column: pa.ChunkedArray) -> bool:
    """Whether the first values of a column are worth compressing."""
    buffers = [buffer for buffer in column.chunk(0).buffers() if buffer is not None]
    if not buffers:
        return True
    tried = buffers[-1].slice(0, min(_TRIED_BYTES, buffers[-1].size))
    return tried.size < 4096 or bool(
        pa.Codec("zstd", compression_level=1).compress(tried).size < _WORTH_IT * tried.size
    )


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The names that Parquet gives to the columns in which it stores one of ours."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """All tables as one. A text column may be UTF-8 in one result and raw bytes in another: bytes win."""
    return pa.concat_tables(tables, promote_options="permissive")
