"""One encoded image to pixels in their place: strictly, at the size that is wanted, by content and never by name.

JPEG goes through libjpeg-turbo (simplejpeg), which decodes at 1/2, 1/4 or 1/8 of the size for less; everything else,
and what it does not take, goes through Pillow. Colours change as Pillow's `convert` changes them: alpha is dropped,
not blended; 16-bit values keep their upper 8 bits.
"""

from __future__ import annotations

import functools
import importlib
import io
import threading
import warnings
import zlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.records import Array
from penstock.errors import DeviceError, InputError
from penstock.sources.image_headers import (
    ORIENTATION,
    PNG_START,
    BadImage,
    check_size,
    is_jpeg,
    jpeg_orientation,
    png_size,
    shown_start,
    walk_png,
)

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG")
RESIZES = ("stretch", "crop", "pad", "keep")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SPACES = {1: "GRAY", 3: "RGB", 4: "RGBA"}
_EIGHTHS = (1, 2, 4)
"""Scales at which decoding a JPEG costs less than in full. libjpeg-turbo also knows 3/8, 5/8, 6/8 and 7/8, but
without SIMD: measured on photographs, these cost as much as the next larger one or more."""


@functools.cache
def simplejpeg() -> ModuleType | None:
    return _import("simplejpeg")


@functools.cache
def cv2() -> Any:
    module = _import("cv2")
    if module is not None:
        # One thread for each loader: its own pool would fight with the other loaders for the same cores.
        module.setNumThreads(1)
    return module


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@functools.cache
def pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise DeviceError("Pillow is not installed", hint="pip install 'penstock[images]'") from None


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


def decode_into(data: bytes | memoryview, out: Array, resize: str) -> None:
    """Decode an image into `out`, uint8 of (height, width, channels), whose rows may lie apart but not its pixels.

    Raises:
        BadImage: It is broken, too large, or no image. Pillow and simplejpeg raise errors of many other kinds.
    """
    if is_jpeg(data) and (decoder := simplejpeg()) is not None and _decode_jpeg(decoder, data, out, resize):
        return
    _place(_decode_with_pillow(data, out, resize), out, resize)


def image_size(data: bytes | memoryview) -> tuple[int, int]:
    """Height and width with EXIF's orientation, from the header.

    Raises:
        BadImage: It is broken, too large, or no image; others as `decode_into`.
    """
    size = _declared_size(data)
    check_size(*size)
    return size


def _declared_size(data: bytes | memoryview) -> tuple[int, int]:
    if is_jpeg(data):
        if (decoder := simplejpeg()) is not None:
            height, width, _, _ = decoder.decode_jpeg_header(data)
        else:
            with open_header(data) as image:
                width, height = image.size
        return _turned_size((height, width), jpeg_orientation(data))
    if bytes(data[:8]) == PNG_START:
        return png_size(data)
    with open_header(data) as image:
        # A TIFF is turned by Pillow itself.
        turn = image.getexif().get(ORIENTATION, 1) if image.format == "WEBP" else 1
        return _turned_size((image.height, image.width), turn)


def _decode_jpeg(decoder: ModuleType, data: bytes | memoryview, out: Array, resize: str) -> bool:
    """Decode a JPEG; False for one that Pillow must look at."""
    try:
        height, width, space, _ = decoder.decode_jpeg_header(data)
    except ValueError:
        return False  # an unusual one, or none: Pillow says which
    check_size(height, width)
    if space in ("CMYK", "YCCK"):
        # libjpeg-turbo does not turn these into RGB, and Pillow does not tell of damage: so both look at it.
        decoder.decode_jpeg(data, "CMYK", min_height=1, min_width=1)
        return False
    turn = jpeg_orientation(data)
    eighths = _eighths(_turned_size((height, width), turn), (int(out.shape[0]), int(out.shape[1])), resize)
    height, width = -(-height * eighths // 8), -(-width * eighths // 8)
    check_size(height, width, out.shape[2])
    colors = _SPACES[out.shape[2]]
    if (height, width) == out.shape[:2] and turn == 1 and out.flags.c_contiguous:
        decoder.decode_jpeg(data, colors, min_height=height, min_width=width, buffer=out.reshape(-1))
        return True
    pixels = decoder.decode_jpeg(data, colors, min_height=height, min_width=width)
    _place(_turned(pixels, turn), out, resize)
    return True


def _eighths(size: tuple[int, int], wanted: tuple[int, int], resize: str) -> int:
    """The smallest scale at which the image is still as large as what is made of it."""
    if resize == "keep":
        return 8
    least = fitted(size, wanted) if resize == "pad" else wanted
    for eighths in _EIGHTHS:
        if all(-(-have * eighths // 8) >= need for have, need in zip(size, least, strict=True)):
            return eighths
    return 8


def fitted(size: tuple[int, int], room: tuple[int, int]) -> tuple[int, int]:
    """The largest size of the same proportions that fits into `room`.

    >>> fitted((100, 200), (50, 50))
    (25, 50)
    """
    (height, width), (most_height, most_width) = size, room
    shrink = max(height / most_height, width / most_width)
    return (
        max(1, min(most_height, round(height / shrink))),
        max(1, min(most_width, round(width / shrink))),
    )


def _turned_size(size: tuple[int, int], turn: int) -> tuple[int, int]:
    return (size[1], size[0]) if turn >= 5 else size


def _turned(pixels: Array, turn: int) -> Array:
    """As EXIF's orientation says: rows from the bottom up, mirrored, or columns first."""
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
    """An image of which only the header was read. Anything that Pillow warns of is an error.

    Filters of warnings belong to the whole process: they are changed for as short as can be, for Pillow alone, and by
    one thread at a time.
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


def _decode_with_pillow(data: bytes | memoryview, out: Array, resize: str) -> Array:
    if bytes(data[:8]) == PNG_START:
        for _ in walk_png(data, zlib.crc32):
            pass  # Pillow does not miss the end of a file that is cut after the last pixel
    with open_header(data) as image:
        is_a_jpeg = image.format in ("JPEG", "MPO")
        turn = jpeg_orientation(data) if is_a_jpeg else 1
        mode = _MODES[out.shape[2]]
        if is_a_jpeg and resize != "keep":
            wanted = _turned_size((int(out.shape[0]), int(out.shape[1])), turn)
            image.draft("L" if mode == "L" else "RGB", (wanted[1], wanted[0]))
        image.load()
        pixels = _as_mode(image if is_a_jpeg else _upright(image), mode)
    return _turned(pixels.reshape(*pixels.shape[:2], -1), turn)


def _upright(image: Image.Image) -> Image.Image:
    turning = importlib.import_module("PIL.ImageOps")
    with _telling, warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"PIL\.")
        found: Image.Image = turning.exif_transpose(image)
    return found


def _as_mode(image: Image.Image, mode: str) -> Array:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Pillow would cut values off at 255 instead of scaling them.
        gray = (np.asarray(image) >> 8).astype(np.uint8)
        image = pillow().fromarray(gray)
    if image.mode in ("I", "F"):
        raise BadImage(f"pixels are 32-bit {'floats' if image.mode == 'F' else 'integers'}, whose range nobody knows")
    pixels: Array = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels


def _place(pixels: Array, out: Array, resize: str) -> None:
    """Bring pixels to the size of `out`, in one of the ways that RESIZES names."""
    size, room = pixels.shape[:2], out.shape[:2]
    if size == room:
        out[:] = pixels
        return
    if resize == "keep":
        if size[0] > room[0] or size[1] > room[1]:
            raise BadImage(f"{size[0]}×{size[1]} pixels are more than the {room[0]}×{room[1]} there is room for")
        out[:] = 0
        out[: size[0], : size[1]] = pixels
        return
    if resize == "crop":
        shrink = min(size[0] / room[0], size[1] / room[1])
        taken = [max(1, min(have, round(want * shrink))) for have, want in zip(size, room, strict=True)]
        top, left = (size[0] - taken[0]) // 2, (size[1] - taken[1]) // 2
        pixels = pixels[top : top + taken[0], left : left + taken[1]]
    elif resize == "pad":
        height, width = fitted((size[0], size[1]), (room[0], room[1]))
        top, left = (room[0] - height) // 2, (room[1] - width) // 2
        out[:] = 0
        out = out[top : top + height, left : left + width]
    _stretch(pixels, out)


def _stretch(pixels: Array, out: Array) -> None:
    """Resize to the very size of `out`, without a copy where OpenCV is there."""
    height, width = out.shape[:2]
    if pixels.shape[2] == 1:
        pixels, target = pixels[:, :, 0], out[:, :, 0]
    else:
        target = out
    images = cv2()
    if images is None:
        shrunk = pillow().fromarray(np.ascontiguousarray(pixels)).resize((width, height), pillow().Resampling.BILINEAR)
        target[:] = np.asarray(shrunk)
        return
    # Averaging every pixel costs 5 times as much, and tells only where many of them become one.
    shrinks = sorted((pixels.shape[0] / height, pixels.shape[1] / width))
    is_averaged = shrinks[0] >= 2 or shrinks[1] >= 4
    if is_averaged and shrinks[0] < 1:
        # OpenCV averages only where both directions shrink.
        smaller = min(pixels.shape[1], width), min(pixels.shape[0], height)
        pixels = images.resize(pixels, smaller, interpolation=images.INTER_AREA)
    how = images.INTER_AREA if is_averaged and shrinks[0] >= 1 else images.INTER_LINEAR
    made = images.resize(pixels, (width, height), dst=target, interpolation=how)
    if not np.may_share_memory(made, target):
        target[:] = made
