"""Missing values: one rule for every format and for memory. NaN is a value everywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.example_encoding import encode
from penstock.core.feeds import Dense, Ragged
from penstock.core.job import Job
from penstock.core.missing import bind_nulls
from penstock.core.protocols import Source
from penstock.core.records import STRING, Feature, RowFailure, Signature, TensorSpec
from penstock.errors import UsageError
from penstock.jobs.bind import bind, fed_as_floats
from penstock.options.records import Nulls, PredictOptions
from penstock.pool.loading import read_pieces
from penstock.sources.derived.selection import select
from penstock.sources.python.datasets import open_object
from penstock.sources.python.memory import InMemory, open_memory
from penstock.sources.python.streaming import Rows
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.jsonl import JsonLines
from penstock.sources.tables.npy import ArrayFiles
from penstock.sources.tables.parquet import ParquetFiles
from penstock.sources.tfrecord.files import TFRecordFiles
from tests.support import tfrecord_writer

pytestmark = pytest.mark.timeout(60)

NUMBERS: list[Any] = [1.5, None, 3.5, math.nan]
WHOLE: list[Any] = [1, None, 3, 4]
TEXTS: list[Any] = ["a", None, "", "é"]
TABLE: dict[str, list[Any]] = {"x": NUMBERS, "n": WHOLE, "t": TEXTS}


def write_csv(path: Path, missing: str = "n/a") -> CsvFiles:
    """A text file cannot say that text is missing: its rows have none that is."""
    rows = [[_field(value, missing) for value in row] for row in zip(NUMBERS, WHOLE, strict=True)]
    between = "\t" if path.suffix == ".tsv" else ","
    path.write_text("\n".join(between.join(row) for row in [["x", "n"], *rows]) + "\n")
    return CsvFiles([str(path)])


def _field(value: Any, missing: str) -> str:
    return missing if value is None else str(value)


def write_jsonl(path: Path, *, has_key: bool) -> JsonLines:
    rows = [dict(zip(TABLE, values, strict=True)) for values in zip(*TABLE.values(), strict=True)]
    if not has_key:
        rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return JsonLines([str(path)])


def write_parquet(path: Path) -> ParquetFiles:
    pq.write_table(arrow_table(), path)
    return ParquetFiles([str(path)])


def arrow_table() -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in TABLE.items()})


def frame() -> pd.DataFrame:
    numbers = pd.arrays.ArrowExtensionArray(pa.array(NUMBERS))  # in which NaN is not NA
    return pd.DataFrame({"x": numbers, "n": pd.array(WHOLE, "Int64"), "t": pd.Series(TEXTS, dtype=object)})


def write_records(path: Path) -> TFRecordFiles:
    """Records that lack what is missing."""
    kinds = {"x": "float32", "n": "int64", "t": STRING}
    features = [Feature(name, kind, (), is_required=False) for name, kind in kinds.items()]
    records, _ = encode([pa.array(values) for values in TABLE.values()], features)
    return TFRecordFiles([tfrecord_writer.write(path, records)])


def opened(data: Any) -> Source:
    source = open_object(data)
    assert source is not None
    return source


def rows_of_table() -> list[dict[str, Any]]:
    return [dict(zip(TABLE, values, strict=True)) for values in zip(*TABLE.values(), strict=True)]


SOURCES: dict[str, tuple[Callable[[Path], Source], str]] = {
    "csv, n/a": (lambda folder: write_csv(folder / "a.csv"), "is missing: 'n/a'"),
    "csv, nothing": (lambda folder: write_csv(folder / "a.csv", ""), "is missing: the field is empty"),
    "tsv, NULL": (lambda folder: write_csv(folder / "a.tsv", "NULL"), "is missing: 'NULL'"),
    "jsonl, null": (lambda folder: write_jsonl(folder / "a.jsonl", has_key=True), "is null"),
    "jsonl, no key": (
        lambda folder: write_jsonl(folder / "a.jsonl", has_key=False),
        "is missing: the line has no such key",
    ),
    "parquet": (lambda folder: write_parquet(folder / "a.parquet"), "is null"),
    "tfrecord": (
        lambda folder: write_records(folder / "a.tfrecord"),
        "is missing: the record has no value for it",
    ),
    "some rows of csv": (
        lambda folder: select(write_csv(folder / "a.csv"), skip=0, limit=4),
        "is missing: 'n/a'",
    ),
    "arrow": (lambda _: open_memory(arrow_table()), "is null"),
    "shared": (lambda _: InMemory.from_table(arrow_table()).shared(), "is null"),
    "pandas": (lambda _: open_memory(frame()), "is null"),
    "rows": (lambda _: opened(Rows(rows_of_table())), "is null"),
}


def fed(source: Source, name: str, dtype: str, nulls: Nulls, shape: Any = ()) -> tuple[list[Any], list[RowFailure]]:
    """What a model with one input is fed of a column, and the rows that fail."""
    signature = Signature((TensorSpec("in", dtype, shape),), ())
    options = PredictOptions(inputs={"in": (name,)}, nulls=nulls)
    bindings = bind_nulls(bind(signature, source, source.schema(), options), signature, nulls, has_function=False)
    source = source.with_floats(sorted(fed_as_floats(bindings)))
    rows: list[Any] = []
    failures: list[RowFailure] = []
    for span in source.divide(100):
        for piece in read_pieces(Job(source, bindings, (), 8), span):
            feed = piece.feeds["in"]
            if isinstance(feed, Ragged):
                cuts = zip(feed.offsets, feed.offsets[1:], strict=False)
                rows += [feed.values[start:stop].tolist() for start, stop in cuts]
            else:
                assert isinstance(feed, Dense)
                assert feed.array.dtype == (object if dtype == STRING else feed.array.dtype)
                rows += feed.array.tolist()
            failures += piece.failures.values()
    source.close()
    return rows, failures


every_source = pytest.mark.parametrize("kind", SOURCES, ids=list(SOURCES))


def same(found: list[Any], wanted: list[Any]) -> None:
    np.testing.assert_array_equal(np.array(found, float), np.array(wanted, float))


@every_source
def test_missing_number_fails_its_row_and_the_reason_names_what_stood_there(kind: str, tmp_path: Path) -> None:
    make, reason = SOURCES[kind]
    rows, (failure,) = fed(make(tmp_path), "x", "float32", Nulls())
    assert (failure.row, failure.reason) == (1, f"column 'x' {reason}")
    same(rows, [1.5, 0, 3.5, math.nan])


@every_source
@pytest.mark.parametrize(("rule", "value"), [("nan", math.nan), ("-1", -1), ("0.5", 0.5)])
def test_missing_number_is_what_the_rule_says(kind: str, rule: str, value: float, tmp_path: Path) -> None:
    make, _ = SOURCES[kind]
    rows, failures = fed(make(tmp_path), "x", "float32", Nulls(rule))
    assert failures == []
    same(rows, [1.5, value, 3.5, math.nan])
    rows, failures = fed(make(tmp_path), "n", "float32", Nulls(rule))
    assert failures == []
    same(rows, [1, value, 3, 4])


@every_source
def test_missing_whole_number_is_a_whole_number_or_fails(kind: str, tmp_path: Path) -> None:
    make, _ = SOURCES[kind]
    rows, failures = fed(make(tmp_path), "n", "int32", Nulls("-7"))
    assert (rows, failures) == ([1, -7, 3, 4], [])
    with pytest.raises(UsageError, match="does not take the number"):
        fed(make(tmp_path), "n", "int32", Nulls("0.5"))
    with pytest.raises(UsageError, match="no input of the model takes"):
        fed(make(tmp_path), "n", "int32", Nulls("nan"))


@pytest.mark.parametrize("kind", [name for name in SOURCES if "sv" not in name])
def test_missing_text_fails_its_row_or_is_empty(kind: str, tmp_path: Path) -> None:
    make, reason = SOURCES[kind]
    _, (failure,) = fed(make(tmp_path), "t", STRING, Nulls())
    assert (failure.row, failure.reason) == (1, f"column 't' {reason}")
    rows, failures = fed(make(tmp_path), "t", STRING, Nulls(texts="empty"))
    assert (rows, failures) == ([b"a", b"", b"", "é".encode()], [])


def test_empty_text_in_a_csv_file_is_the_empty_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,x\na,1\n,2\nn/a,3\n")
    rows, failures = fed(CsvFiles([str(tmp_path / "a.csv")]), "t", STRING, Nulls())
    assert (rows, failures) == ([b"a", b"", b"n/a"], [])


LISTS: list[Any] = [[1.0, 2.0], [None, 4.0], None, [5.0, math.nan]]


@pytest.mark.parametrize("shape", [(2,), (None,)], ids=["fixed", "of any length"])
@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 2)], ids=str
)
def test_value_that_is_missing_inside_a_list_is_replaced_and_a_missing_list_fails(
    kind: pa.DataType, shape: Any
) -> None:
    source = InMemory.from_table(pa.table({"v": pa.array(LISTS, kind)}))
    _, failures = fed(source, "v", "float32", Nulls(), shape)
    assert sorted(failure.row for failure in failures) == [1, 2]
    rows, (failure,) = fed(source, "v", "float32", Nulls("9"), shape)
    assert (failure.row, failure.reason) == (2, "column 'v' is null")
    same([rows[place] for place in (0, 1, 3)], [[1, 2], [9, 4], [5, math.nan]])


def test_small_integers_hold_what_stands_for_missing_ones() -> None:
    source = InMemory.from_table(pa.table({"v": pa.array([1, None, 255], pa.uint8()), "b": [True, None, False]}))
    same(fed(source, "v", "float32", Nulls("-1"))[0], [1, -1, 255])
    same(fed(source, "v", "float32", Nulls("nan"))[0], [1, math.nan, 255])
    same(fed(source, "v", "int32", Nulls("300"))[0], [1, 300, 255])
    same(fed(source, "b", "float32", Nulls("0.5"))[0], [1, 0.5, 0])


def save_array(path: Path) -> ArrayFiles:
    np.save(path, np.array([1.0, math.nan]))
    return ArrayFiles([str(path)])


def save_text(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [str(path)]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda folder: CsvFiles(save_text(folder / "a.csv", "x\n1\nnan\n")), "x"),
        (lambda folder: CsvFiles(save_text(folder / "a.csv", "x,y\n1,2\nNaN,3\n")), "x"),
        (lambda folder: JsonLines(save_text(folder / "a.jsonl", '{"x": 1}\n{"x": NaN}\n')), "x"),
        (lambda folder: save_array(folder / "a.npy"), "data"),
        (lambda folder: open_memory(pd.DataFrame({"x": [1.0, math.nan]})), "x"),
        (lambda folder: open_memory(pd.DataFrame({"x": [1, None]})), "x"),
        (lambda folder: open_memory({"x": np.array([1.0, math.nan])}), "x"),
        (lambda folder: open_memory(pa.table({"x": [1.0, math.nan]})), "x"),
        (lambda folder: opened(Rows([{"x": 1.0}, {"x": math.nan}])), "x"),
        (lambda folder: opened(iter([{"x": np.array([1.0, math.nan])}])), "x"),
        (lambda folder: opened(iter([pd.DataFrame({"x": [1.0, math.nan]})])), "x"),
    ],
    ids=["csv", "csv NaN", "jsonl", "npy", "pandas", "pandas None", "arrays", "arrow", "rows", "batches", "frames"],
)
@pytest.mark.parametrize("rule", ["fail", "0"])
def test_nan_is_a_value_everywhere(make: Callable[[Path], Source], name: str, rule: str, tmp_path: Path) -> None:
    rows, failures = fed(make(tmp_path), name, "float32", Nulls(rule))
    assert failures == []
    same(rows, [1, math.nan])


def test_batches_of_a_generator_may_lack_values_later() -> None:
    batches = [{"x": np.array([1.0, 2.0])}, {"x": np.array([3.0, None], object)}]
    _, (failure,) = fed(opened(iter(batches)), "x", "float32", Nulls())
    assert (failure.row, failure.reason) == (3, "column 'x' is null")
    rows, failures = fed(opened(iter(batches)), "x", "float32", Nulls("0"))
    assert (rows, failures) == ([1, 2, 3, 0], [])


@pytest.mark.parametrize("given", [["mean"], ["nan", "0"], ["inf"], [""], ["true"]], ids=str)
def test_rule_that_is_none_is_refused(given: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        Nulls.parse(given)
    assert caught.value.exit_code == 2
    assert "empty for text" in (caught.value.allowed or "")


def test_missing_value_beside_a_very_long_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"x,t\nNA,{'long ' * 40_000}\n1,short\n")
    rows, failures = fed(CsvFiles([str(tmp_path / "a.csv")]), "x", "float32", Nulls())
    assert rows[1] == 1
    assert "is missing: 'NA'" in failures[0].reason
