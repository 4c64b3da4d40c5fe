"""Text files of one record a line: scanned once for the places where records begin, then read in ranges of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.records import Array, Fragment, RowFailure, Span
from penstock.sources.files import fail_empty, fragment

_SCAN_BYTES = 16 << 20
_NEWLINE, _QUOTE = ord("\n"), ord('"')
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Excerpt:
    """A run of whole records of one file: its bytes, and where they begin."""

    path: str
    offset: int
    rows: int
    raw: bytes

    def failure(self, row: int, stage: str, error: str, reason: str) -> RowFailure:
        return RowFailure(row, f"{self.path}, bytes from {self.offset}", stage, error, reason)


class LineFiles:
    """Files of lines. `quoted` lines may hold line breaks between double quotes; `header` lines come first."""

    def __init__(self, paths: Sequence[str], quoted: bool, header: bool) -> None:
        self.paths = list(paths)
        self._quoted = quoted
        self._header = header

    def fragments(self) -> Sequence[Fragment]:
        return [fragment(path) for path in self.paths]

    def spans(self, rows_per_span: int) -> Iterator[Span]:
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
        with open(self.paths[number], "rb") as file:
            file.seek(first)
            return Excerpt(self.paths[number], first, span.rows, file.read(end - first))

    def head(self, path: str, size: int) -> bytes:
        """The first records of a file, whole ones, about `size` bytes."""
        with open(path, "rb") as file:
            raw = file.read(size)
            if len(raw) < size:
                return raw
            ends = _record_ends(raw, self._quoted, False)[0]
            return raw[: int(ends[-1]) + 1] if len(ends) else raw + file.readline()

    def _ranges(self, path: str, rows_per_span: int) -> Iterator[tuple[int, int, int]]:
        """(first byte, end, records) of every run of at most `rows_per_span` records."""
        first = rows = 0
        must_skip_header = self._header
        for ends, are_blank in self._scan(path):
            start = 0
            if must_skip_header and len(ends):
                first, start, must_skip_header = int(ends[0]), 1, False
            counts = np.cumsum(~are_blank[start:]) + rows
            ends = ends[start:]
            while len(counts) and counts[-1] >= rows_per_span:
                # Blank lines after the last record belong to the next range: they hold nothing.
                last = int(np.searchsorted(counts, rows_per_span))
                yield first, int(ends[last]), rows_per_span
                first = int(ends[last])
                counts, ends = counts[last + 1 :] - rows_per_span, ends[last + 1 :]
                rows = 0
            rows = int(counts[-1]) if len(counts) else rows
            end = int(ends[-1]) if len(ends) else first
        if rows:
            yield first, end, rows

    def _scan(self, path: str) -> Iterator[tuple[Array, Array]]:
        """For every piece of the file: where its records end (past the line break), and which are blank."""
        offset = record_start = 0
        is_open = False
        with open(path, "rb") as file:
            tail = b""
            while raw := file.read(_SCAN_BYTES):
                ends, is_open = _record_ends(raw, self._quoted, is_open)
                absolute = ends + offset + 1
                starts = np.concatenate(([record_start], absolute[:-1])) if len(ends) else absolute
                lengths = absolute - starts
                before = np.frombuffer(raw, np.uint8)[np.maximum(ends - 1, 0)]
                carriage = (before == ord("\r")) & (ends > 0)
                if len(ends) and ends[0] == 0:
                    carriage[0] = tail == b"\r"
                yield absolute, (lengths == 1) | ((lengths == 2) & carriage)
                record_start = int(absolute[-1]) if len(ends) else record_start
                offset, tail = offset + len(raw), raw[-1:]
            if offset > record_start:
                file.seek(record_start)
                is_blank = offset - record_start < 3 and not file.read(2).strip(b"\r\n")
                yield np.array([offset]), np.array([is_blank])


def _record_ends(raw: bytes, quoted: bool, is_open: bool) -> tuple[Array, bool]:
    """Where records end in `raw` (the line break's place), and whether a quote is open at its end."""
    values = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(values == _NEWLINE)
    if not quoted:
        return ends, False
    quotes = np.flatnonzero(values == _QUOTE)
    if not len(quotes):
        return (ends[:0] if is_open else ends), is_open
    inside = (np.searchsorted(quotes, ends) + is_open) % 2
    return ends[inside == 0], bool((len(quotes) + is_open) % 2)
