"""Images are decoded strictly, by their content, into exactly their place."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from penstock.core.deferred import BadRows
from penstock.core.records import Array
from penstock.errors import DeviceError, InputError
from penstock.options.records import INTERPOLATIONS
from penstock.sources.images import decoding as image_decoding
from penstock.sources.images import encoded as images
from penstock.sources.images import resizing as image_resizing
from penstock.sources.images.encoded import EncodedImages, ImagePaths
from penstock.sources.images.headers import MOST_PIXELS, jpeg_orientation
from penstock.sources.images.resizing import Rendition, fitted

CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def photo(width: int = 120, height: int = 90) -> Image.Image:
    """Smooth in both directions, different in every corner."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], axis=2)
    return Image.fromarray(pixels.astype(np.uint8))


def unheard(position: int) -> None:
    pass


def decode(
    *data: bytes | None, size: tuple[int, int] = (45, 60), channels: int = 3, **rendition: Any
) -> tuple[Array, BadRows]:
    out = np.full((len(data), *size, channels), 99, np.uint8)
    bad = EncodedImages(pa.array(data, pa.binary()), Rendition(**rendition)).fill(out, unheard)
    return out, bad


def decode_one(data: bytes, **options: Any) -> Array:
    out, bad = decode(data, **options)
    assert bad == {}
    found: Array = out[0]
    return found


def reason_of(data: bytes | None, **options: Any) -> str:
    out, bad = decode(encode(photo(), "PNG"), data, encode(photo(), "PNG"), **options)
    assert list(bad) == [1]
    assert not out[1].any()
    assert out[0].any()
    assert (out[0] == out[2]).all()
    return bad[1]


def assert_close(found: Array, expected: Image.Image | Array, most: float = 4) -> None:
    difference = np.abs(found.astype(int) - np.asarray(expected).astype(int).reshape(found.shape))
    assert difference.mean() < most


ENCODINGS = {
    "jpeg": encode(photo(), "JPEG", quality=95),
    "progressive jpeg": encode(photo(), "JPEG", quality=95, progressive=True),
    "gray jpeg": encode(photo().convert("L"), "JPEG", quality=95),
    "cmyk jpeg": encode(photo().convert("CMYK"), "JPEG", quality=95),
    "png": encode(photo(), "PNG"),
    "rgba png": encode(photo().convert("RGBA"), "PNG"),
    "gray+alpha png": encode(photo().convert("LA"), "PNG"),
    "palette png": encode(photo().quantize(256), "PNG"),
    "one-bit png": encode(photo().convert("1"), "PNG"),
    "webp": encode(photo(), "WEBP", quality=95),
    "lossless webp": encode(photo(), "WEBP", lossless=True),
    "gif": encode(photo(), "GIF"),
    "bmp": encode(photo(), "BMP"),
    "tiff": encode(photo(), "TIFF"),
    "lzw tiff": encode(photo(), "TIFF", compression="tiff_lzw"),
    "cmyk tiff": encode(photo().convert("CMYK"), "TIFF"),
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("mode", CHANNELS)
def test_every_format_is_decoded_to_every_colour_mode_as_pillow_would(name: str, mode: str) -> None:
    data = ENCODINGS[name]
    expected = Image.open(io.BytesIO(data)).convert(mode)
    assert_close(decode_one(data, size=(90, 120), channels=CHANNELS[mode]), expected, 2)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("size", [(90, 120), (45, 60), (30, 30), (7, 200), (300, 200), (200, 7), (10, 12)])
def test_images_are_stretched_to_any_size(interpolation: str, size: tuple[int, int]) -> None:
    expected = photo().resize((size[1], size[0]), Image.Resampling.BILINEAR)
    for name in ("jpeg", "png"):
        # OpenCV averages no area where one side grows.
        assert_close(decode_one(ENCODINGS[name], size=size, interpolation=interpolation), expected, 9)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_crop_takes_the_middle_of_what_covers_the_place(interpolation: str) -> None:
    image = photo(200, 100)
    expected = image.crop((50, 0, 150, 100)).resize((40, 40), Image.Resampling.BILINEAR)
    for kind in ("PNG", "JPEG"):
        found = decode_one(encode(image, kind), size=(40, 40), resize="crop", interpolation=interpolation)
        assert_close(found, expected)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_pad_puts_black_around_what_fits_in(interpolation: str) -> None:
    image = photo(200, 100)
    for kind in ("PNG", "JPEG"):
        found = decode_one(encode(image, kind), size=(40, 40), resize="pad", interpolation=interpolation)
        assert not found[:10].any()
        assert not found[30:].any()
        assert_close(found[10:30], image.resize((40, 20), Image.Resampling.BILINEAR))


def test_jpeg_is_decoded_at_a_smaller_scale_only_where_that_is_asked_for() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), "JPEG", quality=95)
    full = Image.open(io.BytesIO(data)).convert("RGB").resize((16, 12), Image.Resampling.BILINEAR)
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (16, 12))
        reduced = image.convert("RGB").resize((16, 12), Image.Resampling.BILINEAR)
    options = {"size": (12, 16), "interpolation": "pillow-bilinear"}
    assert (decode_one(data, **options) == np.asarray(full)).all()
    assert (decode_one(data, **options, fast_decode=True) == np.asarray(reduced)).all()
    assert (np.asarray(full) != np.asarray(reduced)).any()


def test_keep_leaves_the_size_and_fills_with_zeros() -> None:
    for kind in ("PNG", "JPEG"):
        found = decode_one(encode(photo(30, 20), kind), size=(25, 40), resize="keep")
        assert_close(found[:20, :30], photo(30, 20))
        assert not found[20:].any()
        assert not found[:, 30:].any()
    assert "more than" in reason_of(encode(photo(121, 90), "PNG"), size=(90, 120), resize="keep")


@given(height=st.integers(1, 80), width=st.integers(1, 80), room=st.tuples(st.integers(1, 50), st.integers(1, 50)))
def test_what_fits_in_never_sticks_out(height: int, width: int, room: tuple[int, int]) -> None:
    found = fitted((height, width), room)
    assert all(1 <= size <= most for size, most in zip(found, room, strict=True))
    assert found[0] == room[0] or found[1] == room[1]


@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    room=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    resize=st.sampled_from(["stretch", "crop", "pad"]),
    interpolation=st.sampled_from(INTERPOLATIONS),
    fast_decode=st.booleans(),
)
def test_any_size_becomes_any_other(
    height: int, width: int, room: tuple[int, int], resize: str, interpolation: str, fast_decode: bool
) -> None:
    data = encode(Image.new("RGB", (width, height), (200, 100, 50)), "JPEG")
    found = decode_one(data, size=room, resize=resize, interpolation=interpolation, fast_decode=fast_decode)
    middle = found[(room[0] - 1) // 2, (room[1] - 1) // 2]
    assert np.abs(middle.astype(int) - (200, 100, 50)).max() < 6


def turned(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(photo(), kind, exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_honoured_where_opencv_is_followed(kind: str, orientation: int) -> None:
    data = turned(kind, orientation)
    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    size = (upright.height, upright.width)
    assert_close(decode_one(data, size=size, interpolation="opencv-area"), upright)
    small = decode_one(data, size=(20, 20), interpolation="opencv-area")
    assert_close(small, upright.resize((20, 20), Image.Resampling.BILINEAR))
    column = EncodedImages(pa.array([data]), Rendition(interpolation="opencv-linear"))
    assert column.sizes().tolist() == [list(size)]
    if kind == "JPEG":
        assert jpeg_orientation(data) == orientation


@pytest.mark.parametrize("spare", [1, 2, 3])
@pytest.mark.parametrize("is_wide", [True, False])
def test_crop_of_torchvision_cuts_off_spare_pixels(spare: int, is_wide: bool) -> None:
    """Also a single one, which lies behind what is kept."""
    side, start = 64, round(spare / 2)
    size = (side, side + spare) if is_wide else (side + spare, side)
    large = np.random.default_rng(0).integers(0, 256, (2 * size[0], 2 * size[1], 3), np.uint8)
    whole, found = np.empty((*size, 3), np.uint8), np.empty((side, side, 3), np.uint8)
    image_resizing.place(large, whole, Rendition("stretch", "torchvision"))
    image_resizing.place(large, found, Rendition("crop", "torchvision"))
    assert np.array_equal(found, whole[:, start : start + side] if is_wide else whole[start : start + side])


@pytest.mark.parametrize("interpolation", ["keras", "pillow-bilinear", "torchvision"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_passed_over_as_the_other_libraries_do(kind: str, interpolation: str) -> None:
    data = turned(kind, 6)
    assert_close(decode_one(data, size=(90, 120), interpolation=interpolation), photo())
    assert EncodedImages(pa.array([data]), Rendition(interpolation=interpolation)).sizes().tolist() == [[90, 120]]


def test_orientation_that_makes_no_sense_is_passed_over() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(photo(), "JPEG", exif=exif)
    place = data.index(b"Exif\0\0") + 6
    for damage in range(place, place + 26):
        broken = bytearray(data)
        broken[damage] ^= 0xFF
        assert 1 <= jpeg_orientation(bytes(broken)) <= 8


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight(kind: str) -> None:
    values = (np.mgrid[0:45, 0:60][1] * 1092).astype(np.uint16)
    found = decode_one(encode(Image.fromarray(values), kind), channels=1)
    assert (found[:, :, 0] == values >> 8).all()


def test_floats_are_refused_instead_of_being_cut_off() -> None:
    assert "floats" in reason_of(encode(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))


def test_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (60, 45), color) for color in ("red", "green")]
    for kind in ("GIF", "WEBP", "PNG"):
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:])
        assert_close(decode_one(data), frames[0])


@pytest.mark.parametrize("name", ENCODINGS)
def test_truncated_images_fail_their_row(name: str) -> None:
    data = ENCODINGS[name]
    for kept in (0.02, 0.3, 0.6, 0.9, 0.97):
        reason_of(data[: int(len(data) * kept)])


@pytest.mark.parametrize("lost", [1, 2, 4, 12, 13, 20])
@pytest.mark.parametrize("name", ["jpeg", "progressive jpeg", "png", "webp", "gif", "bmp", "tiff"])
def test_images_that_lack_their_last_bytes_fail_their_row(name: str, lost: int) -> None:
    reason_of(ENCODINGS[name][:-lost])


def with_fewer_rows(kind: str, **options: Any) -> bytes:
    """A whole file of 20 rows whose header says 100."""
    data = bytearray(encode(photo(160, 20), kind, **options))
    if kind == "GIF":
        frame = data.index(b",\0\0\0\0" + struct.pack("<HH", 160, 20))
        data[frame + 7 : frame + 9] = data[8:10] = struct.pack("<H", 100)
    elif kind == "BMP":
        data[22:26] = struct.pack("<i", 100)
    elif kind == "JPEG":
        frame = data.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
        data[frame + 5 : frame + 7] = struct.pack(">H", 100)
    elif kind == "TIFF":
        (directory,) = struct.unpack_from("<I", data, 4)
        (entries,) = struct.unpack_from("<H", data, directory)
        for entry in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, width = struct.unpack_from("<HH", data, entry)
            if tag in (257, 278):
                struct.pack_into("<I" if width == 4 else "<H", data, entry + 8, 100)
    return bytes(data)


def png_of_rows(pixels: Array, *, rows: int, passes: int | None = None) -> bytes:
    """A PNG that lacks rows, or the last passes of an interlaced one; its chunks and checksums are right."""
    height, width = pixels.shape[:2]
    sevenths = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    parts = [pixels[:rows]]
    if passes is not None:
        parts = [pixels[top::down, left::right] for top, left, down, right in sevenths[:passes]]
    lines = b"".join(b"\0" + line.tobytes() for part in parts for line in part)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, int(passes is not None))
    return png_of(header, zlib.compress(lines))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GIF", {}),
        ("BMP", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
        ("TIFF", {"compression": "packbits"}),
        ("TIFF", {"compression": "jpeg"}),
    ],
)
def test_whole_file_with_fewer_rows_than_it_says_fails_its_row(kind: str, options: dict[str, Any]) -> None:
    reason_of(with_fewer_rows(kind, **options))


def test_png_that_lacks_rows_fails_its_row() -> None:
    pixels = np.asarray(photo(160, 100))
    assert (decode_one(png_of_rows(pixels, rows=100), size=(100, 160)) == pixels).all()
    assert "truncated: the PNG holds 9,620 of 48,100 bytes" in reason_of(png_of_rows(pixels, rows=20))
    reason_of(png_of_rows(pixels, rows=99))


def test_interlaced_png_that_lacks_a_pass_fails_its_row() -> None:
    pixels = np.asarray(photo(161, 99))
    assert (decode_one(png_of_rows(pixels, rows=99, passes=7), size=(99, 161)) == pixels).all()
    for passes in (1, 3, 6):
        assert "truncated" in reason_of(png_of_rows(pixels, rows=99, passes=passes))


def test_png_whose_last_rows_are_black_is_whole() -> None:
    pixels = np.asarray(photo(160, 100)).copy()
    pixels[60:] = 0
    assert (decode_one(png_of_rows(pixels, rows=100), size=(100, 160)) == pixels).all()
    for mode in ("1", "L", "LA", "P", "RGBA", "I;16"):
        black = Image.new(mode, (31, 9))
        assert not decode_one(encode(black, "PNG"), size=(9, 31)).any()


def test_gif_that_is_cut_in_a_later_picture_fails_its_row() -> None:
    frames = [photo(), photo().rotate(9)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    for kept in range(len(data) // 2, len(data), 211):
        reason_of(data[:kept])
    assert "damaged" in reason_of(data[:-1] + b"\7")


def test_tiff_of_tiles_and_of_strips_in_planes_is_whole() -> None:
    for options in ({"compression": "jpeg"}, {"compression": "jpeg", "tiffinfo": {278: 16}}, {"tiffinfo": {278: 16}}):
        assert_close(decode_one(encode(photo(), "TIFF", **options), size=(90, 120)), photo())


def test_flipped_bits_in_a_png_fail_its_row_wherever_they_are() -> None:
    data = ENCODINGS["png"]
    for place in range(8, len(data), 97):
        broken = bytearray(data)
        broken[place] ^= 0x10
        reason_of(bytes(broken))


def test_flipped_bits_in_a_jpeg_fail_its_row_where_the_decoder_warns() -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    noise = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), "JPEG")
    warned = 0
    for place in range(700, len(data) - 2, 59):
        broken = bytearray(data)
        broken[place] ^= 0x10
        try:
            simplejpeg.decode_jpeg(bytes(broken), "RGB", strict=True)
        except ValueError:
            warned += 1
            reason_of(bytes(broken))
    assert warned > 10


def png_of(header: bytes, packed: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def png_of_zeros(width: int, height: int) -> bytes:
    return png_of(struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), zlib.compress(bytes(1 << 20)))


def bombs() -> Iterator[tuple[str, bytes]]:
    yield "png", png_of_zeros(50_000, 50_000)
    yield "png of many bytes", png_of_zeros(13_000, 13_000)
    jpeg = bytearray(encode(Image.new("RGB", (16, 16)), "JPEG"))
    place = jpeg.index(b"\xff\xc0") + 5
    jpeg[place : place + 4] = struct.pack(">HH", 65_000, 65_000)
    yield "jpeg", bytes(jpeg)
    gif = bytearray(encode(Image.new("L", (8, 8)), "GIF"))
    gif[6:10] = struct.pack("<HH", 60_000, 60_000)
    yield "gif", bytes(gif)


@pytest.mark.parametrize(("name", "data"), list(bombs()), ids=[name for name, _ in bombs()])
def test_bombs_fail_their_row_before_they_are_decoded(name: str, data: bytes) -> None:
    reason = reason_of(data)
    assert "too large" in reason or "DecompressionBomb" in reason
    assert MOST_PIXELS < 180_000_000


@pytest.mark.parametrize(
    ("data", "told"),
    [(None, "null"), (b"", "0 bytes"), (b"<html>", "<html>"), (b"\xff\xd8\xff", "JPEG"), (b"%!PS-Adobe-3.0", "PS-")],
    ids=["null", "empty", "page", "jpeg start", "postscript"],
)
def test_what_is_no_image_fails_with_a_reason(data: bytes | None, told: str) -> None:
    assert told in reason_of(data)


def test_content_decides_and_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(ENCODINGS["gif"])
    (tmp_path / "b.png").write_bytes(ENCODINGS["jpeg"])
    out = np.zeros((2, 90, 120, 3), np.uint8)
    assert ImagePaths([str(tmp_path / "a.jpg"), str(tmp_path / "b.png")]).fill(out, unheard) == {}
    for found in out:
        assert_close(found, photo(), 8)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_places_of_another_layout_are_filled_too(dtype: Any) -> None:
    whole = np.zeros((1, 3, 45, 60), dtype)
    out = whole.transpose(0, 2, 3, 1)
    assert EncodedImages(pa.array([ENCODINGS["jpeg"]])).fill(out, unheard) == {}
    assert (out[0] == decode_one(ENCODINGS["jpeg"])).all()


def test_place_without_channels_is_grayscale() -> None:
    out = np.zeros((1, 45, 60), np.uint8)
    assert EncodedImages(pa.array([ENCODINGS["jpeg"]])).fill(out, unheard) == {}
    assert (out[0] == decode_one(ENCODINGS["jpeg"], channels=1)[:, :, 0]).all()


@pytest.mark.parametrize("shape", [(1, 5, 5, 2), (1, 3, 8, 8), (1, 10)])
def test_place_that_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="shape"):
        EncodedImages(pa.array([ENCODINGS["jpeg"]])).fill(np.zeros(shape, np.uint8), unheard)


def test_every_row_is_announced_before_it_is_decoded() -> None:
    out = np.zeros((3, 8, 8, 3), np.uint8)
    seen: list[tuple[int, bool]] = []
    column = EncodedImages(pa.array([ENCODINGS["jpeg"]] * 3))
    column.fill(out, lambda position: seen.append((position, bool(out[position].any()))))
    assert seen == [(0, False), (1, False), (2, False)]


def test_sizes_of_broken_images_cannot_be_told() -> None:
    values = [ENCODINGS["jpeg"], None, b"junk", ENCODINGS["bmp"]]
    assert EncodedImages(pa.array(values)).sizes().tolist() == [[90, 120], [-1, -1], [-1, -1], [90, 120]]


def test_size_is_found_behind_a_header_that_is_longer_than_usual(tmp_path: Path) -> None:
    plain = ENCODINGS["jpeg"]
    comment = b"\xff\xfe" + struct.pack(">H", 60_000) + bytes(59_998)
    (tmp_path / "a.jpg").write_bytes(plain[:2] + comment * 3 + plain[2:])
    assert ImagePaths([str(tmp_path / "a.jpg")]).sizes().tolist() == [[90, 120]]


def test_sliced_column_keeps_how_it_resizes() -> None:
    column = EncodedImages(pa.array([ENCODINGS["jpeg"]] * 3), Rendition("pad", "torchvision"))
    assert column[1:].rendition == Rendition("pad", "torchvision")
    assert len(column[1:]) == 2


def test_files_far_away_are_fetched_ahead_in_order(tmp_path: Path) -> None:
    for row in range(40):
        (tmp_path / f"{row}.png").write_bytes(encode(Image.new("RGB", (4, 4), (row * 6, 0, 0)), "PNG"))
    paths = [f"file://{tmp_path}/{row}.png" for row in range(40)]
    paths[7] = f"file://{tmp_path}/gone.png"
    out = np.zeros((40, 4, 4, 3), np.uint8)
    bad = ImagePaths(paths).fill(out, unheard)
    assert list(bad) == [7]
    assert out[:, 0, 0, 0].tolist() == [row * 6 if row != 7 else 0 for row in range(40)]


@pytest.mark.parametrize(
    ("module", "name", "data", "interpolation"),
    [
        (image_decoding, "pillow", "png", "pillow-bilinear"),
        (image_decoding, "simplejpeg", "jpeg", "pillow-bilinear"),
        (image_resizing, "cv2", "jpeg", "keras"),
        (image_resizing, "cv2", "jpeg", "opencv-area"),
    ],
)
def test_missing_package_ends_the_job_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, data: str, interpolation: str
) -> None:
    """Another decoder would give other pixels without a word."""
    monkeypatch.setattr(module, name, lambda: image_resizing.needed("not_there", name))
    with pytest.raises(DeviceError, match=f"{name} is not installed") as told:
        decode(ENCODINGS[data], interpolation=interpolation)
    assert "penstock[images]" in str(told.value)


def test_file_that_is_much_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jpg").write_bytes(bytes(2000))
    monkeypatch.setattr(images, "MOST_FILE_BYTES", 1000)
    bad = ImagePaths([str(tmp_path / "a.jpg")]).fill(np.zeros((1, 4, 4, 3), np.uint8), unheard)
    assert "2,000 bytes" in bad[0]


@pytest.mark.parametrize(
    ("size", "made"),
    [
        (4, [120, 90, 70, 125]),
        (7, [102, 110, 115, 61, 71, 126, 102]),
        (16, [0, 135, 201, 33, 123, 153, 38, 70, 61, 11, 94, 102, 81, 209, 134, 3]),
    ],
)
def test_rows_are_weighed_as_torch_weighs_them(size: int, made: list[int]) -> None:
    """What torch 2.13 itself made of this column."""
    column = np.array([0, 255, 10, 200, 33, 90, 7, 128, 64, 250, 3], np.uint8)
    out = np.zeros((size, 2, 3), np.uint8)
    image_resizing.place(np.tile(column[:, None, None], (1, 2, 3)), out, Rendition(interpolation="torchvision"))
    assert out[:, 0, 0].tolist() == made
    assert (out == out[:, :1, :1]).all()


def _weighed(pixels: Array, height: int, width: int) -> Array:
    """Bilinear from the centres of pixels, in floats."""
    (top, bottom), down = _neighbours(pixels.shape[0], height)
    (left, right), across = _neighbours(pixels.shape[1], width)
    down, across = down[:, None, None], across[None, :, None]
    wide = pixels.astype(np.float64)
    upper = wide[top][:, left] * (1 - across) + wide[top][:, right] * across
    lower = wide[bottom][:, left] * (1 - across) + wide[bottom][:, right] * across
    return np.asarray(upper * (1 - down) + lower * down)


def _neighbours(have: int, want: int) -> tuple[tuple[Any, Any], Any]:
    centres = (np.arange(want) + 0.5) * have / want - 0.5
    first = np.floor(centres)
    pair = (np.clip(first + nth, 0, have - 1).astype(int) for nth in (0, 1))
    return (next(pair), next(pair)), centres - first


@pytest.mark.parametrize("size", [(496, 519), (97, 300), (33, 20), (1, 80), (80, 1), (2, 2)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_values_are_rounded_to_the_nearest_as_tensorflow_weighs_them(size: tuple[int, int], channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, channels), np.uint8)
    # A place whose rows lie apart, as those of a batch with other columns.
    out = np.zeros((61, 90, channels), np.uint8)[:, :57]

    image_resizing.place(pixels, out, Rendition("stretch", "keras"))

    assert np.abs(out - _weighed(pixels, 61, 57)).max() < 0.55


def test_opencv_is_left_as_it_was_for_the_functions_of_users() -> None:
    cv2 = image_resizing.cv2()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    before = cv2.resize(pixels, (23, 19))

    image_resizing.place(pixels, np.zeros((19, 23, 3), np.uint8), Rendition("stretch", "keras"))

    assert np.array_equal(cv2.resize(pixels, (23, 19)), before)
