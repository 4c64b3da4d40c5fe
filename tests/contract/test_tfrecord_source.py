"""TFRecord files as a source: what TensorFlow writes, what is inferred, and what becomes of damage."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from penstock.core.records import STRING, RowFailure, TensorSpec
from penstock.errors import InputError, UsageError
from penstock.options.records import ReadOptions
from penstock.sources.tfrecord.files import TFRecordFiles, looks_like_tfrecord
from tests.support.tfrecord_writer import Ints, example, field, masked, record, sequence_example, write

from .reading import read_all, read_span
from .tfrecord_cases import SEQUENCES

pytestmark = pytest.mark.timeout(120)


def told(**features: str) -> ReadOptions:
    return ReadOptions(features=features)


@pytest.fixture(scope="module")
def by_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that TensorFlow wrote, and what it reads in them."""
    folder = tmp_path_factory.mktemp("tensorflow")
    command = [sys.executable, "-m", "tests.support.tfrecord_by_tensorflow", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return folder


class TestTensorFlowsFiles:
    @pytest.mark.parametrize("name", ["plain", "gzip", "zlib"])
    @pytest.mark.parametrize("rows_per_span", [7, 1000])
    def test_examples_are_read_as_parse_example_reads_them(
        self, by_tensorflow: Path, name: str, rows_per_span: int
    ) -> None:
        source = TFRecordFiles([str(by_tensorflow / name)], told(pixels="uint8[3,4]"))
        expected = json.loads((by_tensorflow / "told.json").read_text(encoding="utf-8"))["examples"]
        rows = read_all(source, source.divide(rows_per_span), list(expected))
        assert as_json(rows) == expected

    def test_sequences_are_read_as_parse_sequence_example_reads_them(self, by_tensorflow: Path) -> None:
        source = TFRecordFiles([str(by_tensorflow / "sequences")])
        expected = json.loads((by_tensorflow / "told.json").read_text(encoding="utf-8"))["sequences"]
        assert source.schema()["frames"].shape == (None, 2)
        assert as_json(read_all(source, source.divide(64), list(expected))) == expected

    def test_files_without_a_suffix_are_known_by_their_content(self, by_tensorflow: Path) -> None:
        for name in ("plain", "gzip", "zlib", "sequences"):
            assert looks_like_tfrecord(str(by_tensorflow / name))
        assert not looks_like_tfrecord(str(by_tensorflow / "told.json"))
        assert not looks_like_tfrecord(str(by_tensorflow / "absent"))
        assert not looks_like_tfrecord(str(by_tensorflow))


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda raw: raw.decode("latin-1")))


class TestFeatures:
    def source(self, tmp_path: Path, reading: ReadOptions | None = None) -> TFRecordFiles:
        records = [
            example({"x": [1.0, 2.0], "y": [n], "tags": Ints(range(n % 3)), "png": [b"p" * (n % 5)], "raw": [bytes(8)]})
            for n in range(150)
        ]
        return TFRecordFiles([write(tmp_path / "a.tfrecord", records)], reading)

    def test_are_inferred_from_the_first_records_and_can_be_shown(self, tmp_path: Path) -> None:
        source = self.source(tmp_path)
        assert list(source.schema().items()) == [
            ("png", TensorSpec("png", STRING, ())),
            ("raw", TensorSpec("raw", STRING, ())),
            ("tags", TensorSpec("tags", "int64", (None,))),
            ("x", TensorSpec("x", "float32", (2,))),
            ("y", TensorSpec("y", "int64", ())),
            ("example", TensorSpec("example", STRING, ())),
        ]
        (remark,) = source.remarks()
        assert "x: float32[2] (float_list)" in remark

    def test_that_are_told_come_first_and_win(self, tmp_path: Path) -> None:
        source = self.source(tmp_path, told(raw="uint8[2,4]", y="float32"))
        assert list(source.schema())[:2] == ["raw", "y"]
        assert source.schema()["raw"] == TensorSpec("raw", "uint8", (2, 4))
        (block, *_) = source.read(next(iter(source.divide(10))), ["raw", "y", "x"])
        raw, y, x = (block.columns[name] for name in ("raw", "y", "x"))
        assert isinstance(raw, np.ndarray)
        assert raw.shape == (10, 2, 4)
        assert isinstance(x, np.ndarray)
        assert isinstance(y, np.ndarray)
        assert (x.dtype, y.dtype) == (np.float32, np.float32)

    def test_of_bytes_become_numbers_where_the_models_input_says_so(self, tmp_path: Path) -> None:
        source = self.source(tmp_path)
        fitted = source.fitted_to([TensorSpec("raw", "float32", (2, 4)), TensorSpec("png", "uint8", (3,))])
        assert "raw: uint8[2, 4] (bytes_list, raw bytes)" in fitted.remarks()[0]
        assert fitted.schema() == source.schema() | {"raw": TensorSpec("raw", "uint8", (2, 4))}
        assert source.schema()["raw"].dtype == STRING
        assert source.fitted_to([TensorSpec("raw", "float32", (2,))]).schema()["raw"] == TensorSpec(
            "raw", "float32", (2,)
        )

    def test_called_example_hides_the_whole_record(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", [example({"example": [n], "z": [1]}) for n in range(3)])
        source = TFRecordFiles([path])
        assert list(source.schema()) == ["z", "example"]
        assert read_all(source, source.divide(2), ["example"]) == {"example": [0, 1, 2]}

    def test_records_that_are_no_examples_can_still_be_passed_on_whole(self, tmp_path: Path) -> None:
        source = TFRecordFiles([write(tmp_path / "a", [b"\xff\xfe", b"anything"])])
        assert list(source.schema()) == ["example"]
        assert read_all(source, source.divide(5), ["example"]) == {"example": [b"\xff\xfe", b"anything"]}

    @pytest.mark.parametrize(
        "text",
        ["", "flaot32", "float32[", "float32[0]", "float32[-1]", "float32[2,?]", "int64[a]", "int8[99999,99999]"],
    )
    def test_that_are_not_understood_are_a_usage_error(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            self.source(tmp_path, told(x=text)).schema()
        assert f"--feature x={text}" in str(caught.value)
        assert caught.value.allowed

    @pytest.mark.parametrize(
        ("name", "text"), [("x", "string"), ("x", "int64[2]"), ("y", "string"), ("x", "float32[?,?]")]
    )
    def test_that_cannot_be_made_are_a_usage_error(self, tmp_path: Path, name: str, text: str) -> None:
        with pytest.raises(UsageError, match=name):
            self.source(tmp_path, told(**{name: text})).schema()

    def test_that_no_record_has_are_an_input_error_with_a_guess(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="did you mean 'tags'"):
            self.source(tmp_path, told(tag="int64[?]")).schema()

    def test_of_a_feature_list_must_vary_in_length(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", [sequence_example({}, {"f": [[1], [2]]})])
        with pytest.raises(UsageError, match="varies"):
            TFRecordFiles([path], told(f="int64[2]")).schema()
        assert TFRecordFiles([path], told(f="int32[?]")).schema()["f"] == TensorSpec("f", "int32", (None,))


def make_rows(count: int) -> list[bytes]:
    return [example({"a": [n], "b": [b"x" * (n % 7)]}) for n in range(count)]


def read_damaged(path: Path, rows_per_span: int = 16) -> tuple[list[Any], list[RowFailure]]:
    """All rows and failures; that both come out the same in another process and another division is checked."""
    found = []
    for size in (rows_per_span, 10_000):
        source = TFRecordFiles([str(path)])
        spans = list(source.divide(size))
        assert list(cloudpickle.loads(cloudpickle.dumps(source)).divide(size)) == spans
        rows: list[Any] = []
        failures: list[RowFailure] = []
        for span in spans:
            columns, failed = read_span(source, span, ["a", "b"])
            rows += columns["a"]
            failures += failed
        found.append((rows, failures))
    assert found[0] == found[1]
    return found[0]


PACKINGS: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzip.compress}


@pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)
class TestDamage:
    def test_broken_data_is_one_failed_row_in_its_place(self, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
        records = [record(data) for data in make_rows(100)]
        records[40] = records[40][:20] + b"\xff" + records[40][21:]
        path = tmp_path / "a"
        path.write_bytes(pack(b"".join(records)))
        rows, (failure,) = read_damaged(path)
        assert rows == [*range(40), None, *range(41, 100)]
        assert failure.row == 40
        assert failure.origin == f"{path}, record 40, at byte {sum(map(len, records[:40]))}"
        assert (failure.stage, failure.error) == ("read", "BadRecord")

    def test_broken_length_is_one_failed_row_that_names_its_bytes(
        self, tmp_path: Path, pack: Callable[[bytes], bytes]
    ) -> None:
        records = [record(data) for data in make_rows(100)]
        for number in (0, 31, 32, 99):
            records[number] = b"\xff" + records[number][1:]
        path = tmp_path / "a"
        path.write_bytes(pack(b"".join(records)))
        rows, failures = read_damaged(path)
        # Two broken records in a row are one gap: nobody can tell where the second began.
        assert rows == [None, *range(1, 31), None, *range(33, 99), None]
        assert [failure.row for failure in failures] == [0, 31, 98]
        start = sum(map(len, records[:31]))
        assert f"bytes {start} to {start + len(records[31]) + len(records[32])}" in failures[1].reason

    def test_cut_tail_is_one_failed_row(self, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
        records = [record(data) for data in make_rows(64)]
        path = tmp_path / "a"
        path.write_bytes(pack(b"".join(records)[:-3]))
        rows, (failure,) = read_damaged(path)
        assert rows == [*range(63), None]
        assert failure.row == 63
        assert str(path) in failure.origin
        assert f"at byte {sum(map(len, records[:63]))}" in failure.reason

    def test_enormous_length_costs_nothing(self, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
        length = struct.pack("<Q", 1 << 60)
        path = tmp_path / "a"
        path.write_bytes(pack(b"".join(map(record, make_rows(10))) + length + masked(length) + bytes(100)))
        rows, failures = read_damaged(path)
        assert (rows, len(failures)) == ([*range(10), None], 1)

    def test_record_that_is_no_example_is_one_failed_row(self, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
        path = tmp_path / "a"
        path.write_bytes(pack(b"".join(map(record, [*make_rows(5), b"\xff\xff", field(1, b"\x0a"), *make_rows(2)]))))
        rows, failures = read_damaged(path)
        assert rows == [0, 1, 2, 3, 4, None, None, 0, 1]
        assert [failure.row for failure in failures] == [5, 6]


def test_compressed_stream_that_is_cut_gives_what_comes_before(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(map(record, [np.random.default_rng(n).bytes(300) for n in range(500)])))
    path = tmp_path / "a"
    path.write_bytes(packed[: len(packed) // 2])
    source = TFRecordFiles([str(path)])
    spans = list(source.divide(32))
    found = [read_span(source, span, ["example"]) for span in spans]
    rows = [row for columns, _ in found for row in columns["example"]]
    failures = [failure for _, failed in found for failure in failed]
    assert 245 <= len(rows) <= 252
    assert rows[:-1] == [np.random.default_rng(n).bytes(300) for n in range(len(rows) - 1)]
    assert [failure.row for failure in failures] == [len(rows) - 1]
    assert "cut" in failures[0].reason


def test_file_of_something_else_is_an_input_error_that_names_it(tmp_path: Path) -> None:
    good = write(tmp_path / "a", make_rows(5))
    for raw in (b"<html>not found</html>" * 100, bytes(5000), gzip.compress(b"a,b\n1,2\n" * 50)):
        path = tmp_path / "b"
        path.write_bytes(raw)
        with pytest.raises(InputError, match="not a TFRecord file") as caught:
            list(TFRecordFiles([good, str(path)]).divide(10))
        assert str(path) in str(caught.value)


def test_small_files_share_a_span_and_failures_name_the_right_one(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}", make_rows(3)) for number in range(4)]
    Path(paths[2]).write_bytes(Path(paths[2]).read_bytes()[:-1])
    source = TFRecordFiles(paths)
    (span,) = source.divide(100)
    rows, (failure,) = read_span(source, span, ["a"])
    assert rows["a"] == [0, 1, 2, 0, 1, 2, 0, 1, None, 0, 1, 2]
    assert failure.row == 8
    assert failure.origin.startswith(f"{paths[2]}, record 2, ")
    assert source.origin(span, 10).startswith(f"{paths[3]}, record 1, ")


def test_compressed_files_are_read_in_sequence_each_as_a_group(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        paths.append(str(tmp_path / f"{number}"))
        Path(paths[-1]).write_bytes(gzip.compress(b"".join(map(record, make_rows(25)))))
    spans = list(TFRecordFiles(paths).divide(10))
    assert [(span.rows, span.group) for span in spans] == [(n, g) for g in ("0", "1") for n in (10, 10, 5)]


def test_length_of_a_feature_list_is_never_part_of_the_schema(tmp_path: Path) -> None:
    source = SEQUENCES.open(SEQUENCES.write(tmp_path))
    assert source.schema()["frames"] == TensorSpec("frames", "float32", (None, 6))


def test_pickled_source_leaves_the_sample_behind(tmp_path: Path) -> None:
    source = TFRecordFiles([write(tmp_path / "a", [example({"a": [b"x" * 100_000]}) for _ in range(20)])])
    source.schema()
    assert len(cloudpickle.dumps(source)) < 20_000


def test_reading_imports_no_framework(tmp_path: Path) -> None:
    path = write(tmp_path / "a", make_rows(5))
    code = (
        "import sys; from penstock.sources.tfrecord.files import TFRecordFiles; "
        f"s = TFRecordFiles([{path!r}]); [list(s.read(span, ['a', 'example'])) for span in s.divide(2)]; "
        "assert not {'tensorflow', 'jax', 'torch', 'google.protobuf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
