"""Which JPEGs the engine of a GPU decodes: plain ones alone, and the same ones each time."""

import io

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
from PIL import Image

from penstock.sources.images.encoded import EncodedImages
from penstock.sources.images.resizing import Rendition
from penstock.sources.images.routing import goes_to_engine

ALL = Rendition("stretch", "pillow-bilinear", engine_share=1.0)


def picture(height: int = 60, width: int = 80, seed: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height)))


def jpeg(sampling: str = "420", seed: int = 0, **options: int) -> bytes:
    return bytes(simplejpeg.encode_jpeg(picture(seed=seed), quality=90, colorsubsampling=sampling, **options))


def saved(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


def goes(data: bytes, rendition: Rendition = ALL, row_bytes: int = 1 << 20) -> bool:
    return goes_to_engine(data, row_bytes, rendition)


@pytest.mark.parametrize("sampling", ["420", "422", "444"])
def test_a_plain_photo_goes_to_the_engine(sampling: str) -> None:
    assert goes(jpeg(sampling))
    assert goes(saved(Image.fromarray(picture()), restart_marker_rows=1))


def test_what_the_engine_does_not_take_stays_with_the_loader() -> None:
    image = Image.fromarray(picture())
    for data in (
        saved(image, progressive=True),
        saved(image.convert("CMYK")),
        saved(image.convert("L")),
        saved(image, keep_rgb=True),
        saved(image, "PNG"),
        jpeg("440"),
        jpeg("411"),
        b"",
        b"\xff\xd8\xff",
        b"hello",
    ):
        assert not goes(data)


@pytest.mark.parametrize("marker", [0x01, 0xD0, 0xD7, 0xFF])
def test_a_photo_hidden_in_another_stays_with_the_loader(marker: int) -> None:
    """These markers have no length. Whoever gives them one takes the marker behind for it, and lands in a photo that
    is smaller than the one that libjpeg sees."""
    large = saved(Image.fromarray(picture(480, 640)))
    header = large[2 : large.index(b"\xff\xda") + 14]
    length = int.from_bytes(header[:2], "big")
    hidden = b"\xff\xd8\xff" + bytes([marker]) + header.ljust(length, b"\0") + jpeg()[2:]
    assert simplejpeg.decode_jpeg_header(hidden)[:2] == (480, 640)
    assert not goes(hidden)


def test_a_long_photo_stays_with_the_loader() -> None:
    assert goes(saved(Image.new("RGB", (4096, 16))))
    assert not goes(saved(Image.new("RGB", (4097, 16))))


def test_what_may_be_damaged_stays_with_the_loader() -> None:
    whole = jpeg()
    for place in range(2, len(whole), 7):
        assert not goes(whole[:place])
    assert not goes(whole + b"\0")
    assert not goes(whole[:-2] + b"\xff\xc4" + whole[-2:])
    middle = len(whole) - 300
    assert not goes(whole[:middle] + b"\xff\xd9" + whole[middle:])


def test_a_file_that_is_larger_than_its_pixels_stays_with_the_loader() -> None:
    data = jpeg()
    assert goes(data, row_bytes=len(data))
    assert not goes(data, row_bytes=len(data) - 1)


def test_a_turned_photo_stays_with_the_loader_where_turning_counts() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = saved(Image.fromarray(picture()), exif=exif)
    assert goes(turned)
    assert not goes(turned, Rendition("stretch", "opencv-area", engine_share=1.0))
    assert goes(jpeg(), Rendition("stretch", "opencv-area", engine_share=1.0))


def test_the_share_decides_by_the_photo_itself() -> None:
    photos = [jpeg(seed=seed) for seed in range(300)]
    quarter = Rendition("stretch", "pillow-bilinear", engine_share=0.25)
    half = Rendition("stretch", "pillow-bilinear", engine_share=0.5)
    at_quarter, at_half = ({photo for photo in photos if goes(photo, each)} for each in (quarter, half))
    assert 40 < len(at_quarter) < 110
    assert 110 < len(at_half) < 190
    assert at_quarter < at_half


def test_routed_rows_lie_encoded_in_their_places_and_others_are_decoded() -> None:
    plain, progressive = jpeg(), saved(Image.fromarray(picture()), progressive=True)
    column = EncodedImages(pa.array([plain, progressive, b"no image", plain], pa.large_binary()), ALL)
    out = np.empty((3, 64, 64, 3), np.uint8)
    bad = column.routed(1.0)[:3].fill(out, lambda position: None)
    assert bad.encoded == {0: len(plain)}
    assert out[0].reshape(-1)[: len(plain)].tobytes() == plain
    assert list(bad) == [2]
    expected = np.empty((2, 64, 64, 3), np.uint8)
    column[:2].fill(expected, lambda position: None)
    assert (out[1] == expected[1]).all()


def test_beside_an_engine_loaders_have_the_exact_transform() -> None:
    assert Rendition().has_fast_transform
    assert not Rendition(engine_share=0.5).has_fast_transform
    data, exact = jpeg(), np.empty((1, 60, 80, 3), np.uint8)
    gray = EncodedImages(pa.array([data]), Rendition(engine_share=1e-9))
    assert not gray.fill(exact, lambda position: None).encoded
    assert (exact[0] == simplejpeg.decode_jpeg(data, fastdct=False)).all()
