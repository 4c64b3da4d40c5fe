"""JSON lines parts: one object a row, with `row`, the outputs and the kept columns."""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import to_arrow
from penstock.core.protocols import PartWriter
from penstock.core.records import Column, OutputSchema, Result, Span
from penstock.sinks.staging import ROW, FilePart, OneFileSink


class JsonLinesSink(OneFileSink):
    """One JSON lines file for each part. NaN and infinity are written as null, as JSON has no words for them."""

    suffix = ".jsonl"

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> JsonLinesPart:
        return JsonLinesPart(os.path.join(folder, name + self.suffix))

    def merge(self, parts: Sequence[Mapping[str, str]], writer: PartWriter, spans: Sequence[Span]) -> dict[str, str]:
        assert isinstance(writer, JsonLinesPart)
        return writer.finish_merged(parts, iter, _row_of)


class JsonLinesPart(FilePart):
    """A part of one object a line."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._writer = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by finish or abandon

    def write(self, result: Result) -> None:
        columns = {ROW: result.row_numbers().tolist()}
        for name, column in result.columns.items():
            columns[name] = to_list(column)
        names = list(columns)
        for values in zip(*columns.values(), strict=True):
            record = dict(zip(names, values, strict=True))
            self._writer.write(json.dumps(record, ensure_ascii=False, default=plain, allow_nan=False) + "\n")


SINK = JsonLinesSink()


def _row_of(line: bytes) -> int:
    return int(line[: line.index(b",")].partition(b":")[2])


def to_list(column: Column) -> list[Any]:
    """A column as plain Python values; a number that is not finite becomes None."""
    if isinstance(column, pa.FixedShapeTensorArray):
        column = column.to_numpy_ndarray()
    if not isinstance(column, np.ndarray) and pa.types.is_floating(column.type):
        column = np.asarray(column.to_numpy(zero_copy_only=False))  # null is NaN, and NaN is null again below
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "fiub":
        return [_without_nan(value) for value in to_arrow(column).to_pylist()]
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        objects = column.astype(object)
        objects[~np.isfinite(column)] = None
        return list(objects.tolist())
    return list(column.tolist())


def _without_nan(value: Any) -> Any:
    """NaN and infinity inside lists and structs as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return {key: _without_nan(item) for key, item in value.items()} if isinstance(value, dict) else value


def plain(value: Any) -> Any:
    """What JSON has no type for: bytes as base64, dates and decimals as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
