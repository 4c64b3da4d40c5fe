"""Text files with one record a line. They are scanned once for where records begin, then read in ranges of bytes."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import whole
from penstock.core.records import Array, Block, Extent, RowFailure, Span
from penstock.errors import InputError
from penstock.sources.files.file_source import FileSource
from penstock.sources.files.paths import fail_empty, fail_unreadable, listed, open_binary, read_bytes

_SCAN_BYTES = 16 << 20
_HEADER_BYTES = 64 << 10
_NEWLINE, _QUOTE = ord("\n"), ord('"')
BOM = b"\xef\xbb\xbf"

_COUNTED = re.compile(r"Row #\d+: ")
"""Arrow counts rows from where it began to parse: a number that means nothing to people."""


@dataclass(frozen=True)
class Excerpt:
    """A run of whole records of one file: its bytes, and where they begin."""

    path: str
    offset: int
    rows: int
    raw: bytes

    def failures(self, records: Sequence[bytes], reasons: Mapping[int, str], first_row: int) -> tuple[RowFailure, ...]:
        """A failure for every record that has a reason, with the place where it begins."""
        found: list[RowFailure] = []
        place = 0
        for position, record in enumerate(records if reasons else ()):
            place = max(place, self.raw.find(record, place))
            if position in reasons:
                origin = f"{self.path}, byte {self.offset + place}"
                found.append(RowFailure(first_row + position, origin, "read", "BadRecord", reasons[position]))
            place += len(record)
        return tuple(found)


class LineFiles(FileSource):
    """Files of lines: all that a source of them needs, except columns and reading.

    With a `delimiter`, a quoted field may hold line breaks, and a header may come first.
    """

    def __init__(self, paths: Sequence[str], delimiter: str | None = None, *, has_header: bool = True) -> None:
        super().__init__(paths)
        self.has_header = has_header and delimiter is not None
        self._delimiter = ord(delimiter) if delimiter else None

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        """Every record in order. A span stays inside one file: a locator is (file, first byte, end)."""
        index = row = 0
        for file, path in enumerate(self.paths):
            for first, end, rows in self._ranges(path, rows_per_span):
                yield Span(index, row, rows, (file, first, end))
                index, row = index + 1, row + rows
        if not row:
            raise fail_empty(self.paths)

    def excerpt(self, span: Span) -> Excerpt:
        number, first, end = span.locator
        path = self.paths[number]
        try:
            raw = read_bytes(path, first, end - first)
            if not raw.endswith(b"\n") and end != listed(self.paths, number).size:
                raise _mixed_up(f"{path}: no record ends at byte {end} any more")
            return Excerpt(path, first, span.rows, raw)
        except OSError as error:
            raise fail_unreadable(path, error) from error

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        """The bytes of a span; near the beginning of a file, all from its beginning: a header is read, too."""
        number, first, end = span.locator[:3]
        start = first if first > _HEADER_BYTES else 0
        yield Extent(listed(self.paths, number), start, end - start)

    def records(self, excerpt: Excerpt) -> list[bytes]:
        """The records of an excerpt, divided as they were when they were counted.

        Raises:
            InputError: There are more or fewer than were counted: rows would vanish or move.
        """
        ends, _, _ = self._record_ends(excerpt.raw, _NEWLINE, False, False)
        edges = [0, *(ends + 1).tolist(), len(excerpt.raw)]
        pieces = [excerpt.raw[start:stop] for start, stop in itertools.pairwise(edges)]
        found = [piece for piece in pieces if piece not in (b"", b"\n", b"\r\n", b"\r")]
        if len(found) != excerpt.rows:
            counted = f"{len(found)} records, {excerpt.rows} counted"
            raise _mixed_up(f"{excerpt.path}, bytes from {excerpt.offset}: {counted}")
        return found

    def origin(self, span: Span, row: int) -> str:
        number, first, end = span.locator
        return f"{self.paths[number]}, bytes {first} to {end}"

    def sample_path(self) -> str:
        """The first file that has records: some writers leave empty ones before it."""
        for path in self.paths:
            if next(self._ranges(path, 1), None) is not None:
                return path
        raise fail_empty(self.paths)

    def head(self, path: str, size: int) -> bytes:
        """The first records of a file, whole ones, about `size` bytes."""
        with open_binary(path) as file:
            raw = file.read(size)
            if len(raw) < size:
                return raw
            ends, _, _ = self._record_ends(raw, _NEWLINE, False, False)
            return raw[: int(ends[-1]) + 1] if len(ends) else raw + file.readline()

    def _ranges(self, path: str, rows_per_span: int) -> Iterator[tuple[int, int, int]]:
        """(first byte, end, records) of every run of at most `rows_per_span` records."""
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
            full = np.arange(rows_per_span, int(counts[-1]) + 1, rows_per_span)
            # Blank lines after the last record of a range belong to the next one: they hold nothing.
            for last in np.searchsorted(counts, full):
                yield first, int(ends[last]), rows_per_span
                first = int(ends[last])
            rows, end = int(counts[-1]) - len(full) * rows_per_span, int(ends[-1])
        if rows:
            yield first, end, rows

    def _scan(self, path: str) -> Iterator[tuple[Array, Array]]:
        """For every piece of the file: where its records end (past the line break), and which are blank."""
        offset = record_start = 0
        is_open = after_closing = False
        before = _NEWLINE
        with open_binary(path) as file:
            while raw := file.read(_SCAN_BYTES):
                ends, is_open, after_closing = self._record_ends(raw, before, is_open, after_closing)
                absolute = ends + offset + 1
                starts = np.concatenate(([record_start], absolute[:-1])) if len(ends) else absolute
                lengths = absolute - starts
                previous = np.frombuffer(raw, np.uint8)[np.maximum(ends - 1, 0)]
                if len(ends) and ends[0] == 0:
                    previous[0] = before
                yield absolute, (lengths == 1) | ((lengths == 2) & (previous == ord("\r")))
                record_start = int(absolute[-1]) if len(ends) else record_start
                offset, before = offset + len(raw), raw[-1]
            if offset > record_start:
                file.seek(record_start)
                is_blank = offset - record_start < 3 and not file.read(2).strip(b"\r\n")
                yield np.array([offset]), np.array([is_blank])

    def _record_ends(self, raw: bytes, before: int, is_open: bool, after_closing: bool) -> tuple[Array, bool, bool]:
        """Where records end in `raw` (the line break's place), and the state at its end.

        `before` is the byte before `raw`; `is_open` says whether a quoted field is open there, and `after_closing`
        whether that byte is the quote that closed one (two of them in a row stand for one in the field).
        """
        values = np.frombuffer(raw, np.uint8)
        ends = np.flatnonzero(values == _NEWLINE)
        if self._delimiter is None:
            return ends, False, False
        quotes = np.flatnonzero(values == _QUOTE)
        if not len(quotes):
            return (ends[:0] if is_open else ends), is_open, False
        previous = values[np.maximum(quotes - 1, 0)]
        if quotes[0] == 0:
            previous[0] = before
        may_open = np.isin(previous, (self._delimiter, _NEWLINE, ord("\r"), _QUOTE, BOM[-1]))
        is_split = bool(quotes[0] == 0) and before == _QUOTE
        if is_split or not may_open[int(is_open) :: 2].all():
            closed_at = -1 if after_closing else -2
            found = _field_quotes(quotes.tolist(), may_open.tolist(), previous.tolist(), is_open, closed_at)
            quotes = np.array(found, np.int64)
        inside = (np.searchsorted(quotes, ends) + is_open) % 2
        ends_open = bool((len(quotes) + is_open) % 2)
        return ends[inside == 0], ends_open, bool(len(quotes)) and not ends_open and int(quotes[-1]) == len(raw) - 1


class TableLines(LineFiles):
    """Files of lines that a parser of Arrow reads. Types are taken from the first file and hold for all of them."""

    _types: Mapping[str, pa.DataType]
    """The type of every column; `schema` sets them."""

    def _parse(self, raw: bytes, columns: Sequence[str]) -> pa.Table:
        """These columns of whole records, or pa.ArrowInvalid."""
        raise NotImplementedError

    def _parse_records(self, records: Sequence[bytes], columns: Sequence[str]) -> pa.Table:
        """As `_parse`, after a look at each of the records: ValueError where one is broken."""
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

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        self.schema()
        excerpt = self.excerpt(span)
        failures: tuple[RowFailure, ...] = ()
        records: list[bytes] = []
        try:
            table = self._parse(excerpt.raw, columns)
        except pa.ArrowInvalid:
            table = None
        if table is None or table.num_rows != span.rows:
            # Slow: a broken record must fail alone.
            records = self.records(excerpt)
            nothing = pa.table({name: pa.nulls(1, self._types[name]) for name in columns})
            table, reasons = parse_surviving(records, lambda some: self._parse_records(some, columns), nothing)
            told = {place: self._in_words(reason) for place, reason in reasons.items()}
            failures = excerpt.failures(records, told, span.start)

        def explain_null(column: str, position: int) -> str:
            if not records:
                records.extend(self.records(excerpt))
            return self._explain_null(records[position], column)

        read = {name: whole(table.column(name)) for name in columns}
        yield Block(span.start, span.rows, read, failures, explain_null)


def _field_quotes(
    quotes: list[int], may_open: list[bool], previous: list[int], is_open: bool, closed_at: int
) -> list[int]:
    """The quotes that open and close fields, without those that stand in the middle of an unquoted one: 5" pipe."""
    kept: list[int] = []
    for place, opens, byte in zip(quotes, may_open, previous, strict=True):
        if not is_open and (not opens or (byte == _QUOTE and closed_at != place - 1)):
            continue
        kept.append(place)
        is_open = not is_open
        closed_at = closed_at if is_open else place
    return kept


def _mixed_up(received: str) -> InputError:
    return InputError(
        "the records of this file cannot be told apart",
        received=received,
        hint="did the file change, or is there a stray quote in it?",
    )


def parse_surviving(
    records: Sequence[Any], parse: Callable[[Sequence[Any]], pa.Table], nothing: pa.Table
) -> tuple[pa.Table, dict[int, str]]:
    """Parse records that may be broken: halves until the broken ones are found, each replaced by `nothing`.

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
