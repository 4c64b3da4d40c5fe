"""Ways to read a source, with what it promises of every block checked on the way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.records import Column, RowFailure, SourceColumn, Span
from penstock.sources.audio.files import EncodedAudio

from .case import Case as Case
from .case import Rows as Rows
from .picture import SIZE, rows_of
from .table_cases import FILES as FILES

AUDIO_FRAMES = 64
"""Audio is decoded into rows of so many frames."""


def plain(column: SourceColumn) -> tuple[list[Any], dict[int, tuple[str, str]]]:
    """The values, and the errors and reasons of rows that cannot be decoded. A picture is told by its colour."""
    if not isinstance(column, Deferred):
        return _values(column), {}
    is_audio = isinstance(column, EncodedAudio)
    shape: tuple[int, ...] = (AUDIO_FRAMES,) if is_audio else (*SIZE, 3)
    decoded = np.full((len(column), *shape), 7, np.float32 if is_audio else np.uint8)
    announced: list[int] = []
    bad = column.fill(decoded, announced.append)
    assert announced == list(range(len(column)))
    reasons = {place: (bad.errors.get(place, ""), reason) for place, reason in bad.items()}
    return decoded.tolist() if is_audio else rows_of(decoded), reasons


def _values(column: Column) -> list[Any]:
    if isinstance(column, np.ndarray):
        return list(column.tolist())
    values: list[Any] = column.to_pylist()
    if isinstance(column.type, pa.FixedShapeTensorType):  # whose rows Arrow gives without their shape
        return [None if row is None else np.reshape(row, column.type.shape).tolist() for row in values]
    return values


def read_span(source: Source, span: Span, columns: Sequence[str]) -> tuple[Rows, list[RowFailure]]:
    """The rows of a span; that its blocks follow each other without a gap is checked on the way."""
    rows: Rows = {name: [] for name in columns}
    failures: dict[int, RowFailure] = {}
    position = span.start
    for block in source.read(span, columns):
        assert block.start == position
        assert list(block.columns) == list(dict.fromkeys(columns))
        failures |= {failure.row: failure for failure in block.failures}
        for name in columns:
            values, bad = plain(block.columns[name])
            assert len(values) == block.rows
            rows[name] += values
            for place, why in bad.items():  # as a loader names what its batches could not take
                row = block.start + place
                failures.setdefault(row, RowFailure(row, source.origin(span, row), "load", *why))
        position += block.rows
    assert position == span.stop
    return rows, list(failures.values())


def read_all(source: Source, spans: Iterable[Span], columns: Sequence[str]) -> Rows:
    """The rows of all spans, read in the order given and put into the order of the input."""
    rows, failures = read_with_failures(source, spans, columns)
    assert failures == []
    return rows


def read_with_failures(source: Source, spans: Iterable[Span], columns: Sequence[str]) -> tuple[Rows, list[RowFailure]]:
    read = {span.index: read_span(source, span, columns) for span in spans}
    rows = {name: [value for index in sorted(read) for value in read[index][0][name]] for name in columns}
    return rows, [failure for index in sorted(read) for failure in read[index][1]]


def touch(path: str) -> None:
    """The same content at another time."""
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
