"""Image files before they are decoded: kind, size, orientation, and whether all pixels are there.

Orientations and sizes are read by hand, because Pillow takes far longer to open a file (measured: 150 µs against 7 µs
for a JPEG). Pillow decodes PNG, GIF and TIFF files that lack pixels without an error, so what is missing is found here.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 178_956_970
"""About 179 million: also the limit above which Pillow raises DecompressionBombError."""

MOST_BYTES = 512 << 20
"""The most bytes of a decoded image, of which memory has to hold two or three copies for a moment."""

PNG_START = b"\x89PNG\r\n\x1a\n"
GIF_STARTS = (b"GIF87a", b"GIF89a")
ORIENTATION = 0x0112
"""The number of EXIF's tag."""

_STEP = 1 << 20
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""The values of a pixel, by the colour type of a PNG."""
_PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""First row, first column and the two steps of each pass of an interlaced PNG."""

_ROWS_PER_STRIP, _STRIPS, _STRIP_BYTES = 278, 273, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_BYTES = 322, 323, 324, 325
_COMPRESSION, _PLANAR, _SAMPLES_PER_PIXEL, _JPEG_TABLES = 259, 284, 277, 347
_JPEG_IN_TIFF = 7


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
    """The first bytes of something that is no image, for a message."""
    return f"it begins with {bytes(data[:12])!r}" if len(data) else "it is empty"


def is_jpeg(data: bytes | memoryview) -> bool:
    return bytes(data[:3]) == b"\xff\xd8\xff"


def jpeg_orientation(data: bytes | memoryview) -> int:
    """EXIF's orientation of a JPEG, from 1 (as it is stored) to 8; 1 where there is none, or no valid one."""
    exif = _jpeg_exif(data)
    try:
        return _tiff_orientation(exif) if exif else 1
    except struct.error:
        return 1


def is_from_adobe(data: bytes | memoryview) -> bool:
    """Whether a JPEG has Adobe's mark, which means that its inks are inverted."""
    return any(marker == 0xEE and content[:5] == b"Adobe" for marker, content in _jpeg_segments(data))


def _jpeg_exif(data: bytes | memoryview) -> bytes:
    """The TIFF structure in the Exif segment; empty where there is none."""
    segments = (content for marker, content in _jpeg_segments(data) if marker == 0xE1 and content[:6] == b"Exif\0\0")
    return next(segments, b"")[6:]


def _jpeg_segments(data: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
    """The marker and content of every segment that stands before the first pixels."""
    offset = 2
    while offset + 4 <= len(data) and data[offset] == 0xFF:
        marker = data[offset + 1]
        if marker == 0xFF:
            offset += 1  # a fill byte
            continue
        if marker in (0xC0, 0xC1, 0xC2, 0xDA):
            return
        length = data[offset + 2] << 8 | data[offset + 3]
        yield marker, bytes(data[offset + 4 : offset + 2 + length])
        offset += 2 + length


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
    offset = len(PNG_START)
    while offset + 12 <= len(view):
        (length,) = struct.unpack_from(">I", view, offset)
        end = offset + 12 + length
        if end > len(view):
            break
        if checksum is not None and checksum(view[offset + 4 : end - 4]) != struct.unpack_from(">I", view, end - 4)[0]:
            raise BadImage(f"damaged: the checksum of a PNG chunk at byte {offset} is wrong")
        kind = bytes(view[offset + 4 : offset + 8])
        yield kind, view[offset + 8 : end - 4]
        if kind == b"IEND":
            return
        offset = end
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


def check_png(data: bytes | memoryview, checksum: Callable[[memoryview], int]) -> None:
    """Raise BadImage for a PNG with a missing or damaged chunk, or for an interlaced one that lacks pixels.

    Pillow decodes an interlaced PNG pass by pass, so that missing pixels leave no row empty: they are counted here.
    Those of other PNGs are not.
    """
    is_interlaced = False
    for kind, content in walk_png(data, checksum):
        if kind == b"IHDR":
            is_interlaced = len(content) == 13 and content[12] == 1
    if is_interlaced:
        check_png_lines(data)


def check_png_lines(data: bytes | memoryview) -> None:
    """Raise BadImage for a PNG with fewer rows than it says. This takes about as long as decoding it."""
    chunks = list(walk_png(data))
    header = next((content for kind, content in chunks if kind == b"IHDR" and len(content) == 13), None)
    if header is None:
        raise BadImage("the PNG has no header")
    width, height, depth, color, _, _, interlace = struct.unpack(">IIBBBBB", header)
    bits = depth * _SAMPLES.get(color, 1)
    passes = _PASSES if interlace else ((0, 0, 1, 1),)
    expected = sum(_bytes_of_pass(width, height, bits, *each) for each in passes)
    unpacker = zlib.decompressobj()
    num_bytes = 0
    for part in (content for kind, content in chunks if kind == b"IDAT"):
        waiting: Any = part
        while len(waiting) and num_bytes < expected and not unpacker.eof:
            num_bytes += len(unpacker.decompress(waiting, _STEP))
            waiting = unpacker.unconsumed_tail
    if num_bytes < expected:
        share = f"{num_bytes:,} of {expected:,} bytes of pixels"
        raise BadImage(f"truncated: the PNG holds {share}")


def _bytes_of_pass(width: int, height: int, bits: int, top: int, left: int, down: int, right: int) -> int:
    rows, columns = -(-(height - top) // down), -(-(width - left) // right)
    return rows * (1 + (columns * bits + 7) // 8) if rows > 0 and columns > 0 else 0


def check_gif(data: bytes | memoryview) -> list[tuple[int, int, int, int]]:
    """Left, top, width and height of the pictures of a GIF.

    Raises:
        BadImage: It has no picture, or ends before its last block, even if its first picture is whole.
    """
    try:
        frames = list(_walk_gif(memoryview(data)))
    except (IndexError, struct.error):
        raise BadImage("truncated: the GIF ends before its last block") from None
    if not frames:
        raise BadImage("the GIF holds no picture")
    return frames


def _walk_gif(view: memoryview) -> Iterator[tuple[int, int, int, int]]:
    offset = 13 + _palette_bytes(view[10])
    while view[offset] != 0x3B:  # what ends a GIF
        if view[offset] == 0x21:
            offset = _behind_blocks(view, offset + 2)
        elif view[offset] == 0x2C:
            yield struct.unpack_from("<4H", view, offset + 1)
            offset = _behind_blocks(view, offset + 11 + _palette_bytes(view[offset + 9]))
        else:
            raise BadImage(f"damaged: the GIF has no block at byte {offset}")


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _behind_blocks(view: memoryview, offset: int) -> int:
    while view[offset]:
        offset += view[offset] + 1
    return offset + 1


def check_tiff(image: Image.Image, data: bytes | memoryview) -> None:
    """Raise BadImage for a TIFF with fewer strips or tiles than its size needs, or with one whose JPEG lacks rows."""
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    is_tiled = _TILES in tags
    places, lengths = (tags.get(tag, ()) for tag in ((_TILES, _TILE_BYTES) if is_tiled else (_STRIPS, _STRIP_BYTES)))
    width, height = int(tags[256]), int(tags[257])  # Pillow's own size may be turned
    rows = min(height, int(tags.get(_TILE_HEIGHT if is_tiled else _ROWS_PER_STRIP, height)) or height)
    across = -(-width // int(tags[_TILE_WIDTH])) if is_tiled else 1
    planes = int(tags.get(_SAMPLES_PER_PIXEL, 1)) if tags.get(_PLANAR, 1) == 2 else 1
    needed = planes * across * -(-height // rows)
    if min(len(places), len(lengths)) < needed:
        raise BadImage(f"truncated: {len(places)} of {needed} strips or tiles of the TIFF are there")
    if any(start + length > len(data) for start, length in zip(places, lengths, strict=False)):
        raise BadImage("truncated: the TIFF ends before its last strip or tile")
    if tags.get(_COMPRESSION) == _JPEG_IN_TIFF:
        shared = bytes(tags.get(_JPEG_TABLES, b""))
        down = -(-height // rows)
        for number, (start, length) in enumerate(zip(places, lengths, strict=False)):
            left = height - number // across % down * rows
            _check_inner_jpeg(shared, bytes(data[start : start + length]), rows if is_tiled else min(rows, left))


def _check_inner_jpeg(shared: bytes, strip: bytes, rows: int) -> None:
    """Raise if a JPEG in a TIFF lacks rows: libtiff decodes it without an error, but libjpeg-turbo raises."""
    decoder = importlib.import_module("simplejpeg")
    # The tables that all strips share are stored as a JPEG without pixels.
    whole = shared[:-2] + strip[2:] if shared else strip
    height, _, space, _ = decoder.decode_jpeg_header(whole)
    if height < rows:
        raise BadImage(f"truncated: a strip or tile of the TIFF holds {height} of {rows} rows")
    decoder.decode_jpeg(whole, space if space in ("Gray", "CMYK") else "RGB", min_height=1, min_width=1)
