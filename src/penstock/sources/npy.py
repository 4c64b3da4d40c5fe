"""`.npy` and `.npz` files. Arrays are mapped, not loaded: a span is a view of the page cache."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import IO

import numpy as np

from penstock.core.columns import describe
from penstock.core.records import Array, Block, Column, Columns, Fragment, Span, TensorSpec
from penstock.errors import InputError
from penstock.sources.files import fail_empty, fragment
from penstock.sources.pieces import origin_of_run, spans_of_files
from penstock.sources.streams import OpenStreams

NPY_COLUMN = "data"
_STREAM_BYTES = 4 << 20
_BROKEN = (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, struct.error)


class ArrayFiles:
    """`.npy` files (one column, `data`) or `.npz` files (a column for each array), all with the same columns."""

    suffixes = (".npy", ".npz")

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self._schema: dict[str, TensorSpec] | None = None
        self._rows: list[int] = []

    def fragments(self) -> Sequence[Fragment]:
        return [fragment(path) for path in self.paths]

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

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        row = span.start
        for file, start, rows in span.locator:
            for piece in self._read_run(self.paths[file], start, rows, columns):
                taken = len(next(iter(piece.values())))
                yield Block(row, taken, piece)
                row += taken

    def _read_run(self, path: str, start: int, rows: int, columns: Sequence[str]) -> Iterator[Mapping[str, Column]]:
        arrays = _open(path)
        mapped = {name: arrays[name].mapped for name in columns}
        views = {name: array[start : start + rows] for name, array in mapped.items() if array is not None}
        if len(views) == len(columns):
            yield views
            return
        with self._streams.at((path, tuple(columns)), start, lambda: _Inflated(path, columns)) as place:
            yield from place.read(rows)

    @cached_property
    def _streams(self) -> OpenStreams:
        return OpenStreams()

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_streams"}

    def _scan(self) -> dict[str, TensorSpec]:
        schema: dict[str, TensorSpec] = {}
        rows: list[int] = []
        for path in self.paths:
            members = _open(path)
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
    """One array of a file: its shape and dtype, and its mapping where the bytes lie in the file as they are."""

    def __init__(self, path: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], offset: int | None) -> None:
        self.shape = shape
        self.dtype = dtype
        self._path = path
        self._offset = offset

    def spec(self, name: str) -> TensorSpec:
        return describe(name, np.empty((0, *self.shape[1:]), self.dtype))

    @property
    def mapped(self) -> Array | None:
        if self._offset is None:
            return None
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        return np.memmap(self._path, self.dtype, "r", self._offset, self.shape)


def _open(path: str) -> dict[str, _Member]:
    """The arrays of a file, by column name."""
    try:
        with open(path, "rb") as file:
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
    with zipfile.ZipFile(path) as archive, open(path, "rb") as raw:
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
    actual = os.path.getsize(path)
    if actual < expected:
        raise _damaged(path, f"it should have {expected} bytes and has {actual}")


def _damaged(path: str, reason: str) -> InputError:
    return InputError("the file is damaged or not a numpy file", received=f"{path}: {reason}")


class _Inflated:
    """The arrays of a compressed `.npz`, inflated from front to back."""

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        self._archive = zipfile.ZipFile(path)
        self._path = path
        self._files: dict[str, IO[bytes]] = {}
        self._members = _open(path)
        for name in columns:
            file = self._archive.open(name + ".npy")
            _header(file, path)
            self._files[name] = file
        self._step = max(1, _STREAM_BYTES // max(1, sum(self._row_bytes(name) for name in columns)))

    def read(self, rows: int) -> Iterator[Columns]:
        while rows:
            taken = min(rows, self._step)
            yield {name: self._read_rows(name, taken) for name in self._files}
            rows -= taken

    def skip(self, rows: int) -> None:
        try:
            for name, file in self._files.items():
                file.seek(rows * self._row_bytes(name), 1)
        except _BROKEN as error:
            raise _damaged(self._path, str(error)) from error

    def _read_rows(self, name: str, rows: int) -> Array:
        member = self._members[name]
        try:
            raw = self._files[name].read(rows * self._row_bytes(name))
            return np.frombuffer(raw, member.dtype).reshape(rows, *member.shape[1:])
        except _BROKEN as error:
            raise _damaged(self._path, str(error)) from error

    def _row_bytes(self, name: str) -> int:
        member = self._members[name]
        return int(np.prod(member.shape[1:], dtype=np.int64)) * member.dtype.itemsize
