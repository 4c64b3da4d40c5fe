"""Arrow IPC files (`.arrow`, `.feather`): a span is a run of record batches, or a piece of a very large one."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.core.kinds import SourceFormat
from penstock.core.records import Extent, Span
from penstock.errors import InputError
from penstock.sources.files.paths import is_url, listed, open_as_listed, open_binary, read_bytes
from penstock.sources.tables.arrow_sizes import refuse_bombs, refuse_bombs_of_stream
from penstock.sources.tables.row_groups import BROKEN, RowGroupFiles

_FILE, _OLD_FEATHER = b"ARROW1\0\0", b"FEA1"


class ArrowFiles(RowGroupFiles):
    """Arrow files with the same columns.

    A file in the stream format has no index of its batches: it is read from the front, as one group.
    """

    format_name = "an Arrow file"

    def scan_file(self, path: str) -> tuple[pa.Schema, list[int]]:
        if not _has_index(path):
            if not is_url(path):
                refuse_bombs_of_stream(path)
            with pa.ipc.open_stream(_open(path)) as stream:
                return stream.schema.remove_metadata(), [sum(batch.num_rows for batch in stream)]
        with pa.ipc.open_file(_open(path)) as file:
            schema = file.schema.remove_metadata()
        if not len(schema):
            raise InputError("the file has no columns", received=path)
        if not is_url(path):
            refuse_bombs(path, os.path.getsize(path))
        # One column is enough to count the rows, and saves inflating the others.
        with pa.ipc.open_file(_open(path), options=pa.ipc.IpcReadOptions(included_fields=[0])) as file:
            return schema, [file.get_batch(number).num_rows for number in range(file.num_record_batches)]

    def open_group(self, file: int, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        path = self.paths[file]
        source = pa.PythonFile(open_as_listed(self.paths, file)) if is_url(path) else _open(path)
        if not _has_index(path):
            for batch in pa.ipc.open_stream(source):
                yield _checked(batch.select(columns))
            return
        with pa.ipc.open_file(source) as whole:
            fields = sorted({whole.schema.get_field_index(name) for name in columns})
            if number >= whole.num_record_batches or -1 in fields:
                raise pa.ArrowInvalid("it has fewer rows or columns than it had")
        source.seek(0)
        with pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields)) as some:
            yield _checked(some.get_batch(number).select(columns))

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        """Whole record batches, with the dictionaries between them; of a stream or a URL, the whole file."""
        for file, number, _, _ in span.locator:
            known = listed(self.paths, file)
            if file not in self._ends:
                try:
                    self._ends[file] = [] if is_url(known.path) or not _has_index(known.path) else _ends(known.path)
                except BROKEN as error:
                    raise self.damaged(known.path, str(error)) from error
            ends = self._ends[file]
            if ends and number >= len(ends):
                raise self.damaged(known.path, "it has fewer record batches than it had")
            start = ends[number - 1] if ends and number else 0
            yield Extent(known, start, ends[number] - start) if ends else Extent(known, 0, known.size)

    @cached_property
    def _ends(self) -> dict[int, list[int]]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_ends"}


def _has_index(path: str) -> bool:
    """Whether a file is in the file format, which ends with an index of its batches, or in the stream format.

    Raises:
        ArrowInvalid: It is a Feather file of before 2020, which is another format.
    """
    begins = read_bytes(path, 0, len(_FILE))
    if begins.startswith(_OLD_FEATHER):
        raise pa.ArrowInvalid("it is of version 1 of Feather: pandas.read_feather(OLD).to_feather(NEW) converts it")
    return begins == _FILE


def _open(path: str) -> pa.NativeFile:
    return pa.PythonFile(open_binary(path)) if is_url(path) else pa.memory_map(path)


def _ends(path: str) -> list[int]:
    """The byte behind each record batch."""
    ends: list[int] = []
    with pa.memory_map(path) as file:
        file.seek(len(_FILE))
        try:
            while (message := pa.ipc.read_message(file)) is not None:
                if message.type == "record batch":
                    ends.append(file.tell())
        except EOFError:
            pass
    return ends


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check that lists and texts lie inside their buffers: a damaged file would crash the process.

    Raises:
        ArrowInvalid: They do not.
    """
    for column in batch.columns:
        column.validate(full=not pa.types.is_primitive(column.type))
    return batch


FORMAT = SourceFormat((".arrow", ".feather"), lambda paths, reading: ArrowFiles(paths))
