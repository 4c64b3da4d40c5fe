"""What sources of images promise, besides what every source does."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import UsageError
from penstock.options.records import ReadOptions
from penstock.sources.files.paths import expand
from penstock.sources.images.columns import ImageColumns
from penstock.sources.images.files import IMAGE_SUFFIXES, ImageFiles
from penstock.sources.tables.parquet import ParquetFiles
from penstock.sources.tar.files import TarFiles

from .case import Case
from .decoding import decode_all
from .image_cases import CASES, REPLACE, write_files
from .picture import ROWS, encode, encoded, picture, rows_of
from .reading import read_all, touch

pytestmark = pytest.mark.timeout(60)
all_cases = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return {case.name: case.write(tmp_path_factory.mktemp(case.name.replace(" ", "-"))) for case in CASES}


@pytest.fixture
def own_paths(case: Case, tmp_path: Path) -> list[str]:
    (tmp_path / "own").mkdir()
    return case.write(tmp_path / "own")


@all_cases
def test_schema_says_image_and_leaves_open_what_the_model_decides(case: Case, written: dict[str, list[str]]) -> None:
    spec = case.open(written[case.name]).schema()["image"]
    assert (spec.name, spec.dtype, spec.shape, spec.encoding) == ("image", "uint8", (None, None, None), "image")


def test_schema_says_what_the_options_say(written: dict[str, list[str]]) -> None:
    reading = ReadOptions(image_size=(32, 48), color="grayscale")
    for source in (
        ImageFiles(written["image files"], reading),
        TarFiles(written["tar"], reading),
        ImageColumns(ParquetFiles(written["images in parquet bytes"]), ["image"], reading),
    ):
        assert source.schema()["image"].shape == (32, 48, 1)


@all_cases
@pytest.mark.parametrize("data", [b"", b"<html>not found</html>"], ids=["empty", "a web page"])
def test_what_is_no_picture_fails_its_row_with_a_reason(case: Case, own_paths: list[str], data: bytes) -> None:
    REPLACE[case.name](own_paths, 5, data)
    source = case.open(own_paths)
    _, failed = decode_all(source, source.divide(1000))
    assert list(failed) == [5]
    assert ("empty (0 bytes)" if not data else "<html>") in failed[5]


@all_cases
def test_sizes_are_told_from_the_headers(case: Case, written: dict[str, list[str]]) -> None:
    source = case.open(written[case.name])
    expected = [(30 + row % 5, 20 + row % 7) for row in range(ROWS)]
    found: list[tuple[int, int]] = []
    for span in source.divide(7):
        for block in source.read(span, ["image"]):
            found += map(tuple, block.columns["image"].sizes().tolist())  # type: ignore[union-attr]
    assert found == expected


@all_cases
def test_slices_and_raw_values_keep_their_order(case: Case, written: dict[str, list[str]]) -> None:
    source = case.open(written[case.name])
    first = next(iter(source.divide(10)))
    block = next(iter(source.read(first, ["image"])))
    column = block.columns["image"]
    assert column[2:4].raw().to_pylist() == [encoded(2), encoded(3)]  # type: ignore[union-attr]


class TestFolders:
    def test_paths_are_kept(self, written: dict[str, list[str]]) -> None:
        assert ImageFiles(written["image files"]).keeps == ("path",)

    def test_gone_file_a_folder_and_a_pipe_fail_their_rows(self, tmp_path: Path) -> None:
        paths = write_files(tmp_path)
        source = ImageFiles(paths)
        spans = list(source.divide(1000))
        os.remove(paths[3])
        os.remove(paths[4])
        os.mkdir(paths[4])
        os.remove(paths[5])
        os.mkfifo(paths[5])
        _, failed = decode_all(source, spans)
        assert sorted(failed) == [3, 4, 5]
        assert "No such file" in failed[3]
        assert "folder" in failed[4]
        assert "pipe" in failed[5]
        list(ImageFiles(paths).fragments())

    def test_names_that_are_not_utf8_are_read(self, tmp_path: Path) -> None:
        name = os.path.join(os.fsencode(tmp_path), b"\xff.jpg")
        Path(os.fsdecode(name)).write_bytes(encoded(0))
        source = ImageFiles([os.fsdecode(name)])
        pictures, failed = decode_all(source, source.divide(10))
        assert (rows_of(pictures), failed) == ([0], {})
        assert len(read_all(source, source.divide(10), ["path"])["path"]) == 1

    def test_span_ends_early_where_files_are_large(self, tmp_path: Path) -> None:
        paths = [str(tmp_path / f"{number:03}.jpg") for number in range(200)]
        for number, path in enumerate(paths):
            Path(path).write_bytes(b"x" * (100_000 if 50 <= number < 60 else 100))
        for given in (paths, expand([str(tmp_path)], IMAGE_SUFFIXES)):
            spans = list(ImageFiles(given).divide(8))
            sizes = [sum(os.path.getsize(path) for path in paths[span.start : span.stop]) for span in spans]
            assert sum(span.rows for span in spans) == 200
            assert max(sizes) <= 4 * 8 * sum(sizes) / 200
            assert sum(span.rows == 8 for span in spans) >= 20

    def test_any_changed_file_among_thousands_changes_the_fingerprint(self, tmp_path: Path) -> None:
        paths = [str(tmp_path / f"{number:04}.jpg") for number in range(2500)]
        for path in paths:
            Path(path).write_bytes(b"x")
        before = list(ImageFiles(paths).fragments())
        assert len(before) == 3
        touch(paths[1234])
        after = list(ImageFiles(paths).fragments())
        assert [old != new for old, new in zip(before, after, strict=True)] == [False, True, False]


class TestColumns:
    def test_struct_without_bytes_is_read_from_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(encoded(1))
        values = [{"bytes": encoded(0), "path": "gone.jpg"}, {"bytes": None, "path": "a.png"}, None]
        pq.write_table(pa.table({"image": values}), tmp_path / "t.parquet")
        source = ImageColumns(ParquetFiles([str(tmp_path / "t.parquet")]), ["image"])
        pictures, failed = decode_all(source, source.divide(10))
        assert rows_of(pictures) == [0, 1, -1]
        assert list(failed) == [2]
        assert "null" in failed[2]

    def test_paths_may_be_absolute_and_null(self, tmp_path: Path) -> None:
        (tmp_path / "tables").mkdir()
        (tmp_path / "a.png").write_bytes(encoded(1))
        table = pa.table({"image": [str(tmp_path / "a.png"), None, "../a.png", ""]})
        pq.write_table(table, tmp_path / "tables" / "t.parquet")
        source = ImageColumns(ParquetFiles([str(tmp_path / "tables" / "t.parquet")]), ["image"])
        pictures, failed = decode_all(source, source.divide(10))
        assert rows_of(pictures) == [1, -1, 1, -1]
        assert sorted(failed) == [1, 3]

    @pytest.mark.parametrize("name", ["picture", "id"])
    def test_column_that_holds_no_images_is_refused(self, tmp_path: Path, name: str) -> None:
        pq.write_table(pa.table({"id": [1], "image": [b"x"]}), tmp_path / "t.parquet")
        with pytest.raises(UsageError, match=name):
            ImageColumns(ParquetFiles([str(tmp_path / "t.parquet")]), [name])


def test_twenty_corrupt_files_among_many_fail_by_themselves(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{row:04}.jpg") for row in range(300)]
    corrupt = set(range(7, 300, 15))
    for row, path in enumerate(paths):
        data = encode(picture(row % ROWS), "JPEG")
        Path(path).write_bytes(data[: len(data) // 3] if row in corrupt else data)
    source = ImageFiles(paths)
    pictures, failed = decode_all(source, source.divide(64))
    assert set(failed) == corrupt
    assert len(corrupt) == 20
    assert rows_of(pictures) == [row % ROWS if row not in corrupt else -1 for row in range(300)]
