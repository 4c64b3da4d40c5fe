"""TFRecord files over the rows that every source is tested with."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.options.records import ReadOptions
from penstock.sources.tfrecord.files import TFRecordFiles
from tests.support.tfrecord_writer import Values, example, record, sequence_example

from .case import Bad, Case, Rows
from .table_cases import BAD_ROW, SPLIT, file_of, names_of, numbers, pieces

Encode = Callable[[dict[str, Any], int], bytes]
Packing = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]
_PLAIN: Packing = (bytes, bytes)
_FEATURES = {"weight": "float64", "pixels": "uint8[2,6]"}


def _values(piece: dict[str, Any], row: int) -> dict[str, Values]:
    """A row as features: the weight and the pixels as raw bytes, so that no digit of them is lost."""
    return {
        "id": [int(piece["id"][row])],
        "weight": [piece["weight"][row].tobytes()],
        "pixels": [piece["pixels"][row].tobytes()],
        "word": [f"w{piece['id'][row]}".encode()],
        "some": [int(value) for value in piece["pixels"][row][:3]],
    }


def _example(piece: dict[str, Any], row: int) -> bytes:
    return example(_values(piece, row))


def _shuffled(piece: dict[str, Any], row: int) -> bytes:
    """The entries of a map may come in any order, and in another one in each record."""
    names = list(_values(piece, row).items())
    turn = int(piece["id"][row]) % len(names)
    return example(dict(names[turn:] + names[:turn]))


def _sequence(piece: dict[str, Any], row: int) -> bytes:
    frames = [[float(value) for value in half] for half in piece["pixels"][row].reshape(2, 6)]
    return sequence_example(_values(piece, row), {"frames": frames})


def write_tfrecords(encode: Encode, suffix: str, compress: Callable[[bytes], bytes]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        paths = names_of(folder, suffix)
        for path, piece in zip(paths, pieces(), strict=True):
            raw = b"".join(record(encode(piece, row)) for row in range(len(piece["id"])))
            Path(path).write_bytes(compress(raw))
        return paths

    return write


def expected_examples(encode: Encode, *, is_sequence: bool) -> Rows:
    columns = numbers()
    cubes = columns["pixels"].reshape(-1, 2, 6)
    rows: Rows = {
        "weight": columns["weight"].tolist(),
        "pixels": cubes.tolist(),
        "id": columns["id"].tolist(),
        "some": columns["pixels"][:, :3].tolist(),
        "word": [f"w{value}".encode() for value in columns["id"].tolist()],
    }
    if is_sequence:
        rows["frames"] = cubes.astype(float).tolist()
    rows["example"] = [encode(columns, row) for row in range(len(columns["id"]))]
    return rows


def open_tfrecords(paths: list[str]) -> TFRecordFiles:
    return TFRecordFiles(paths, ReadOptions(features=_FEATURES))


def record_of_file(paths: list[str], row: int) -> str:
    return f"{paths[file_of(row)]}, record {row - SPLIT[file_of(row)]}"


def spoil_record(rows: Rows, pack: Packing) -> Callable[[list[str]], Bad]:
    """A record whose data is not what its CRC says."""
    compress, decompress = pack

    def spoil(paths: list[str]) -> Bad:
        path = paths[file_of(BAD_ROW)]
        raw = bytearray(decompress(Path(path).read_bytes()))
        start = 0
        for _ in range(BAD_ROW - SPLIT[file_of(BAD_ROW)]):
            start += 16 + int.from_bytes(raw[start : start + 8], "little")
        raw[start + 20] ^= 0x55
        Path(path).write_bytes(compress(bytes(raw)))
        origin = f"{record_of_file(paths, BAD_ROW)}, at byte {start}"
        return Bad(BAD_ROW, origin, "checksum", {**dict.fromkeys(rows), "example": b""})

    return spoil


def _case(name: str, encode: Encode, suffix: str = ".tfrecord", pack: Packing = _PLAIN) -> Case:
    rows = expected_examples(encode, is_sequence=encode is _sequence)
    write = write_tfrecords(encode, suffix, pack[0])
    varying = ("frames",) if encode is _sequence else ()
    return Case(name, write, open_tfrecords, rows, record_of_file, spoil=spoil_record(rows, pack), varying=varying)


SEQUENCES = _case("tfrecord sequences", _sequence)
CASES = [
    _case("tfrecord", _example),
    _case("tfrecord in any order", _shuffled),
    _case("tfrecord gzip", _example, ".tfrecord.gz", (gzip.compress, gzip.decompress)),
    _case("tfrecord zlib", _example, pack=(zlib.compress, zlib.decompress)),
    SEQUENCES,
]
