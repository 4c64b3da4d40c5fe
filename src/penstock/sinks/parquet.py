"""Parquet parts: `row`, the outputs, the kept columns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.columns import to_arrow
from penstock.core.records import OutputSchema, Result
from penstock.sinks.staging import ROW, check_names, fsync_file

_ROW_GROUP_BYTES = 16 << 20


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
                compression="zstd",
                compression_level=1,
                # Predictions hardly repeat, and `row` counts up: dictionaries would only cost time.
                use_dictionary=[field.name for field in table.schema if pa.types.is_large_string(field.type)],
                column_encoding={ROW: "DELTA_BINARY_PACKED"},
            )
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._gathered, self._bytes = [], 0


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """All tables as one. A text column may be UTF-8 in one result and raw bytes in another: bytes win."""
    return pa.concat_tables(tables, promote_options="permissive")
