"""npy parts: `OUT/<column>/part-….npy` for each output and kept column, and `OUT/row/part-….npy`."""

from __future__ import annotations

import os

import numpy as np

from penstock.core.columns import OPAQUE, to_array
from penstock.core.records import STRING, Array, Column, OutputSchema, Result
from penstock.errors import OutputError, UsageError
from penstock.sinks.staging import ROW, check_names, fsync_file


class NpySink:
    """One npy file for each column of a part."""

    suffix = ".npy"

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
                    hint=f"--rename {column.name}=NEW",
                )

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> NpyPart:
        return NpyPart(name, folder, schema)


class NpyPart:
    """The header of an npy file holds its length, so a part is gathered and written at its end."""

    def __init__(self, name: str, folder: str, schema: OutputSchema) -> None:
        self._name = name
        self._folder = folder
        self._specs = {column.name: column for column in schema.columns}
        self._gathered: dict[str, list[Array]] = {ROW: [], **{name: [] for name in self._specs}}

    def write(self, result: Result) -> None:
        self._gathered[ROW].append(result.row_numbers())
        for name, column in result.columns.items():
            self._gathered[name].append(self._as_array(name, column))

    def _as_array(self, name: str, column: Column) -> Array:
        if isinstance(column, np.ndarray):
            return column
        spec = self._specs[name]
        if column.null_count and spec.shape == () and spec.dtype.startswith("float"):
            return np.asarray(column.to_numpy(zero_copy_only=False), dtype=spec.dtype)  # null is NaN
        array, bad = to_array(column, spec.dtype, spec.shape or ())
        if bad:
            raise OutputError(
                "npy files have no nulls",
                received=f"the kept column {name!r} {next(iter(bad.values()))}",
                hint="use --format parquet or jsonl, or do not --keep this column",
            )
        return array

    def finish(self) -> dict[str, str]:
        staged: dict[str, str] = {}
        for number, (name, pieces) in enumerate(self._gathered.items()):
            path = os.path.join(self._folder, f"{self._name}.{number}.npy")
            np.save(path, np.concatenate(pieces))
            fsync_file(path)
            staged[path] = os.path.join(name, self._name + ".npy")
        return staged

    def abandon(self) -> None:
        self._gathered.clear()
