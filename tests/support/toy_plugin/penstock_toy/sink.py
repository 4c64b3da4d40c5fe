"""Toy parts: the row and the outputs on each line, in a folder of their own."""

from __future__ import annotations

import os

from penstock.core.records import OutputSchema, Result
from penstock.sinks.staging import check_names, fsync_file


class ToySink:
    suffix = ".toy"

    def folders(self, schema: OutputSchema) -> tuple[str, ...]:
        return ("toys",)

    def check(self, schema: OutputSchema) -> None:
        check_names(schema)

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> ToyPart:
        return ToyPart(os.path.join(folder, name + self.suffix))


class ToyPart:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "w", encoding="ascii")  # noqa: SIM115 - closed by finish or abandon

    def write(self, result: Result) -> None:
        for values in zip(result.row_numbers(), *result.columns.values(), strict=True):
            print(*values, file=self._file)

    def finish(self) -> dict[str, str]:
        self._file.close()
        fsync_file(self._path)
        return {self._path: os.path.join("toys", os.path.basename(self._path))}

    def abandon(self) -> None:
        self._file.close()


SINK = ToySink()
