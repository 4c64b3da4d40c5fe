"""Parquet files. A span is a run of whole row groups, or a piece of a very large one."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.kinds import SourceFormat
from penstock.core.records import Extent, Span
from penstock.sources.files.paths import check_is_file, is_url, listed, open_as_listed, open_binary, read_bytes
from penstock.sources.tables.row_groups import BROKEN, RowGroupFiles

READ_BYTES = 1 << 20
"""How much is decoded at once. Nested columns decode 3 times faster in steps that stay in the core's cache
(measured: 784 uint8 in lists, 18 µs a row at once, 4 to 6 µs in steps of 1 MB)."""

_EXPANDED_BYTES = 256 << 20
_LARGEST_PAGE = 2 << 30
_PAGE_HEADER_BYTES = 24
_SAMPLE_ROWS = 16
_KEPT_FOOTERS = 16


class ParquetFiles(RowGroupFiles):
    """Parquet files with the same columns."""

    format_name = "a Parquet file"

    def scan_file(self, path: str) -> tuple[pa.Schema, list[int]]:
        with _open(path) as file:
            metadata = file.metadata
            groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            return file.schema_arrow.remove_metadata(), groups

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        """The column chunks of whole row groups, also of those that are cut into spans."""
        for file, number, _, _ in span.locator:
            known = listed(self.paths, file)
            if is_url(known.path):  # finding its columns would take one more request
                yield Extent(known, 0, known.size)
                continue
            try:
                opened = _open(known.path, self._footers.get(file))
                chunks = list(_chunk_bytes(opened, number, columns))
            except BROKEN as error:
                raise self.damaged(known.path, str(error)) from error
            self._keep_footer(file, opened.metadata)
            yield from (Extent(known, *chunk) for chunk in chunks)

    def open_group(self, file: int, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        opened = self._open_again(file)
        step = self._read_rows(columns)
        if self._schema is not None:
            step = min(step, _rows_of_dictionaries(self.paths[file], opened, number, columns))
        batches: Iterator[pa.RecordBatch] = opened.iter_batches(
            batch_size=step, row_groups=[number], columns=list(columns), use_threads=False
        )
        return batches

    def _open_again(self, file: int) -> pq.ParquetFile:
        """Open a file that was scanned before. Its footer is kept.

        Parsing the footer again for every row group would take time and memory by the square of their number (measured:
        2.4 GB and 36 s for 1,000 groups of 8 columns, 90 MB and 2 s with it); for a URL, each would cost a request.
        """
        path = self.paths[file]
        footer = self._footers.get(file)
        try:
            opened = _open_remote(open_as_listed(self.paths, file), footer) if is_url(path) else _open(path, footer)
        except BROKEN as error:
            raise self.damaged(path, str(error)) from error
        self._keep_footer(file, opened.metadata)
        return opened

    def _keep_footer(self, file: int, footer: pq.FileMetaData) -> None:
        self._footers[file] = footer
        if len(self._footers) > _KEPT_FOOTERS:
            self._footers.pop(next(iter(self._footers)), None)

    def _read_rows(self, columns: Sequence[str]) -> int:
        if self._schema is None:  # the schema is not known yet: a few rows are enough to learn it
            return _SAMPLE_ROWS
        row_bytes = sum(self._schema[name].row_bytes for name in columns)
        return 1 << max(6, min(16, (READ_BYTES // max(1, row_bytes)).bit_length() - 1))

    @cached_property
    def _footers(self) -> dict[int, pq.FileMetaData]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_footers"}


def _rows_of_dictionaries(path: str, file: pq.ParquetFile, number: int, columns: Sequence[str]) -> int:
    """Rows of a row group that take at most 256 MB, even if each holds the longest text of its dictionary.

    A few kilobytes can stand for a text of a gigabyte in every row. Of a URL this is not known without more requests.
    """
    largest = 1
    for chunk in _chunks(file, number, columns, "BYTE_ARRAY") if not is_url(path) else ():
        if chunk.dictionary_page_offset:
            largest = max(largest, _page_bytes(read_bytes(path, chunk.dictionary_page_offset, _PAGE_HEADER_BYTES)))
    return max(1, _EXPANDED_BYTES // largest)


def _page_bytes(header: bytes) -> int:
    """How large a page is when it is inflated: the second field of its header, in Thrift's compact encoding."""
    offset = value = 0
    for _ in range(2):
        offset, value, shift = offset + 1, 0, 0
        while offset < len(header):
            value |= (header[offset] & 0x7F) << shift
            offset, shift = offset + 1, shift + 7
            if header[offset - 1] < 0x80:
                break
    return min(value >> 1, _LARGEST_PAGE)


def _open(path: str, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    if is_url(path):
        return _open_remote(open_binary(path, buffer_bytes=0), footer)
    check_is_file(path)
    return pq.ParquetFile(path, metadata=footer, memory_map=True, pre_buffer=False)


def _open_remote(file: BinaryIO, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a file so that neighbouring columns come in one request (measured: 100 columns in 2 requests, not 101)."""
    return pq.ParquetFile(file, metadata=footer, pre_buffer=True)


def _chunk_bytes(file: pq.ParquetFile, number: int, columns: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where the columns of a row group lie: first byte and number of bytes of every chunk."""
    for chunk in _chunks(file, number, columns):
        starts = (chunk.dictionary_page_offset, chunk.data_page_offset)
        yield min((start for start in starts if start and start > 0), default=0), chunk.total_compressed_size


def _chunks(
    file: pq.ParquetFile, number: int, columns: Sequence[str], kind: str | None = None
) -> Iterator[pq.ColumnChunkMetaData]:
    """The chunks of a row group that hold these columns, or those of one physical type among them.

    Raises:
        ArrowException or OSError: The footer has a chunk that is damaged.
    """
    wanted = [
        position
        for position in range(file.metadata.num_columns)
        if _is_wanted(file.schema.column(position), columns, kind)
    ]
    if not wanted:
        return  # without columns, Arrow divides by the number of rows that are asked for, which is 0 here
    # `RowGroupMetaData.column` ends the process for a chunk whose histograms of levels (`SizeStatistics`) have a wrong
    # length. The reader checks the same and raises; to read no rows of a chunk costs 20 microseconds.
    next(file.reader.iter_batches(0, [number], wanted), None)
    yield from map(file.metadata.row_group(number).column, wanted)


def _is_wanted(column: pq.ColumnSchema, columns: Sequence[str], kind: str | None) -> bool:
    is_named = any(column.path == name or column.path.startswith(f"{name}.") for name in columns)
    return is_named and kind in (None, column.physical_type)


FORMAT = SourceFormat((".parquet", ".pq", ".parq"), lambda paths, reading: ParquetFiles(paths))
