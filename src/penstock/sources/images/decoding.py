"""Decoding of an image into its place in a batch: by content and never by name, and as the chosen library decodes it.

JPEG goes through libjpeg-turbo (simplejpeg), which gives the very pixels that TensorFlow, Pillow and OpenCV get from
it: TensorFlow asks it for the fast transform, the others for the exact one. Everything else, and what it does not take,
goes through Pillow. Colours change as Pillow's `convert` changes them: alpha is dropped, not blended; 16-bit values
keep their upper 8 bits.
"""

from __future__ import annotations

import importlib
import io
import threading
import warnings
import zlib
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.records import Array
from penstock.errors import InputError
from penstock.sources.images.headers import (
    GIF_STARTS,
    ORIENTATION,
    PNG_START,
    BadImage,
    check_gif,
    check_png,
    check_png_lines,
    check_size,
    check_tiff,
    is_from_adobe,
    is_jpeg,
    jpeg_orientation,
    png_size,
    shown_start,
)
from penstock.sources.images.resizing import (
    KEEP,
    Rendition,
    Size,
    fitted,
    pillow,
    place,
    simplejpeg,
    takes_fourth_byte,
)

if TYPE_CHECKING:
    from PIL import Image

PACKAGES = (
    *("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python"),
    *("simplejpeg", "pillow"),
)
FORMATS = ("PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SPACES = {1: "GRAY", 3: "RGB", 4: "RGBA"}
_EIGHTHS = (1, 2, 4)
"""Scales at which decoding a JPEG costs less than in full. libjpeg-turbo also knows 3/8, 5/8, 6/8 and 7/8, but
without SIMD: measured on photographs, these cost as much as the next larger one or more."""


def channels_of(out: Array) -> int:
    """The colour channels of a batch of images, (rows, height, width) or (rows, height, width, channels).

    Raises:
        InputError: Images do not come in this shape.
    """
    channels = 1 if out.ndim == 3 else int(out.shape[3]) if out.ndim == 4 else 0
    if channels not in _MODES:
        raise InputError(
            "images cannot be put into an input of this shape",
            received=f"shape {tuple(out.shape[1:])}",
            allowed="(height, width, channels) with 1 (grayscale), 3 (RGB) or 4 (RGBA) channels",
        )
    return channels


def decode_into(data: bytes | memoryview, out: Array, rendition: Rendition) -> None:
    """Decode an image into `out`, uint8 of (height, width, channels), whose rows may lie apart but not its pixels.

    Raises:
        BadImage: It is broken, too large, or no image. Pillow and simplejpeg raise errors of many other kinds.
    """
    pixels = _decode_jpeg(data, out, rendition) if is_jpeg(data) else None
    if pixels is None:
        pixels = _decode_with_pillow(data, int(out.shape[2]), rendition)
    if pixels is not out:
        place(pixels, out, rendition)


def image_size(data: bytes | memoryview, *, is_turned: bool) -> Size:
    """Height and width from the header, with EXIF's orientation if `is_turned`.

    Raises:
        BadImage: It is broken, too large, or no image; others as `decode_into`.
    """
    size, turn = _declared_size(data)
    check_size(*size)
    return _turned_size(size, turn if is_turned else 1)


def _declared_size(data: bytes | memoryview) -> tuple[Size, int]:
    """The size, and EXIF's orientation."""
    if is_jpeg(data):
        height, width, _, _ = simplejpeg().decode_jpeg_header(data)
        return (height, width), jpeg_orientation(data)
    if bytes(data[:8]) == PNG_START:
        return png_size(data)
    with open_header(data) as image:
        # A TIFF is turned by Pillow itself.
        turn = image.getexif().get(ORIENTATION, 1) if image.format == "WEBP" else 1
        return (image.height, image.width), turn


def _decode_jpeg(data: bytes | memoryview, out: Array, rendition: Rendition) -> Array | None:
    """The pixels of a JPEG, in `out` itself if it has the right size; None if Pillow must decode the image."""
    decoder = simplejpeg()
    try:
        height, width, space, _ = decoder.decode_jpeg_header(data)
    except ValueError:
        return None  # an unusual JPEG, or none: Pillow decides
    check_size(height, width)
    is_fast = rendition.has_fast_transform
    channels = int(out.shape[2])
    if space in ("CMYK", "YCCK"):
        check_size(height, width, 4)
        # libjpeg-turbo does not turn these into RGB, and Pillow does not notice damage: so both decode it.
        inks = decoder.decode_jpeg(data, "CMYK", fastdct=is_fast)
        is_like_tensorflow = rendition.library == "keras" and channels == 3
        return _rgb_of_inks(inks, is_from_adobe(data)) if is_like_tensorflow else None
    turn = jpeg_orientation(data) if rendition.is_turned else 1
    room: Size = (int(out.shape[0]), int(out.shape[1]))
    eighths = _eighths(_turned_size((height, width), turn), room, rendition)
    height, width = -(-height * eighths // 8), -(-width * eighths // 8)
    # Pillow weighs colours to get gray; the others take the brightness that the file holds.
    is_weighed = rendition.library == "pillow" and channels == 1 and space != "Gray"
    colors = "RGB" if is_weighed else _SPACES[channels]
    check_size(height, width, len(colors) if is_weighed else channels)
    if channels == 3 and (height, width) != room and takes_fourth_byte(rendition):
        colors = "RGBA"
    wanted = {"min_height": height, "min_width": width, "fastdct": is_fast}
    if (height, width) == room and turn == 1 and not is_weighed and out.flags.c_contiguous:
        decoder.decode_jpeg(data, colors, buffer=out.reshape(-1), **wanted)
        return out
    pixels = _turned(decoder.decode_jpeg(data, colors, **wanted), turn)
    return _as_mode(pillow().fromarray(pixels), "L") if is_weighed else pixels


def _rgb_of_inks(inks: Array, is_inverted: bool) -> Array:
    """CMYK as TensorFlow turns it into RGB: Adobe's files hold what is left of the light, others the ink."""
    light = (inks if is_inverted else 255 - inks).astype(np.uint16)
    return (light[:, :, :3] * light[:, :, 3:] // 255).astype(np.uint8)


def _eighths(size: Size, wanted: Size, rendition: Rendition) -> int:
    """The scale at which a JPEG is decoded, in eighths: 8, or with `fast_decode` the smallest that is large enough."""
    if not rendition.fast_decode or rendition.resize == KEEP:
        return 8
    least = fitted(size, wanted) if rendition.resize == "pad" else wanted
    for eighths in _EIGHTHS:
        if all(-(-have * eighths // 8) >= need for have, need in zip(size, least, strict=True)):
            return eighths
    return 8


def _turned_size(size: Size, turn: int) -> Size:
    return (size[1], size[0]) if turn >= 5 else size


def _turned(pixels: Array, turn: int) -> Array:
    """The pixels turned by EXIF's orientation: rows from the bottom up, mirrored, or columns first."""
    if turn == 1:
        return pixels
    if turn >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if turn in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if turn in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


_telling = threading.Lock()


def open_header(data: bytes | memoryview) -> Image.Image:
    """An image of which only the header was read. Warnings of Pillow become errors, except of its size limit.

    Warning filters belong to the whole process, so they are changed only briefly, for Pillow alone, and by one thread
    at a time.
    """
    images = pillow()
    with _telling, warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"PIL\.")
        warnings.filterwarnings("ignore", category=images.DecompressionBombWarning)
        try:
            image: Image.Image = images.open(io.BytesIO(data), formats=FORMATS)
        except images.UnidentifiedImageError:
            known = "JPEG, PNG, WebP, GIF, BMP or TIFF"
            raise BadImage(f"not a {known} image, or its header is damaged: {shown_start(data)}") from None
    check_size(image.height, image.width, _pillow_bytes(image.mode))
    return image


def _pillow_bytes(mode: str) -> int:
    """The bytes of a pixel in Pillow's memory."""
    return 1 if mode in ("1", "L", "P") else 2 if mode.startswith("I;16") else 4


def _decode_with_pillow(data: bytes | memoryview, channels: int, rendition: Rendition) -> Array:
    is_png = bytes(data[:8]) == PNG_START
    if is_png:
        check_png(data, zlib.crc32)  # Pillow does not notice that a file is cut after its last pixel
    elif bytes(data[:6]) in GIF_STARTS:
        frames = check_gif(data)
    with open_header(data) as image:
        kind = image.format
        if kind == "TIFF":
            check_tiff(image, data)
        image.load()
        # Rows that are missing from a PNG stay zero: only an empty last row makes the slow check necessary.
        if is_png and not np.asarray(image.crop((0, image.height - 1, *image.size))).any():
            check_png_lines(data)
        turn = jpeg_orientation(data) if kind in ("JPEG", "MPO") and rendition.is_turned else 1
        if rendition.is_turned and kind not in ("JPEG", "MPO"):
            image = _upright(image)
        if rendition.library == "keras" and kind == "GIF" and channels == 3:
            return _on_black(image, frames)
        if rendition.library == "keras" and is_png and channels == 1 and image.mode in ("RGB", "RGBA", "P"):
            return _gray_as_in_libpng(image)
        return _turned(_as_mode(image, _MODES[channels]), turn)


def _upright(image: Image.Image) -> Image.Image:
    turning = importlib.import_module("PIL.ImageOps")
    with _telling, warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"PIL\.")
        upright: Image.Image = turning.exif_transpose(image)
    return upright


def _on_black(image: Image.Image, frames: list[tuple[int, int, int, int]]) -> Array:
    """A GIF as TensorFlow decodes it: its first picture, on a black canvas as high and wide as any of its pictures."""
    left, top, width, height = frames[0]
    whole = _as_mode(image, "RGBA")[top : top + height, left : left + width]
    size = (max(frame[3] for frame in frames), max(frame[2] for frame in frames))
    check_size(*size, 3)
    black = np.zeros((*size, 3), np.uint8)
    window = black[top : top + height, left : left + width]
    picture = whole[: window.shape[0], : window.shape[1]]
    window[: picture.shape[0], : picture.shape[1]] = np.where(picture[:, :, 3:] > 0, picture[:, :, :3], np.uint8(0))
    return black


def _gray_as_in_libpng(image: Image.Image) -> Array:
    """Gray as TensorFlow gets it: libpng weighs the colours of a PNG, and rounds down."""
    weighed = _as_mode(image, "RGB").astype(np.uint32) @ np.array([[9797], [19234], [3737]], np.uint32)
    return (weighed >> 15).astype(np.uint8)


def _as_mode(image: Image.Image, mode: str) -> Array:
    """The pixels in another colour mode, always of three dimensions."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Pillow would cut values off at 255 instead of scaling them.
        gray = (np.asarray(image) >> 8).astype(np.uint8)
        image = pillow().fromarray(gray)
    if image.mode in ("I", "F"):
        raise BadImage(f"pixels are 32-bit {'floats' if image.mode == 'F' else 'integers'}, whose range nobody knows")
    pixels: Array = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels.reshape(*pixels.shape[:2], -1)
