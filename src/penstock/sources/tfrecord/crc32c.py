"""CRC32C, masked as TFRecord files have it: in C where `google_crc32c` is installed, else with numpy tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from penstock.core.records import Array

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_LANE = 64
"""How many bytes of a message one lane of the numpy road takes: lanes are computed side by side, then folded."""


def _byte_table() -> Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE = _byte_table()


def _after_zeros(count: int) -> Array:
    """For each byte of a checksum: what it adds to the checksum after `count` zero bytes; (4, 256)."""
    columns = np.arange(256, dtype=np.uint32)[None, :] << (np.arange(4, dtype=np.uint32)[:, None] * 8)
    for _ in range(count):
        columns = _TABLE[columns & 0xFF] ^ (columns >> 8)
    return columns


_MOVED: list[list[int]] = _after_zeros(_LANE).tolist()


def crc32c_by_numpy(data: bytes) -> int:
    """The checksum without C.

    >>> hex(crc32c_by_numpy(b"123456789"))
    '0xe3069283'
    """
    return crcs_by_numpy([data])[0]


def crcs_by_numpy(messages: Sequence[bytes]) -> list[int]:
    """The checksums of many messages without C: right, and about fifty times slower.

    Zeros before a message do not change a checksum that starts at 0, and starting at all ones is the same as
    flipping the first four bytes: so messages are cut into equal lanes from their ends, and all lanes of all
    messages are computed side by side.
    """
    padded = [_flipped(data) if len(data) >= 4 else b"" for data in messages]
    lanes = np.frombuffer(b"".join(padded), np.uint8).reshape(-1, _LANE)
    checks = np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        checks = _TABLE[(checks ^ column) & 0xFF] ^ (checks >> 8)
    folded, first = [], 0
    for data, lane_bytes in zip(messages, padded, strict=True):
        last = first + len(lane_bytes) // _LANE
        folded.append(_fold(checks[first:last].tolist()) if lane_bytes else _byte_by_byte(data))
        first = last
    return folded


def _flipped(data: bytes) -> bytes:
    return bytes(-len(data) % _LANE) + bytes(byte ^ 0xFF for byte in data[:4]) + data[4:]


def _fold(checks: list[int]) -> int:
    """The checksum of lanes that follow each other, from theirs."""
    crc = 0
    a, b, c, d = _MOVED
    for check in checks:
        crc = a[crc & 255] ^ b[crc >> 8 & 255] ^ c[crc >> 16 & 255] ^ d[crc >> 24] ^ check
    return crc ^ 0xFFFFFFFF


def _byte_by_byte(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = int(_TABLE[(crc ^ byte) & 0xFF]) ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _fastest() -> Callable[[bytes], int]:
    try:
        import google_crc32c
    except ImportError:
        return crc32c_by_numpy
    # Without its C part that package computes byte by byte, and warns.
    return google_crc32c.value if google_crc32c.implementation == "c" else crc32c_by_numpy


crc32c: Callable[[bytes], int] = _fastest()


def masked_crc(data: bytes) -> int:
    """The checksum as it stands in a TFRecord file."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked_crcs(messages: Iterable[bytes]) -> Array:
    """The checksums of many messages."""
    if crc32c is crc32c_by_numpy:
        crcs = np.array(crcs_by_numpy(list(messages)), np.uint32)
    else:
        crcs = np.fromiter(map(crc32c, messages), np.uint32)
    return (crcs >> 15 | crcs << 17) + np.uint32(_MASK_DELTA)


def _word_tables() -> list[Array]:
    """For each place in a word of 8 bytes: what a byte there adds to the checksum of the word."""
    tables = [_TABLE]
    for _ in range(7):
        tables.insert(0, _TABLE[tables[0] & 0xFF] ^ (tables[0] >> 8))
    return tables


_WORD_TABLES = _word_tables()


def masked_crcs_of_words(raw: Array, at: Array) -> Array:
    """The checksums of the 8 bytes of `raw` at each of these positions, all at once."""
    crcs = np.full(len(at), 0xFFFFFFFF, np.uint32)
    for place, table in enumerate(_WORD_TABLES):
        values = raw[at + place]
        crcs ^= table[values ^ 0xFF if place < 4 else values]
    return (crcs >> 15 | crcs << 17) + np.uint32(_MASK_DELTA)
