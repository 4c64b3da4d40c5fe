"""Which JPEGs the engine of a GPU decodes: decided by the bytes of each alone, whatever it comes with.

The engine takes what is plain: others, and what is damaged, go to libjpeg-turbo, which gives the reason, too. Damage
inside of a scan is seen by reading all of its codes, which takes libjpeg-turbo 0.6 of the 1.5 ms of decoding it
(measured, photos of 500 pixels): so the GPU does that (`kernels.CHECK`), before the engine gets the photo.
"""

from __future__ import annotations

import re
import zlib

from penstock.sources.images.coefficients import NOT_AS_SUMS
from penstock.sources.images.headers import is_jpeg, jpeg_orientation
from penstock.sources.images.resizing import KEEP, Rendition, Size, simplejpeg

MOST_PIXELS = 2 << 20
MOST_SIDE = 4096
"""Larger ones are decoded by loaders: these bound the memory of the GPU, and what a photo costs those beside it."""

_SAMPLINGS = ("444", "422", "420")
_BASELINE, _START_OF_SCAN = 0xC0, 0xDA
_MARKERS = frozenset([_BASELINE, 0xC4, _START_OF_SCAN, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE])
"""What may stand before a scan, each with its length. Others may not mean the same to every reader of JPEGs."""
_LAST_BYTES = 256
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")
"""Inside of a scan only restarts and escaped bytes follow 0xFF."""


def goes_to_engine(data: bytes | memoryview, row_bytes: int, rendition: Rendition) -> bool:
    """Whether the engine decodes an image that is to fill `row_bytes`: a fixed share of those that it takes."""
    return (
        len(data) <= row_bytes
        and zlib.crc32(data[-_LAST_BYTES:]) < rendition.engine_share * 2**32
        and is_jpeg(data)
        and _is_plain(data, rendition)
    )


def may_have_engine(rendition: Rendition) -> bool:
    """Whether the engine can mean the same as the loaders at all: it decodes in full only, and resizes by sums."""
    return not rendition.fast_decode and rendition.resize != KEEP and rendition.interpolation not in NOT_AS_SUMS


def has_same_pixels(rendition: Rendition) -> bool:
    """Whether the pixels of the engine are those of the loaders to the bit: sums in whole numbers have one answer.

    OpenCV's are whole, too, but drop bits in a way of their own in the first and last rows of photos that grow.
    """
    return rendition.library in ("pillow", "torchvision") and may_have_engine(rendition)


def _is_plain(data: bytes | memoryview, rendition: Rendition) -> bool:
    found = _scan_of_baseline(data)
    if found is None or (rendition.is_turned and jpeg_orientation(data) != 1):
        return False
    scan, size = found
    end = _MARKER.search(data, scan)
    if end is None or end.start() != len(data) - 2 or end.group() != b"\xff\xd9":
        return False  # cut, damaged, several scans, or something behind it
    try:
        height, width, space, sampling = simplejpeg().decode_jpeg_header(data)
    except ValueError:
        return False
    is_small = 0 < height * width <= MOST_PIXELS and max(height, width) <= MOST_SIDE
    # Memory is taken by the size that is found here: who decodes it must have found the same one.
    return space == "YCbCr" and sampling in _SAMPLINGS and is_small and size == (height, width)


def _scan_of_baseline(data: bytes | memoryview) -> tuple[int, Size] | None:
    """Where the pixels of a baseline JPEG of three components begin, and its height and width; None for any other."""
    offset, size = 2, None
    while offset + 4 <= len(data) and data[offset] == 0xFF:
        marker = data[offset + 1]
        content, following = offset + 4, offset + 2 + (data[offset + 2] << 8 | data[offset + 3])
        if marker not in _MARKERS or not content <= following <= len(data):
            return None
        if marker == _BASELINE:
            frame = bytes(data[content:following])
            if size is not None or len(frame) < 5 or frame[0] != 8:
                return None
            size = (frame[1] << 8 | frame[2], frame[3] << 8 | frame[4])
        if marker == _START_OF_SCAN:
            return (following, size) if size is not None and data[content] == 3 else None
        offset = following
    return None
