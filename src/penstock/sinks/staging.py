"""What every sink needs: names that do not clash, parts of one file, tables gathered to large pieces, fsync."""

import contextlib
import heapq
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.columns import to_arrow
from penstock.core.protocols import PartWriter
from penstock.core.records import Array, OutputSchema, Result, Span
from penstock.crash_points import crash_point
from penstock.errors import UsageError

ROW = "row"
GROUP_BYTES = 16 << 20
"""Small results are gathered into pieces of a table of at least this size: reading many small pieces is slow."""


class OneFileSink:
    """A sink whose parts are one file each, in the output folder itself. It opens parts and names a suffix."""

    suffix: ClassVar[str]

    def folders(self, schema: OutputSchema) -> tuple[str, ...]:
        return ("",)

    def check(self, schema: OutputSchema) -> None:
        check_names(schema)


class TableSink(OneFileSink):
    """A sink whose parts are Arrow tables. It reads them, too."""

    def read_table(self, path: str) -> pa.Table:
        """A whole part."""
        raise NotImplementedError

    def merge(self, parts: Sequence[Mapping[str, str]], writer: PartWriter, spans: Sequence[Span]) -> dict[str, str]:
        assert isinstance(writer, TablePart)
        tables = [self.read_table(path) for part in parts for path in part.values()]
        table = pa.concat_tables(tables, promote_options="permissive")
        for positions in positions_by_span(table[ROW].to_numpy(), spans):
            # Copied, so that `nbytes` counts these rows only: it decides where a piece of a table ends.
            writer.write_table(table.take(positions).combine_chunks())
        return writer.finish()


class FilePart:
    """A part of one file. Subclasses set `_writer`, which is closed at the end, and write rows with it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: Any = None

    def finish(self) -> dict[str, str]:
        self._writer.close()
        fsync_file(self._path)
        return {self._path: os.path.basename(self._path)}

    def abandon(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):  # closing writes, and the disk may be full
                self._writer.close()

    def finish_merged(
        self,
        parts: Iterable[Mapping[str, str]],
        records_of: Callable[[Iterable[bytes]], Iterator[bytes]],
        row_of: Callable[[bytes], int],
    ) -> dict[str, str]:
        """Write the records of several parts of text, in the order of their rows, over what was written before."""
        self.abandon()
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(open(path, "rb")) for part in parts for path in part.values()]
            merged: Iterator[bytes] = heapq.merge(*map(records_of, files), key=row_of)
            written = opened.enter_context(open(self._path, "wb"))
            written.writelines(record for record, _ in itertools.groupby(merged))  # every part has the header
        fsync_file(self._path)
        return {self._path: os.path.basename(self._path)}


class TablePart(FilePart):
    """A part that is written as Arrow tables. Subclasses open the writer of their format."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._gathered: list[pa.Table] = []
        self._bytes = 0

    def open_writer(self, path: str, first: pa.Table) -> Any:
        """A writer with `write_table(table, rows_per_piece)` and `close()`, for tables like the first."""
        raise NotImplementedError

    def write(self, result: Result) -> None:
        columns = {ROW: to_arrow(result.row_numbers())}
        columns |= {name: to_arrow(column) for name, column in result.columns.items()}
        self.write_table(pa.table(columns))

    def write_table(self, table: pa.Table) -> None:
        """Write the rows of a span."""
        self._gathered.append(table)
        self._bytes += table.nbytes
        # Whether a text column is UTF-8 or raw bytes is known only at the end of the part.
        has_text = any(pa.types.is_large_string(field.type) for field in table.schema)
        if self._bytes >= GROUP_BYTES and not has_text:
            self._flush()

    def finish(self) -> dict[str, str]:
        self._flush()
        return super().finish()

    def _flush(self) -> None:
        if not self._gathered:
            return
        # A text column may be UTF-8 in one result and raw bytes in another: bytes win.
        table = pa.concat_tables(self._gathered, promote_options="permissive")
        if self._writer is None:
            self._writer = self.open_writer(self._path, table)
        self._writer.write_table(table, max(1, table.num_rows))
        self._gathered, self._bytes = [], 0


def positions_by_span(rows: Array, spans: Sequence[Span]) -> Iterator[Array]:
    """The positions of each span's rows, in order. Spans without rows are left out."""
    order = np.argsort(rows, kind="stable")
    bounds = np.searchsorted(rows[order], [span.number(span.start) for span in spans])
    for first, stop in itertools.pairwise([*bounds.tolist(), len(rows)]):
        if first < stop:
            yield order[first:stop]


def fsync_file(path: str) -> None:
    """Wait until the content of a file that was closed is on the disk."""
    crash_point("part_closed")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_names(schema: OutputSchema) -> None:
    """Refuse columns that would hide `row` or each other.

    Raises:
        UsageError: Two columns have one name, or one is called `row`.
    """
    if ROW in schema.names:
        raise UsageError(
            "a column is called 'row', which is the name of the row number",
            received=_shown(schema.names),
            hint="rename it: --rename row=NEW",
        )
    check_distinct(schema.names[: schema.num_outputs], schema.names[schema.num_outputs :])


class SameNames(UsageError):
    """Two columns would have one name."""


def check_distinct(outputs: Sequence[str], kept: Sequence[str]) -> None:
    """Refuse columns that would hide each other.

    Raises:
        SameNames: Two columns have one name.
    """
    twice = [name for name, count in Counter([*outputs, *kept]).items() if count > 1]
    if twice:
        raise SameNames(
            "two columns would have one name",
            received=f"outputs {_shown(outputs)}; kept {_shown(kept) or 'none'}",
            hint=f"rename one of them: --rename {twice[0]}=NEW (an output comes before a kept column)",
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:12])
