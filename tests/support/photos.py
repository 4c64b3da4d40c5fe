"""Photos whose answers are known: each is of one colour, by its number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

TOLERANCE = 4.0


def colour_of(number: int) -> tuple[int, int, int]:
    return (number * 7 % 256, number * 13 % 256, number * 29 % 256)


def draw(path: Path, number: int, size: tuple[int, int] = (48, 40), **options: Any) -> None:
    """A picture of one colour with a little noise, in the format of its suffix."""
    noise = np.random.default_rng(number).integers(-3, 4, (*size, 3))
    pixels = np.clip(np.array(colour_of(number)) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, **options)


def draw_folder(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        draw(path, number, quality=92)
    return paths


def damage(path: Path, way: int) -> None:
    """One of five ways in which photos are broken."""
    raw = path.read_bytes()
    match way % 5:
        case 0:
            path.write_bytes(b"")
        case 1:
            path.write_bytes(raw[: len(raw) // 2])
        case 2:
            path.write_bytes(b"this is a text, not a photo\n" * 10)
        case 3:
            path.write_bytes(raw[:-2])
        case _:
            path.write_bytes(bytes(len(raw)))


def number_of(path: str) -> int:
    return int(Path(path).stem)


def assert_colours(table: pa.Table, column: str = "path") -> None:
    """Every row of a table has the colour of the photo that it names."""
    expected = np.array([colour_of(number_of(path)) for path in table.column(column).to_pylist()])
    found = np.array(table.column("colour").to_pylist())
    assert np.abs(found - expected).max() < TOLERANCE
