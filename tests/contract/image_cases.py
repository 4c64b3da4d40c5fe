"""Image sources over the same pictures, and ways to decode them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.sources.images.columns import ImageColumns
from penstock.sources.images.files import ImageFiles
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.jsonl import JsonLines
from penstock.sources.tables.parquet import ParquetFiles
from penstock.sources.tar.files import TarFiles

from .case import Bad, Case
from .picture import FORMATS, ROWS, encode, encoded, picture

BAD_ROW = 33
SPLIT = (0, 40, ROWS)  # two files where there are several rows in one
Replace = Callable[[list[str], int, bytes], None]


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
            piece = found[SPLIT[number] : SPLIT[number + 1]]
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
            for row in range(SPLIT[number], SPLIT[number + 1]):
                add_member(archive, tar_name(row), found[row])
                add_member(archive, f"{tar_name(row).rpartition('.')[0]}.cls", str(row).encode())
    return paths


def tar_name(row: int) -> str:
    long = "folder-of-a-long-name/" * 12 if row % 10 == 0 else ""
    return f"{long}{row:03}.{FORMATS[row % len(FORMATS)].lower()}"


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


def image_case(
    name: str, write: Callable[[Path], list[str]], inside: Callable[[Sequence[str]], Any], replace: Replace
) -> Case:
    """A table with a column of images."""
    pictures = list(range(ROWS))
    is_table_of_paths = replace is replace_beside
    expected = {"id": pictures, "image": pictures} if is_table_of_paths else {"image": pictures}
    return Case(
        name,
        write,
        lambda paths: ImageColumns(inside(paths), ["image"]),
        expected,
        (lambda paths, row: paths[0]) if is_table_of_paths else row_of_parquet,
        spoil=spoil_picture(replace, lambda paths: paths[0] if is_table_of_paths else row_of_parquet(paths, BAD_ROW)),
        unseen=pictures_beside if is_table_of_paths else None,
        most_times=1 if is_table_of_paths else 8,
    )


def row_of_parquet(paths: list[str], row: int) -> str:
    file = int(row >= SPLIT[1])
    return f"{paths[file]}, row {row - SPLIT[file]}"


def member_of(paths: list[str], row: int) -> str:
    return f"{paths[int(row >= SPLIT[1])]}/{tar_name(row)}"


def pictures_beside(paths: list[str]) -> list[str]:
    return sorted(str(path) for path in (Path(paths[0]).parent / "pictures").iterdir())


def spoil_picture(replace: Replace, origin: Callable[[list[str]], str]) -> Callable[[list[str]], Bad]:
    """A JPEG file that breaks off."""

    def spoil(paths: list[str]) -> Bad:
        whole = encode(picture(BAD_ROW).resize((300, 200)), "JPEG")
        replace(paths, BAD_ROW, whole[: len(whole) // 2])
        return Bad(BAD_ROW, origin(paths), "", {"image": -1}, stage="load")

    return spoil


CASES = [
    Case(
        "image files",
        write_files,
        ImageFiles,
        {"image": list(range(ROWS))},
        lambda paths, row: paths[row],
        path_of=lambda paths, row: paths[row],
        spoil=spoil_picture(replace_file, lambda paths: paths[BAD_ROW]),
        is_row_a_file=True,
    ),
    image_case("images in parquet bytes", write_parquet(False), ParquetFiles, replace_in_parquet(False)),
    image_case("images in parquet structs", write_parquet(True), ParquetFiles, replace_in_parquet(True)),
    image_case("images by path in csv", write_table(".csv"), CsvFiles, replace_beside),
    image_case("images by path in jsonl", write_table(".jsonl"), JsonLines, replace_beside),
    Case(
        "tar",
        write_tar,
        TarFiles,
        {"image": list(range(ROWS)), "cls": [str(row) for row in range(ROWS)]},
        member_of,
        path_of=member_of,
        spoil=spoil_picture(replace_in_tar, lambda paths: member_of(paths, BAD_ROW)),
    ),
]
REPLACE: dict[str, Replace] = {
    "image files": replace_file,
    "images in parquet bytes": replace_in_parquet(False),
    "images in parquet structs": replace_in_parquet(True),
    "images by path in csv": replace_beside,
    "images by path in jsonl": replace_beside,
    "tar": replace_in_tar,
}
"""Put other bytes in the place of a row's image, by the name of the case."""
