"""How large the record batches of an Arrow file are when they are inflated, from their headers: nothing is inflated.

A few kilobytes of zstd can stand for gigabytes, and Arrow inflates a column at once, into memory that nothing limits.
The headers are flatbuffers (`File.fbs`, `Message.fbs` of the format): a table has a list of where its fields lie.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from penstock.sources.files.paths import open_binary, read_bytes

_MAGIC_BYTES = 6
_BOMB_FLOOR = 1 << 30
_BOMB_FACTOR = 200
"""A batch that takes more than this, and this many times what it holds, is refused: data of a kind that compresses so
well is written in batches of some megabytes."""
_MOST_HEADER = 64 << 20
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_KIND, _MESSAGE_HEADER = 1, 2
_CONTINUED = b"\xff\xff\xff\xff"
_IS_DICTIONARY = b"\x02"
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_DICTIONARY_DATA = 1


@dataclass(frozen=True)
class _Table:
    """A table of a flatbuffer."""

    raw: bytes
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
    """See that no record batch of a file takes far more memory than the file can hold.

    Raises:
        ArrowInvalid: One does, or the headers are damaged.
        OSError: The file cannot be read.
    """
    try:
        footer_bytes = _number("<i", read_bytes(path, file_bytes - _MAGIC_BYTES - 4, 4), 0)
        if not 0 < footer_bytes <= min(_MOST_HEADER, file_bytes):
            raise pa.ArrowInvalid("its footer is damaged")
        raw = read_bytes(path, file_bytes - _MAGIC_BYTES - 4 - footer_bytes, footer_bytes)
        footer = _root(raw)
        with open_binary(path) as file:
            for kind in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
                for offset, header_bytes, body_bytes in footer.structs(kind, "<qi4xq"):
                    file.seek(max(0, offset))
                    header = file.read(max(0, min(header_bytes, _MOST_HEADER)))
                    sizes: list[int] = []
                    for start in _inflated_buffers(header[8 if header.startswith(_CONTINUED) else 4 :]):
                        file.seek(max(0, offset + header_bytes + start))
                        sizes.append(_number("<q", file.read(8), 0))
                    _check(sizes, body_bytes)
    except struct.error:
        raise pa.ArrowInvalid("the headers of its record batches are damaged") from None


def refuse_bombs_of_stream(path: str) -> None:
    """The same, of a file in the stream format, which has no footer."""
    with pa.memory_map(path) as file:
        try:
            while True:
                message = pa.ipc.read_message(file)
                body = message.body
                if body is not None:
                    starts = _inflated_buffers(message.metadata.to_pybytes())
                    _check([_number("<q", body[start : start + 8].to_pybytes(), 0) for start in starts], body.size)
        except EOFError:
            return
        except (struct.error, IndexError):
            raise pa.ArrowInvalid("the headers of its record batches are damaged") from None


def _check(sizes: Sequence[int], body_bytes: int) -> None:
    inflated = sum(size for size in sizes if size > 0)
    if inflated > _BOMB_FLOOR and inflated > _BOMB_FACTOR * max(0, body_bytes):
        raise pa.ArrowInvalid(f"a record batch of {body_bytes:,} bytes inflates to {inflated:,}")


def _inflated_buffers(header: bytes) -> Iterator[int]:
    """Where the compressed buffers of a batch begin in its body."""
    message = _root(header)
    batch = message.table(_MESSAGE_HEADER)
    kind = message.field(_MESSAGE_KIND)
    if batch is not None and kind is not None and message.raw[kind : kind + 1] == _IS_DICTIONARY:
        batch = batch.table(_DICTIONARY_DATA)
    if batch is not None and batch.field(_BATCH_COMPRESSION) is not None:
        yield from (start for start, nbytes in batch.structs(_BATCH_BUFFERS, "<qq") if nbytes >= 8)


def _root(raw: bytes) -> _Table:
    return _Table(raw, _number("<I", raw, 0))


def _number(form: str, raw: bytes, place: int) -> int:
    if place < 0:
        raise struct.error("before the beginning")
    value: int = struct.unpack_from(form, raw, place)[0]
    return value
