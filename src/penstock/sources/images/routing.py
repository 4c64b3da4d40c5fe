"""Which JPEGs the engine of a GPU decodes: the bytes of each decide, and not what else is in its batch.

The engine takes plain JPEGs. Others, and damaged ones, go to libjpeg-turbo, which also gives the reason. To see damage
inside of a scan, all of its codes must be read. That takes libjpeg-turbo 0.6 of the 1.5 ms of decoding (measured,
photos of 500 pixels), so the GPU does it (`kernels.CHECK`) before the engine gets the photo.
"""

from __future__ import annotations

import re
import zlib

from penstock.sources.images.coefficients import NOT_AS_SUMS
from penstock.sources.images.headers import is_jpeg, jpeg_orientation
from penstock.sources.images.resizing import KEEP, Rendition, Size, simplejpeg

MOST_PIXELS = 2 << 20
MOST_SIDE = 4096
"""Loaders decode larger photos. The limits bound the memory of the GPU, and how long one photo delays the others."""

_SAMPLINGS = ("444", "422", "420")
_BASELINE, _START_OF_SCAN = 0xC0, 0xDA
_MARKERS = frozenset([_BASELINE, 0xC4, _START_OF_SCAN, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE])
"""The markers that may stand before a scan, each followed by a length. Decoders may disagree about any others."""
_LAST_BYTES = 256
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")
"""Inside of a scan only restarts and escaped bytes follow 0xFF."""


def goes_to_engine(data: bytes | memoryview, row_bytes: int, rendition: Rendition) -> bool:
    """Whether the engine decodes an image for a row of `row_bytes`: it gets a fixed share of those that it takes."""
    return (
        len(data) <= row_bytes
        and zlib.crc32(data[-_LAST_BYTES:]) < rendition.engine_share * 2**32
        and is_jpeg(data)
        and _is_plain(data, rendition)
    )


def may_have_engine(rendition: Rendition) -> bool:
    """Whether the engine can give what loaders give: it decodes only at full size, and resizes only by sums."""
    return not rendition.fast_decode and rendition.resize != KEEP and rendition.interpolation not in NOT_AS_SUMS


def has_same_pixels(rendition: Rendition) -> bool:
    """Whether the pixels of the engine are those of the loaders to the bit: sums in whole numbers have one answer.

    OpenCV's sums are in whole numbers, too, but it drops bits in its own way in the first and last rows of enlarged
    photos.
    """
    return rendition.library in ("pillow", "torchvision") and may_have_engine(rendition)


def _is_plain(data: bytes | memoryview, rendition: Rendition) -> bool:
    found = _scan_of_baseline(data)
    if found is None or (rendition.is_turned and jpeg_orientation(data) != 1):
        return False
    scan, size = found
    end = _MARKER.search(data, scan)
    if end is None or end.start() != len(data) - 2 or end.group() != b"\xff\xd9":
        return False  # it is cut or damaged, or has several scans, or bytes after its end
    try:
        height, width, space, sampling = simplejpeg().decode_jpeg_header(data)
    except ValueError:
        return False
    is_small = 0 < height * width <= MOST_PIXELS and max(height, width) <= MOST_SIDE
    # Memory is taken for `size`, so the decoder must find the same size.
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
