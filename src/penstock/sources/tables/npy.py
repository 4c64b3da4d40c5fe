"""`.npy` and `.npz` files. Arrays are mapped, not loaded: a span is a view of the page cache, or a range of a URL."""

from __future__ import annotations

import io
import lzma
import math
import re
import struct
import threading
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import IO, Any

import numpy as np

from penstock.core.columns import describe
from penstock.core.kinds import SourceFormat
from penstock.core.protocols import SourceTraits
from penstock.core.records import Array, Block, Column, Columns, Extent, Span, TensorSpec
from penstock.errors import InputError, one_line
from penstock.sources.files.file_source import FileSource, origin_of_run, spans_of_files
from penstock.sources.files.inflated import InflatedPieces, Rewindable
from penstock.sources.files.paths import fail_empty, is_url, listed, open_binary, read_bytes, size_of
from penstock.sources.files.tapes import DEFLATE, InflatedTape

NPY_COLUMN = "data"
_STREAM_BYTES = 4 << 20
_HEADER_BYTES = 64 << 10
_KEPT_BYTES = 32 << 20
_MOST_INFLATED = 4
_MOST_MAPPED = 64
_MOST_DEFLATED = 1032
"""Bytes that a compressed byte can stand for: more is not possible with deflate."""
_LARGEST_ROW = 2 << 30
_MOST_EMPTY_ROWS = 1 << 24
_VERSIONS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
"""The versions of the format, and the number of bytes in which each stores the length of the header."""
_USUAL = re.compile(
    rb"\{'descr': '([<>|=]?[biufcSU]\d+)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d+,(?: \d+(?:, \d+)*)?)?)\), \} *\n"
)
"""A header as numpy writes it."""
_PARSING = threading.Lock()
"""CPython's parser counts nesting for all threads together, and fails if two threads parse at once."""
_BROKEN = (
    ValueError,
    EOFError,
    OSError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
)


class ArrayFiles(FileSource):
    """`.npy` files (one column, `data`) or `.npz` files (a column for each array), all with the same columns."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        self._schema: dict[str, TensorSpec] | None = None
        self._rows: list[int] = []
        self._remote: dict[str, dict[str, _Member]] = {}

    def schema(self) -> dict[str, TensorSpec]:
        if self._schema is None:
            self._schema = self._scan()
        return self._schema

    @property
    def traits(self) -> SourceTraits:
        """Rows of `.npy` files on a disk are read at random: those of `.npz` files may be compressed."""
        is_mapped = all(path.lower().endswith(".npy") and not is_url(path) for path in self.paths)
        return SourceTraits(reads_at_random=is_mapped)

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        self.schema()
        if not sum(self._rows):
            raise fail_empty(self.paths)
        yield from spans_of_files(self._rows, rows_per_span)

    def pick(self, numbers: Array, start: int) -> Span:
        return Span(0, start, len(numbers), (numbers,))

    def origin(self, span: Span, row: int) -> str:
        if _is_picked(span):
            number = span.locator[0][row - span.start]
            file = int(np.searchsorted(self._starts, number, "right")) - 1
            return f"{self.paths[file]}, row {number - self._starts[file]}"
        return origin_of_run(self.paths, span.start, span.locator, row)

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        for file, start, rows in span.locator:
            known = listed(self.paths, file)
            arrays = self._remote.get(known.path) or _open(known.path)
            if not all(arrays[name].is_stored for name in columns):
                yield Extent(known, 0, known.size)
                continue
            for name in columns:
                yield Extent(known, *arrays[name].place_of(start, rows))

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        if _is_picked(span):
            yield Block(span.start, span.rows, self._read_picked(span.locator[0], columns))
            return
        row = span.start
        for file, start, rows in span.locator:
            for piece in self._read_run(self.paths[file], start, rows, columns):
                taken = len(next(iter(piece.values())))
                yield Block(row, taken, piece)
                row += taken

    def _read_picked(self, numbers: Array, columns: Sequence[str]) -> Columns:
        files = np.searchsorted(self._starts, numbers, "right") - 1
        picked: Columns = {}
        for file in np.unique(files).tolist():
            places = np.flatnonzero(files == file)
            for name in columns:
                found = self._map(file, name)[numbers[places] - self._starts[file]]
                if name not in picked:
                    picked[name] = np.empty((len(numbers), *found.shape[1:]), found.dtype)
                picked[name][places] = found
        return picked

    def _map(self, file: int, name: str) -> Array:
        """A whole array, mapped once for all that is picked from it."""
        with self._lock:
            found = self._maps.pop((file, name), None)
            if found is None:
                member = _open(self.paths[file])[name]
                if not member.is_stored:
                    raise _damaged(member.path, "it is a compressed .npz file in truth: rename it")
                found = member.rows(0, member.shape[0])
            self._maps[file, name] = found
            if len(self._maps) > _MOST_MAPPED:
                self._maps.pop(next(iter(self._maps)))
        return found

    @cached_property
    def _maps(self) -> dict[tuple[int, str], Array]:
        return {}

    @property
    def _starts(self) -> Array:
        """The number of the first row of every file."""
        self.schema()
        return np.cumsum([0, *self._rows[:-1]])

    def _read_run(self, path: str, start: int, rows: int, columns: Sequence[str]) -> Iterator[Mapping[str, Column]]:
        inflated = self._inflated.get(path)
        arrays = inflated.members if inflated is not None else self._remote.get(path) or _open(path)
        if all(arrays[name].is_stored for name in columns):
            yield {name: arrays[name].rows(start, rows) for name in columns}
        else:
            yield from self._open_inflated(path, arrays).read(start, rows, columns)

    def _open_inflated(self, path: str, arrays: Mapping[str, _Member]) -> _Inflated:
        with self._lock:
            inflated = self._inflated.pop(path, None) or _Inflated(path, arrays)
            self._inflated[path] = inflated
            while len(self._inflated) > _MOST_INFLATED:
                self._inflated.pop(next(iter(self._inflated)))
        return inflated

    @cached_property
    def _inflated(self) -> dict[str, _Inflated]:
        return {}

    @cached_property
    def _lock(self) -> threading.Lock:
        return threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {
            key: value for key, value in super().__getstate__().items() if key not in ("_inflated", "_lock", "_maps")
        }

    def _scan(self) -> dict[str, TensorSpec]:
        schema: dict[str, TensorSpec] = {}
        rows: list[int] = []
        for path in self.paths:
            members = _open(path)
            if is_url(path):
                self._remote[path] = members  # so that no loader has to ask for the header again
            lengths = {name: member.shape[0] for name, member in members.items()}
            if len(set(lengths.values())) > 1:
                raise InputError(
                    "the arrays of a file differ in their number of rows",
                    received=f"{path}: " + ", ".join(f"{name} {rows}" for name, rows in lengths.items()),
                )
            specs = {name: member.spec(name) for name, member in members.items()}
            if schema and specs != schema:
                raise InputError(
                    "the files differ in their arrays",
                    received=f"{path}: " + ", ".join(f"{name} {spec}" for name, spec in specs.items()),
                    allowed=f"as in {self.paths[0]}: " + ", ".join(f"{name} {spec}" for name, spec in schema.items()),
                )
            schema = specs
            rows.append(next(iter(lengths.values()), 0))
        self._rows = rows
        return schema


@dataclass(frozen=True)
class _Member:
    """One array of a file: its shape and dtype, and where its bytes, plain or compressed, lie.

    Args:
        start: Where the member begins in the file.
        header_bytes: How many bytes, inflated, come before the first row.
        info: Its entry in the zip file; None if the file is no zip file.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    start: int
    header_bytes: int
    info: zipfile.ZipInfo | None = None

    def spec(self, name: str) -> TensorSpec:
        return describe(name, np.empty((0, *self.shape[1:]), self.dtype))

    @property
    def is_stored(self) -> bool:
        return self.info is None or self.info.compress_type == zipfile.ZIP_STORED

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.header_bytes + self.shape[0] * self.row_bytes

    def place_of(self, start: int, rows: int) -> tuple[int, int]:
        """Where a run of rows lies in the file: first byte and number of bytes. Row 0 includes the header."""
        first = self.start + self.header_bytes + start * self.row_bytes
        return (first, rows * self.row_bytes) if start else (0, first + rows * self.row_bytes)

    def rows(self, start: int, rows: int) -> Array:
        """A run of rows: a view of the file, or fetched from a URL in one range."""
        if start + rows > self.shape[0]:
            raise _damaged(self.path, "it has fewer rows than it had")
        if 0 in self.shape:
            return np.empty((rows, *self.shape[1:]), self.dtype)
        offset = self.start + self.header_bytes
        if not is_url(self.path):
            try:
                return np.memmap(self.path, self.dtype, "r", offset, self.shape)[start : start + rows]
            except (ValueError, OSError) as error:
                raise _damaged(self.path, str(error)) from error
        raw = read_bytes(self.path, offset + start * self.row_bytes, rows * self.row_bytes)
        if len(raw) != rows * self.row_bytes:
            raise _damaged(self.path, f"{len(raw)} bytes in the place of {rows * self.row_bytes}")
        return np.frombuffer(raw, self.dtype).reshape(rows, *self.shape[1:])

    def open_tape(self) -> Rewindable:
        """The compressed member, inflated from its beginning."""
        assert self.info is not None
        if self.info.compress_type == zipfile.ZIP_DEFLATED:
            return _DeflatedMember(self.path, self.start, self.info)
        return _OtherMember(self.path, self.info)

    def check(self, nbytes: int) -> None:
        """Check a header against the size of the file: a false header must not divide a job into endless rows.

        Raises:
            InputError: The rows do not fit into the file, or a single one is too large to be held.
        """
        np.empty((0, *self.shape[1:]), self.dtype)  # numpy raises for too many dimensions, or too large ones
        if self.info is not None:
            nbytes = self.info.file_size
            if self.is_stored and nbytes != self.info.compress_size:
                raise _damaged(self.path, f"{self.info.filename} has two sizes in the archive")
            if self.info.compress_type == zipfile.ZIP_DEFLATED and nbytes > _MOST_DEFLATED * self.info.compress_size:
                problem = f"{nbytes:,} bytes cannot come from {self.info.compress_size:,} compressed ones"
                raise _damaged(self.path, f"{self.info.filename}: {problem}")
        if nbytes < self.nbytes:
            raise _damaged(self.path, f"it should have {self.nbytes:,} bytes and has {nbytes:,}")
        if self.row_bytes > _LARGEST_ROW or (not self.row_bytes and self.shape[0] > _MOST_EMPTY_ROWS):
            raise InputError(
                "this array cannot be read row by row",
                received=f"{self.path}: shape {self.shape}, dtype {self.dtype}: {self.row_bytes:,} bytes a row",
                allowed=f"at most {_LARGEST_ROW:,} bytes a row, and rows that hold something",
            )


def _is_picked(span: Span) -> bool:
    return len(span.locator) == 1 and isinstance(span.locator[0], np.ndarray)


def _open(path: str) -> dict[str, _Member]:
    """The arrays of a file, by column name."""
    try:
        with open_binary(path, _HEADER_BYTES) as file:
            if file.read(4) == b"PK\x03\x04":
                return _open_npz(path)
            file.seek(0)
            shape, dtype = _header(file, path)
            member = _Member(path, shape, dtype, 0, file.tell())
            member.check(size_of(path))
            return {NPY_COLUMN: member}
    except _BROKEN as error:
        raise _damaged(path, str(error)) from error


def _open_npz(path: str) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    size = size_of(path)
    with open_binary(path, _HEADER_BYTES) as raw, zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                shape, dtype = _header(file, path)
                header_bytes = file.tell()
            raw.seek(info.header_offset)
            name_bytes, extra_bytes = struct.unpack("<HH", raw.read(30)[26:30])
            start = info.header_offset + 30 + name_bytes + extra_bytes
            if start + info.compress_size > size:
                raise _damaged(path, f"{info.filename} ends behind the end of the file")
            member = _Member(path, shape, dtype, start, header_bytes, info)
            member.check(size)
            members[info.filename.removesuffix(".npy")] = member
    if not members:
        raise _damaged(path, "it holds no arrays")
    return members


def _header(file: IO[bytes], path: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    version = np.lib.format.read_magic(file)
    if version not in _VERSIONS:
        raise _damaged(path, f"version {version[0]}.{version[1]} of the format, which is not known")
    prefix = file.read(_VERSIONS[version])
    length = int.from_bytes(prefix, "little")
    if length > _HEADER_BYTES:
        raise _damaged(path, f"a header of {length:,} bytes")
    shape, fortran_order, dtype = _parse(version, prefix + file.read(length))
    is_plain = not (dtype.hasobject or dtype.names or dtype.subdtype)
    if not is_plain or not shape or min(shape) < 0 or (fortran_order and len(shape) > 1):
        raise InputError(
            "this array cannot be read row by row",
            received=f"{path}: shape {shape}, dtype {dtype}" + (", Fortran order" if fortran_order else ""),
            allowed="numbers or fixed-width text in C order, at least one dimension; never pickled objects",
            hint="np.save(path, np.ascontiguousarray(array))",
        )
    return shape, dtype


@lru_cache(256)
def _parse(version: tuple[int, int], raw: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, order and dtype of a header. They are cached, because every span opens its file again.

    A header in numpy's usual form is read by `_USUAL`: numpy parses it as Python, which fails beside other threads.
    """
    try:
        if usual := _USUAL.fullmatch(raw, _VERSIONS[version]):
            descr, order, sides = (each.decode("ascii") for each in usual.groups())
            return tuple(int(side) for side in sides.split(",") if side), order == "True", np.dtype(descr)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with _PARSING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of headers that Python 2 wrote
            shape, fortran_order, dtype = reader(io.BytesIO(raw))
    except Exception as error:  # a header is a Python expression, and may be wrong in any way
        raise ValueError(one_line(error)) from None
    return tuple(map(int, shape)), fortran_order, dtype


def _damaged(path: str, reason: str) -> InputError:
    return InputError("the file is damaged or not a numpy file", received=f"{path}: {reason}")


class _Inflated:
    """The arrays of a compressed `.npz`, each inflated once as long as spans come nearly in order."""

    def __init__(self, path: str, members: Mapping[str, _Member]) -> None:
        self._path = path
        self.members = members
        kept = _KEPT_BYTES // len(members)
        self._pieces = {name: InflatedPieces(member.open_tape, kept) for name, member in members.items()}

    def read(self, start: int, rows: int, columns: Sequence[str]) -> Iterator[Columns]:
        row_bytes = sum(self.members[name].row_bytes for name in columns)
        step = max(1, _STREAM_BYTES // max(1, row_bytes))
        for first in range(start, start + rows, step):
            taken = min(step, start + rows - first)
            yield {name: self._rows(name, first, taken) for name in columns}

    def _rows(self, name: str, start: int, rows: int) -> Array:
        member = self.members[name]
        if member.is_stored:
            return member.rows(start, rows)
        try:
            raw = self._pieces[name].read(member.header_bytes + start * member.row_bytes, rows * member.row_bytes)
        except _BROKEN as error:
            raise _damaged(self._path, str(error)) from error
        if len(raw) != rows * member.row_bytes:
            raise _damaged(self._path, f"the compressed data of {name} is cut or damaged")
        return np.frombuffer(raw, member.dtype).reshape(rows, *member.shape[1:])


class _DeflatedMember(InflatedTape):
    """A member of a zip file, with its length and its checksum."""

    def __init__(self, path: str, start: int, info: zipfile.ZipInfo) -> None:
        super().__init__(path, DEFLATE, start, start + info.compress_size)
        self._crc, self._left, self._info = 0, info.file_size, info

    def _take(self, raw: bytes) -> None:
        self._crc = zlib.crc32(raw, self._crc)
        self._left -= len(raw)
        if self._left < 0 or (self._left == 0 and self._crc != self._info.CRC):
            wrong = "length" if self._left < 0 else "checksum"
            raise _damaged(self._path, f"the {wrong} of {self._info.filename} is wrong")
        super()._take(raw)


class _OtherMember:
    """A member that is compressed in a way that numpy does not write: going back means beginning again."""

    def __init__(self, path: str, info: zipfile.ZipInfo) -> None:
        archive = zipfile.ZipFile(open_binary(path, _STREAM_BYTES) if is_url(path) else path)
        self._file = archive.open(info)

    def read(self, nbytes: int) -> bytes:
        return self._file.read(nbytes)

    def copy(self) -> None:
        return None


FORMAT = SourceFormat((".npy", ".npz"), lambda paths, reading: ArrayFiles(paths))
