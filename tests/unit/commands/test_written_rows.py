"""What `predict` wrote is read back for an evaluation, from every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.commands.gathering import to_numpy
from penstock.commands.written_rows import RowReader, WrittenParts, is_readable
from penstock.core.columns import to_arrow
from penstock.core.protocols import Sink
from penstock.core.records import STRING, Column, OutputSchema, Result, RowFailure, Span, TensorSpec
from penstock.errors import InputError, OutputError
from penstock.sinks.arrow import ArrowSink
from penstock.sinks.csv import CsvSink
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.npy import NpySink
from penstock.sinks.parquet import ParquetSink
from penstock.sources.python.memory import InMemory

SINKS: list[Sink] = [ParquetSink(), ArrowSink(), NpySink(), JsonLinesSink(), CsvSink()]
NUMBERS = (
    TensorSpec("p", "float32", (3,)),
    TensorSpec("one", "float64", ()),
    TensorSpec("long", "float32", (1001,)),
    TensorSpec("grid", "float32", (2, 2)),
    TensorSpec("y", "int64", ()),
)
TEXT = TensorSpec("name", STRING, ())
TEXTS = ["007", "a,b", 'say "x"\nagain', "", "nan"]


def columns(seed: int) -> dict[str, Column]:
    random = np.random.default_rng(seed)
    p = random.random((5, 3)).astype(np.float32)
    p[1, 2] = np.nan
    return {
        "p": p,
        "one": random.random(5),
        "long": random.random((5, 1001)).astype(np.float32),
        "grid": random.random((5, 2, 2)).astype(np.float32),
        "y": random.integers(0, 9, 5),
    }


def write(sink: Sink, folder: Path, *, has_text: bool) -> WrittenParts:
    """Two parts of two results each; in each result one row of six failed."""
    specs = (*NUMBERS, TEXT) if has_text else NUMBERS
    schema = OutputSchema(specs, 4)
    parts = []
    for part in range(2):
        (folder / str(part)).mkdir()
        writer = sink.open_part(f"part-{part}", str(folder / str(part)), schema)
        for piece in range(2):
            number = 2 * part + piece
            found = columns(number) | ({"name": pa.array(TEXTS, pa.large_string())} if has_text else {})
            failed = (RowFailure(6 * number + 2, "o", "read", "E", "r"),)
            writer.write(Result(Span(number, 6 * number, 6, ()), found, failed))
        parts.append({final: path for path, final in writer.finish().items()})
    return WrittenParts(sink.suffix, schema, parts)


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.suffix)
def test_every_value_comes_back_in_order(sink: Sink, tmp_path: Path) -> None:
    has_text = not isinstance(sink, NpySink)
    written = write(sink, tmp_path, has_text=has_text)
    names = ["one", "grid", "p", "long", "y", *(["name"] if has_text else [])]
    blocks = list(written.read(names))
    rows = np.concatenate([np.asarray(block["row"]) for block in blocks])
    assert rows.tolist() == [row for row in range(24) if row % 6 != 2]
    for name in names:
        if name == "name":
            assert [text for block in blocks for text in to_arrow(block[name]).to_pylist()] == 4 * TEXTS
            continue
        found = np.concatenate([to_numpy(block[name]) for block in blocks])
        expected = np.concatenate([np.asarray(columns(number)[name]) for number in range(4)])
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_columns_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    written = write(CsvSink(), tmp_path, has_text=True)
    assert {name for block in written.read(["y"]) for name in block} == {"row", "y"}


@pytest.mark.parametrize("sink", [JsonLinesSink(), CsvSink()], ids=lambda sink: sink.suffix)
def test_what_is_no_longer_what_was_written_is_told(sink: Sink, tmp_path: Path) -> None:
    written = write(sink, tmp_path, has_text=True)
    path = Path(next(iter(written.addresses[0].values())))
    path.write_text(path.read_text(encoding="utf-8").replace('"y"', '"z"').replace("0.", "x", 1), encoding="utf-8")
    with pytest.raises(OutputError, match="cannot be read"):
        list(written.read(["y", "one"]))


def test_what_a_plugin_writes_is_not_read() -> None:
    assert not is_readable(".toy")


def test_rows_that_the_input_does_not_have_are_told() -> None:
    reader = RowReader(InMemory({"y": np.arange(10)}), "y")
    assert np.asarray(reader.take(np.array([2, 5]))).tolist() == [2, 5]
    with pytest.raises(InputError, match="fewer rows"):
        reader.take(np.array([10]))
