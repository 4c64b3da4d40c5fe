"""Image sources over the same pictures, and ways to decode them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.records import Array, Span
from penstock.sources.csv import CsvFiles
from penstock.sources.image_columns import ImageColumns
from penstock.sources.image_files import ImageFiles
from penstock.sources.jsonl import JsonLines
from penstock.sources.parquet import ParquetFiles
from penstock.sources.tar import TarFiles

ROWS = 60
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
SIZE = (16, 24)


def color(row: int) -> tuple[int, int, int]:
    return (row * 4, 255 - row * 4, (row * 53) % 256)


def picture(row: int) -> Image.Image:
    """A plain colour, another one for every row; heights and widths differ."""
    return Image.new("RGB", (20 + row % 7, 30 + row % 5), color(row))


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    if kind in ("JPEG", "WEBP"):
        options.setdefault("quality", 95)
    image.save(stream, kind, **options)
    return stream.getvalue()


def encoded(row: int) -> bytes:
    return encode(picture(row), FORMATS[row % len(FORMATS)])


@dataclass(frozen=True)
class ImageCase:
    """A source of ROWS pictures in the column `image`: how to write its files, and how to open it."""

    name: str
    write: Callable[[Path], list[str]]
    open: Callable[[Sequence[str]], Source]
    replace_row: Callable[[list[str], int, bytes], None]
    """Put other bytes in the place of a row's image."""


def write_files(folder: Path) -> list[str]:
    for row in range(ROWS):
        (folder / f"{row:03}.{FORMATS[row % len(FORMATS)].lower()}").write_bytes(encoded(row))
    return sorted(str(path) for path in folder.iterdir())


def replace_file(paths: list[str], row: int, data: bytes) -> None:
    Path(paths[row]).write_bytes(data)


def write_parquet(as_struct: bool) -> Callable[[Path], list[str]]:
    def write(folder: Path, rows: Sequence[bytes] | None = None) -> list[str]:
        found = [encoded(row) for row in range(ROWS)] if rows is None else list(rows)
        paths = [str(folder / f"{number}.parquet") for number in range(2)]
        for number, path in enumerate(paths):
            piece = found[number * ROWS // 2 : (number + 1) * ROWS // 2]
            values = [{"bytes": data, "path": None} for data in piece] if as_struct else piece
            kind = pa.struct({"bytes": pa.binary(), "path": pa.string()}) if as_struct else pa.binary()
            pq.write_table(pa.table({"image": pa.array(values, kind)}), path, row_group_size=7)
        return paths

    return write


def replace_in_parquet(as_struct: bool) -> Callable[[list[str], int, bytes], None]:
    def replace(paths: list[str], row: int, data: bytes) -> None:
        rows = [encoded(number) for number in range(ROWS)]
        rows[row] = data
        write_parquet(as_struct)(Path(paths[0]).parent, rows)  # type: ignore[call-arg]

    return replace


def write_table(suffix: str) -> Callable[[Path], list[str]]:
    """A table of relative paths beside a folder of pictures."""

    def write(folder: Path) -> list[str]:
        (folder / "pictures").mkdir()
        names = [f"pictures/{Path(path).name}" for path in write_files(folder / "pictures")]
        path = folder / f"table{suffix}"
        if suffix == ".csv":
            path.write_text("id,image\n" + "".join(f"{row},{name}\n" for row, name in enumerate(names)))
        else:
            path.write_text("".join(json.dumps({"id": row, "image": name}) + "\n" for row, name in enumerate(names)))
        return [str(path)]

    return write


def replace_beside(paths: list[str], row: int, data: bytes) -> None:
    files = sorted((Path(paths[0]).parent / "pictures").iterdir())
    files[row].write_bytes(data)


def write_tar(folder: Path, rows: Sequence[bytes] | None = None) -> list[str]:
    found = [encoded(row) for row in range(ROWS)] if rows is None else list(rows)
    paths = [str(folder / f"{number}.tar") for number in range(2)]
    for number, path in enumerate(paths):
        with tarfile.open(path, "w", format=[tarfile.GNU_FORMAT, tarfile.PAX_FORMAT][number]) as archive:
            for row in range(number * ROWS // 2, (number + 1) * ROWS // 2):
                long = "folder-of-a-long-name/" * 12 if row % 10 == 0 else ""
                suffix = FORMATS[row % len(FORMATS)].lower()
                add_member(archive, f"{long}{row:03}.{suffix}", found[row])
                add_member(archive, f"{long}{row:03}.cls", str(row).encode())
    return paths


def replace_in_tar(paths: list[str], row: int, data: bytes) -> None:
    rows = [encoded(number) for number in range(ROWS)]
    rows[row] = data
    write_tar(Path(paths[0]).parent, rows)


def add_member(archive: tarfile.TarFile, name: str, data: bytes, **fields: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in fields.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(data))


CASES = [
    ImageCase("files", write_files, ImageFiles, replace_file),
    ImageCase(
        "parquet bytes",
        write_parquet(False),
        lambda paths: ImageColumns(ParquetFiles(paths), ["image"]),
        replace_in_parquet(False),
    ),
    ImageCase(
        "parquet struct",
        write_parquet(True),
        lambda paths: ImageColumns(ParquetFiles(paths), ["image"]),
        replace_in_parquet(True),
    ),
    ImageCase("csv of paths", write_table(".csv"), lambda p: ImageColumns(CsvFiles(p), ["image"]), replace_beside),
    ImageCase("jsonl of paths", write_table(".jsonl"), lambda p: ImageColumns(JsonLines(p), ["image"]), replace_beside),
    ImageCase("tar", write_tar, TarFiles, replace_in_tar),
]


def decode_span(source: Source, span: Span) -> tuple[Array, dict[int, str]]:
    """The pictures of a span and the reasons of those that failed; that blocks follow each other is checked."""
    pictures: list[Array] = []
    failed: dict[int, str] = {}
    position = span.start
    for block in source.read(span, ["image"]):
        assert block.start == position
        column = block.columns["image"]
        assert isinstance(column, Deferred)
        assert len(column) == block.rows
        out = np.full((block.rows, *SIZE, 3), 7, np.uint8)
        announced: list[int] = []
        bad = column.fill(out, announced.append)
        assert announced == list(range(block.rows))
        failed |= {block.start + place: reason for place, reason in bad.items()}
        failed |= {failure.row: failure.reason for failure in block.failures}
        pictures.append(out)
        position += block.rows
    assert position == span.stop
    return np.concatenate(pictures), failed


def decode_all(source: Source, spans: Iterable[Span]) -> tuple[Array, dict[int, str]]:
    """All pictures, read in the order given and put into the order of the input."""
    found = {span.start: decode_span(source, span) for span in spans}
    failed = {row: reason for _, reasons in found.values() for row, reason in reasons.items()}
    return np.concatenate([found[start][0] for start in sorted(found)]), failed


def rows_of(pictures: Array) -> list[int]:
    """Which picture each one is, told by its colour; -1 for black."""
    colors = np.array([color(row) for row in range(ROWS)])
    means = pictures.reshape(len(pictures), -1, 3).mean(axis=1)
    nearest = np.abs(means[:, None] - colors[None]).sum(axis=2).argmin(axis=1)
    return [int(row) if mean.any() else -1 for row, mean in zip(nearest, means, strict=True)]
