"""FlatBuffers, read without a schema: tables, vectors and strings, every offset checked against the end of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.models.facts import Malformed


@dataclass(frozen=True)
class Table:
    """A table at a position in a buffer. Fields are named by their number in the schema, from 0."""

    buffer: memoryview
    position: int

    def text(self, field: int) -> str:
        """A string; empty where the field is not set."""
        return bytes(self.data(field)).decode("utf-8", "replace")

    def data(self, field: int) -> memoryview:
        """A string or a vector of bytes."""
        start = self._target(field)
        if start is None:
            return memoryview(b"")
        length = _unsigned(self.buffer, start, 4)
        return _slice(self.buffer, start + 4, length)

    def number(self, field: int, width: int) -> int:
        """An unsigned number of `width` bytes; 0 where the field is not set."""
        offset = self._offset(field)
        return _unsigned(self.buffer, self.position + offset, width) if offset else 0

    def tables(self, field: int) -> Iterator[Table]:
        """The tables of a vector of tables."""
        start = self._target(field)
        if start is None:
            return
        for index in range(_unsigned(self.buffer, start, 4)):
            position = start + 4 + 4 * index
            yield Table(self.buffer, position + _unsigned(self.buffer, position, 4))

    def has(self, field: int) -> bool:
        return self._offset(field) != 0

    def _offset(self, field: int) -> int:
        back = int.from_bytes(_slice(self.buffer, self.position, 4), "little", signed=True)
        vtable = self.position - back
        entry = 4 + 2 * field
        return _unsigned(self.buffer, vtable + entry, 2) if entry < _unsigned(self.buffer, vtable, 2) else 0

    def _target(self, field: int) -> int | None:
        offset = self._offset(field)
        if not offset:
            return None
        position = self.position + offset
        return position + _unsigned(self.buffer, position, 4)


def root(buffer: memoryview) -> Table:
    """The table that a buffer holds."""
    return Table(buffer, _unsigned(buffer, 0, 4))


def _unsigned(buffer: memoryview, position: int, width: int) -> int:
    return int.from_bytes(_slice(buffer, position, width), "little")


def _slice(buffer: memoryview, position: int, length: int) -> memoryview:
    if position < 0 or position + length > len(buffer):
        raise Malformed("an offset that leads out of the file")
    return buffer[position : position + length]
