"""Tar files by WebDataset's convention: what becomes a row, and what becomes of an archive that is damaged."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from penstock.core.records import Span
from penstock.errors import InputError
from penstock.sources.tar.files import TarFiles

from .decoding import decode_all
from .image_cases import add_member, write_tar
from .picture import encode, encoded, picture, rows_of
from .reading import read_all

pytestmark = pytest.mark.timeout(60)


def make_tar(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            add_member(archive, name, data)
    return str(path)


class TestTar:
    def test_members_of_one_key_are_one_row(self, tmp_path: Path) -> None:
        members = {"a/1.jpg": encoded(0), "a/1.cls": b"7", "a/1.json": b"{}", "a/1.bin": b"\xff", "a/2.txt": b"word"}
        path = make_tar(tmp_path / "t.tar", members)
        source = TarFiles([path])
        assert list(source.schema()) == ["image", "cls", "json", "bin", "txt", "path"]
        assert read_all(source, source.divide(10), ["cls", "json", "bin", "txt", "path"]) == {
            "cls": ["7", None],
            "json": ["{}", None],
            "bin": [b"\xff", None],
            "txt": [None, "word"],
            "path": [f"{path}/a/1.jpg", f"{path}/a/2.txt"],
        }
        _, failed = decode_all(source, source.divide(10))
        assert list(failed) == [1]
        assert "null" in failed[1]

    def test_archive_without_images_is_a_table_of_its_members(self, tmp_path: Path) -> None:
        source = TarFiles([make_tar(tmp_path / "t.tar", {"1.txt": b"a", "2.txt": b"b", "README": b"", "._2.txt": b""})])
        assert read_all(source, source.divide(1), ["txt"]) == {"txt": ["a", "b"]}

    def test_images_of_other_extensions_are_columns_of_their_own(self, tmp_path: Path) -> None:
        members = {"1.jpg": encoded(0), "1.seg.png": encoded(1), "1.png": encoded(1), "2.JPG": encoded(2)}
        source = TarFiles([make_tar(tmp_path / "t.tar", members)])
        schema = source.schema()
        assert [name for name, spec in schema.items() if spec.encoding == "image"] == ["image", "seg.png", "png"]
        pictures, failed = decode_all(source, source.divide(10))
        assert (rows_of(pictures), failed) == ([0, 2], {})

    def test_second_member_of_one_name_begins_another_row(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "t.tar", "w") as archive:
            for row in range(3):
                add_member(archive, "same.jpg", encoded(row))
        source = TarFiles([str(tmp_path / "t.tar")])
        assert rows_of(decode_all(source, source.divide(1))[0]) == [0, 1, 2]

    def test_names_that_lead_outside_are_only_names(self, tmp_path: Path) -> None:
        inside = tmp_path / "a" / "b"
        inside.mkdir(parents=True)
        path = make_tar(inside / "t.tar", {"../../escaped.jpg": encoded(0), "/absolute.jpg": encoded(1)})
        before = sorted(tmp_path.rglob("*"))
        source = TarFiles([path])
        pictures, failed = decode_all(source, source.divide(10))
        assert (rows_of(pictures), failed) == ([0, 1], {})
        assert sorted(tmp_path.rglob("*")) == before
        paths = read_all(source, source.divide(10), ["path"])["path"]
        assert paths == [f"{path}/../../escaped.jpg", f"{path}//absolute.jpg"]

    def test_links_and_devices_fail_their_rows(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret.jpg"
        secret.write_bytes(encoded(9))
        with tarfile.open(tmp_path / "t.tar", "w") as archive:
            add_member(archive, "1.jpg", encoded(0))
            for number, kind in enumerate([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]):
                add_member(archive, f"link{number}.jpg", b"", type=kind, linkname=str(secret))
            add_member(archive, "folder.jpg", b"", type=tarfile.DIRTYPE)
            add_member(archive, "2.jpg", encoded(1))
        source = TarFiles([str(tmp_path / "t.tar")])
        pictures, failed = decode_all(source, source.divide(10))
        assert rows_of(pictures) == [0, -1, -1, -1, -1, 1]
        assert [failed[row].rpartition(" is ")[2] for row in (1, 2, 3, 4)] == [
            "a link",
            "a hard link",
            "a device",
            "a pipe",
        ]

    @pytest.mark.parametrize("rows_per_span", [1, 7, 1000])
    def test_archive_that_is_cut_anywhere_gives_what_is_whole_and_names_the_rest(
        self, tmp_path: Path, rows_per_span: int
    ) -> None:
        path = write_tar(tmp_path)[0]
        whole = Path(path).read_bytes()
        end = len(whole.rstrip(b"\0"))
        for kept in range(40_000, end - 512, 7 * 512 - 100):
            Path(path).write_bytes(whole[:kept])
            source = TarFiles([path])
            pictures, failed = decode_all(source, source.divide(rows_per_span))
            assert len(failed) in (1, 2)
            assert min(failed) >= len(pictures) - 2
            good = [row for row in range(len(pictures)) if row not in failed]
            assert [rows_of(pictures)[row] for row in good] == good

    def test_archive_that_is_cut_between_members_is_noticed(self, tmp_path: Path) -> None:
        path = Path(make_tar(tmp_path / "t.tar", {f"{row}.bmp": encode(picture(row), "BMP") for row in range(4)}))
        with tarfile.open(path) as archive:
            third = archive.getmembers()[2].offset
        os.truncate(path, third)
        source = TarFiles([str(path)])
        pictures, failed = decode_all(source, source.divide(10))
        assert rows_of(pictures) == [0, 1, -1]
        assert list(failed) == [2]
        assert "cut" in failed[2]

    @pytest.mark.parametrize("rows_per_span", [1, 1000])
    def test_damaged_header_costs_its_own_row_and_the_rest_is_read(self, tmp_path: Path, rows_per_span: int) -> None:
        path = Path(make_tar(tmp_path / "t.tar", {f"{row}.jpg": encoded(row) for row in range(6)}))
        with tarfile.open(path) as archive:
            third = archive.getmembers()[2].offset
        raw = bytearray(path.read_bytes())
        raw[third + 10] ^= 0x55
        path.write_bytes(raw)
        source = TarFiles([str(path)])
        pictures, failed = decode_all(source, source.divide(rows_per_span))
        assert rows_of(pictures) == [0, 1, -1, 3, 4, 5]
        assert list(failed) == [2]
        assert f"byte {third}" in failed[2]
        assert source.origin(list(source.divide(1))[2], 2).startswith(str(path))

    @pytest.mark.parametrize("data", [b"", b"<html>not found</html>" * 99, b"\x1f\x8b" + bytes(99)], ids=str)
    def test_file_of_something_else_is_an_input_error_that_names_it(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "t.tar"
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"t\.tar"):
            list(TarFiles([str(path)]).divide(10))

    def test_archive_without_samples_is_an_input_error(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no rows"):
            list(TarFiles([make_tar(tmp_path / "t.tar", {})]).divide(10))

    def test_text_that_is_not_utf8_fails_its_row(self, tmp_path: Path) -> None:
        source = TarFiles([make_tar(tmp_path / "t.tar", {"1.txt": b"\xff", "2.txt": b"b"})])
        blocks = list(source.read(next(source.divide(10)), ["txt"]))
        assert [(failure.row, failure.reason) for failure in blocks[0].failures] == [(0, "1.txt is not UTF-8")]
        assert blocks[0].columns["txt"].to_pylist() == [None, "b"]  # type: ignore[union-attr]

    def test_large_archive_is_read_in_blocks(self, tmp_path: Path) -> None:
        data = os.urandom(3 << 20)
        source = TarFiles([make_tar(tmp_path / "t.tar", {f"{row}.bin": data for row in range(12)})])
        span: Span = next(source.divide(1000, None))
        assert [block.rows for block in source.read(span, ["bin"])] == [3, 3, 3, 3]
        assert [block.rows for block in source.read(span, ["path"])] == [12]

    def test_names_with_dots_before_the_extension_are_refused_with_advice(self, tmp_path: Path) -> None:
        path = make_tar(tmp_path / "t.tar", {f"a.{row}.jpg": b"" for row in range(200)})
        with pytest.raises(InputError, match="rename"):
            TarFiles([path]).schema()

    def test_joined_archives_are_read_to_the_end(self, tmp_path: Path) -> None:
        parts = [make_tar(tmp_path / f"{row}.tar", {f"{row}.jpg": encoded(row)}) for row in range(3)]
        with open(tmp_path / "all.tar", "wb") as joined:
            for part in parts:
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, joined)
        source = TarFiles([str(tmp_path / "all.tar")])
        assert rows_of(decode_all(source, source.divide(2))[0]) == [0, 1, 2]
