"""TFRecord files written byte by byte, with nothing of penstock and nothing of TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Values = Sequence[float] | Sequence[int] | Sequence[bytes]
"""A feature: floats, ints or bytes, told by the first value; an empty one must say what it is."""


class Floats(list[float]):
    """A float_list, also where it is empty or holds whole numbers."""


class Ints(list[int]):
    """An int64_list, also where it is empty."""


class Strings(list[bytes]):
    """A bytes_list, also where it is empty."""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The textbook loop.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def write(path: Path, records: Iterable[bytes]) -> str:
    path.write_bytes(b"".join(record(data) for data in records))
    return str(path)


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: Values) -> bytes:
    """A `tf.train.Feature`."""
    if isinstance(values, Strings) or (values and isinstance(values[0], bytes)):
        return field(1, b"".join(field(1, value) for value in values))  # type: ignore[arg-type]
    if isinstance(values, Floats) or (values and isinstance(values[0], float)):
        packed = struct.pack(f"<{len(values)}f", *values)
        return field(2, field(1, packed) if packed else b"")
    packed = b"".join(varint(value) for value in values)  # type: ignore[arg-type]
    return field(3, field(1, packed) if packed else b"")


def entry(name: str, value: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, value))


def features(values: Mapping[str, Values]) -> bytes:
    return b"".join(entry(name, feature(some)) for name, some in values.items())


def example(values: Mapping[str, Values]) -> bytes:
    """A `tf.train.Example`."""
    return field(1, features(values))


def sequence_example(context: Mapping[str, Values], lists: Mapping[str, Sequence[Values]]) -> bytes:
    """A `tf.train.SequenceExample`."""
    packed = b"".join(entry(name, b"".join(field(1, feature(one)) for one in some)) for name, some in lists.items())
    return (field(1, features(context)) if context else b"") + (field(2, packed) if lists else b"")
