"""Text files: one row a line, blank lines too, so that row N of the answers belongs to line N of the text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.core.kinds import SourceFormat
from penstock.core.records import STRING, Array, Block, RowFailure, Span, TensorSpec
from penstock.errors import InputError
from penstock.sources.files.paths import fail_unreadable, open_binary
from penstock.sources.tables.lines import BOM, LineFiles

TEXT_COLUMN = "text"
_STEP_BYTES = 4 << 20
_LONGEST_LINE = 64 << 20
_NEWLINE = ord("\n")


class TextLines(LineFiles):
    """Text files with a single column, `text`. A line ends with a line feed, with or without a carriage return."""

    def schema(self) -> dict[str, TensorSpec]:
        return {TEXT_COLUMN: TensorSpec(TEXT_COLUMN, STRING, ())}

    def _scan(self, path: str) -> Iterator[tuple[Array, Array]]:
        """As in `LineFiles`, but no line counts as blank: each line is a row."""
        for ends, _ in super()._scan(path):
            yield ends, np.zeros(len(ends), bool)

    def origin(self, span: Span, row: int) -> str:
        run, line = self.run_of(span, row)
        return f"{self.paths[run[0]]}, line {line + 1}"

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        row = span.start
        for file, first, end, _, lines in span.locator:
            stop = row + lines
            for piece in _pieces(self.paths[file], first, end):
                text, reasons = piece.parse()
                failures = tuple(
                    RowFailure(
                        row + position, f"{self.origin(span, row + position)}, byte {offset}", "read", "BadRecord", why
                    )
                    for position, (offset, why) in sorted(reasons.items())
                )
                yield Block(row, len(text), dict.fromkeys(columns, text), failures)
                row += len(text)
            if row != stop:
                raise InputError(
                    "the file changed while it was read",
                    received=f"{self.paths[file]}, bytes {first} to {end}: {row - stop + lines} lines",
                    allowed=f"{lines} lines, as were counted",
                )


@dataclass(frozen=True)
class _Piece:
    """A run of whole lines and its offset; or a single line that is too long for memory, without `raw`."""

    offset: int
    raw: bytes | None
    length: int = 0

    def parse(self) -> tuple[pa.Array, dict[int, tuple[int, str]]]:
        """The lines, null where they are bad; and for the position of each bad line its byte offset and the reason."""
        if self.raw is None:
            return pa.nulls(1, pa.large_string()), {0: (self.offset, _too_long(self.length))}
        lines = _to_arrow(self.raw.removeprefix(BOM) if self.offset == 0 else self.raw)
        if len(self.raw) <= _LONGEST_LINE:
            try:
                return lines.cast(pa.large_string()), {}
            except pa.ArrowInvalid:
                pass  # a line is not UTF-8: the slow way finds it
        return self._parse_by_line(lines)

    def _parse_by_line(self, lines: pa.Array) -> tuple[pa.Array, dict[int, tuple[int, str]]]:
        assert self.raw is not None
        starts = np.concatenate(([0], np.flatnonzero(np.frombuffer(self.raw, np.uint8) == _NEWLINE) + 1))
        texts: list[str | None] = []
        reasons: dict[int, tuple[int, str]] = {}
        for position, line in enumerate(lines):
            text, why = _decode(line.as_py())
            texts.append(text)
            if why:
                reasons[position] = self.offset + int(starts[position]), why
        return pa.array(texts, pa.large_string()), reasons


def _decode(line: bytes) -> tuple[str | None, str]:
    if len(line) > _LONGEST_LINE:
        return None, _too_long(len(line))
    try:
        return line.decode(), ""
    except UnicodeDecodeError as error:
        return None, f"the line is not UTF-8: {error.reason} at its byte {error.start}"


def _too_long(length: int) -> str:
    return f"the line is too long: {length} bytes, and at most {_LONGEST_LINE} are read"


def _pieces(path: str, first: int, end: int) -> Iterator[_Piece]:
    """Whole lines of a range of bytes, a few megabytes at a time, however long a line is."""
    offset = next_byte = first  # where the open line begins, and the next byte to read
    held, dropped = b"", 0  # the open line so far; or how much of it was let go, because it is too long
    try:
        with open_binary(path) as file:
            file.seek(first)
            while next_byte < end and (raw := file.read(min(_STEP_BYTES, end - next_byte))):
                next_byte += len(raw)
                if dropped:
                    cut = raw.find(b"\n") + 1
                    dropped += cut or len(raw)
                    if not cut:
                        continue
                    yield _Piece(offset, None, dropped - 1)
                    offset, dropped, held = offset + dropped, 0, raw[cut:]
                else:
                    held += raw
                if cut := held.rfind(b"\n") + 1:
                    yield _Piece(offset, held[:cut])
                    offset, held = offset + cut, held[cut:]
                if len(held) > _LONGEST_LINE:
                    dropped, held = len(held), b""
    except OSError as error:
        raise fail_unreadable(path, error) from error
    if dropped:
        yield _Piece(offset, None, dropped)
    elif held:
        yield _Piece(offset, held)


def _to_arrow(raw: bytes) -> pa.Array:
    """Lines as one array of bytes: their content without line breaks, and where each of them ends in it."""
    if b"\r" in raw:
        raw = raw.removesuffix(b"\r").replace(b"\r\n", b"\n")
    ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == _NEWLINE)
    if not raw.endswith(b"\n"):
        ends = np.append(ends, len(raw))
    offsets = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int64)
    content = raw.translate(None, b"\n")
    return pa.Array.from_buffers(pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(content)])


FORMAT = SourceFormat((".txt",), lambda paths, reading: TextLines(paths), is_last_resort=True)
