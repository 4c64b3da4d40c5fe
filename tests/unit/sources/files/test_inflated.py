"""Compressed bytes read at any place: the right ones, and nearly all of them inflated once."""

from __future__ import annotations

import random
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from penstock.core.records import Span
from penstock.errors import InputError
from penstock.sources.files.inflated import MOST_MARKS, PIECE_BYTES, InflatedPieces
from penstock.sources.files.tapes import DEFLATE, InflatedTape
from penstock.sources.tables.npy import ArrayFiles


class CountingTape(InflatedTape):
    """A tape that adds up what all of its copies inflate."""

    def __init__(self, path: Path, counts: list[int]) -> None:
        super().__init__(str(path), DEFLATE)
        self._counts = counts

    def _take(self, raw: bytes) -> None:
        self._counts.append(len(raw))
        super()._take(raw)


class ForwardTape(CountingTape):
    """One that cannot be copied."""

    def copy(self) -> Self | None:  # type: ignore[override]
        return None


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(1).integers(0, 4, 140 * PIECE_BYTES + 77, np.uint8).tobytes()


@pytest.fixture(scope="module")
def deflated(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deflated") / "raw"
    deflater = zlib.compressobj(1, wbits=-15)
    path.write_bytes(deflater.compress(content) + deflater.flush())
    return path


@pytest.mark.parametrize("tape", [CountingTape, ForwardTape])
def test_any_place_holds_the_bytes_that_were_compressed(
    tape: type[CountingTape], content: bytes, deflated: Path
) -> None:
    pieces = InflatedPieces(lambda: tape(deflated, []), 8 * PIECE_BYTES)
    places = random.Random(2)
    for _ in range(8):
        start, nbytes = places.randrange(len(content)), places.randrange(3 * PIECE_BYTES)
        assert pieces.read(start, nbytes) == content[start : start + nbytes]
    assert pieces.read(len(content) - 5, 100) == content[-5:]
    assert pieces.read(len(content) + PIECE_BYTES, 100) == b""


def test_neighbours_in_another_order_are_not_inflated_again(content: bytes, deflated: Path) -> None:
    counts: list[int] = []
    pieces = InflatedPieces(lambda: CountingTape(deflated, counts), 16 * PIECE_BYTES)
    starts = list(range(0, len(content), 10_000))
    near = random.Random(3)
    starts.sort(key=lambda start: start + near.randrange(8 * PIECE_BYTES))
    with ThreadPoolExecutor(4) as loaders:
        found = list(loaders.map(lambda start: pieces.read(start, 10_000), starts))
    assert found == [content[start : start + 10_000] for start in starts]
    assert sum(counts) < 1.2 * len(content)


def test_going_back_costs_a_small_share_of_the_content(content: bytes, deflated: Path) -> None:
    counts: list[int] = []
    pieces = InflatedPieces(lambda: CountingTape(deflated, counts), 2 * PIECE_BYTES)
    pieces.read(len(content) - 1, 1)
    assert len(pieces._marks) <= MOST_MARKS
    counts.clear()
    for start in range(len(content) - 10, 0, -10 * PIECE_BYTES):
        pieces.read(start, 10)
    assert sum(counts) < len(content) // 2


def test_compressed_arrays_are_read_in_any_order_by_several_threads(tmp_path: Path) -> None:
    rows = np.random.default_rng(4).integers(0, 9, (300_000, 3), np.int32)
    np.savez_compressed(tmp_path / "rows.npz", rows=rows)
    source = ArrayFiles([str(tmp_path / "rows.npz")])
    spans = list(source.divide(1000))
    random.Random(5).shuffle(spans)

    def read(span: Span) -> bool:
        (block,) = source.read(span, ["rows"])
        return np.array_equal(np.asarray(block.columns["rows"]), rows[block.start : block.start + block.rows])

    with ThreadPoolExecutor(4) as loaders:
        assert all(loaders.map(read, spans))


def test_members_in_other_compressions_are_read_too(tmp_path: Path) -> None:
    rows = np.arange(5000).reshape(1000, 5)
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path = tmp_path / f"{method}.npz"
        with zipfile.ZipFile(path, "w", method) as archive, archive.open("rows.npy", "w") as file:
            np.save(file, rows)
        source = ArrayFiles([str(path)])
        for span in reversed(list(source.divide(300))):
            for block in source.read(span, ["rows"]):
                np.testing.assert_array_equal(block.columns["rows"], rows[block.start : block.start + block.rows])


def test_header_that_promises_more_than_the_file_can_hold_is_refused(tmp_path: Path) -> None:
    """Rows without end would be divided for ever."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("rows.npy", "w") as file:
        np.lib.format.write_array_header_1_0(
            file,
            {"descr": "<f4", "fortran_order": False, "shape": (10**15, 4)},  # type: ignore[arg-type]
        )
    with pytest.raises(InputError, match=r"it should have 16,000,000,000,000,\d+ bytes and has"):
        list(ArrayFiles([str(path)]).divide(10))
    for shape in ((10**15, 0), (1, 10**12)):
        array = tmp_path / "rows.npy"
        with open(array, "wb") as plain:
            np.lib.format.write_array_header_1_0(
                plain,
                {"descr": "<f4", "fortran_order": False, "shape": shape},  # type: ignore[arg-type]
            )
            plain.truncate(10**13 if shape[1] else 128)
        with pytest.raises(InputError, match="cannot be read row by row"):
            list(ArrayFiles([str(array)]).divide(10))


def test_flipped_bit_in_a_compressed_array_is_noticed(tmp_path: Path) -> None:
    rows = np.random.default_rng(6).integers(0, 9, (100_000,), np.int64)
    path = tmp_path / "rows.npz"
    np.savez_compressed(path, rows=rows)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)
    source = ArrayFiles([str(path)])
    spans = list(source.divide(1000))
    with pytest.raises(InputError, match=r"rows\.npz"):
        _ = [list(source.read(span, ["rows"])) for span in spans]
