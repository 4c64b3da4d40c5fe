"""Text files with one record a line. One scan finds where records begin; then ranges of bytes are read."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import whole
from penstock.core.records import Array, Block, Extent, RowFailure, Span
from penstock.errors import InputError
from penstock.sources.files.file_source import FileSource, SpanCutter
from penstock.sources.files.paths import fail_empty, fail_unreadable, is_url, listed, open_binary, read_bytes

_SCAN_BYTES = 16 << 20
_HEADER_BYTES = 64 << 10
_LONGEST_FIELD = 16 << 20
"""A quoted field with line breaks that is longer was opened by a stray quote."""
_LONGEST_RECORD = 64 << 20
"""Parsing a record takes 15 times its bytes in memory."""
_LONGEST_REASON = 500
_NEWLINE, _QUOTE = ord("\n"), ord('"')
_FEW_BYTES = 4 << 10
"""In a shorter file, lines are counted one by one: for a few lines, arrays cost more."""
BOM = b"\xef\xbb\xbf"

_BEYOND_INT64 = 2.0**63
_COUNTED = re.compile(r"Row #\d+: ")
"""Arrow counts rows from where it began to parse: this number tells the user nothing."""


@dataclass(frozen=True)
class Excerpt:
    """A run of whole records of one file: its bytes, and where they begin."""

    path: str
    offset: int
    rows: int
    raw: bytes

    def failures(self, records: Sequence[bytes], reasons: Mapping[int, str], first_row: int) -> Iterator[RowFailure]:
        """A failure for every record that has a reason, with the place where it begins."""
        at = 0
        for position, record in enumerate(records if reasons else ()):
            at = max(at, self.raw.find(record, at))
            if position in reasons:
                origin = f"{self.path}, byte {self.offset + at}"
                reason = reasons[position][:_LONGEST_REASON]  # it may quote a record of megabytes
                yield RowFailure(first_row + position, origin, "read", "BadRecord", reason)
            at += len(record)


Run = tuple[int, int, int, int, int]
"""Records of one file: the file, first byte, end, number of the first record, records."""


class LineFiles(FileSource):
    """Files of lines: all that a source of such files needs, except columns and reading.

    With a `delimiter`, a quoted field may hold line breaks, and a header may come first.
    """

    longest_record: ClassVar[int | None] = None
    """A file with a record of more bytes is refused when it is scanned."""

    def __init__(self, paths: Sequence[str], delimiter: str | None = None, *, has_header: bool = True) -> None:
        super().__init__(paths)
        self.has_header = has_header and delimiter is not None
        self._delimiter = ord(delimiter) if delimiter else None

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        """Every record in order. A locator is a few runs; files join without a gap."""
        span = SpanCutter()
        for file, path in enumerate(self.paths):
            row = 0
            for first, end, rows in self._ranges(path, rows_per_span - span.rows, rows_per_span):
                span.add((file, first, end, row, rows), rows)
                row += rows
                if span.rows == rows_per_span:
                    yield from span.cut()
        yield from span.cut()
        if not span.start:
            raise fail_empty(self.paths)

    def excerpts(self, span: Span) -> list[Excerpt]:
        return [self._excerpt(run) for run in span.locator]

    def _excerpt(self, run: Run) -> Excerpt:
        number, first, end, _, rows = run
        path = self.paths[number]
        try:
            raw = read_bytes(path, first, end - first)
            if not raw.endswith(b"\n") and end != listed(self.paths, number).size:
                raise _mixed_up(f"{path}: no record ends at byte {end} any more")
        except OSError as error:
            raise fail_unreadable(path, error) from error
        if first == 0 and raw.startswith(BOM):
            return Excerpt(path, len(BOM), rows, raw.removeprefix(BOM))
        return Excerpt(path, first, rows, raw)

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        """The bytes of a span; near the beginning of a file, all from its beginning: a header is read, too."""
        for number, first, end, *_ in span.locator:
            start = first if first > _HEADER_BYTES else 0
            yield Extent(listed(self.paths, number), start, end - start)

    def records(self, excerpt: Excerpt) -> list[bytes]:
        """The records of an excerpt, divided as they were when they were counted.

        Raises:
            InputError: There are more or fewer than were counted: rows would vanish or move.
        """
        ends, _ = self._record_ends(excerpt.raw, is_last=True)
        edges = [0, *(ends + 1).tolist(), len(excerpt.raw)]
        pieces = [excerpt.raw[start:stop] for start, stop in itertools.pairwise(edges)]
        records = [piece for piece in pieces if piece not in (b"", b"\n", b"\r\n", b"\r")]
        if len(records) != excerpt.rows:
            counted = f"{len(records)} records, {excerpt.rows} counted"
            raise _mixed_up(f"{excerpt.path}, bytes from {excerpt.offset}: {counted}")
        return records

    def run_of(self, span: Span, row: int) -> tuple[Run, int]:
        """The run of a span that holds a row, and the number of the row in its file."""
        position = row - span.start
        for run in span.locator:
            if position < run[4]:
                return run, run[3] + position
            position -= run[4]
        raise IndexError(row)

    def origin(self, span: Span, row: int) -> str:
        (number, first, end, _, _), _ = self.run_of(span, row)
        return f"{self.paths[number]}, bytes {first} to {end}"

    def sample_path(self) -> str:
        """The first file that has records: some writers leave empty ones before it."""
        for path in self.paths:
            if next(self._ranges(path, 1, 1), None) is not None:
                return path
        raise fail_empty(self.paths)

    def head(self, path: str, size: int) -> bytes:
        """The first whole records of a file, about `size` bytes, without records in which a quote is never closed."""
        with open_binary(path) as file:
            raw = file.read(size)
            is_whole = len(raw) < size
            ends, unclosed = self._record_ends(raw, is_last=is_whole)
            while not is_whole and len(ends) < 1 + self.has_header and len(raw) <= _LONGEST_RECORD:
                more = file.read(len(raw))  # the rest of a giant header or record
                raw, is_whole = raw + more, len(more) < len(raw)
                ends, unclosed = self._record_ends(raw, is_last=is_whole)
            if not is_whole and len(ends):
                raw = raw[: int(ends[-1]) + 1]
        edges = [0, *(ends + 1).tolist(), len(raw)]
        damaged = set(np.searchsorted(ends, unclosed).tolist())
        if not damaged:
            return raw
        kept = (pair for number, pair in enumerate(itertools.pairwise(edges)) if number not in damaged)
        return b"".join(raw[start:stop] for start, stop in kept)

    def _ranges(self, path: str, room: int, rows_per_span: int) -> Iterator[tuple[int, int, int]]:
        """(first byte, end, records) of every run: `room` records for the first, then `rows_per_span`."""
        first = rows = end = 0
        must_skip_header = self.has_header
        for ends, are_blank in self._scan(path):
            if must_skip_header and not are_blank.all():
                header = int(np.argmin(are_blank))
                first, must_skip_header = int(ends[header]), False
                ends, are_blank = ends[header + 1 :], are_blank[header + 1 :]
            if not len(ends):
                continue
            counts = np.cumsum(~are_blank) + rows
            full = np.arange(room, int(counts[-1]) + 1, rows_per_span)
            # Blank lines after the last record of a range belong to the next one: they hold nothing.
            for last in np.searchsorted(counts, full) if len(full) else ():
                yield first, int(ends[last]), room
                first, room = int(ends[last]), rows_per_span
            rows, end = int(counts[-1]) - (int(full[-1]) if len(full) else 0), int(ends[-1])
        if rows:
            yield first, end, rows

    def _scan(self, path: str) -> Iterator[tuple[Array, Array]]:
        """For every piece of the file: where its records end (past the line break), and which are blank.

        A piece begins with the unfinished record of the piece before; in plain lines, only if that may be a blank line.
        """
        offset = start = 0  # the places of the piece and of the open record in the file
        held, is_last = b"", False
        wanted = min(_SCAN_BYTES, _HEADER_BYTES)  # a small file needs little memory
        with open_binary(path) as file:
            while not is_last:
                more = file.read(wanted)
                raw, is_last = held + more, len(more) < wanted
                ends, _ = self._record_ends(raw, is_last)
                stops = ends + offset + 1
                if len(ends):
                    lengths = stops.copy()
                    lengths[1:] -= stops[:-1]
                    lengths[0] -= start
                    before = np.frombuffer(raw, np.uint8)[np.maximum(ends - 1, 0)]
                    yield stops, (lengths == 1) | ((lengths == 2) & (before == ord("\r")))
                    longest = int(lengths.argmax())
                    self._check_length(path, int(stops[longest] - lengths[longest]), int(lengths[longest]))
                    start = int(stops[-1])
                self._check_length(path, start, offset + len(raw) - start, has_end=False)
                held = raw[start - offset :] if start >= offset else raw
                if self._delimiter is None and len(held) > 2:
                    held = b""
                offset += len(raw) - len(held)
                wanted = max(_SCAN_BYTES, len(held))  # as much again, so that a giant record is not copied too often
        end = offset + len(held)
        if end > start:
            yield np.array([end]), np.array([end - start < 3 and not held.strip(b"\r\n")])

    def _check_length(self, path: str, start: int, length: int, *, has_end: bool = True) -> None:
        if self.longest_record is not None and length > self.longest_record:
            raise InputError(
                "a record is too long to be read",
                received=f"{path}: from byte {start:,} on, {length:,} bytes" + ("" if has_end else " without an end"),
                allowed=f"records of {self.longest_record >> 20} MB",
                hint="leave it out, or write the data as Parquet"
                if has_end
                else "is the file what its name says, with line breaks?",
            )

    def _record_ends(self, raw: bytes, is_last: bool) -> tuple[Array, list[int]]:
        """Where records end in `raw` (the line break's place), and the quotes that open a field and never close it.

        Args:
            raw: Bytes that begin with a record.
            is_last: Nothing comes after them, so a quote that is open at the end is never closed.
        """
        values = np.frombuffer(raw, np.uint8)
        ends = (values == _NEWLINE).nonzero()[0]
        if self._delimiter is None or b'"' not in raw:
            return ends, []
        quotes = (values == _QUOTE).nonzero()[0]
        edges, unclosed = _Quotes(values, ends, quotes, self._delimiter or 0, is_last).divide()
        return ends[np.searchsorted(edges, ends) % 2 == 0], unclosed


@dataclass(frozen=True)
class _Quotes:
    """The quotes of a piece of CSV, of which some open and close fields.

    A quote that closes a field stands before a delimiter, the end of a line or another quote. A field with line breaks
    that closes elsewhere, or not at all, or after 16 MB was opened by mistake: only the line with that quote is
    damaged, and the lines after it are records again. (A field without line breaks, such as `"a"b`, is no damage.)
    """

    values: Array
    ends: Array
    places: Array
    delimiter: int
    is_last: bool

    def divide(self) -> tuple[Array, list[int]]:
        """The quotes that open and close fields, in turn; and those that open one by mistake."""
        places = self.places
        previous = self.values[np.maximum(places - 1, 0)]
        previous[0] = previous[0] if places[0] else _NEWLINE
        may_open = np.isin(previous, (self.delimiter, _NEWLINE, ord("\r"), _QUOTE, BOM[-1]))
        if may_open[::2].all() and not self._are_damaged(places[::2], places[1::2]).any():
            return places, []
        return self._divide_in_turn(may_open, previous)

    def _are_damaged(self, opening: Array, closing: Array) -> Array:
        """Which fields are opened by mistake; the last field may not be closed yet."""
        size = len(self.values)
        is_open = len(opening) > len(closing)
        stops = np.append(closing, size) if is_open else closing
        after = self.values[np.minimum(closing + 1, size - 1)]
        is_wrong = ~np.isin(after, (self.delimiter, _NEWLINE, ord("\r"), _QUOTE)) & (closing + 1 < size)
        is_wrong = np.append(is_wrong, self.is_last) if is_open else is_wrong
        has_breaks = np.searchsorted(self.ends, opening) < np.searchsorted(self.ends, stops)
        damaged: Array = has_breaks & (is_wrong | (stops - opening > _LONGEST_FIELD))
        return damaged

    def _divide_in_turn(self, may_open: Array, previous: Array) -> tuple[Array, list[int]]:
        """As `divide`, quote by quote, and without quotes in the middle of an unquoted field: 5" pipe."""
        places = self.places
        stops = np.append(places[1:], len(self.values))
        is_damaged = self._are_damaged(places, places[1:]).tolist()
        opens = (may_open & (previous != _QUOTE)).tolist()
        follows = (may_open & (previous == _QUOTE)).tolist()
        kept: list[int] = []
        unclosed: list[int] = []
        number, closed = 0, -1
        while number < len(places):
            if not opens[number] and not (follows[number] and closed == number - 1):
                number += 1
            elif is_damaged[number]:
                unclosed.append(int(places[number]))
                line_end = self.ends[np.searchsorted(self.ends, places[number])]
                number = int(np.searchsorted(places, line_end))
            else:
                kept += [int(places[number]), int(stops[number])][: len(places) - number]
                number, closed = number + 2, number + 1
        return np.array(kept, np.int64), unclosed


class TableLines(LineFiles):
    """Files of lines that a parser of Arrow reads. Types are taken from the first file and hold for all of them."""

    longest_record = _LONGEST_RECORD
    _types: Mapping[str, pa.DataType]
    """The type of every column; `schema` sets them."""

    def _parse(self, raw: bytes, columns: Sequence[str]) -> pa.Table:
        """These columns of whole records, or pa.ArrowInvalid."""
        raise NotImplementedError

    def _parse_records(self, records: Sequence[bytes], columns: Sequence[str]) -> pa.Table:
        """As `_parse`, after a check of each record: ValueError where one is broken."""
        raise NotImplementedError

    def _explain_null(self, record: bytes, column: str) -> str:
        """What a record holds in place of a value that is missing."""
        raise NotImplementedError

    def _in_words(self, reason: str) -> str:
        """Arrow's reason why a record cannot be parsed, as people should read it."""
        return reason

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        self.schema()
        return super().divide(rows_per_span, most_rows)

    def _ranges(self, path: str, room: int, rows_per_span: int) -> Iterator[tuple[int, int, int]]:
        raw = b"" if is_url(path) else read_bytes(path, 0, _FEW_BYTES)
        is_simple = b"\r\r" not in raw and (self._delimiter is None or b'"' not in raw)
        if not 0 < len(raw) < _FEW_BYTES or not is_simple:
            return super()._ranges(path, room, rows_per_span)
        return self._ranges_of_few(raw, room, rows_per_span)

    def _ranges_of_few(self, raw: bytes, room: int, rows_per_span: int) -> Iterator[tuple[int, int, int]]:
        """As `_ranges`, for a short file without quotes."""
        first = end = rows = 0
        must_skip_header = self.has_header
        for line in raw.split(b"\n"):
            end += len(line) + 1
            if line in (b"", b"\r"):
                continue
            if must_skip_header:
                first, must_skip_header = end, False
                continue
            rows += 1
            if rows == room:
                yield first, min(end, len(raw)), rows
                first, rows, room = end, 0, rows_per_span
        if rows:
            yield first, len(raw), rows

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        self.schema()
        excerpts = self.excerpts(span)
        failures: list[RowFailure] = []
        records: list[bytes] = []
        try:
            table = self._parse(b"".join(map(_with_line_break, excerpts)), columns)
        except pa.ArrowInvalid:
            table = None
        if table is None or table.num_rows != span.rows:
            # The slow way, in which only broken records fail.
            records = [record for excerpt in excerpts for record in self.records(excerpt)]
            nothing = pa.table({name: pa.nulls(1, self._types[name]) for name in columns})
            table, reasons = parse_surviving(records, lambda some: self._parse_records(some, columns), nothing)
            first = 0
            for excerpt in excerpts:
                own = range(first, first + excerpt.rows)
                explained = {each - first: self._in_words(reasons[each]) for each in own if each in reasons}
                failures += excerpt.failures(records[first : own.stop], explained, span.start + first)
                first = own.stop

        def explain_null(column: str, position: int) -> str:
            if not records:
                records.extend(record for excerpt in excerpts for record in self.records(excerpt))
            return self._explain_null(records[position], column)

        read = {name: whole(table.column(name)) for name in columns}
        yield Block(span.start, span.rows, read, tuple(failures), explain_null)


def _with_line_break(excerpt: Excerpt) -> bytes:
    return excerpt.raw if excerpt.raw.endswith(b"\n") else excerpt.raw + b"\n"


def _mixed_up(received: str) -> InputError:
    return InputError(
        "the records of this file cannot be told apart",
        received=received,
        hint="did the file change, or is there a stray quote in it?",
    )


def parse_surviving(
    records: Sequence[Any], parse: Callable[[Sequence[Any]], pa.Table], nothing: pa.Table
) -> tuple[pa.Table, dict[int, str]]:
    """Parse records, and replace broken ones by `nothing`: halves are parsed until every broken record is found.

    Returns:
        A table with one row for each record, and position to reason for the broken ones.
    """
    tables: list[pa.Table] = []
    reasons: dict[int, str] = {}
    pieces = [(0, len(records))] if records else []
    while pieces:
        start, stop = pieces.pop()
        try:
            table = parse(records[start:stop])
            if table.num_rows != stop - start:
                raise pa.ArrowInvalid(f"{table.num_rows} records in the place of {stop - start}")
            tables.append(table)
        except (pa.ArrowInvalid, ValueError) as error:
            if stop - start == 1:
                reasons[start] = _COUNTED.sub("", str(error).splitlines()[0])
                tables.append(nothing)
            else:
                middle = (start + stop) // 2
                pieces += [(middle, stop), (start, middle)]
    return (pa.concat_tables(tables) if tables else nothing.slice(0, 0)), reasons


def may_be_long_ids(column: pa.ChunkedArray) -> bool:
    """Whether a column that Arrow takes for fractions has numbers that no whole number of 64 bits is."""
    if not pa.types.is_float64(column.type):
        return False
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and math.isfinite(largest) and largest >= _BEYOND_INT64
