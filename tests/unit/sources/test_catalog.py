"""Which source opens which files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.kinds import source_formats
from penstock.errors import InputError
from penstock.options.records import ReadOptions
from penstock.sources.catalog import open_files
from penstock.sources.images.columns import ImageColumns
from penstock.sources.images.files import ImageFiles
from penstock.sources.tables.parquet import ParquetFiles
from penstock.sources.tables.text import TextLines
from penstock.sources.tfrecord.files import TFRecordFiles
from penstock.sources.tfrecord.framing import masked_crc


def write_table(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": [1.0, 2.0], "photo": [b"1", b"2"]}), path)


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))


def test_no_suffix_belongs_to_two_sources() -> None:
    suffixes = [suffix for each in source_formats().values() for suffix in each.suffixes]
    assert len(set(suffixes)) == len(suffixes)


def test_readme_beside_a_table_is_not_data(tmp_path: Path) -> None:
    write_table(tmp_path / "rows.parquet")
    (tmp_path / "README.txt").write_text("about these rows")
    assert isinstance(open_files([str(tmp_path)]), ParquetFiles)


def test_folder_of_nothing_but_text_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert isinstance(open_files([str(tmp_path)]), TextLines)


def test_text_that_is_named_beside_a_table_is_a_mix(tmp_path: Path) -> None:
    write_table(tmp_path / "rows.parquet")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError) as caught:
        open_files([str(tmp_path), str(tmp_path / "a.txt")])
    assert caught.value.problem == "the input mixes formats"


def test_records_are_known_by_their_content_where_the_name_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00002").write_bytes(record(b""))
    (tmp_path / "train-00001-of-00002").write_bytes(record(b""))
    assert isinstance(open_files([str(tmp_path / "train-*")]), TFRecordFiles)


def test_file_of_no_known_format_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.docx").write_bytes(b"nothing that penstock reads, but more than twelve bytes")
    with pytest.raises(InputError) as caught:
        open_files([str(tmp_path / "notes.docx")])
    assert caught.value.problem == "unknown format"
    assert caught.value.received == str(tmp_path / "notes.docx")


def test_images_may_have_different_suffixes(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.PNG", "c.webp"):
        (tmp_path / name).write_bytes(b"")
    assert isinstance(open_files([str(tmp_path)]), ImageFiles)


def test_columns_of_images_are_wrapped(tmp_path: Path) -> None:
    write_table(tmp_path / "rows.parquet")
    source = open_files([str(tmp_path)], ReadOptions(images=("photo",), image_size=(4, 6)))
    assert isinstance(source, ImageColumns)
    assert source.schema()["photo"].encoding == "image"
    assert (source.schema()["photo"].shape or ())[:2] == (4, 6)


def test_options_reach_sources_that_take_them(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    schema = open_files([str(tmp_path)], ReadOptions(image_size=(4, 6))).schema()
    assert (schema["image"].shape or ())[:2] == (4, 6)


def test_file_of_a_table_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "b.npy").symlink_to(tmp_path / "gone.npy")
    with pytest.raises(InputError, match=r"b\.npy"):
        open_files([str(tmp_path)])


def write_photos(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:03d}.jpg").write_bytes(b"")


@pytest.mark.parametrize(("photos", "others"), [(2, 1), (4, 3), (40, 4), (200, 20)])
def test_few_files_of_another_kind_beside_photos_are_left_out_with_a_line(
    tmp_path: Path, photos: int, others: int
) -> None:
    write_photos(tmp_path / "photos" / "cats", photos)
    for number in range(others):
        (tmp_path / "photos" / f"labels{number}.csv").write_text("file,label\n")
    for argument in (tmp_path / "photos", tmp_path / "photos" / "**"):
        source = open_files([str(argument)])
        assert isinstance(source, ImageFiles)
        assert len(source.paths) == photos
        assert sum(fragment.size for fragment in source.fragments()) == 0
        (told,) = source.remarks()
        assert f"{others} file" in told
        assert f"beside {photos} photos (labels0.csv" in told
        assert ("…" in told) == (others > 3)


@pytest.mark.parametrize(("photos", "others"), [(1, 1), (3, 3), (30, 4), (190, 20)])
def test_many_files_of_another_kind_beside_photos_are_a_mix(tmp_path: Path, photos: int, others: int) -> None:
    write_photos(tmp_path, photos)
    for number in range(others):
        (tmp_path / f"labels{number}.csv").write_text("file,label\n")
    with pytest.raises(InputError) as caught:
        open_files([str(tmp_path)])
    assert caught.value.problem == "the input mixes formats"


def test_file_that_is_named_beside_photos_is_never_left_out(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", 50)
    (tmp_path / "labels.csv").write_text("file,label\n")
    with pytest.raises(InputError) as caught:
        open_files([str(tmp_path / "photos"), str(tmp_path / "labels.csv")])
    assert caught.value.problem == "the input mixes formats"


def test_nothing_is_told_where_nothing_is_left_out(tmp_path: Path) -> None:
    write_photos(tmp_path, 3)
    source = open_files([str(tmp_path)])
    assert isinstance(source, ImageFiles)
    assert source.remarks() == []
