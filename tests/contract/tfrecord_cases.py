"""TFRecord files over the rows that every source is tested with."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.options import ReadOptions
from penstock.sources.tfrecord import TFRecordFiles
from tests.support.tfrecord_writer import Values, example, record, sequence_example

from .reading import Case, Rows, names_of, numbers, pieces

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


def write_tfrecords(
    encode: Callable[[dict[str, Any], int], bytes], suffix: str, compress: Callable[[bytes], bytes] = bytes
) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        paths = names_of(folder, suffix)
        for path, piece in zip(paths, pieces(), strict=True):
            raw = b"".join(record(encode(piece, row)) for row in range(len(piece["id"])))
            Path(path).write_bytes(compress(raw))
        return paths

    return write


def expected_examples(encode: Callable[[dict[str, Any], int], bytes], *, is_sequence: bool = False) -> Rows:
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


def _case(name: str, encode: Callable[[dict[str, Any], int], bytes], *, write: Callable[[Path], list[str]]) -> Case:
    # As text files do, these go on after damage: what a source of one table refuses is here a failed row.
    return Case(name, write, open_tfrecords, expected_examples(encode), is_text=True)


CASES = [
    _case("tfrecord", _example, write=write_tfrecords(_example, ".tfrecord")),
    _case("tfrecord in any order", _shuffled, write=write_tfrecords(_shuffled, ".tfrecord")),
    _case("tfrecord gzip", _example, write=write_tfrecords(_example, ".tfrecord.gz", gzip.compress)),
    _case("tfrecord zlib", _example, write=write_tfrecords(_example, ".tfrecord", zlib.compress)),
]
SEQUENCES = Case(
    "tfrecord sequences",
    write_tfrecords(_sequence, ".tfrecord"),
    open_tfrecords,
    expected_examples(_sequence, is_sequence=True),
    is_text=True,
)
"""Apart from the others: the length of a feature list is never part of the schema."""
