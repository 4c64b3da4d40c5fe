"""What every sink promises: what was written is read back, from a folder and from a real S3-speaking server."""

from __future__ import annotations

import base64
import csv
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from penstock.core.columns import describe, take_rows, to_array, to_arrow
from penstock.core.protocols import Merges, Sink
from penstock.core.records import STRING, Column, OutputSchema, Result, RowFailure, Span, TensorSpec
from penstock.errors import OutputError, UsageError
from penstock.sinks import staging
from penstock.sinks.arrow import ArrowSink
from penstock.sinks.csv import CsvSink
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.npy import NpySink
from penstock.sinks.parquet import ParquetSink
from penstock.storage.places import place_of
from tests.support import s3_server

SINKS: dict[str, Sink] = {
    "parquet": ParquetSink(),
    "npy": NpySink(),
    "jsonl": JsonLinesSink(),
    "csv": CsvSink(),
    "arrow": ArrowSink(),
}
Rows = dict[str, list[Any]]


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def result(start: int, columns: dict[str, Column], failed: Sequence[int] = ()) -> Result:
    rows = len(next(iter(columns.values()))) + len(failed)
    failures = tuple(RowFailure(row, "o", "read", "E", "r") for row in failed)
    return Result(Span(0, start, rows, ()), columns, failures)


def publish(staged: dict[str, str], folder: Path) -> dict[str, str]:
    """Bring a part to its place, and back to where it can be read; returns final name to path."""
    return {final: path for path, final in staged.items()}


def publish_remotely(staged: dict[str, str], folder: Path) -> dict[str, str]:
    sizes = {final: os.path.getsize(path) for path, final in staged.items()}
    back = Path(tempfile.mkdtemp(dir=folder))
    place = place_of(f"s3://bucket/{back}")
    assert place.publish(staged) == sizes
    assert not any(os.path.exists(path) for path in staged), "what is uploaded does not stay on this disk"
    paths = {final: back / str(number) for number, final in enumerate(sizes)}
    for final, path in paths.items():
        path.write_bytes(place.read(final) or b"")
    return {final: str(path) for final, path in paths.items()}


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with s3_server.start_s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment(endpoint).items():
            patch.setenv(name, value)
        s3_server.filesystem(endpoint).mkdir("bucket")
        yield


@pytest.fixture(params=["folder", "remote"], autouse=True)
def place(request: pytest.FixtureRequest, server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "remote":
        monkeypatch.setattr(sys.modules[__name__], "publish", publish_remotely)


def write(sink: str, folder: Path, results: Sequence[Result], name: str = "part-00000003") -> dict[str, str]:
    """Write a part; returns final name to path."""
    first = results[0].columns
    schema = OutputSchema(tuple(describe(name, column) for name, column in first.items()), len(first))
    SINKS[sink].check(schema)
    part = SINKS[sink].open_part(name, str(folder), schema)
    try:
        for each in results:
            part.write(each)
        staged = part.finish()
    except BaseException:
        part.abandon()
        raise
    assert all(os.path.dirname(path) == str(folder) for path in staged)
    where = {os.path.join(each, name + SINKS[sink].suffix) for each in SINKS[sink].folders(schema)}
    assert set(staged.values()) == where, "a sink says where its parts lie, so that they can be found and removed"
    return publish(staged, folder)


def read(sink: str, files: dict[str, str]) -> Rows:
    """A part as plain Python values by column."""
    if sink == "npy":
        return {os.path.dirname(name): np.load(path).tolist() for name, path in files.items()}
    (path,) = files.values()
    if sink == "jsonl":
        records = [json.loads(line) for line in Path(path).read_bytes().split(b"\n") if line]
        return {name: [record[name] for record in records] for name in records[0]}
    if sink == "csv":
        return read_csv(path)
    table = feather.read_table(path) if sink == "arrow" else pq.read_table(path)
    return {name: plain(table.column(name).combine_chunks()) for name in table.column_names}


def read_csv(path: str) -> Rows:
    """Fields as what they look like; `z_0` and `z_1` together as `z`."""
    with open(path, newline="", encoding="utf-8") as file:
        header, *records = csv.reader(file)
    found: Rows = {}
    for name, values in zip(header, zip(*records, strict=True), strict=True):
        stem, _, place = name.rpartition("_")
        parsed = [_parsed(value) for value in values]
        if not place.isdigit():
            found[name] = parsed
        else:
            vectors = found.setdefault(stem, [[] for _ in parsed])
            for vector, value in zip(vectors, parsed, strict=True):
                vector.append(value)
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def plain(column: pa.Array) -> list[Any]:
    if isinstance(column.type, pa.FixedShapeTensorType):
        return list(column.to_numpy_ndarray().tolist())
    return list(column.to_pylist())


OUTPUTS: dict[str, Column] = {
    "float32": np.array([0.5, -1.25, 3.0], np.float32),
    "float64": np.array([0.1, 1e300, -0.0]),
    "float16": np.array([0.5, 1.5, 2.5], np.float16),
    "int8": np.array([-128, 0, 127], np.int8),
    "int64": np.array([-(1 << 63), 0, (1 << 63) - 1]),
    "uint8": np.array([0, 1, 255], np.uint8),
    "uint64": np.array([0, 1, (1 << 64) - 1], np.uint64),
    "bool": np.array([True, False, True]),
    "vector": np.arange(12, dtype=np.float32).reshape(3, 4),
    "matrix": np.arange(18, dtype=np.float32).reshape(3, 2, 3),
    "cube": np.arange(72, dtype=np.int32).reshape(3, 2, 3, 4),
    "view": np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2],
}


def test_numbers_of_every_dtype_and_rank_are_read_back(sink: str, tmp_path: Path) -> None:
    files = write(sink, tmp_path, [result(10, OUTPUTS)])
    expected: Rows = {"row": [10, 11, 12], **{name: column.tolist() for name, column in OUTPUTS.items()}}
    assert read(sink, files) == expected
    assert list(read(sink, files)) == list(expected)


def test_several_results_follow_each_other_and_row_numbers_leave_gaps(sink: str, tmp_path: Path) -> None:
    results = [
        result(100, {"y": np.array([1.0, 2.0]), "z": np.zeros((2, 2))}, failed=[101]),
        result(103, {"y": np.array([3.0]), "z": np.ones((1, 2))}, failed=[103, 105, 106]),
        result(107, {"y": np.array([4.0, 5.0]), "z": np.ones((2, 2))}),
    ]
    rows = read(sink, write(sink, tmp_path, results))
    assert rows["row"] == [100, 102, 104, 107, 108]
    assert rows["y"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert rows["z"] == [[0.0, 0.0]] * 2 + [[1.0, 1.0]] * 3


def test_parquet_keeps_types(tmp_path: Path) -> None:
    table = pq.read_table(*write("parquet", tmp_path, [result(0, OUTPUTS)]).values())
    for name, column in OUTPUTS.items():
        spec = describe(name, table.column(name).combine_chunks())
        assert (spec.dtype, spec.shape) == (str(column.dtype), column.shape[1:])
    assert table.schema.field("row").type == pa.int64()
    assert table.schema.field("cube").type == pa.fixed_shape_tensor(pa.int32(), [2, 3, 4])


def test_npy_keeps_types(tmp_path: Path) -> None:
    files = write("npy", tmp_path, [result(0, OUTPUTS), result(3, OUTPUTS)])
    for name, column in OUTPUTS.items():
        array = np.load(files[f"{name}/part-00000003.npy"])
        assert array.dtype == column.dtype
        np.testing.assert_array_equal(array, np.concatenate([column, column]))
    assert np.load(files["row/part-00000003.npy"]).dtype == np.int64


def test_parts_are_called_as_asked_for(sink: str, tmp_path: Path) -> None:
    files = write(sink, tmp_path, [result(0, {"y": np.zeros(1)})], name="part-00000007_0001")
    expected = {
        "parquet": ["part-00000007_0001.parquet"],
        "npy": ["row/part-00000007_0001.npy", "y/part-00000007_0001.npy"],
        "jsonl": ["part-00000007_0001.jsonl"],
        "csv": ["part-00000007_0001.csv"],
        "arrow": ["part-00000007_0001.arrow"],
    }
    assert sorted(files) == expected[sink]


NOT_FINITE: dict[str, Column] = {
    "y": np.array([1.5, np.nan, np.inf, -np.inf], np.float32),
    "z": np.array([[1.0, np.nan], [np.inf, 2.0], [3.0, 4.0], [-np.inf, np.nan]]),
}


@pytest.mark.parametrize("kind", ["parquet", "npy", "arrow"])
def test_numbers_that_are_not_finite_are_read_back(kind: str, tmp_path: Path) -> None:
    rows = read(kind, write(kind, tmp_path, [result(0, NOT_FINITE)]))
    np.testing.assert_array_equal(rows["y"], NOT_FINITE["y"])
    np.testing.assert_array_equal(rows["z"], NOT_FINITE["z"])


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    rows = read("jsonl", write("jsonl", tmp_path, [result(0, NOT_FINITE)]))
    assert rows["y"] == [1.5, None, None, None]
    assert rows["z"] == [[1.0, None], [None, 2.0], [3.0, 4.0], [None, None]]


@pytest.mark.parametrize("kind", ["parquet", "npy", "jsonl", "arrow"])
def test_kept_numbers_that_are_not_finite_are_written_like_outputs(kind: str, tmp_path: Path) -> None:
    kept = pa.array([1.5, float("nan"), float("inf")])
    lists = pa.array([[1.0, float("nan")], [2.0, 3.0], [4.0, float("-inf")]])
    rows = read(kind, write(kind, tmp_path, [result(0, {"k": kept, "l": lists})]))
    if kind == "jsonl":
        assert rows["k"] == [1.5, None, None]
        assert rows["l"] == [[1.0, None], [2.0, 3.0], [4.0, None]]
    else:
        np.testing.assert_array_equal(rows["k"], [1.5, np.nan, np.inf])
        np.testing.assert_array_equal(rows["l"], [[1.0, np.nan], [2.0, 3.0], [4.0, -np.inf]])


TEXT: dict[str, Column] = {
    "objects": np.array(["a", "", "é\n\u2028"], dtype=object),
    "bytes": np.array([b"a", b"", "é".encode()], dtype=object),
    "fixed": np.array(["a", "", "é"]),
    "arrow": pa.array(["a", None, "é"]),
    "large": pa.array(["a", None, "é"], pa.large_string()),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "lists": np.array([["a", "b"], ["c", "d"], ["e", "f"]], dtype=object),
}


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow"])
@pytest.mark.parametrize("name", TEXT)
def test_text_is_read_back(kind: str, name: str, tmp_path: Path) -> None:
    column = TEXT[name]
    rows = read(kind, write(kind, tmp_path, [result(0, {"t": column}), result(3, {"t": column})]))
    expected = [v.decode() if isinstance(v, bytes) else v for v in to_list(column)]
    assert rows["t"] == expected * 2


def test_csv_holds_text_dates_lists_and_what_is_not_finite(tmp_path: Path) -> None:
    columns: dict[str, Column] = {
        "text": np.array(['a "b", c', "two\nlines", "é"], dtype=object),
        "none": pa.array(["a", None, ""]),
        "bytes": np.array([b"\xff", b"", b"x"], dtype=object),
        "day": pa.array([datetime.date(2026, 1, 2)] * 3),
        "lists": pa.array([[1.5], [], [2.0, None]]),
        "word": np.array([["a", "b"]] * 3, dtype=object),
        "real": np.array([np.nan, np.inf, 0.1], np.float32),
        "number": pa.array([1, None, 3]),
    }
    (path,) = write("csv", tmp_path, [result(0, columns), result(3, columns)]).values()
    with open(path, newline="", encoding="utf-8") as file:
        header, first, second, third, *again = csv.reader(file)
    assert header == ["row", "text", "none", "bytes", "day", "lists", "word_0", "word_1", "real", "number"]
    assert first == ["0", 'a "b", c', "a", "/w==", "2026-01-02", "[1.5]", "a", "b", "nan", "1"]
    assert second == ["1", "two\nlines", "", "", "2026-01-02", "[]", "a", "b", "inf", ""]
    assert third == ["2", "é", "", "eA==", "2026-01-02", "[2.0, null]", "a", "b", "0.1", "3"]
    assert [fields[1:] for fields in again] == [fields[1:] for fields in (first, second, third)]


def test_csv_leaves_the_fields_of_a_vector_empty_where_it_is_null(tmp_path: Path) -> None:
    vectors = pa.array([[9.0, 9.0], [1.5, 2.5], None, [3.5, None]], pa.list_(pa.float32(), 2))[1:]
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2]), vectors)
    (path,) = write("csv", tmp_path, [result(0, {"v": vectors, "t": tensors})]).values()
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["row", "v_0", "v_1", "t_0", "t_1"]
    assert rows == [["0", "1.5", "2.5", "1.5", "2.5"], ["1", "", "", "", ""], ["2", "3.5", "", "3.5", ""]]


def test_csv_columns_of_a_vector_must_not_hide_another() -> None:
    schema = OutputSchema((TensorSpec("p", "float32", (2,)), TensorSpec("p_1", "float32", ())), 2)
    with pytest.raises(UsageError, match="a vector is written as a column for each value") as caught:
        CsvSink().check(schema)
    assert "--rename p_1=NEW" in (caught.value.hint or "")
    CsvSink().check(OutputSchema((TensorSpec("p", "float32", (2000,)), TensorSpec("p_1", "float32", ())), 2))


def to_list(column: Column) -> list[Any]:
    return list(column.tolist() if isinstance(column, np.ndarray) else column.to_pylist())


def test_bytes_that_are_not_text_are_kept(tmp_path: Path) -> None:
    column = np.array([b"\xff\x00", b"plain"], dtype=object)
    assert read("parquet", write("parquet", tmp_path, [result(0, {"t": column})]))["t"] == [b"\xff\x00", b"plain"]
    encoded = read("jsonl", write("jsonl", tmp_path, [result(0, {"t": column})]))["t"]
    assert base64.b64decode(encoded[0]) == b"\xff\x00"


@pytest.mark.parametrize("is_flushed", [False, True], ids=["one row group", "a row group for each"])
def test_text_may_turn_into_bytes_in_the_middle_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_flushed: bool
) -> None:
    if is_flushed:
        monkeypatch.setattr(staging, "GROUP_BYTES", 1)
    results = [
        result(0, {"t": np.array(["text", "é"], dtype=object)}),
        result(2, {"t": np.array([b"\xff", b"x"], dtype=object)}),
    ]
    rows = read("parquet", write("parquet", tmp_path, results))
    assert [v.encode() if isinstance(v, str) else v for v in rows["t"]] == [b"text", "é".encode(), b"\xff", b"x"]


KEPT: dict[str, tuple[Column, list[Any]]] = {
    "dates": (pa.array([datetime.date(2024, 1, 2), None]), ["2024-01-02", None]),
    "times": (pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5), None]), ["2024-01-02 03:04:05", None]),
    "decimals": (pa.array([Decimal("1.50"), None]), ["1.50", None]),
    "structs": (pa.array([{"a": 1, "b": "x"}, None]), [{"a": 1, "b": "x"}, None]),
    "ragged lists": (pa.array([[1, 2, 3], None]), [[1, 2, 3], None]),
    "numbers": (pa.array([1, None]), [1, None]),
    "bools": (pa.array([True, None]), [True, None]),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_columns_of_any_type_are_read_back(name: str, tmp_path: Path) -> None:
    column, in_json = KEPT[name]
    (path,) = write("parquet", tmp_path, [result(0, {"k": column})]).values()
    assert pq.read_table(path)["k"].to_pylist() == to_list(column)
    assert read("jsonl", write("jsonl", tmp_path, [result(0, {"k": column})]))["k"] == in_json


@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 2)], ids=str)
def test_kept_tensors_keep_their_shape(sink: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = np.arange(2 * int(np.prod(shape)), dtype=np.float32).reshape(2, *shape)
    rows = read(sink, write(sink, tmp_path, [result(0, {"k": to_arrow(values)})]))
    assert rows["k"] == values.tolist()


def test_kept_big_endian_numbers_are_read_back(sink: str, tmp_path: Path) -> None:
    values = np.array([1.5, 2.5], ">f8")
    assert read(sink, write(sink, tmp_path, [result(0, {"k": values})]))["k"] == [1.5, 2.5]


def test_matrices_of_bools_are_read_back(sink: str, tmp_path: Path) -> None:
    values = np.array([[True, False], [False, True]])
    assert read(sink, write(sink, tmp_path, [result(0, {"k": values})]))["k"] == values.tolist()


def test_null_in_a_kept_column_is_not_a_zero_in_npy(tmp_path: Path) -> None:
    kept = pa.array([1.5, None, 2.5])
    rows = read("npy", write("npy", tmp_path, [result(0, {"k": kept})]))
    np.testing.assert_array_equal(rows["k"], [1.5, np.nan, 2.5])


def test_null_that_npy_has_no_word_for_is_told(tmp_path: Path) -> None:
    for kept in (pa.array([1, None]), pa.array([[1.0, 2.0], None])):
        with pytest.raises(OutputError) as caught:
            write("npy", tmp_path, [result(0, {"k": kept})])
        assert "'k'" in (caught.value.received or "")
        assert "--format parquet" in (caught.value.hint or "")


def schema_of(
    outputs: Sequence[str], kept: Sequence[str] = (), spec: tuple[str, Any] = ("float32", ())
) -> OutputSchema:
    return OutputSchema(tuple(TensorSpec(name, *spec) for name in [*outputs, *kept]), len(outputs))


def refusal(sink: str, schema: OutputSchema) -> UsageError:
    with pytest.raises(UsageError) as caught:
        SINKS[sink].check(schema)
    return caught.value


def test_columns_of_different_names_are_allowed(sink: str) -> None:
    assert SINKS[sink].check(schema_of(["y", "z"], ["id"])) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("outputs", "kept", "hint"),
    [
        (["row"], [], "--rename row=NEW"),
        (["y", "row"], ["id"], "--rename row=NEW"),
        (["y"], ["row"], "--rename row=NEW"),
        (["y", "z"], ["z"], "--rename z=NEW"),
        (["y", "y"], [], "--rename y=NEW"),
        (["y"], ["id", "id"], "--rename id=NEW"),
    ],
    ids=["output row", "second output row", "kept row", "output and kept", "two outputs", "two kept"],
)
def test_names_that_clash_are_refused_with_the_flag_that_renames(
    sink: str, outputs: list[str], kept: list[str], hint: str
) -> None:
    error = refusal(sink, schema_of(outputs, kept))
    assert error.exit_code == 2
    assert hint in (error.hint or "")


@pytest.mark.parametrize("dtype", [STRING, "opaque"])
def test_npy_refuses_what_is_not_numbers(dtype: str) -> None:
    error = refusal("npy", schema_of(["y"], ["k"], (dtype, ())))
    assert error.problem == "npy files hold numbers only"
    assert "--format parquet" in (error.hint or "")


def test_npy_refuses_columns_of_unknown_shape() -> None:
    assert refusal("npy", schema_of(["y"], [], ("float32", None))).problem == "npy files hold numbers only"


@pytest.mark.parametrize("name", ["a/b", "../up", "/abs", ".hidden", "_penstock", "..", ""])
def test_npy_refuses_names_that_cannot_be_folders_of_their_own(name: str) -> None:
    error = refusal("npy", schema_of([name]))
    assert "--rename" in (error.hint or "")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow"])
def test_other_sinks_take_any_name(kind: str, tmp_path: Path) -> None:
    names = ["a/b", "../up", "_penstock", "ä ö", "a.b", "x" * 300]
    rows = read(kind, write(kind, tmp_path, [result(0, {name: np.arange(2) for name in names})]))
    assert list(rows) == ["row", *names]


def test_part_that_is_abandoned_leaves_nothing_outside_its_folder(sink: str, tmp_path: Path) -> None:
    part = SINKS[sink].open_part("part-00000000", str(tmp_path), schema_of(["y"]))
    part.write(result(0, {"y": np.zeros(3, np.float32)}))
    part.abandon()
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))
    part = SINKS[sink].open_part("part-00000000", str(tmp_path), schema_of(["y"]))
    part.abandon()
    assert read(sink, write(sink, tmp_path, [result(0, {"y": np.ones(2)})]))["y"] == [1.0, 1.0]


def test_sinks_survive_pickling(sink: str, tmp_path: Path) -> None:
    copied = cloudpickle.loads(cloudpickle.dumps(SINKS[sink]))
    part = copied.open_part("part-00000000", str(tmp_path), schema_of(["y"]))
    part.write(result(0, {"y": np.zeros(3, np.float32)}))
    assert len(part.finish()) == (2 if sink == "npy" else 1)


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_files_are_on_the_disk_when_a_part_is_finished(
    sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files = write(sink, tmp_path, [result(0, {"y": np.zeros(3)})])
    assert sorted(synced) == sorted(files.values())


@pytest.fixture(scope="module")
def parquet_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts, the second of which was cut by an interrupt, beside penstock's own folder."""
    folder = tmp_path_factory.mktemp("predictions")
    (folder / "_penstock").mkdir()
    (folder / "_penstock" / "journal").write_bytes(b"not for readers")
    for number, name in enumerate(["part-00000000", "part-00000001", "part-00000001_0001", "part-00000002"]):
        rows = np.arange(number * 10, number * 10 + 10)
        columns: dict[str, Column] = {
            "y": np.stack([rows, -rows], axis=1).astype(np.float32),
            "image": np.repeat(rows, 6).reshape(-1, 2, 3).astype(np.float32),
            "word": np.array([f"w{row}" for row in rows], dtype=object),
        }
        for final, path in write("parquet", folder, [result(number * 10, columns)], name).items():
            os.rename(path, folder / final)
    return folder


class TestReadingTheFolderWithOthers:
    def test_pyarrow_reads_it_in_order(self, parquet_folder: Path) -> None:
        table = pq.read_table(parquet_folder)
        assert table["row"].to_pylist() == list(range(40))
        assert table["word"].to_pylist() == [f"w{row}" for row in range(40)]
        images, _ = to_array(table["image"].combine_chunks(), "float32", (2, 3))
        assert images[:, 1, 2].tolist() == list(range(40))

    def test_pandas_reads_it_in_order(self, parquet_folder: Path) -> None:
        import pandas as pd

        frame = pd.read_parquet(parquet_folder)
        assert frame["row"].tolist() == list(range(40))
        assert frame["y"].iloc[7].tolist() == [7.0, -7.0]

    def test_polars_reads_it_in_order(self, parquet_folder: Path) -> None:
        import polars as pl

        frame = pl.read_parquet(parquet_folder / "*.parquet")
        assert frame["row"].to_list() == list(range(40))
        assert frame["word"].to_list() == [f"w{row}" for row in range(40)]
        assert frame["y"].to_list()[7] == [7.0, -7.0]

    def test_duckdb_reads_it_in_order(self, parquet_folder: Path) -> None:
        import duckdb

        found = duckdb.sql(f"select row, word, y from '{parquet_folder}/*.parquet'").fetchall()
        assert [row for row, _, _ in found] == list(range(40))
        assert found[7] == (7, "w7", (7.0, -7.0)) or found[7] == (7, "w7", [7.0, -7.0])


def mixed_columns(rows: range) -> tuple[dict[str, Column], OutputSchema]:
    """Outputs and kept columns of many kinds, by the numbers of their rows."""
    numbers = np.array(rows, np.float32)
    texts = [f'line {row}\n"quoted", {row}' if row % 3 else "" for row in rows]
    columns: dict[str, Column] = {
        "y": numbers / 7,
        "image": np.repeat(numbers, 6).reshape(-1, 2, 3) * np.float32(0.1),
        "half": (numbers * 100).astype(np.float16),
        "text": pa.array(texts, pa.large_string()),
        "lists": pa.array([[row] * (row % 4) for row in rows]),
        "day": pa.array([datetime.date(2020, 1, 1 + row % 28) for row in rows]),
    }
    return columns, OutputSchema(tuple(describe(name, column) for name, column in columns.items()), 3)


@pytest.mark.parametrize("group_bytes", [2000, staging.GROUP_BYTES])
@pytest.mark.parametrize("has_text", [True, False])
def test_merged_parts_have_the_bytes_of_one_that_was_written_at_once(
    sink: str, has_text: bool, group_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "GROUP_BYTES", group_bytes)
    made = SINKS[sink]
    assert isinstance(made, Merges)
    spans = [Span(index, index * 50, 50, ()) for index in range(8)]
    _, schema = mixed_columns(range(1))
    if not has_text or sink == "npy":
        schema = OutputSchema(schema.columns[:3], 3)

    def write(name: str, wanted: Callable[[int], bool]) -> dict[str, str]:
        """A part of the rows that are wanted; returns folder to path."""
        writer = made.open_part(name, str(tmp_path), schema)
        for span in spans:
            every, _ = mixed_columns(range(span.start, span.stop))
            keep = np.array([wanted(row) for row in range(span.start, span.stop)])
            failures = [RowFailure(row, "", "", "", "") for row in range(span.start, span.stop) if not wanted(row)]
            columns = {column: take_rows(every[column], keep) for column in schema.names}
            if keep.any():
                writer.write(Result(span, columns, tuple(failures)))
        return {os.path.dirname(final): path for path, final in writer.finish().items()}

    late = {0, 49, 50, 137, 399} | set(range(200, 250))  # first and last rows of spans, and a whole one
    old = write("old", lambda row: row not in late)
    new = write("new", lambda row: row in late)
    merged = made.merge([old, new], made.open_part("merged", str(tmp_path), schema), spans)
    at_once = write("at_once", lambda row: True)
    assert [os.path.dirname(final) for final in merged.values()] == list(at_once)
    for path, final in merged.items():
        assert Path(path).read_bytes() == Path(at_once[os.path.dirname(final)]).read_bytes(), final
