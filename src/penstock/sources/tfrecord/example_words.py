"""Bytes read as words at any place: varints, keys, and the beginnings of entries, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.records import Array

_U = np.uint64
_STOP_BITS = _U(0x8080808080808080)


class Window:
    """Bytes that can be read as bytes and as words at any place; padded at the end."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.bytes = np.frombuffer(raw, np.uint8)
        self.words = np.ndarray((len(raw) - 7,), "<u8", raw, 0, (1,))

    def lengths(self, at: Array) -> tuple[Array, Array]:
        """The varints at these places, and where they end. One that is too long to be a length is enormous."""
        first = self.bytes[at].astype(np.int64)
        if not len(at) or int(first.max()) < 0x80:
            return first, at + 1
        values, sizes = varints(self.words[at])
        values[sizes > 5] = 1 << 40
        return values.view(np.int64), at + sizes


def varints(words: Array) -> tuple[Array, Array]:
    """The varint at the beginning of each word, and its number of bytes; 9 where it does not end in the word."""
    stops = ~words & _STOP_BITS
    lowest = stops & (~stops + _U(1))
    values = words & (lowest - _U(1))
    values &= _U(0x7F7F7F7F7F7F7F7F)
    values = (values & _U(0x007F007F007F007F)) | ((values & _U(0x7F007F007F007F00)) >> _U(1))
    values = (values & _U(0x00003FFF00003FFF)) | ((values & _U(0x3FFF00003FFF0000)) >> _U(2))
    values = (values & _U(0x000000000FFFFFFF)) | ((values & _U(0x0FFFFFFF00000000)) >> _U(4))
    # The lowest stop bit is bit 8n - 1 of a varint of n bytes: exact in a float, whose exponent tells n.
    exponents = (lowest.astype(np.float64).view(np.int64) >> 52) - 1023
    return values, np.where(stops == 0, 9, (exponents + 1) >> 3)


class Keys:
    """Names of features, found by their bytes."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self._width = max([8, *(-(-len(name) // 8) * 8 for name in names)])
        padded = b"".join(name.ljust(self._width, b"\0") for name in names)
        words = np.frombuffer(padded, "<u8").reshape(len(names), self._width // 8)
        hashes = _hash(words)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes, self._words = hashes[self._order], words[self._order]
        self._sizes = np.array([len(name) for name in names], np.int64)[self._order]
        held = np.arange(self._width + 1)[:, None] > np.arange(self._width)[None, :]
        self._masks = (held * np.uint8(255)).view("<u8")

    def find(self, window: Window, starts: Array, sizes: Array) -> Array:
        """The number of each key; -1 for one that is not wanted."""
        if not len(self._hashes):
            return np.full(len(starts), -1)
        fits = sizes <= self._width
        words = self._masks[np.where(fits, sizes, 0)]
        last = len(window.words) - 1
        for place in range(self._width // 8):
            words[:, place] &= window.words[np.minimum(starts + 8 * place, last)]
        found = np.minimum(np.searchsorted(self._hashes, _hash(words)), len(self._hashes) - 1)
        same = fits & (self._sizes[found] == sizes) & (self._words[found] == words).all(axis=1)
        return np.where(same, self._order[found], -1)


def _hash(words: Array) -> Array:
    mixed = np.zeros(len(words), _U)
    for place in range(words.shape[1]):
        mixed = (mixed ^ words[:, place]) * _U(0x9E3779B97F4A7C15)
        mixed ^= mixed >> _U(29)
    return mixed


@dataclass(frozen=True)
class Entry:
    """What the first record has at one step: the bytes from the tag of an entry to the data of its list.

    `known` says which feature it is. Where all lengths in it are single bytes, they may vary together: `unit` has a 1
    at each of them.
    """

    known: int
    kind: int
    size: int
    masks: tuple[np.uint64, ...]
    base: tuple[np.uint64, ...]
    unit: tuple[np.uint64, ...]
    data_bytes: int | None
    most: int

    def match(self, window: Window, at: Array) -> tuple[Array, Array]:
        """Which records look like this here, and where their entry ends if they do."""
        words = [window.words[at + 8 * number] for number in range(len(self.base))]
        if self.data_bytes is not None:
            same = words[0] & self.masks[0] == self.base[0]
            for word, mask, base in zip(words[1:], self.masks[1:], self.base[1:], strict=True):
                same &= word & mask == base
            return same, at + (self.size + self.data_bytes)
        data = words[-1] >> _U(8 * ((self.size - 1) % 8)) & _U(0xFF)
        same = data <= _U(self.most)
        for word, mask, base, unit in zip(words, self.masks, self.base, self.unit, strict=True):
            same &= (word & mask) == (data * unit + base if unit else base)
        return same, at + data.view(np.int64) + self.size


def learn_entry(raw: bytes, start: int, data: int, end: int, known: int, kind: int) -> Entry:
    """An entry that begins at `start`, whose data lies between `data` and `end`, as a pattern for others."""
    size = data - start
    header = raw[start:data]
    key_bytes = header[3] if header[1] < 0x80 else 0
    is_short = header[1] < 0x80
    words = -(-size // 8)
    places = (1, key_bytes + 5, key_bytes + 7, key_bytes + 9) if is_short else ()
    unit = bytearray(words * 8)
    for place in places:
        unit[place] = 1
    data_bytes = end - data
    base = bytearray(header.ljust(words * 8, b"\0"))
    for place in places:
        base[place] -= data_bytes
    mask = (b"\xff" * size).ljust(words * 8, b"\0")
    return Entry(
        known,
        kind,
        size,
        _words(mask),
        _words(base),
        _words(unit),
        None if is_short else data_bytes,
        127 - (size - 2),
    )


def _words(raw: bytes | bytearray) -> tuple[np.uint64, ...]:
    return tuple(_U(int.from_bytes(raw[place : place + 8], "little")) for place in range(0, len(raw), 8))


def unsettled(known: int) -> Entry:
    """A step at which nothing can be expected."""
    return Entry(known, 0, 8, (_U(0),), (_U(1),), (_U(0),), 0, 0)
