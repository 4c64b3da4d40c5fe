"""The kinds of job that the fault harness kills: their inputs, their commands, and their output, read back.

| command | begins with | the change | is compared with |
|---|---|---|---|
| predict | nothing | | an undisturbed predict |
| retry | a finished job with failed rows | the function of the job is mended, for most of them | an undisturbed retry |
| append | a finished job | its input folder has more files | an undisturbed append |
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.crash_points import POINTS

ROOT = Path(__file__).resolve().parents[2]
SINKS = ("parquet", "npy", "csv", "jsonl", "arrow")
ROWS, PART_ROWS, BATCH = 1536, 128, 8
TORN = "journal_torn"
"""A kill at `journal_written`, and then only a part of the last record is on the disk."""
BUCKET = "chaos"

_BEGINNING = ("lock", "manifest")
_ON_CLUSTERS = ("attempt_", "segment_")
_RETRYING = ("retry", "replace")
_NOT_RETRYING = ("part_begun", "part_span_written", "part_synced")
_ONLY_ON_DISKS = ("manifest_written", "manifest_synced", "manifest_renamed", "publish_unsettled", "journal_written")
_ONCE = (*_BEGINNING, "recovery", "summary")
_INTERNAL = ("log.txt", "lock", "journal", "manifest.json")
_FILES = 4
_FUNCTION = """
import time

def dim(row):
    time.sleep(0.0004)
    if int(row["pixels"].sum()) % {modulus} == 0:
        raise ValueError("this row cannot be dimmed")
    return {{"pixels": row["pixels"] // 2}}
"""


@dataclass(frozen=True)
class Setup:
    """One kind of job: a command, a model, an input, a sink, a place, and whether functions run around the model."""

    inputs: Path
    sink: str
    has_functions: bool = False
    is_tensorflow: bool = False
    command: str = "predict"
    is_remote: bool = False

    @property
    def name(self) -> str:
        kind = "tensorflow" if self.is_tensorflow else "functions" if self.has_functions else "plain"
        return "-".join([self.sink, kind, self.command, *(["s3"] if self.is_remote else [])])

    @property
    def folder(self) -> Path:
        """What belongs to this kind of job alone: a function that is mended, a folder that grows."""
        return self.inputs / self.name

    @property
    def points(self) -> tuple[str, ...]:
        """The crash points that its runs come to."""
        others = (*_ON_CLUSTERS, *(_NOT_RETRYING if self.command == "retry" else _RETRYING))
        points = tuple(point for point in POINTS if not point.startswith(others))
        return tuple(point for point in points if point not in _ONLY_ON_DISKS) if self.is_remote else (*points, TORN)

    def predict(self, output: str) -> list[str]:
        """The command line of the job, with everything pinned that decides the bits."""
        model = "digits.keras" if self.is_tensorflow else "digits.onnx" if self.has_functions else "slow_digits.onnx"
        data = self.folder / "rows" if self.command == "append" else self.inputs / "rows.parquet"
        runtime = "tensorflow" if self.is_tensorflow else "onnx"
        arguments = ["predict", str(self.inputs / model), str(data), "--output", output, "--format", self.sink]
        arguments += ["--devices", "cpu:1" if self.has_functions or self.is_tensorflow else "cpu:2"]
        arguments += ["--runtime", runtime, "--batch-size", str(BATCH), "--threads", "1"]
        arguments += ["--part-rows", str(PART_ROWS)]
        if self.has_functions:
            dim = "mended_function:dim" if self.command == "retry" else "tests.support.chaos_functions:dim"
            arguments += ["--preprocess-row", dim, "--loaders", "1"]
            arguments += ["--postprocess", "tests.support.chaos_functions:doubled"]
        return arguments

    def arguments(self, output: str) -> list[str]:
        """The command that is killed, and that goes on after it was."""
        if self.command == "retry":
            return ["retry", output]
        return [*self.predict(output), *(["--append"] if self.command == "append" else [])]

    def write_own(self) -> None:
        """What the job begins with."""
        self.folder.mkdir()
        if self.command == "append":
            (self.folder / "rows").mkdir()
            self._write_file(1)
        if self.command == "retry":
            (self.folder / "mended_function.py").write_text(_FUNCTION.format(modulus=61), encoding="utf-8")

    def change(self) -> None:
        """Mend the function; have the folder grow."""
        if self.command == "append":
            for number in set(range(_FILES)) - {1}:
                self._write_file(number)
        if self.command == "retry":
            (self.folder / "mended_function.py").write_text(_FUNCTION.format(modulus=4 * 61), encoding="utf-8")

    def _write_file(self, number: int) -> None:
        rows = pq.read_table(self.inputs / "rows.parquet").slice(number * ROWS // _FILES, ROWS // _FILES)
        pq.write_table(rows, self.folder / "rows" / f"{number}.parquet")


def is_of_beginning(point: str) -> bool:
    """Whether a point is visited before the first part."""
    return point.startswith(_BEGINNING)


def is_visited_once(point: str) -> bool:
    return point.startswith(_ONCE)


def all_setups(inputs: Path) -> list[Setup]:
    """Every kind of job with a runtime that starts quickly."""
    return [
        *(Setup(inputs, sink, has_functions) for has_functions in (False, True) for sink in SINKS),
        *(Setup(inputs, sink, has_functions=True, command="retry") for sink in SINKS),
        *(Setup(inputs, sink, command="append") for sink in SINKS),
        *(Setup(inputs, sink, sink == "npy", is_remote=True) for sink in SINKS),
        *(Setup(inputs, sink, has_functions=True, command="retry", is_remote=True) for sink in ("parquet", "npy")),
        *(Setup(inputs, sink, command="append", is_remote=True) for sink in ("parquet", "csv")),
    ]


def write_inputs(folder: Path, *, tensorflow: bool, num_rows: int = ROWS) -> None:
    """The models and the rows. Some rows are null, and fail whatever the function does."""
    from tests.support import light_models

    folder.mkdir(parents=True, exist_ok=True)
    light_models.write(folder)
    if tensorflow:
        script = ROOT / "tests" / "support" / "make_models.py"
        subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
    pixels = np.random.default_rng(5).integers(0, 17, (num_rows, 64), dtype=np.uint8)
    rows = [None if number % 211 == 7 else row for number, row in enumerate(pixels)]
    column = pa.array(rows, pa.list_(pa.uint8(), 64))
    pq.write_table(pa.table({"pixels": column}), folder / "rows.parquet", row_group_size=num_rows // 4)


@dataclass(frozen=True)
class Content:
    """What a job wrote, read back: rows in the order of the files, and failures."""

    table: pa.Table
    failures: list[dict[str, Any]]


def all_files(store: Any, output: str) -> dict[str, bytes]:
    """Every file of an output, by its name in it."""
    root = store._strip_protocol(output)
    return {path.removeprefix(root).strip("/"): store.cat_file(path) for path in store.find(root)}


def promised(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a job promises to be the same: parts and failures. (The journal has the order of the commits.)"""
    internal = tuple(f"_penstock/{name}" for name in _INTERNAL)
    return {name: content for name, content in files.items() if not name.startswith(internal)}


def files_of(output: Path) -> dict[str, bytes]:
    """The same of an output in a folder."""
    paths = [path for path in output.rglob("*") if path.is_file()]
    return promised({str(path.relative_to(output)): path.read_bytes() for path in paths})


def read(files: Mapping[str, bytes], sink: str) -> Content:
    failures = [json.loads(line) for line in files["_penstock/failures.jsonl"].splitlines()]
    names = sorted(name for name in files if os.path.basename(name).startswith("part-"))
    if sink == "npy":
        columns: dict[str, list[Any]] = {}
        for name in names:
            columns.setdefault(os.path.dirname(name), []).append(np.load(io.BytesIO(files[name])))
        table = pa.table({name: list(np.concatenate(arrays)) for name, arrays in columns.items()})
    else:
        table = pa.concat_tables(_READERS[sink](io.BytesIO(files[name])) for name in names)
    return Content(table.combine_chunks(), failures)


def _read_jsonl(file: io.BytesIO) -> pa.Table:
    return pa.Table.from_pylist([json.loads(line) for line in file])


_READERS = {
    "parquet": pq.read_table,
    "csv": pacsv.read_csv,
    "jsonl": _read_jsonl,
    "arrow": lambda file: pa.ipc.open_file(file).read_all(),
}


def tear(journal: Path, chance: random.Random) -> None:
    """Leave of the last record of a journal what a crash of the machine may leave: some of its bytes."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    if last < len(content):
        os.truncate(journal, chance.randrange(last, len(content)))
