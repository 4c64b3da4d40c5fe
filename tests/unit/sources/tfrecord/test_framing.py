"""Lengths, checksums, gaps and cut tails of TFRecord files."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.sources.files.tapes import GZIP, PLAIN, ZLIB, PlainTape, Tape, compression_of, open_tape
from penstock.sources.tfrecord.framing import (
    Frames,
    Gap,
    Scan,
    frames_of,
    how_compressed,
    masked_crc,
    masked_crcs,
    masked_crcs_of_words,
    pack_record,
)
from tests.support.tfrecord_writer import crc32c, masked, record, write


class TestChecksums:
    @pytest.mark.parametrize(
        ("data", "crc"),
        [
            (b"", 0),
            (b"123456789", 0xE3069283),
            (bytes(32), 0x8A9136AA),
            (b"\xff" * 32, 0x62A8AB43),
            (bytes(range(32)), 0x46DD794E),
        ],
    )
    def test_values_of_the_standard(self, data: bytes, crc: int) -> None:
        assert google_crc32c.value(data) == crc == crc32c(data)

    @given(st.binary(max_size=300))
    def test_library_and_the_textbook_agree(self, data: bytes) -> None:
        assert google_crc32c.value(data) == crc32c(data)
        assert struct.pack("<I", masked_crc(data)) == masked(data)
        assert masked_crcs([data, b"x"]).tolist() == [masked_crc(data), masked_crc(b"x")]

    @given(st.binary(min_size=8, max_size=60))
    def test_words_at_any_place_at_once(self, data: bytes) -> None:
        at = np.arange(len(data) - 7)
        found = masked_crcs_of_words(np.frombuffer(data, np.uint8), at)
        assert found.tolist() == [masked_crc(data[place : place + 8]) for place in at]


def scan(raw: bytes) -> tuple[list[int], list[Gap]]:
    tape: Tape = PlainTape("memory", io.BytesIO(raw))
    stretches = list(Scan(tape).stretches())
    return [int(end) for one in stretches for end in one.ends], [gap for one in stretches for gap in one.gaps]


def fetch_from(raw: bytes) -> Callable[[int, int], bytes]:
    return lambda place, nbytes: raw[place : place + nbytes]


def read(raw: bytes) -> tuple[list[bytes], dict[int, str]]:
    """Scan, then read: the data of every row, and the rows that failed."""
    ends, gaps = scan(raw)
    rows: list[bytes] = []
    failed: dict[int, str] = {}
    end = ends[-1] if ends else 0
    for frames in frames_of(fetch_from(raw), 0, end, gaps, "memory"):
        failed.update({len(rows) + place: reason for place, reason in frames.reasons.items()})
        rows += data_of(frames)
    assert len(rows) == len(ends)
    return rows, failed


def data_of(frames: Frames) -> list[bytes]:
    return [frames.raw[start:stop] for start, stop in zip(frames.starts, frames.stops, strict=True)]


DATA = [b"one", b"", b"three" * 100, *[b"same"] * 40, b"last"]
RAW = b"".join(record(data) for data in DATA)
STARTS = [sum(len(data) + 16 for data in DATA[:number]) for number in range(len(DATA) + 1)]


def flipped(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 0x10]) + raw[place + 1 :]


class TestWholeFiles:
    def test_every_record_is_found_and_read(self) -> None:
        assert scan(RAW) == (STARTS[1:], [])
        assert read(RAW) == (DATA, {})

    def test_own_writer_and_the_tests_agree(self) -> None:
        assert [pack_record(data) for data in DATA] == [record(data) for data in DATA]

    def test_empty_file_has_no_rows(self) -> None:
        assert scan(b"") == ([], [])

    @given(st.lists(st.binary(max_size=40) | st.sampled_from([b"x" * 30, b"y" * 30]), max_size=60))
    def test_any_records_come_back(self, data: list[bytes]) -> None:
        assert read(b"".join(record(one) for one in data)) == (data, {})

    def test_records_larger_than_what_is_read_at_once(self) -> None:
        data = [bytes([number]) * size for number, size in enumerate([10, 3 << 20, 5, (1 << 20) - 16, 1 << 20, 7])]
        assert read(b"".join(record(one) for one in data)) == (data, {})


class TestDamage:
    def test_wrong_checksum_of_the_data_is_one_row(self) -> None:
        rows, failed = read(flipped(RAW, STARTS[2] + 12 + 7))
        assert rows == [*DATA[:2], b"", *DATA[3:]]
        assert list(failed) == [2]
        assert "checksum of the data" in failed[2]

    @pytest.mark.parametrize("place", [0, 1, 7, 8, 11])
    @pytest.mark.parametrize("number", [0, 1, 2, 20, len(DATA) - 1])
    def test_broken_length_is_one_row_and_the_rest_is_read(self, number: int, place: int) -> None:
        rows, failed = read(flipped(RAW, STARTS[number] + place))
        assert rows == [*DATA[:number], b"", *DATA[number + 1 :]]
        assert list(failed) == [number]
        assert f"bytes {STARTS[number]} to {STARTS[number + 1]}" in failed[number]

    def test_bytes_between_records_are_one_row(self) -> None:
        rows, failed = read(RAW[: STARTS[3]] + b"rubbish" * 9 + RAW[STARTS[3] :])
        assert rows == [*DATA[:3], b"", *DATA[3:]]
        assert list(failed) == [3]

    @pytest.mark.parametrize("cut", range(1, len(DATA[-1]) + 16))
    def test_cut_tail_is_one_row_that_names_its_place(self, cut: int) -> None:
        rows, failed = read(RAW[:-cut])
        assert rows == [*DATA[:-1], b""]
        assert list(failed) == [len(DATA) - 1]
        assert f"at byte {STARTS[-2]}" in failed[len(DATA) - 1]
        assert "cut" in failed[len(DATA) - 1]

    def test_enormous_length_with_a_right_checksum_is_a_cut_tail(self) -> None:
        length = struct.pack("<Q", 1 << 60)
        rows, failed = read(RAW + length + masked(length) + b"abc")
        assert rows == [*DATA, b""]
        assert str(1 << 60) in failed[len(DATA)]

    def test_gap_longer_than_what_is_read_at_once(self) -> None:
        for filler in (b"\xff", b"\0", bytes(range(256))):
            rows, failed = read(RAW[: STARTS[3]] + filler * ((3 << 20) // len(filler)) + RAW[STARTS[3] :])
            assert rows == [*DATA[:3], b"", *DATA[3:]]
            assert list(failed) == [3]

    def test_file_that_changed_after_the_scan_is_an_input_error(self) -> None:
        for other in (RAW[: STARTS[2] + 5], flipped(RAW, STARTS[2]), b""):
            with pytest.raises(InputError, match="memory"):
                list(frames_of(fetch_from(other), 0, len(RAW), [], "memory"))

    @given(st.data())
    def test_whatever_is_flipped_or_cut_rows_and_failures_add_up(self, data: st.DataObject) -> None:
        raw = RAW
        for _ in range(data.draw(st.integers(0, 4))):
            raw = flipped(raw, data.draw(st.integers(0, len(raw) - 1)))
        raw = raw[: data.draw(st.integers(0, len(raw)))]
        rows, failed = read(raw)
        assert read(raw) == (rows, failed)
        good = [row for number, row in enumerate(rows) if number not in failed]
        assert all(row in DATA for row in good)

    @given(st.binary(max_size=400))
    def test_random_bytes_never_raise(self, raw: bytes) -> None:
        rows, failed = read(raw)
        assert len(rows) == len(failed) <= 1


def gzipped(raw: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(raw) + packer.flush()


def scan_file(path: Path) -> tuple[int, list[Gap]]:
    with closing(open_tape(str(path), how_compressed(str(path)))) as tape:
        stretches = list(Scan(tape).stretches())
    return sum(len(one.ends) for one in stretches), [gap for one in stretches for gap in one.gaps]


class TestCompressed:
    def test_kind_is_told_by_content_and_not_by_name(self, tmp_path: Path) -> None:
        kinds = {PLAIN: RAW, GZIP: gzipped(RAW), ZLIB: zlib.compress(RAW)}
        for kind, raw in kinds.items():
            path = tmp_path / f"{kind}.gz"
            path.write_bytes(raw)
            assert how_compressed(str(path)) == kind
            assert scan_file(path) == (len(DATA), [])

    def test_plain_record_whose_length_looks_like_a_magic_number_is_plain(self, tmp_path: Path) -> None:
        for size in (0x8B1F, 0x9C78):
            path = write(tmp_path / "a", [bytes(size)])
            head = Path(path).read_bytes()[:12]
            assert size == 0x8B1F or compression_of(head) == ZLIB
            assert how_compressed(path) == PLAIN

    def test_several_members_and_padding_are_one_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(gzipped(RAW[:100]) + bytes(512) + gzipped(b"") + gzipped(RAW[100:]) + bytes(70_000))
        assert scan_file(path) == (len(DATA), [])

    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
    def test_cut_stream_is_read_up_to_the_cut(self, tmp_path: Path, share: float) -> None:
        data = [np.random.default_rng(number).bytes(500) for number in range(400)]
        whole = gzipped(b"".join(record(one) for one in data))
        path = tmp_path / "a"
        path.write_bytes(whole[: max(20, int(len(whole) * share))])
        rows, gaps = scan_file(path)
        assert len(gaps) == 1
        assert "cut" in gaps[0].reason
        assert int(400 * share) - 2 <= rows <= int(400 * share) + 2

    def test_stream_that_is_damaged_in_the_middle_is_read_up_to_there(self, tmp_path: Path) -> None:
        data = [np.random.default_rng(number).bytes(500) for number in range(400)]
        whole = bytearray(gzipped(b"".join(record(one) for one in data)))
        half = len(whole) // 2
        whole[half : half + 40_000] = b"\x55" * 40_000
        path = tmp_path / "a"
        path.write_bytes(whole)
        rows, gaps = scan_file(path)
        assert rows >= 199
        assert len(gaps) >= 1

    def test_bytes_after_the_stream_are_one_row(self, tmp_path: Path) -> None:
        for packed in (gzipped(RAW), zlib.compress(RAW)):
            path = tmp_path / "a"
            path.write_bytes(packed + b"rubbish")
            rows, gaps = scan_file(path)
            assert (rows, len(gaps)) == (len(DATA) + 1, 1)

    def test_stream_that_inflates_to_far_more_than_memory_is_walked_through(self, tmp_path: Path) -> None:
        length = struct.pack("<Q", 1 << 60)
        path = tmp_path / "bomb"
        path.write_bytes(gzipped(RAW + length + masked(length) + bytes(200 << 20)))
        rows, gaps = scan_file(path)
        assert (rows, len(gaps)) == (len(DATA) + 1, 1)
