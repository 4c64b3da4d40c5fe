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
from penstock.sources.images.resizing import KEEP, Rendition, simplejpeg

MOST_PIXELS = 2 << 20
"""Larger ones are decoded by loaders: this bounds the memory of the GPU."""

_SAMPLINGS = ("444", "422", "420")
_BASELINE, _START_OF_SCAN = 0xC0, 0xDA
_OTHER_FRAMES = frozenset(range(0xC1, 0xD0)) - {0xC4, 0xC8, 0xCC}
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
    """Whether the pixels of the engine are those of the loaders to the bit: sums in whole numbers have one answer."""
    is_whole = rendition.library in ("pillow", "torchvision") or rendition.interpolation == "opencv-linear"
    return is_whole and may_have_engine(rendition)


def _is_plain(data: bytes | memoryview, rendition: Rendition) -> bool:
    scan = _scan_of_baseline(data)
    if scan is None or (rendition.is_turned and jpeg_orientation(data) != 1):
        return False
    end = _MARKER.search(data, scan)
    if end is None or end.start() != len(data) - 2 or end.group() != b"\xff\xd9":
        return False  # cut, damaged, several scans, or something behind it
    try:
        height, width, space, sampling = simplejpeg().decode_jpeg_header(data)
    except ValueError:
        return False
    return space == "YCbCr" and sampling in _SAMPLINGS and 0 < height * width <= MOST_PIXELS


def _scan_of_baseline(data: bytes | memoryview) -> int | None:
    """Where the pixels of a baseline JPEG of three components begin; None for any other."""
    offset, is_baseline = 2, False
    while offset + 4 <= len(data) and data[offset] == 0xFF:
        marker = data[offset + 1]
        if marker == 0xFF:
            offset += 1  # a fill byte
            continue
        content, following = offset + 4, offset + 2 + (data[offset + 2] << 8 | data[offset + 3])
        if marker in _OTHER_FRAMES or following > len(data):
            return None
        if marker == _BASELINE:
            is_baseline = not is_baseline and bytes(data[content : content + 1]) == b"\x08"
        if marker == _START_OF_SCAN:
            return following if is_baseline and data[content] == 3 else None
        offset = following
    return None
