"""The inflated size of an Arrow file's record batches, from their headers: nothing is inflated.

A few kilobytes of zstd can stand for gigabytes, and Arrow inflates a column at once, into memory that nothing limits.
The headers are flatbuffers (`File.fbs`, `Message.fbs` of the format): a table has a list of where its fields lie.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from penstock.errors import InputError

_MAGIC_BYTES = 6
_BOMB_FLOOR = 1 << 30
_BOMB_FACTOR = 200
"""A batch is refused if it inflates to more than the floor, and to more than its size in the file times the factor."""
_MOST_HEADER = 64 << 20
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_KIND, _MESSAGE_HEADER = 1, 2
_CONTINUED = b"\xff\xff\xff\xff"
_DICTIONARY, _BATCH = 2, 3
"""Kinds of messages."""
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_DICTIONARY_DATA = 1


@dataclass(frozen=True)
class _Table:
    """A table of a flatbuffer."""

    raw: bytes | memoryview
    place: int

    def field(self, number: int) -> int | None:
        """Where a field lies; None where it is absent."""
        fields = self.place - _number("<i", self.raw, self.place)
        if 4 + 2 * number >= _number("<H", self.raw, fields):
            return None
        offset = _number("<H", self.raw, fields + 4 + 2 * number)
        return self.place + offset if offset else None

    def table(self, number: int) -> Self | None:
        place = self.field(number)
        return None if place is None else replace(self, place=place + _number("<I", self.raw, place))

    def structs(self, number: int, form: str) -> Iterator[tuple[int, ...]]:
        place = self.field(number)
        if place is not None:
            place += _number("<I", self.raw, place)
            size = struct.calcsize(form)
            for each in range(_number("<I", self.raw, place)):
                yield struct.unpack_from(form, self.raw, place + 4 + each * size)  # struct.error past the end


def refuse_bombs(path: str, file_bytes: int) -> None:
    """Refuse a file with a record batch that inflates to far more memory than the file can hold.

    Raises:
        InputError: A batch does.
        ArrowInvalid: The headers are damaged.
        OSError: The file cannot be read.
    """
    most_buffers = file_bytes // 8  # a compressed buffer begins with its size
    with pa.memory_map(path) as file:
        raw = memoryview(file.read_buffer()).cast("B")
    try:
        end = file_bytes - _MAGIC_BYTES - 4
        footer_bytes = _number("<i", raw, end)
        if not 0 < footer_bytes <= min(_MOST_HEADER, end):
            raise pa.ArrowInvalid("its footer is damaged")
        footer = _root(raw[end - footer_bytes : end])
        for kind in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
            for offset, header_bytes, body_bytes in footer.structs(kind, "<qi4xq"):
                body = offset + header_bytes
                header = raw[max(0, offset) : max(0, min(body, offset + _MOST_HEADER))]
                starts = _inflated_buffers(header[8 if header[:4] == _CONTINUED else 4 :])
                sizes = [_number("<q", raw, body + start) for start in itertools.islice(starts, most_buffers + 1)]
                most_buffers -= len(sizes) + 1  # a footer may list one batch again and again
                if most_buffers < 0:
                    raise pa.ArrowInvalid("the headers of its record batches are damaged")
                _check(path, sizes, body_bytes)
    except struct.error:
        raise pa.ArrowInvalid("the headers of its record batches are damaged") from None


def refuse_bombs_of_stream(path: str) -> None:
    """As `refuse_bombs`, for a file in the stream format, which has no footer."""
    with pa.memory_map(path) as file:
        try:
            while True:
                message = pa.ipc.read_message(file)
                body = message.body
                if body is not None:
                    starts = _inflated_buffers(message.metadata.to_pybytes())
                    sizes = [_number("<q", body[start : start + 8].to_pybytes(), 0) for start in starts]
                    _check(path, sizes, body.size)
        except EOFError:
            return
        except (struct.error, IndexError):
            raise pa.ArrowInvalid("the headers of its record batches are damaged") from None


def _check(path: str, sizes: Sequence[int], body_bytes: int) -> None:
    inflated = sum(size for size in sizes if size > 0)
    if inflated > _BOMB_FLOOR and inflated > _BOMB_FACTOR * max(0, body_bytes):
        raise InputError(
            "a part of the file takes far more memory than the file can hold",
            received=f"{path}: a record batch of {body_bytes:,} bytes inflates to {inflated:,}",
            allowed=f"batches of {_BOMB_FLOOR >> 30} GB, or {_BOMB_FACTOR} times their size in the file",
            hint="write it in smaller batches: writer.write_table(table, max_chunksize=65536)",
        )


def _inflated_buffers(header: bytes | memoryview) -> Iterator[int]:
    """Where the compressed buffers of a batch begin in its body."""
    message = _root(header)
    batch = message.table(_MESSAGE_HEADER)
    place = message.field(_MESSAGE_KIND)
    kind = None if place is None else _number("<B", message.raw, place)
    if batch is None or kind not in (_DICTIONARY, _BATCH):
        return
    if kind == _DICTIONARY:
        batch = batch.table(_DICTIONARY_DATA)
    if batch is not None and batch.field(_BATCH_COMPRESSION) is not None:
        yield from (start for start, nbytes in batch.structs(_BATCH_BUFFERS, "<qq") if nbytes >= 8)


def _root(raw: bytes | memoryview) -> _Table:
    return _Table(raw, _number("<I", raw, 0))


def _number(form: str, raw: bytes | memoryview, place: int) -> int:
    if place < 0:
        raise struct.error("before the beginning")
    value: int = struct.unpack_from(form, raw, place)[0]
    return value
