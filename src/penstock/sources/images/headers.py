"""What an image says of itself before it is decoded: its kind, its size, which way is up."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

MOST_PIXELS = 178_956_970
"""Where Pillow speaks of a decompression bomb, too: about 179 million."""

MOST_BYTES = 512 << 20
"""Decoded. Memory has to hold them two or three times for a moment."""

PNG_START = b"\x89PNG\r\n\x1a\n"
GIF_STARTS = (b"GIF87a", b"GIF89a")
ORIENTATION = 0x0112
"""The number of EXIF's tag."""


class BadImage(ValueError):
    """An image that cannot be fed to a model."""


def check_size(height: int, width: int, pixel_bytes: int = 1) -> None:
    """Raise BadImage for an image that is too large to decode, or has no pixels."""
    if height < 1 or width < 1:
        raise BadImage(f"an image of {height}×{width} pixels")
    if height * width > MOST_PIXELS or height * width * pixel_bytes > MOST_BYTES:
        millions = min(MOST_PIXELS, MOST_BYTES // pixel_bytes) // 1_000_000
        raise BadImage(f"too large to decode: {height}×{width} pixels; at most {millions} million are decoded")


def shown_start(data: bytes | memoryview) -> str:
    """How bytes that are no image begin, for a message."""
    return f"it begins with {bytes(data[:12])!r}" if len(data) else "it is empty"


def is_jpeg(data: bytes | memoryview) -> bool:
    return bytes(data[:3]) == b"\xff\xd8\xff"


def jpeg_orientation(data: bytes | memoryview) -> int:
    """EXIF's orientation of a JPEG, from 1 (as it is stored) to 8; 1 where it says nothing, or nothing sensible."""
    exif = _jpeg_exif(data)
    try:
        return _tiff_orientation(exif) if exif else 1
    except struct.error:
        return 1


def is_from_adobe(data: bytes | memoryview) -> bool:
    """Whether a JPEG has Adobe's mark, which says that its inks are inverted."""
    return any(marker == 0xEE and content[:5] == b"Adobe" for marker, content in _jpeg_segments(data))


def _jpeg_exif(data: bytes | memoryview) -> bytes:
    """The TIFF structure in the Exif segment; empty where there is none."""
    found = (content[6:] for marker, content in _jpeg_segments(data) if marker == 0xE1 and content[:6] == b"Exif\0\0")
    return next(found, b"")


def _jpeg_segments(data: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
    """The marker and content of every segment that stands before the first pixels."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:
            place += 1  # a fill byte
            continue
        if marker in (0xC0, 0xC1, 0xC2, 0xDA):
            return
        length = data[place + 2] << 8 | data[place + 3]
        yield marker, bytes(data[place + 4 : place + 2 + length])
        place += 2 + length


def _tiff_orientation(exif: bytes) -> int:
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    (directory,) = struct.unpack_from(order + "I", exif, 4)
    (entries,) = struct.unpack_from(order + "H", exif, directory)
    for entry in range(entries):
        tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, directory + 2 + 12 * entry)
        if tag == ORIENTATION:
            return int(value) if kind == 3 and 1 <= value <= 8 else 1
    return 1


def walk_png(
    data: bytes | memoryview, checksum: Callable[[memoryview], int] | None = None
) -> Iterator[tuple[bytes, memoryview]]:
    """The chunks of a PNG: kind and content, each checked where a `checksum` is given.

    Raises:
        BadImage: It is cut, or a chunk is damaged.
    """
    view = memoryview(data)
    place = len(PNG_START)
    while place + 12 <= len(view):
        (length,) = struct.unpack_from(">I", view, place)
        end = place + 12 + length
        if end > len(view):
            break
        if checksum is not None and checksum(view[place + 4 : end - 4]) != struct.unpack_from(">I", view, end - 4)[0]:
            raise BadImage(f"damaged: the checksum of a PNG chunk at byte {place} is wrong")
        kind = bytes(view[place + 4 : place + 8])
        yield kind, view[place + 8 : end - 4]
        if kind == b"IEND":
            return
        place = end
    raise BadImage("truncated: the PNG ends before its last chunk")


def png_size(data: bytes | memoryview) -> tuple[tuple[int, int], int]:
    """Height and width of a PNG, and its EXIF orientation, which may stand behind the pixels.

    Raises:
        BadImage: It is cut, or its header is damaged.
    """
    height = width = 0
    turn = 1
    for kind, content in walk_png(data):
        if kind == b"IHDR" and len(content) >= 8:
            width, height = struct.unpack_from(">II", content)
        elif kind == b"eXIf":
            try:
                turn = _tiff_orientation(bytes(content))
            except struct.error:
                turn = 1
    return (height, width), turn
