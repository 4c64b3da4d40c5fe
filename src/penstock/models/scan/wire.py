"""The wire format of protocol buffers, walked without a schema and without copying.

A message must be read here just as parsers read it: a length may be written with more bytes than it needs, a message
may come in several pieces that are merged, and if a field is given twice, the last one counts. So every piece of a
message is yielded, and a caller that needs a name gets all that were given.
"""

import mmap
from collections.abc import Iterator

from penstock.models.facts import Malformed, too_large

Field = tuple[int, "int | memoryview"]
"""A field's number and its value: an integer, or the bytes of a string, a message or a packed list."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10


def fields(message: memoryview) -> Iterator[Field]:
    """Every field of a message, in order.

    Raises:
        Malformed: It ends inside a field, or has a wire type that no model uses.
    """
    position, end = 0, len(message)
    while position < end:
        # Most tags and lengths take one byte: they are read here, at half the cost of a call.
        tag = message[position]
        position += 1
        if tag >= 0x80:
            tag, position = _varint(message, position - 1)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or tag >= 1 << 32:
            raise Malformed("a field without a number")
        if wire_type == BYTES:
            if position >= end:
                raise Malformed("a number that is cut off")
            length = message[position]
            position += 1
            if length >= 0x80:
                length, position = _varint(message, position - 1)
            if length > end - position:
                raise Malformed("a field that is longer than its message")
            yield number, message[position : position + length]
            position += length
        elif wire_type == VARINT:
            value, position = _varint(message, position)
            yield number, value
        elif wire_type in (FIXED32, FIXED64):
            width = 4 if wire_type == FIXED32 else 8
            if width > end - position:
                raise Malformed("a number that is cut off")
            yield number, message[position : position + width]
            position += width
        else:
            raise Malformed(f"wire type {wire_type}")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for count in range(_MOST_VARINT_BYTES):
        if position + count >= len(message):
            raise Malformed("a number that is cut off")
        byte = message[position + count]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + count + 1
        shift += 7
    raise Malformed("a number of more than ten bytes")


def messages(message: memoryview, number: int) -> Iterator[memoryview]:
    """Every value of one field that holds messages, strings or bytes."""
    for field, value in fields(message):
        if field == number and isinstance(value, memoryview):
            yield value


def texts(message: memoryview, number: int) -> list[str]:
    """Every value of a text field."""
    return [text_of(value) for value in messages(message, number)]


def text(message: memoryview, number: int) -> str:
    """The value of a text field that is not repeated: the last one given, as in parsers; empty if there is none."""
    values = texts(message, number)
    return values[-1] if values else ""


def integers(message: memoryview, number: int) -> list[int]:
    """The values of a repeated integer, packed or not."""
    values: list[int] = []
    for field, value in fields(message):
        if field != number:
            continue
        if isinstance(value, int):
            values.append(value)
            continue
        position = 0
        while position < len(value):
            item, position = _varint(value, position)
            values.append(item)
    return values


def map_entries(message: memoryview, number: int) -> Iterator[tuple[str, memoryview]]:
    """Keys and values of a map whose keys are text and whose values are messages. A key may come twice."""
    for entry in messages(message, number):
        values = list(messages(entry, 2)) or [memoryview(b"")]
        for value in values:
            yield text(entry, 1), value


def text_of(value: memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")


def opened(path: str) -> memoryview:
    """The bytes of a file, mapped: large constants are skipped and never read.

    Raises:
        ModelError: It cannot be mapped; it may be larger than the memory that can be addressed.
    """
    with open(path, "rb") as file:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:  # an empty file cannot be mapped
            return memoryview(b"")
        except OSError as error:
            raise too_large(path) from error
