"""`.npy` and `.npz` files. Arrays are mapped, not loaded: a span is a view of the page cache, or a range of a URL."""

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

import numpy as np

from penstock.core.columns import describe
from penstock.core.kinds import SourceFormat
from penstock.core.records import Array, Block, Column, Columns, Extent, Span, TensorSpec
from penstock.errors import InputError
from penstock.sources.files.file_source import FileSource, origin_of_run, spans_of_files
from penstock.sources.files.paths import fail_empty, is_url, listed, open_binary, read_bytes, size_of

NPY_COLUMN = "data"
_STREAM_BYTES = 4 << 20
_HEADER_BYTES = 64 << 10
_BROKEN = (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, struct.error)


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

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        self.schema()
        if not sum(self._rows):
            raise fail_empty(self.paths)
        yield from spans_of_files(self._rows, rows_per_span)

    def origin(self, span: Span, row: int) -> str:
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
        row = span.start
        for file, start, rows in span.locator:
            for piece in self._read_run(self.paths[file], start, rows, columns):
                taken = len(next(iter(piece.values())))
                yield Block(row, taken, piece)
                row += taken

    def _read_run(self, path: str, start: int, rows: int, columns: Sequence[str]) -> Iterator[Mapping[str, Column]]:
        arrays = self._remote.get(path) or _open(path)
        if all(arrays[name].is_stored for name in columns):
            yield {name: arrays[name].rows(start, rows) for name in columns}
            return
        with self._streams.at((path, tuple(columns)), start, lambda: _Inflated(path, columns)) as place:
            yield from place.read(rows)

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
            found = {name: member.spec(name) for name, member in members.items()}
            if schema and found != schema:
                raise InputError(
                    "the files differ in their arrays",
                    received=f"{path}: " + ", ".join(f"{name} {spec}" for name, spec in found.items()),
                    allowed=f"as in {self.paths[0]}: " + ", ".join(f"{name} {spec}" for name, spec in schema.items()),
                )
            schema = found
            rows.append(next(iter(lengths.values()), 0))
        self._rows = rows
        return schema


class _Member:
    """One array of a file: its shape and dtype, and where its bytes lie, if they lie in the file as they are."""

    def __init__(self, path: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], offset: int | None) -> None:
        self.shape = shape
        self.dtype = dtype
        self._path = path
        self._offset = offset

    def spec(self, name: str) -> TensorSpec:
        return describe(name, np.empty((0, *self.shape[1:]), self.dtype))

    @property
    def is_stored(self) -> bool:
        return self._offset is not None

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def place_of(self, start: int, rows: int) -> tuple[int, int]:
        """Where a run of rows lies in the file: first byte and number of bytes. The first run has the header."""
        assert self._offset is not None
        first = self._offset + start * self.row_bytes
        return (first, rows * self.row_bytes) if start else (0, first + rows * self.row_bytes)

    def rows(self, start: int, rows: int) -> Array:
        """A run of rows: a view of the file, or fetched from a URL in one range."""
        assert self._offset is not None
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)[start : start + rows]
        if not is_url(self._path):
            return np.memmap(self._path, self.dtype, "r", self._offset, self.shape)[start : start + rows]
        raw = read_bytes(self._path, self._offset + start * self.row_bytes, rows * self.row_bytes)
        if len(raw) != rows * self.row_bytes:
            raise _damaged(self._path, f"{len(raw)} bytes in the place of {rows * self.row_bytes}")
        return np.frombuffer(raw, self.dtype).reshape(rows, *self.shape[1:])


def _open(path: str) -> dict[str, _Member]:
    """The arrays of a file, by column name."""
    try:
        with open_binary(path, _HEADER_BYTES) as file:
            if file.read(4) == b"PK\x03\x04":
                return _open_npz(path)
            file.seek(0)
            shape, dtype = _header(file, path)
            _check_length(path, file.tell(), shape, dtype)
            return {NPY_COLUMN: _Member(path, shape, dtype, file.tell())}
    except _BROKEN as error:
        raise _damaged(path, str(error)) from error


def _open_npz(path: str) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    with open_binary(path, _HEADER_BYTES) as raw, zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                shape, dtype = _header(file, path)
                offset = None
                if info.compress_type == zipfile.ZIP_STORED:
                    raw.seek(info.header_offset)
                    name_bytes, extra_bytes = struct.unpack("<HH", raw.read(30)[26:30])
                    offset = info.header_offset + 30 + name_bytes + extra_bytes + file.tell()
            members[info.filename.removesuffix(".npy")] = _Member(path, shape, dtype, offset)
    if not members:
        raise _damaged(path, "it holds no arrays")
    return members


def _header(file: IO[bytes], path: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = reader(file)
    if dtype.hasobject or dtype.names or not shape or (fortran_order and len(shape) > 1):
        raise InputError(
            "this array cannot be read row by row",
            received=f"{path}: shape {shape}, dtype {dtype}" + (", Fortran order" if fortran_order else ""),
            allowed="numbers or fixed-width text in C order, at least one dimension; never pickled objects",
            hint="np.save(path, np.ascontiguousarray(array))",
        )
    return shape, dtype


def _check_length(path: str, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    expected = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    actual = size_of(path)
    if actual < expected:
        raise _damaged(path, f"it should have {expected} bytes and has {actual}")


def _damaged(path: str, reason: str) -> InputError:
    return InputError("the file is damaged or not a numpy file", received=f"{path}: {reason}")


class _Inflated:
    """The arrays of a compressed `.npz`, inflated from front to back."""

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        self._path = path
        self._files: dict[str, IO[bytes]] = {}
        self._members = _open(path)
        for name in columns:
            # An archive for each column: of a URL, what was fetched for one would be dropped for the next.
            archive = zipfile.ZipFile(open_binary(path, _STREAM_BYTES) if is_url(path) else path)
            self._files[name] = archive.open(name + ".npy")
            _header(self._files[name], path)
        self._step = max(1, _STREAM_BYTES // max(1, sum(self._members[name].row_bytes for name in columns)))

    def read(self, rows: int) -> Iterator[Columns]:
        while rows:
            taken = min(rows, self._step)
            yield {name: self._read_rows(name, taken) for name in self._files}
            rows -= taken

    def skip(self, rows: int) -> None:
        try:
            for name, file in self._files.items():
                file.seek(rows * self._members[name].row_bytes, 1)
        except _BROKEN as error:
            raise _damaged(self._path, str(error)) from error

    def _read_rows(self, name: str, rows: int) -> Array:
        member = self._members[name]
        try:
            raw = self._files[name].read(rows * member.row_bytes)
            return np.frombuffer(raw, member.dtype).reshape(rows, *member.shape[1:])
        except _BROKEN as error:
            raise _damaged(self._path, str(error)) from error


FORMAT = SourceFormat((".npy", ".npz"), lambda paths, reading: ArrayFiles(paths))
