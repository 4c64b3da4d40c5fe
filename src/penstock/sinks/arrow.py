"""Arrow parts: IPC files (also called Feather) with `row`, the outputs, the kept columns.

They are not compressed, so that others map them into memory and read nothing twice.
"""

from __future__ import annotations

import os

import pyarrow as pa

from penstock.core.records import OutputSchema
from penstock.sinks.staging import TablePart, TableSink


class ArrowSink(TableSink):
    """One Arrow file for each part."""

    suffix = ".arrow"

    def read_table(self, path: str) -> pa.Table:
        with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
            return reader.read_all()

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> ArrowPart:
        return ArrowPart(os.path.join(folder, name + self.suffix))


class ArrowPart(TablePart):
    """A part as record batches of at least GROUP_BYTES each, except for the last one."""

    def open_writer(self, path: str, first: pa.Table) -> _FileWriter:
        return _FileWriter(path, first.schema)


class _FileWriter:
    """A writer that also closes its file: pyarrow's writer closes only what it opened itself, and not at once."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._file = pa.OSFile(path, "wb")
        self._writer = pa.ipc.new_file(self._file, schema)

    def write_table(self, table: pa.Table, rows_in_batch: int) -> None:
        self._writer.write_table(table.combine_chunks(), rows_in_batch)

    def close(self) -> None:
        with self._file:
            self._writer.close()


SINK = ArrowSink()
