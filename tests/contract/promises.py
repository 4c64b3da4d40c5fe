"""What every source promises, as checks over a source and the rows that it must give."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.records import RowFailure, SourceColumn, Span

Rows = dict[str, list[Any]]
AUDIO_FRAMES = 64
"""Audio is decoded into rows of so many frames."""


@dataclass(frozen=True)
class Opened:
    """A source, how to open it in a given folder, and the rows that it must give."""

    name: str
    open: Callable[[Path], Source]
    expected: Rows

    @property
    def columns(self) -> list[str]:
        return list(self.expected)

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.expected.values())))


def plain(column: SourceColumn) -> list[Any]:
    if isinstance(column, Deferred):
        decoded = np.empty((len(column), AUDIO_FRAMES), np.float32)
        assert not column.fill(decoded, lambda position: None)
        return list(decoded.tolist())
    return list(column.tolist() if isinstance(column, np.ndarray) else column.to_pylist())


def read_span(source: Source, span: Span, columns: Sequence[str]) -> tuple[Rows, list[RowFailure]]:
    rows: Rows = {name: [] for name in columns}
    failures: list[RowFailure] = []
    position = span.start
    for block in source.read(span, columns):
        assert block.start == position
        for name in columns:
            values = plain(block.columns[name])
            assert len(values) == block.rows
            rows[name] += values
        failures += block.failures
        position += block.rows
    assert position == span.stop
    return rows, failures


def read_rows(source: Source, spans: Iterable[Span], columns: Sequence[str]) -> Rows:
    """The rows of all spans, read in the order given and put into the order of the input."""
    read = {span.index: read_span(source, span, columns) for span in spans}
    assert not any(failures for _, failures in read.values())
    return {name: [value for index in sorted(read) for value in read[index][0][name]] for name in columns}


def every_row_comes_once_and_in_order(case: Opened, folder: Path) -> None:
    source = case.open(folder)
    for rows_per_span in (1, 7, 64, 10_000):
        assert read_rows(source, source.divide(rows_per_span), case.columns) == case.expected


def division_is_whole_and_deterministic(case: Opened, folder: Path) -> None:
    source = case.open(folder)
    spans = list(source.divide(7))
    assert list(source.divide(7)) == spans == list(case.open(folder).divide(7))
    assert [span.index for span in spans] == list(range(len(spans)))
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == case.num_rows
    assert all(0 < span.rows <= 7 for span in spans)


def spans_can_be_kept_as_json(case: Opened, folder: Path) -> None:
    for span in case.open(folder).divide(7):
        assert as_tuples(json.loads(json.dumps(span.locator))) == span.locator


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def spans_can_be_read_in_any_order_twice_and_by_several_threads(case: Opened, folder: Path) -> None:
    source = case.open(folder)
    spans = list(source.divide(7))
    random.Random(3).shuffle(spans)
    assert read_rows(source, spans, case.columns) == case.expected
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda span: read_span(source, span, case.columns), [*spans, *spans]))
    for span, (rows, failures) in zip([*spans, *spans], found, strict=True):
        assert failures == []
        assert rows == {name: values[span.start : span.stop] for name, values in case.expected.items()}


def single_columns_can_be_read(case: Opened, folder: Path) -> None:
    source = case.open(folder)
    for name in reversed(case.columns):
        assert read_rows(source, source.divide(64), [name]) == {name: case.expected[name]}


def schema_lists_the_columns(case: Opened, folder: Path) -> None:
    schema = case.open(folder).schema()
    assert list(schema) == case.columns
    assert [spec.name for spec in schema.values()] == case.columns


def pickled_source_reads_the_same(case: Opened, folder: Path) -> None:
    source = case.open(folder)
    fresh = cloudpickle.dumps(source)
    spans = list(source.divide(7))
    assert read_rows(cloudpickle.loads(fresh), spans, case.columns) == case.expected
    source.schema()
    used = cloudpickle.loads(cloudpickle.dumps(source))
    assert used.schema() == source.schema()
    assert read_rows(used, used.divide(64), case.columns) == case.expected


def fingerprint_is_the_same_while_nothing_changes(case: Opened, folder: Path) -> None:
    source = case.open(folder)
    before = list(source.fragments())
    read_rows(source, source.divide(64), case.columns)
    assert list(source.fragments()) == before == list(case.open(folder).fragments())


PROMISES = [
    every_row_comes_once_and_in_order,
    division_is_whole_and_deterministic,
    spans_can_be_kept_as_json,
    spans_can_be_read_in_any_order_twice_and_by_several_threads,
    single_columns_can_be_read,
    schema_lists_the_columns,
    pickled_source_reads_the_same,
    fingerprint_is_the_same_while_nothing_changes,
]
