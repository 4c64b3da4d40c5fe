"""Tables, arrays and memory over the same rows, for the contract of sources."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.protocols import Source
from penstock.sources.python.memory import InMemory
from penstock.sources.tables.arrow import ArrowFiles
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.jsonl import JsonLines
from penstock.sources.tables.npy import ArrayFiles
from penstock.sources.tables.parquet import ParquetFiles

from .case import Bad, Case, Rows, write_nothing

ROWS = 200
SPLIT = (0, 107, 107, 108, 200)  # four files, of which one has no rows and one has a single one
BAD_ROW = 151


def numbers() -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(7)
    return {
        "id": np.arange(ROWS, dtype=np.int64) + (1 << 53) + 1,
        "pixels": chance.integers(0, 256, (ROWS, 12), dtype=np.uint8),
        "weight": chance.normal(size=ROWS),
    }


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


def write_arrow(suffix: str, *, batch: int, is_stream: bool = False) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        paths = names_of(folder, suffix)
        for path, piece in zip(paths, pieces(), strict=True):
            table = table_of(piece, is_nested=True)
            options = pa.ipc.IpcWriteOptions(compression="lz4" if suffix == ".feather" else None)
            new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
            with pa.OSFile(path, "wb") as file, new(file, table.schema, options=options) as writer:
                writer.write_table(table, batch)
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


def expected(*names: str, nested: bool = False, word: str | None = None) -> Rows:
    columns = numbers()
    if nested:
        columns["pixels"] = columns["pixels"].reshape(-1, 2, 6)
    rows: Rows = {name: columns[name].tolist() for name in names}
    if word is not None:
        rows["word"] = [word.format(value) for value in columns["id"].tolist()]
    return rows


NESTED = expected("id", "weight", "pixels", nested=True, word="w{}")
FLAT = expected("id", "weight")


def file_of(row: int) -> int:
    return max(number for number, first in enumerate(SPLIT[:-1]) if first <= row)


def row_of_file(paths: list[str], row: int) -> str:
    return f"{paths[file_of(row)]}, row {row - SPLIT[file_of(row)]}"


def spoil_csv(delimiter: str) -> Callable[[list[str]], Bad]:
    """A row with too few fields."""

    def spoil(paths: list[str]) -> Bad:
        path = paths[file_of(BAD_ROW)]
        raw = Path(path).read_bytes()
        start = raw.index(f"\n{numbers()['id'][BAD_ROW]}{delimiter}".encode()) + 1
        stop = raw.index(b'"""\n', start) + 3
        Path(path).write_bytes(raw[:start] + b"7" + raw[stop:])
        left = dict.fromkeys(("id", "weight", "word"))
        return Bad(BAD_ROW, f"{path}, byte {start}", "1 field", left)

    return spoil


def spoil_jsonl(paths: list[str]) -> Bad:
    """A record that breaks off."""
    path = paths[file_of(BAD_ROW)]
    lines = Path(path).read_bytes().splitlines(keepends=True)
    place = BAD_ROW - SPLIT[file_of(BAD_ROW)]
    start = sum(map(len, lines[:place]))
    lines[place] = lines[place][:20] + b"\n"
    Path(path).write_bytes(b"".join(lines))
    left = dict.fromkeys(("id", "weight", "pixels", "word"))
    return Bad(BAD_ROW, f"{path}, byte {start}", "JSON", left)


def arrays_of_other_values() -> Sequence[Source]:
    found: list[Source] = []
    for name in ("id", "pixels", "weight"):
        changed = numbers()
        changed[name].flat[-1] += 1
        found.append(InMemory(changed))
    return found


def tables_of_other_values() -> Sequence[Source]:
    table = table_of(numbers(), is_nested=True)
    words = pa.array(["other", *table["word"].to_pylist()[1:]])
    return [InMemory.from_table(table.set_column(3, "word", words)), InMemory.from_table(table.slice(1))]


def array_case(name: str, write: Callable[[Path], list[str]], rows: Rows) -> Case:
    return Case(name, write, ArrayFiles, rows, row_of_file, unspoilable="any bytes are numbers")


def parquet_case(name: str, row_group: int, *, is_nested: bool = True) -> Case:
    write = write_parquet(is_nested=is_nested, row_group=row_group)
    rows = NESTED if is_nested else FLAT
    return Case(name, write, ParquetFiles, rows, row_of_file, unspoilable="pages are whole or refused", most_times=8)


def arrow_case(name: str, suffix: str, batch: int, *, is_stream: bool = False) -> Case:
    write = write_arrow(suffix, batch=batch, is_stream=is_stream)
    return Case(name, write, ArrowFiles, NESTED, row_of_file, unspoilable="any bytes are numbers", most_times=8)


def csv_case(name: str, delimiter: str) -> Case:
    rows = expected("id", "weight", word=f'w{delimiter}\n"{{}}"')
    write, spoil = write_csv(delimiter, f".{name}"), spoil_csv(delimiter)
    return Case(name, write, CsvFiles, rows, lambda paths, row: f"{paths[file_of(row)]},", spoil=spoil)


def memory_case(name: str, make: Callable[[], Source], rows: Rows, others: Callable[[], Sequence[Source]]) -> Case:
    return Case(
        name, write_nothing, lambda _: make(), rows, lambda paths, row: "memory", unspoilable="held", others=others
    )


NPZ = expected("id", "pixels", "weight")
JSONL = expected("id", "weight", "pixels", nested=True, word="w\n{}")

BINARY = [
    array_case("npy", write_npy, {"data": expected("pixels")["pixels"]}),
    array_case("npz stored", write_npz(np.savez), NPZ),
    array_case("npz compressed", write_npz(np.savez_compressed), NPZ),
    parquet_case("parquet flat", 30, is_nested=False),
    parquet_case("parquet nested", 30),
    parquet_case("parquet small row groups", 3),
    parquet_case("parquet one row group", 10_000),
    arrow_case("arrow", ".arrow", 30),
    arrow_case("arrow one batch", ".arrow", 10_000),
    arrow_case("arrow stream", ".arrow", 30, is_stream=True),
    arrow_case("feather compressed", ".feather", 3),
]
FILES = [
    *BINARY,
    csv_case("csv", ","),
    csv_case("tsv", "\t"),
    Case("jsonl", write_jsonl, JsonLines, JSONL, lambda paths, row: f"{paths[file_of(row)]},", spoil=spoil_jsonl),
]
CASES = [
    *FILES,
    memory_case("memory arrays", lambda: InMemory(numbers()), NPZ, arrays_of_other_values),
    memory_case(
        "memory table",
        lambda: InMemory.from_table(table_of(numbers(), is_nested=True)),
        NESTED,
        tables_of_other_values,
    ),
    memory_case(
        "shared memory",
        lambda: InMemory.from_table(table_of(numbers(), is_nested=True)).shared(),
        NESTED,
        tables_of_other_values,
    ),
]
