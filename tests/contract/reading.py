"""Every source of penstock over the same rows, and ways to read them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.protocols import Source
from penstock.core.records import Column, RowFailure, Span
from penstock.sources.csv import CsvFiles
from penstock.sources.jsonl import JsonLines
from penstock.sources.memory import InMemory
from penstock.sources.npy import ArrayFiles
from penstock.sources.parquet import ParquetFiles

Rows = dict[str, list[Any]]
ROWS = 700
SPLIT = (0, 257, 257, 258, 700)  # four files, of which one has no rows and one has a single one


@dataclass(frozen=True)
class Case:
    """A source: how to make its files (None for memory), how to open it, and the rows that it must give."""

    name: str
    write: Callable[[Path], list[str]]
    open: Callable[[list[str]], Source]
    expected: Rows
    is_text: bool = False
    is_memory: bool = False

    def make(self, folder: Path) -> tuple[Source, list[str]]:
        paths = self.write(folder)
        return self.open(paths), paths


def numbers() -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(7)
    return {
        "id": np.arange(ROWS, dtype=np.int64) + (1 << 53) + 1,
        "pixels": chance.integers(0, 256, (ROWS, 12), dtype=np.uint8),
        "weight": chance.normal(size=ROWS),
    }


def as_lists(columns: dict[str, Any]) -> Rows:
    return {name: column.tolist() for name, column in columns.items()}


def names_of(folder: Path, suffix: str) -> list[str]:
    return [str(folder / f"{number}{suffix}") for number in range(len(SPLIT) - 1)]


def pieces() -> list[dict[str, Any]]:
    columns = numbers()
    cuts = itertools.pairwise(SPLIT)
    return [{name: column[start:stop] for name, column in columns.items()} for start, stop in cuts]


def write_npy(folder: Path) -> list[str]:
    paths = names_of(folder, ".npy")
    for path, piece in zip(paths, pieces(), strict=True):
        np.save(path, piece["pixels"])
    return paths


def write_npz(save: Callable[..., None]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        paths = names_of(folder, ".npz")
        for path, piece in zip(paths, pieces(), strict=True):
            save(path, **piece)
        return paths

    return write


def table_of(piece: dict[str, Any], *, is_nested: bool) -> pa.Table:
    columns = {"id": pa.array(piece["id"]), "weight": pa.array(piece["weight"])}
    if is_nested:
        cubes = piece["pixels"].reshape(-1, 2, 6).tolist()
        columns["pixels"] = pa.array(cubes, pa.list_(pa.list_(pa.uint8(), 6)))
        columns["word"] = pa.array([f"w{value}" for value in piece["id"]], pa.string())
    return pa.table(columns)


def write_parquet(*, is_nested: bool, row_group: int) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        paths = names_of(folder, ".parquet")
        for path, piece in zip(paths, pieces(), strict=True):
            pq.write_table(table_of(piece, is_nested=is_nested), path, row_group_size=row_group)
        return paths

    return write


def write_csv(delimiter: str, suffix: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        paths = names_of(folder, suffix)
        for path, piece in zip(paths, pieces(), strict=True):
            rows = zip(piece["id"].tolist(), piece["weight"].tolist(), strict=True)
            lines = [delimiter.join(("id", "weight", "word"))]
            lines += [delimiter.join((str(i), repr(w), f'"w{delimiter}\n""{i}"""')) for i, w in rows]
            Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return paths

    return write


def write_jsonl(folder: Path) -> list[str]:
    paths = names_of(folder, ".jsonl")
    for path, piece in zip(paths, pieces(), strict=True):
        records = [
            {"id": int(i), "weight": float(w), "pixels": p.reshape(2, 6).tolist(), "word": f"w\n{i}"}
            for i, w, p in zip(piece["id"], piece["weight"], piece["pixels"], strict=True)
        ]
        Path(path).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return paths


def write_nothing(folder: Path) -> list[str]:
    return []


def expected(*names: str, nested: bool = False, word: str | None = None) -> Rows:
    columns = numbers()
    rows: Rows = as_lists({name: columns[name] for name in names if name != "pixels"})
    if "pixels" in names:
        rows["pixels"] = (columns["pixels"].reshape(-1, 2, 6) if nested else columns["pixels"]).tolist()
    if word is not None:
        rows["word"] = [word.format(value) for value in columns["id"].tolist()]
    return rows


NESTED = expected("id", "weight", "pixels", nested=True, word="w{}")
FLAT = expected("id", "weight")

CASES = [
    Case("npy", write_npy, ArrayFiles, {"data": expected("pixels")["pixels"]}),
    Case("npz stored", write_npz(np.savez), ArrayFiles, expected("id", "pixels", "weight")),
    Case("npz compressed", write_npz(np.savez_compressed), ArrayFiles, expected("id", "pixels", "weight")),
    Case("parquet flat", write_parquet(is_nested=False, row_group=100), ParquetFiles, FLAT),
    Case("parquet nested", write_parquet(is_nested=True, row_group=100), ParquetFiles, NESTED),
    Case("parquet small row groups", write_parquet(is_nested=True, row_group=3), ParquetFiles, NESTED),
    Case("parquet one row group", write_parquet(is_nested=True, row_group=10_000), ParquetFiles, NESTED),
    Case("csv", write_csv(",", ".csv"), CsvFiles, expected("id", "weight", word='w,\n"{}"'), is_text=True),
    Case("tsv", write_csv("\t", ".tsv"), CsvFiles, expected("id", "weight", word='w\t\n"{}"'), is_text=True),
    Case("jsonl", write_jsonl, JsonLines, expected("id", "weight", "pixels", nested=True, word="w\n{}"), is_text=True),
    Case(
        "memory arrays",
        write_nothing,
        lambda _: InMemory(numbers()),
        expected("id", "pixels", "weight"),
        is_memory=True,
    ),
    Case(
        "memory table",
        write_nothing,
        lambda _: InMemory.from_table(table_of(numbers(), is_nested=True)),
        NESTED,
        is_memory=True,
    ),
    Case(
        "shared memory",
        write_nothing,
        lambda _: InMemory.from_table(table_of(numbers(), is_nested=True)).shared(),
        NESTED,
        is_memory=True,
    ),
]
FILES = [case for case in CASES if not case.is_memory]
BINARY = [case for case in FILES if not case.is_text]


def plain(column: Column) -> list[Any]:
    return list(column.tolist() if isinstance(column, np.ndarray) else column.to_pylist())


def read_span(source: Source, span: Span, columns: Sequence[str]) -> tuple[Rows, list[RowFailure]]:
    """The rows of a span; that its blocks follow each other without a gap is checked on the way."""
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


def read_all(source: Source, spans: Iterable[Span], columns: Sequence[str]) -> Rows:
    """The rows of all spans, read in the order given and put into the order of the input."""
    read = {span.index: read_span(source, span, columns) for span in spans}
    assert not any(failures for _, failures in read.values())
    rows: Rows = {name: [] for name in columns}
    for index in sorted(read):
        for name in columns:
            rows[name] += read[index][0][name]
    return rows


def touch(path: str) -> None:
    """The same content at another time."""
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
