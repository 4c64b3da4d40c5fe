"""What tables, arrays and memory promise, besides what every source does."""

from __future__ import annotations

import gc
import os
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.protocols import Source
from penstock.core.records import Span
from penstock.errors import InputError
from penstock.sources.python.memory import open_memory
from penstock.sources.tables.arrow import ArrowFiles
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.jsonl import JsonLines
from penstock.sources.tables.npy import ArrayFiles
from penstock.sources.tables.parquet import ParquetFiles

from .case import Case
from .reading import read_all, read_span
from .table_cases import BINARY

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of every case, written once; a test that changes them copies them first."""
    written: dict[str, Path] = {}
    for case in BINARY:
        written[case.name] = tmp_path_factory.mktemp(case.name.replace(" ", "-"))
        case.write(written[case.name])
    return written


def open_case(case: Case, folder: Path) -> tuple[Source, list[str]]:
    paths = sorted(str(path) for path in folder.iterdir())
    return case.open(paths), paths


binary_cases = pytest.mark.parametrize("case", BINARY, ids=[case.name for case in BINARY])


@pytest.fixture
def own_folder(case: Case, folders: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders[case.name], tmp_path / "own"))


def use(source: Source) -> None:
    """Everything that a job does with its input."""
    source.fragments()
    columns = list(source.schema())
    for span in source.divide(64):
        for _ in source.read(span, columns):
            pass


def assert_names(error: InputError, path: str) -> None:
    assert error.exit_code == 5
    assert path in str(error)


@binary_cases
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.6, 0.95, 1.0], ids="{:.0%}".format)
def test_truncated_file_is_an_input_error_that_names_it(case: Case, own_folder: Path, kept: float) -> None:
    source, paths = open_case(case, own_folder)
    size = os.path.getsize(paths[3])
    os.truncate(paths[3], min(int(size * kept), size - 1))
    with pytest.raises(InputError) as caught:
        use(source)
    assert_names(caught.value, paths[3])


@binary_cases
def test_file_of_something_else_is_an_input_error_that_names_it(case: Case, own_folder: Path) -> None:
    source, paths = open_case(case, own_folder)
    Path(paths[0]).write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(InputError) as caught:
        use(source)
    assert_names(caught.value, paths[0])


def damaged_copies(path: str) -> Iterator[int]:
    """Overwrite a few bytes at one place after the other, each time of the whole file; yields the places."""
    whole = Path(path).read_bytes()
    for place in range(200, len(whole) - 200, 151):
        raw = bytearray(whole)
        raw[place : place + 16] = b"\xff" * 16
        Path(path).write_bytes(raw)
        yield place


def test_compressed_npz_that_is_damaged_anywhere_is_an_input_error_that_names_it(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez_compressed(path, x=np.random.default_rng(0).integers(0, 9, (2000, 8)))
    for _ in damaged_copies(path):
        with pytest.raises(InputError) as caught:
            use(ArrayFiles([path]))
        assert_names(caught.value, path)


def test_compressed_npz_that_is_damaged_before_the_span_never_fails_in_another_way(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez_compressed(path, x=np.random.default_rng(0).integers(0, 9, (2000, 8)))
    span = list(ArrayFiles([path]).divide(20))[-1]
    errors = [error for _ in damaged_copies(path) if (error := error_of(ArrayFiles([path]), span)) is not None]
    assert errors
    assert {type(error) for error in errors} == {InputError}


def test_compressed_npz_files_are_closed_and_not_left_to_the_garbage_collector(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.npz") for i in range(6)]
    for path in paths:
        np.savez_compressed(path, x=np.arange(100), y=np.arange(100))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        read_in_any_order(ArrayFiles(paths))
        gc.collect()
    assert [str(warning.message) for warning in told if warning.category is ResourceWarning] == []


def read_in_any_order(source: Source) -> None:
    for span in reversed(list(source.divide(10))):
        read_span(source, span, ["x", "y"])


def error_of(source: Source, span: Span) -> Exception | None:
    try:
        read_span(source, span, ["x"])
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip"])
def test_parquet_whose_middle_is_overwritten_is_an_input_error_that_names_it(tmp_path: Path, codec: str) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": np.random.default_rng(0).normal(size=20_000)}), path, compression=codec)
    raw = bytearray(Path(path).read_bytes())
    raw[4:2000] = b"\xff" * 1996
    Path(path).write_bytes(raw)
    with pytest.raises(InputError) as caught:
        use(ParquetFiles([path]))
    assert_names(caught.value, path)


def write_csv(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


class TestFilesThatDoNotGoTogether:
    """Files of one input must agree; what is refused stays refused, however often one asks."""

    def refused(self, source: Source, path: str) -> None:
        for _ in range(2):
            with pytest.raises(InputError) as caught:
                list(source.divide(10))
            assert_names(caught.value, path)

    def test_arrays_of_another_shape(self, tmp_path: Path) -> None:
        paths = [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]
        np.save(paths[0], np.zeros((2, 3)))
        np.save(paths[1], np.zeros((2, 4)))
        self.refused(ArrayFiles(paths), paths[1])

    def test_arrays_of_different_lengths_in_one_file(self, tmp_path: Path) -> None:
        path = str(tmp_path / "a.npz")
        np.savez(path, a=np.zeros(2), b=np.zeros(3))
        self.refused(ArrayFiles([path]), path)

    def test_tables_of_other_columns(self, tmp_path: Path) -> None:
        paths = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
        pq.write_table(pa.table({"a": [1]}), paths[0])
        pq.write_table(pa.table({"b": [1]}), paths[1])
        self.refused(ParquetFiles(paths), paths[1])

    def test_table_with_two_columns_of_one_name(self, tmp_path: Path) -> None:
        path = str(tmp_path / "a.parquet")
        pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
        self.refused(ParquetFiles([path]), path)

    def test_csv_files_of_other_headers(self, tmp_path: Path) -> None:
        paths = [write_csv(tmp_path / "a.csv", "a,b\n1,2\n"), write_csv(tmp_path / "b.csv", "b,a\n1,2\n")]
        self.refused(CsvFiles(paths), paths[1])

    def test_csv_with_two_columns_of_one_name(self, tmp_path: Path) -> None:
        path = write_csv(tmp_path / "a.csv", "a,a\n1,2\n")
        self.refused(CsvFiles([path]), path)


@pytest.mark.parametrize(
    "array",
    [
        np.array([{"a": 1}], dtype=object),
        np.array(5),
        np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
        np.asfortranarray(np.zeros((3, 4))),
    ],
    ids=["objects", "no dimension", "records", "Fortran order"],
)
def test_arrays_that_cannot_be_read_by_row_are_refused(tmp_path: Path, array: np.ndarray) -> None:  # type: ignore[type-arg]
    path = str(tmp_path / "a.npy")
    np.save(path, array)
    with pytest.raises(InputError) as caught:
        ArrayFiles([path]).schema()
    assert_names(caught.value, path)
    assert caught.value.hint is not None


def test_pickled_objects_in_an_array_file_are_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    path = str(tmp_path / "a.npy")
    np.save(path, np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError):
        use(ArrayFiles([path]))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_npy_header_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    path = str(tmp_path / "a.npy")
    with open(path, "wb") as file:
        np.lib.format.write_array(file, np.arange(6).reshape(3, 2), version=version)
    assert read_all(ArrayFiles([path]), ArrayFiles([path]).divide(2), ["data"]) == {"data": [[0, 1], [2, 3], [4, 5]]}


def write_header(path: Path, header: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> str:
    raw = header.encode() + b"\n"
    prefix = (len(raw) if length is None else length).to_bytes(2 if version == (1, 0) else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes(version) + prefix + raw + bytes(96))
    return str(path)


def header_of(shape: str, descr: str = "'<f4'", more: str = "") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, {more}}}"


@pytest.mark.parametrize(
    "header",
    [
        "{[]: 1}", "{{}: 1}", "-" * 9000 + "1", "(" * 9000, " {\n  1\n 2", "open('x')",
        header_of("(6, 4)", more="5: 1"), header_of("(6, 4)", "()"), header_of("(6, 4)", "('<f4',)"),
        header_of("(6, 2)", "('<f4', (2,))"), header_of(str((6,) + (1,) * 70)), header_of("(0, 0, 10**30)"),
        header_of(f"(5, 0, {2**63 - 1})"), header_of(f"(5, 0, {10**30})"), header_of(f"(5, {10**30})", "'S0'"),
    ],
)  # fmt: skip
def test_header_that_is_wrong_in_any_way_is_an_input_error_that_names_the_file(tmp_path: Path, header: str) -> None:
    path = write_header(tmp_path / "a.npy", header)
    with pytest.raises(InputError) as caught:
        use(ArrayFiles([path]))
    assert_names(caught.value, path)


@pytest.mark.parametrize("version", [(0, 0), (1, 1), (2, 1), (4, 0), (255, 255)])
def test_version_of_the_npy_header_that_is_not_known_is_refused(tmp_path: Path, version: tuple[int, int]) -> None:
    path = write_header(tmp_path / "a.npy", header_of("(6, 4)"), version)
    with pytest.raises(InputError, match=f"version {version[0]}.{version[1]} of the format"):
        use(ArrayFiles([path]))


def test_header_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write_header(tmp_path / "a.npy", header_of("(6, 4)"), (2, 0), length=(1 << 32) - 1)
    os.truncate(path, 1 << 40)
    with pytest.raises(InputError, match="a header of 4,294,967,295 bytes"):
        use(ArrayFiles([path]))


def test_header_that_python_2_wrote_is_read_without_a_word(tmp_path: Path) -> None:
    path = write_header(tmp_path / "a.npy", header_of("(6L, 4L)"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [span] = ArrayFiles([path]).divide(10)
    assert span.rows == 6


def test_stored_member_that_claims_bytes_of_the_next_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.zeros((5, 4)), b=np.ones((5, 4)))
    content = path.read_bytes()
    stored = content.index(b"PK\x01\x02")  # the first entry of the directory
    size = int.from_bytes(content[stored + 24 : stored + 28], "little")
    path.write_bytes(content[: stored + 24] + (size + 32).to_bytes(4, "little") + content[stored + 28 :])
    with pytest.raises(InputError, match="two sizes"):
        use(ArrayFiles([str(path)]))


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """The garbage collector runs at every few objects, and lets other threads go on meanwhile, as JAX's does."""

    def give_way(phase: str, info: dict[str, int]) -> None:
        os.sched_yield()

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(5, 1_000_000)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(give_way)


@pytest.mark.usefixtures("eager_collector")
@pytest.mark.parametrize("dtype", ["float64", "datetime64[D]"])
def test_headers_are_read_by_several_threads_at_once(tmp_path: Path, dtype: str) -> None:
    """Of these, numpy parses the second as Python."""
    paths = [str(tmp_path / f"{rows}.npy") for rows in range(1, 1000)]
    for rows, path in enumerate(paths, 1):
        np.save(path, np.zeros((rows, 2), dtype))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda path: next(ArrayFiles([path]).divide(1000)).rows, paths))
    assert found == list(range(1, 1000))


@pytest.mark.parametrize("dtype", ["<U5", "S5", ">f8", "bool", "float16", "datetime64[D]"])
def test_array_files_of_any_plain_dtype_are_read(tmp_path: Path, dtype: str) -> None:
    values = np.array([0, 1, 0, 1, 1]).astype(dtype)
    path = str(tmp_path / "a.npy")
    np.save(path, values)
    source = ArrayFiles([path])
    assert read_all(source, source.divide(2), ["data"]) == {"data": values.tolist()}


def test_rows_of_no_values_are_read(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    np.save(path, np.empty((5, 0), np.float32))
    source = ArrayFiles([path])
    assert read_all(source, source.divide(2), ["data"]) == {"data": [[]] * 5}


@pytest.mark.parametrize("kind", ["npy", "parquet", "csv", "jsonl"])
def test_input_without_rows_is_an_input_error_that_names_it(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / f"a.{kind}")
    source: Source
    if kind == "npy":
        np.save(path, np.empty((0, 3)))
        source = ArrayFiles([path])
    elif kind == "parquet":
        pq.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
        source = ParquetFiles([path])
    else:
        Path(path).write_text("a,b\n" if kind == "csv" else "\n", encoding="utf-8")
        source = CsvFiles([path]) if kind == "csv" else JsonLines([path])
    with pytest.raises(InputError) as caught:
        list(source.divide(10))
    assert_names(caught.value, path)


def test_arrow_file_without_columns_is_not_called_damaged(tmp_path: Path) -> None:
    path = str(tmp_path / "a.arrow")
    with pa.ipc.new_file(path, pa.schema([])) as file:
        file.write_table(pa.table({}))
    with pytest.raises(InputError, match="the file has no columns") as caught:
        ArrowFiles([path]).schema()
    assert_names(caught.value, path)


def test_large_row_group_is_read_in_sequence_and_known_as_a_group(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": np.arange(1000)}), path, row_group_size=1000)
    source = ParquetFiles([path])
    spans = list(source.divide(10))
    assert {span.group for span in spans} == {"0:0"}
    assert all(span.rows <= 80 for span in spans)
    assert {span.group for span in source.divide(200)} == {None}


def test_small_files_share_a_span(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.npy") for i in range(10)]
    for number, path in enumerate(paths):
        np.save(path, np.arange(number * 3, number * 3 + 3))
    source = ArrayFiles(paths)
    spans = list(source.divide(15))
    assert [span.rows for span in spans] == [15, 15]
    assert read_all(source, spans, ["data"]) == {"data": list(range(30))}


def test_dates_can_be_kept_from_a_parquet_file(tmp_path: Path) -> None:
    import datetime

    days = [datetime.date(2024, 1, day) for day in range(1, 6)]
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"day": days, "x": [1.0] * 5}), path)
    source = ParquetFiles([path])
    assert read_all(source, source.divide(2), ["day", "x"])["day"] == days


def test_pandas_frames_give_their_columns_in_order() -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [1, 2], "t": ["x", None], "f": [0.5, 1.5]}, index=[7, 3])
    source = open_memory(frame)
    assert list(source.schema()) == ["a", "t", "f"]
    assert read_all(source, source.divide(1), ["a", "t", "f"]) == {"a": [1, 2], "t": ["x", None], "f": [0.5, 1.5]}
    series = open_memory(pd.Series([1.5, 2.5], name="only"))
    assert read_all(series, series.divide(1), ["only"]) == {"only": [1.5, 2.5]}


def test_parquet_files_may_order_their_columns_as_they_like(tmp_path: Path) -> None:
    paths = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), paths[0])
    pq.write_table(pa.table({"b": ["z"], "a": [3]}), paths[1])
    source = ParquetFiles(paths)
    assert read_all(source, source.divide(1), ["a", "b"]) == {"a": [1, 2, 3], "b": ["x", "y", "z"]}


def test_dictionary_of_a_giant_text_is_expanded_a_few_rows_at_a_time(tmp_path: Path) -> None:
    """Sixteen kilobytes that stand for 250 GB."""
    text = pa.array(["x" * (50 << 20)])
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), text)
    path = tmp_path / "bomb.parquet"
    pq.write_table(
        pa.table({"word": rows}), path, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 30
    )
    assert path.stat().st_size < 100_000
    source = ParquetFiles([str(path)])
    first = next(iter(source.divide(100)))
    block = next(iter(source.read(first, ["word"])))
    assert block.rows == 5
