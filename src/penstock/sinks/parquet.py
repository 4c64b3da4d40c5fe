"""Parquet parts: `row`, the outputs, the kept columns."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.records import OutputSchema
from penstock.sinks.staging import ROW, TablePart, TableSink

_TRIED_BYTES = 1 << 18
_WORTH_IT = 0.85
"""Lists of numbers are compressed if a sample of them shrinks to less than this share. Predictions are often noise:
then compressing takes half of the time and saves a tenth of the bytes (measured: 72 MB/s with it, 153 without)."""


class ParquetSink(TableSink):
    """One Parquet file for each part."""

    suffix = ".parquet"

    def read_table(self, path: str) -> pa.Table:
        table = pq.read_table(path)
        # Parquet renames the fields inside of lists; the metadata has the types as they were written.
        written = pq.read_metadata(path).metadata[b"ARROW:schema"]
        return table.cast(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written))))

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> ParquetPart:
        return ParquetPart(os.path.join(folder, name + self.suffix))


class ParquetPart(TablePart):
    """A part as row groups of at least GROUP_BYTES each, except for the last one."""

    def open_writer(self, path: str, first: pa.Table) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            path,
            first.schema,
            **_how_compressed(first),
            # Predictions hardly repeat, and `row` counts up: dictionaries would only cost time.
            use_dictionary=[field.name for field in first.schema if pa.types.is_large_string(field.type)],
            column_encoding={ROW: "DELTA_BINARY_PACKED"},
        )


SINK = ParquetSink()


def _how_compressed(table: pa.Table) -> dict[str, Any]:
    """A writer's settings: zstd, but not for lists of numbers that do not shrink; statistics, but not for lists."""
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
    """The names of the Parquet columns that store one column of ours."""
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
