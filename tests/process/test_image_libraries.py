"""What a model sees of a photo is what the named library makes of it: the library itself is asked."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.digits import folder_of_datasets
from tests.support.image_libraries import LIBRARIES, differences, references_by_a_process, write_references

PHOTOS = folder_of_datasets() / "images"
MOST = 1.0
"""Of 255."""


def upright(name: str) -> Image.Image:
    with Image.open(PHOTOS / name) as image:
        return image.convert("RGB")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real photos, lying and standing, as cameras and programs write them."""
    folder = tmp_path_factory.mktemp("photos")
    for name in ("china.jpg", "flower.jpg"):
        (folder / name).write_bytes((PHOTOS / name).read_bytes())
    standing = upright("china.jpg").crop((100, 0, 401, 427))
    standing.save(folder / "standing.jpg", quality=88, subsampling=0)
    upright("flower.jpg").resize((333, 250)).save(folder / "progressive.jpg", progressive=True, subsampling=1)
    standing.convert("L").save(folder / "gray.jpg")
    standing.resize((97, 61)).save(folder / "small.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    standing.save(folder / "turned.jpg", exif=exif)
    return folder


@pytest.mark.parametrize("library", [name for name in LIBRARIES if name not in ("keras", "torchvision")])
def test_photos_are_as_the_library_makes_them(photos: Path, tmp_path: Path, library: str) -> None:
    write_references(photos, library, tmp_path / "made.npz")
    with np.load(tmp_path / "made.npz") as made:
        assert_close(differences(photos, library, {name: made[name] for name in made.files}), 7)


@pytest.mark.parametrize("color", ["rgb", "grayscale"])
def test_photos_are_as_the_loader_of_keras_makes_them(photos: Path, color: str) -> None:
    references = references_by_a_process(photos, "keras", color)
    assert_close(differences(photos, "keras", references, color), 7)


def test_photos_are_as_torchvision_makes_them(photos: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    assert_close(differences(photos, "torchvision", references_by_a_process(photos, "torchvision")), 7)


def assert_close(found: dict[str, float], photos: int) -> None:
    assert {name.split(" ")[1] for name in found} == {"stretch", "crop", "pad"}
    assert len({name.split(" ")[2] for name in found}) == photos
    assert {name: difference for name, difference in found.items() if difference > MOST} == {}


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def test_other_formats_are_as_the_loader_of_keras_makes_them(tmp_path: Path) -> None:
    """What TensorFlow decodes apart: inks, palettes, transparency, one channel, a small picture on a large canvas."""
    photo = upright("china.jpg").resize((160, 100))
    few = photo.quantize(64)
    faint = photo.copy()
    faint.putalpha(photo.convert("L"))
    corner = bytearray(encoded(few, "GIF", save_all=True, append_images=[few.rotate(180), few.resize((170, 90))]))
    corner[6:10] = (200).to_bytes(2, "little") + (130).to_bytes(2, "little")
    for name, data in {
        "inks.jpg": encoded(photo.convert("CMYK"), "JPEG"),
        "few.png": encoded(few, "PNG"),
        "see-through.png": encoded(faint, "PNG"),
        "palette.gif": encoded(few, "GIF"),
        "see-through.gif": encoded(few, "GIF", transparency=5),
        "corner.gif": bytes(corner),
        "plain.bmp": encoded(photo, "BMP"),
    }.items():
        (tmp_path / name).write_bytes(data)
    references = references_by_a_process(tmp_path, "keras")
    assert_close(differences(tmp_path, "keras", references), 7)
