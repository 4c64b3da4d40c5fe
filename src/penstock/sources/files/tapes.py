"""The bytes of a file from front to back, inflated where its content is compressed."""

import copy
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol, Self

import numpy as np

from penstock.core.records import Columns
from penstock.errors import InputError
from penstock.sources.files.paths import fail_unreadable, open_binary, read_bytes

PIECE_BYTES = 1 << 20
_INPUT_BYTES = 64 << 10
_OUTPUT_BYTES = 1 << 20

PLAIN, GZIP, ZLIB, DEFLATE = "plain", "gzip", "zlib", "deflate"
_WINDOW_BITS = {GZIP: 31, ZLIB: 15, DEFLATE: -15}


class Tape(Protocol):
    """Bytes that are read from front to back. `problem` is why they end too early, if they do."""

    problem: str | None

    def read(self, nbytes: int) -> bytes:
        """The next bytes; fewer only where they end."""
        ...

    def skip(self, nbytes: int) -> int:
        """Move on without reading; returns how far it went."""
        ...

    def close(self) -> None: ...


def compression_of(head: bytes) -> str:
    """How a file is compressed, by its first bytes. Plain content may look compressed: check that first."""
    if head[:3] == b"\x1f\x8b\x08":
        return GZIP
    is_zlib = len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0
    return ZLIB if is_zlib else PLAIN


def open_tape(path: str, compression: str) -> Tape:
    """The content of a file, from its beginning.

    Raises:
        InputError: The file cannot be opened.
    """
    if compression != PLAIN:
        return InflatedTape(path, compression)
    try:
        return PlainTape(path, open_binary(path))
    except OSError as error:
        raise fail_unreadable(path, error) from error


class PlainTape:
    """A file as it is. Skipping is seeking."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = file.seek(0, 2)
        self._offset = file.seek(0)
        self.problem: str | None = None

    def read(self, nbytes: int) -> bytes:
        try:
            raw = self._file.read(max(0, min(nbytes, self._size - self._offset)))
        except OSError as error:
            raise fail_unreadable(self._path, error) from error
        self._offset += len(raw)
        return raw

    def skip(self, nbytes: int) -> int:
        moved = min(nbytes, self._size - self._offset)
        self._offset = self._file.seek(self._offset + moved)
        return moved

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """The bytes at an offset."""
        self._offset = self._file.seek(offset)
        return self.read(nbytes)

    def close(self) -> None:
        self._file.close()


class InflatedTape:
    """A gzip file of any number of members, a zlib stream, or deflated bytes without a frame, as in a zip file.

    Everything before damage is read, to the last byte. The file is not held open, because a tape waits for spans that
    may never come. Nothing is inflated beyond what is read.

    Args:
        path: The file.
        compression: One of the names above.
        start: Where the compressed bytes begin.
        stop: Where they end, if that is not the end of the file.
    """

    def __init__(self, path: str, compression: str, start: int = 0, stop: int | None = None) -> None:
        self._path = path
        self._wbits = _WINDOW_BITS[compression]
        self._inflater = zlib.decompressobj(self._wbits)
        self._offset = start
        self._stop = stop
        self._fetched = b""
        self._input = b""
        self._ready = bytearray()
        self._is_finished = False
        self.problem: str | None = None

    def read(self, nbytes: int) -> bytes:
        while len(self._ready) < nbytes and not self._is_finished:
            self._inflate(min(_OUTPUT_BYTES, nbytes - len(self._ready)))
        raw = bytes(self._ready[:nbytes])
        del self._ready[:nbytes]
        return raw

    def skip(self, nbytes: int) -> int:
        moved = 0
        while moved < nbytes and (raw := self.read(min(PIECE_BYTES, nbytes - moved))):
            moved += len(raw)
        return moved

    def copy(self) -> Self:
        """Another tape at this offset. To take little memory, it fetches again what was not inflated yet."""
        made = copy.copy(self)
        made._inflater = self._inflater.copy()
        made._offset = self._offset - len(self._fetched) - len(self._input)
        made._fetched = made._input = b""
        made._ready = bytearray(self._ready)
        return made

    def close(self) -> None:
        self._ready.clear()

    def _inflate(self, most: int) -> None:
        if self._inflater.eof:
            self._input = self._inflater.unused_data
            self._next_member()
            return
        if not self._input:
            self._input = self._fetch()
        is_last = not self._input
        before = self._inflater.copy()
        try:
            raw = self._inflater.decompress(self._input, most)
            self._input = self._inflater.unconsumed_tail
        except zlib.error as error:
            self._inflater = before
            self._inflate_to_the_damage(error)
            return
        self._take(raw)
        # Without new input, the inflater may still have output from bytes that it took before.
        if is_last and not raw and not self._inflater.eof:
            self._end("the compressed data is cut")

    def _take(self, raw: bytes) -> None:
        self._ready += raw

    def _fetch(self) -> bytes:
        """The next few compressed bytes; they are read from the file in larger pieces."""
        if not self._fetched:
            most = PIECE_BYTES if self._stop is None else min(PIECE_BYTES, self._stop - self._offset)
            try:
                self._fetched = read_bytes(self._path, self._offset, most) if most > 0 else b""
            except OSError as error:
                raise fail_unreadable(self._path, error) from error
            self._offset += len(self._fetched)
        raw, self._fetched = self._fetched[:_INPUT_BYTES], self._fetched[_INPUT_BYTES:]
        return raw

    def _next_member(self) -> None:
        """Go on after a member: to the next one, past zeros that pad the file, or to the end."""
        while not (rest := self._input.lstrip(b"\0")):
            self._input = self._fetch()
            if not self._input:
                self._is_finished = True
                return
        self._input = rest
        if self._wbits != 31:
            self._end("there are bytes after the end of the compressed data")
            return
        self._inflater = zlib.decompressobj(self._wbits)

    def _inflate_to_the_damage(self, error: zlib.error) -> None:
        """Inflate up to the damage, in ever smaller steps: the output of a call that fails is lost."""
        rest, step = self._input, len(self._input)
        while step and rest:
            before = self._inflater.copy()
            try:
                self._take(self._inflater.decompress(rest[:step]))
                rest = rest[step:]
            except zlib.error:
                self._inflater = before
                step //= 2
        self._end(f"the compressed data is damaged: {error}")

    def _end(self, problem: str) -> None:
        self.problem = problem
        self._is_finished = True


class TapeStream:
    """A tape as a `file_source.Stream`, whose rows are bytes."""

    def __init__(self, path: str, compression: str) -> None:
        self._path = path
        self._tape = open_tape(path, compression)

    def read(self, rows: int) -> Iterator[Columns]:
        while rows:
            raw = self._tape.read(min(rows, PIECE_BYTES))
            if not raw:
                raise changed(self._path)
            rows -= len(raw)
            yield {"bytes": np.frombuffer(raw, np.uint8)}

    def skip(self, rows: int) -> None:
        if self._tape.skip(rows) != rows:
            raise changed(self._path)


def changed(path: str) -> InputError:
    return InputError("the file is shorter than when it was divided", received=path, hint="did it change meanwhile?")


def head_of(path: str, nbytes: int) -> bytes:
    try:
        return read_bytes(path, 0, nbytes)
    except OSError as error:
        raise fail_unreadable(path, error) from error
