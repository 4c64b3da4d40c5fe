"""npy parts: `OUT/<column>/part-….npy` for each output and kept column, and `OUT/row/part-….npy`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.core.columns import OPAQUE, to_array
from penstock.core.protocols import PartWriter
from penstock.core.records import STRING, Array, Column, OutputSchema, Result, Span
from penstock.errors import OutputError, UsageError
from penstock.sinks.staging import ROW, check_names, fsync_file


class NpySink:
    """One npy file for each column of a part."""

    suffix = ".npy"

    def folders(self, schema: OutputSchema) -> tuple[str, ...]:
        """A folder for each column. Names that lead out of the output (of a manifest that was edited) are left out."""
        return tuple(name for name in (ROW, *schema.names) if os.path.basename(name) == name not in ("", ".", ".."))

    def check(self, schema: OutputSchema) -> None:
        check_names(schema)
        for column in schema.columns:
            if column.dtype in (STRING, OPAQUE) or column.shape is None:
                raise UsageError(
                    "npy files hold numbers only",
                    received=f"{column.name} {column}",
                    hint="use --format parquet or jsonl, or do not --keep this column",
                )
            if not column.name or "/" in column.name or column.name.startswith((".", "_")):
                raise UsageError(
                    "this column's name cannot be the name of a folder",
                    received=repr(column.name),
                    hint="give it one with --rename: no slash, and no dot or underscore in front",
                )

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> NpyPart:
        return NpyPart(name, folder, schema)

    def merge(self, parts: Sequence[Mapping[str, str]], writer: PartWriter, spans: Sequence[Span]) -> dict[str, str]:
        columns = {
            name: np.concatenate([np.load(part[name], allow_pickle=False) for part in parts]) for name in parts[0]
        }
        order = np.argsort(columns[ROW], kind="stable")
        rows = columns.pop(ROW)[order]
        numbers = tuple((int(row), 1) for row in rows)
        every = Span(0, 0, len(rows), (), None, numbers)
        writer.write(Result(every, {name: column[order] for name, column in columns.items()}))
        return writer.finish()


class NpyPart:
    """Outputs are written as they come. The header of an npy file holds its length, so it is written again at the end.

    Kept columns may have another dtype in every file that they were read from: they are gathered, and written last.
    """

    def __init__(self, name: str, folder: str, schema: OutputSchema) -> None:
        self._name = name
        self._folder = folder
        self._specs = {column.name: column for column in schema.columns}
        names = [ROW, *self._specs]
        self._paths = {each: os.path.join(folder, f"{name}.{number}.npy") for number, each in enumerate(names)}
        self._growing = {each: _GrowingFile(each, self._paths[each]) for each in names[: 1 + schema.num_outputs]}
        self._gathered: dict[str, list[Array]] = {each: [] for each in names[1 + schema.num_outputs :]}

    def write(self, result: Result) -> None:
        for name, column in {ROW: result.row_numbers(), **result.columns}.items():
            array = self._as_array(name, column)
            if name in self._growing:
                self._growing[name].write(array)
            else:
                self._gathered[name].append(array)

    def _as_array(self, name: str, column: Column) -> Array:
        if isinstance(column, np.ndarray):
            return column
        spec = self._specs[name]
        if column.null_count and spec.shape == () and spec.dtype.startswith("float"):
            return np.asarray(column.to_numpy(zero_copy_only=False), dtype=spec.dtype)  # null is NaN
        array, bad = to_array(column, spec.dtype, spec.shape or ())
        if bad:
            raise OutputError(
                "npy files have neither nulls nor rows of different lengths",
                received=f"the column {name!r} {next(iter(bad.values()))}",
                hint="use --format parquet or jsonl, or do not --keep this column",
            )
        return array

    def finish(self) -> dict[str, str]:
        for growing in self._growing.values():
            growing.close()
        for name, pieces in self._gathered.items():
            np.save(self._paths[name], np.concatenate(pieces))
        for path in self._paths.values():
            fsync_file(path)
        return {path: os.path.join(name, self._name + ".npy") for name, path in self._paths.items()}

    def abandon(self) -> None:
        self._gathered.clear()
        for growing in self._growing.values():
            growing.abandon()


SINK = NpySink()


class _GrowingFile:
    """An npy file whose length is known at its end. numpy leaves room in the header for that.

    Rows go to the disk as they come: the fsync at the end, which a short job waits for, finds little to do then.
    """

    _SENT_BYTES = 1 << 20

    def __init__(self, name: str, path: str) -> None:
        self._name = name
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close or abandon
        self._first: Array | None = None
        self._rows = 0
        self._header_bytes = 0
        self._sent = 0
        """How many bytes the kernel has been asked to write to the disk."""

    def write(self, array: Array) -> None:
        if self._first is None:
            self._first = array[:0].copy()
            self._header_bytes = self._write_header()
        elif (array.dtype, array.shape[1:]) != (self._first.dtype, self._first.shape[1:]):
            raise OutputError(
                "npy files hold rows of one shape",
                received=f"{self._name}: {array.dtype}{list(array.shape[1:])} after "
                f"{self._first.dtype}{list(self._first.shape[1:])}",
                hint="use --format parquet or jsonl",
            )
        if array.nbytes:
            self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._rows += len(array)
        self._send()

    def _send(self) -> None:
        """Ask the kernel to begin writing to the disk, without waiting for it."""
        written = self._file.tell()
        if written - self._sent >= self._SENT_BYTES and hasattr(os, "posix_fadvise"):  # not on macOS
            with contextlib.suppress(OSError):  # it is advice
                os.posix_fadvise(self._file.fileno(), self._sent, written - self._sent, os.POSIX_FADV_DONTNEED)
            self._sent = written

    def _write_header(self) -> int:
        assert self._first is not None
        descr = np.lib.format.dtype_to_descr(self._first.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self._rows, *self._first.shape[1:])}
        np.lib.format.write_array_header_1_0(self._file, header)
        return self._file.tell()

    def close(self) -> None:
        self._file.seek(0)
        assert self._write_header() == self._header_bytes, "the header must not grow into the rows"
        self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # the disk may be full
            self._file.close()
