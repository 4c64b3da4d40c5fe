"""Planes of a baseline JPEG, decoded step by step as the standard and libjpeg's exact transform have it.

What a GPU's JPEG engine gives, where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.core.records import Array

_ZIGZAG = np.array(sorted(range(64), key=lambda i: (i // 8 + i % 8, i % 8 if (i // 8 + i % 8) % 2 == 0 else i // 8)))
"""The place in a block, row by row, of each of its numbers in the order of the file."""


@dataclass
class _Component:
    wide: int
    high: int
    quantum: int
    tables: tuple[int, int] = (0, 0)
    blocks: dict[tuple[int, int], Array] = field(default_factory=dict)


class _Bits:
    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._buffer, self._left = data, 0, 0, 0

    def take(self, count: int) -> int:
        while self._left < count:
            byte = self._data[self._at] if self._at < len(self._data) else 0
            self._at += 2 if byte == 0xFF else 1  # a 0 follows 0xFF
            self._buffer, self._left = self._buffer << 8 | byte, self._left + 8
        self._left -= count
        taken = self._buffer >> self._left
        self._buffer &= (1 << self._left) - 1
        return taken

    def take_code(self, codes: dict[tuple[int, int], int]) -> int:
        code = 0
        for length in range(1, 17):
            code = code << 1 | self.take(1)
            if (length, code) in codes:
                return codes[length, code]
        raise ValueError("no such code")

    def take_number(self, size: int) -> int:
        value = self.take(size)
        return value if not size or value >> (size - 1) else value - (1 << size) + 1


def planes_of(data: bytes) -> list[Array]:
    """The planes of light and of both colours, with the edges that fill up their last blocks cut off."""
    quanta: dict[int, Array] = {}
    codes: dict[int, dict[tuple[int, int], int]] = {}
    components: dict[int, _Component] = {}
    at, interval, height, width = 2, 0, 0, 0
    while True:
        marker, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        content, at = data[at + 4 : at + 2 + length], at + 2 + length
        if marker == 0xDB:
            for start in range(0, len(content), 65):
                quanta[content[start]] = np.frombuffer(content[start + 1 : start + 65], np.uint8).astype(np.int64)
        elif marker == 0xC4:
            _read_codes(content, codes)
        elif marker == 0xC0:
            height, width = content[1] << 8 | content[2], content[3] << 8 | content[4]
            for start in range(6, len(content), 3):
                number, sampling, quantum = content[start : start + 3]
                components[number] = _Component(sampling >> 4, sampling & 15, quantum)
        elif marker == 0xDD:
            interval = content[0] << 8 | content[1]
        elif marker == 0xDA:
            for start in range(1, 1 + 2 * content[0], 2):
                components[content[start]].tables = (content[start + 1] >> 4, content[start + 1] & 15)
            break
    across, down = max(c.wide for c in components.values()), max(c.high for c in components.values())
    _read_scan(
        data[at:-2], list(components.values()), codes, interval, -(-width // (8 * across)), -(-height // (8 * down))
    )
    return [
        _plane(each, quanta[each.quantum])[: -(-height * each.high // down), : -(-width * each.wide // across)]
        for each in components.values()
    ]


def _read_codes(content: bytes, codes: dict[int, dict[tuple[int, int], int]]) -> None:
    at = 0
    while at < len(content):
        table = codes[content[at]] = {}
        values, code = at + 17, 0
        for length in range(1, 17):
            for _ in range(content[at + length]):
                table[length, code] = content[values]
                values, code = values + 1, code + 1
            code <<= 1
        at = values


def _read_scan(
    scan: bytes, components: list[_Component], codes: dict[int, Any], interval: int, units_across: int, units_down: int
) -> None:
    pieces = [scan]
    for number in range(8):
        pieces = [part for piece in pieces for part in piece.split(bytes([0xFF, 0xD0 + number]))]
    bits, before = _Bits(b""), [0] * len(components)
    for unit in range(units_across * units_down):
        if unit == 0 or (interval and unit % interval == 0):
            bits, before = _Bits(pieces.pop(0)), [0] * len(components)
        row, column = divmod(unit, units_across)
        for nth, each in enumerate(components):
            for place in range(each.wide * each.high):
                block = np.zeros(64, np.int64)
                before[nth] += bits.take_number(bits.take_code(codes[each.tables[0]]))
                block[0] = before[nth]
                at = 1
                while at < 64:
                    symbol = bits.take_code(codes[16 + each.tables[1]])
                    if not symbol & 15 and symbol >> 4 != 15:
                        break
                    at += symbol >> 4
                    block[at] = bits.take_number(symbol & 15)
                    at += 1
                y, x = row * each.high + place // each.wide, column * each.wide + place % each.wide
                each.blocks[y, x] = block


def _plane(component: _Component, quanta: Array) -> Array:
    rows, columns = (1 + max(place[axis] for place in component.blocks) for axis in (0, 1))
    numbers = np.zeros((rows * columns, 64), np.int64)
    for (y, x), block in component.blocks.items():
        numbers[y * columns + x, _ZIGZAG] = block * quanta
    blocks = numbers.reshape(-1, 8, 8)
    once = _transformed(blocks.transpose(0, 2, 1), 11).transpose(0, 2, 1)
    samples = np.clip(_transformed(once, 18) + 128, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(samples.reshape(rows, columns, 8, 8).transpose(0, 2, 1, 3).reshape(rows * 8, -1))


def _transformed(given: Array, bits: int) -> Array:
    """The transform along the last axis in whole numbers of 13 bits, after Loeffler, Ligtenberg and Moschytz."""

    def fixed(value: float) -> int:
        return int(value * 8192 + 0.5)

    even = [given[..., 2 * i] for i in range(4)]
    odd = [given[..., 7 - 2 * i] for i in range(4)]
    z1 = (even[1] + even[3]) * fixed(0.541196100)
    low, high = z1 - even[3] * fixed(1.847759065), z1 + even[1] * fixed(0.765366865)
    total, difference = (even[0] + even[2]) << 13, (even[0] - even[2]) << 13
    outer, inner = (total + high, total - high), (difference + low, difference - low)
    z1, z2, z3, z4 = odd[0] + odd[3], odd[1] + odd[2], odd[0] + odd[2], odd[1] + odd[3]
    z5 = (z3 + z4) * fixed(1.175875602)
    z1, z2 = -z1 * fixed(0.899976223), -z2 * fixed(2.562915447)
    z3, z4 = z5 - z3 * fixed(1.961570560), z5 - z4 * fixed(0.390180644)
    parts = (
        odd[0] * fixed(0.298631336) + z1 + z3,
        odd[1] * fixed(2.053119869) + z2 + z4,
        odd[2] * fixed(3.072711026) + z2 + z3,
        odd[3] * fixed(1.501321110) + z1 + z4,
    )
    sums = [outer[0] + parts[3], inner[0] + parts[2], inner[1] + parts[1], outer[1] + parts[0]]
    differences = [outer[1] - parts[0], inner[1] - parts[1], inner[0] - parts[2], outer[0] - parts[3]]
    return np.stack([(each + (1 << (bits - 1))) >> bits for each in (*sums, *differences)], axis=-1)
