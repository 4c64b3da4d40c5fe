"""WAV files of plain samples, read with numpy alone: the same bits whatever audio library is installed."""

import io
import os
import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from penstock.core.records import Array

_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZE = 0xFFFFFFFF  # a program that wrote into a pipe could not fill in the size at the end
_KINDS = {
    (_INTEGERS, 8): "u1",
    (_INTEGERS, 16): "<i2",
    (_INTEGERS, 24): "",
    (_INTEGERS, 32): "<i4",
    (_FLOATS, 32): "<f4",
    (_FLOATS, 64): "<f8",
}


class BadAudio(ValueError):
    """A file that is broken, cut off, or no audio at all."""


@dataclass(frozen=True)
class WavHeader:
    """The header of a WAV file; its samples lie in `frames` times `frame_bytes` bytes from `offset`."""

    sample_rate: int
    channels: int
    frames: int
    code: int
    bits: int
    offset: int

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8

    def read(self, file: BinaryIO) -> Array:
        """All samples, float32 of (frames, channels), from -1 to 1."""
        file.seek(self.offset)
        raw = file.read(self.frames * self.frame_bytes)
        if len(raw) < self.frames * self.frame_bytes:
            raise BadAudio(f"cut off: {self.frames} frames were announced, {len(raw) // self.frame_bytes} are there")
        return _to_floats(raw, self.code, self.bits).reshape(self.frames, self.channels)


def read_header(file: BinaryIO) -> WavHeader | None:
    """The header; None where this is no WAV file, or one of compressed samples.

    Raises:
        BadAudio: It is a WAV file, but a broken one.
    """
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        return None
    size = file.seek(0, os.SEEK_END)
    offset = 12
    format_chunk = b""
    while offset + 8 <= size:
        file.seek(offset)
        kind, length = struct.unpack("<4sI", file.read(8))
        if kind == b"fmt ":
            format_chunk = file.read(min(length, 40))
        elif kind == b"data":
            return _describe(format_chunk, offset + 8, length, size)
        offset += 8 + length + length % 2
    raise BadAudio("cut off: the file ends before its samples begin")


def _describe(format_chunk: bytes, offset: int, length: int, size: int) -> WavHeader | None:
    if len(format_chunk) < 16:
        raise BadAudio("the header says nothing of the format of the samples")
    code, channels, rate, _, frame_bytes, bits = struct.unpack("<HHIIHH", format_chunk[:16])
    if code == _EXTENSIBLE and len(format_chunk) >= 26:
        (code,) = struct.unpack("<H", format_chunk[24:26])
    if (code, bits) not in _KINDS:
        return None
    if not channels or not rate or frame_bytes != channels * bits // 8:
        raise BadAudio(f"the header contradicts itself: {channels} × {bits} bits in frames of {frame_bytes} bytes")
    if rate >= 1 << 31:
        raise BadAudio(f"the header contradicts itself: {rate:,} samples a second")
    there = size - offset
    if length == _UNKNOWN_SIZE:
        length = there
    if length > there:
        frames = (length // frame_bytes, there // frame_bytes)
        raise BadAudio(f"cut off: {frames[0]} frames were announced, {frames[1]} are there")
    return WavHeader(rate, channels, length // frame_bytes, code, bits, offset)


def _to_floats(raw: bytes, code: int, bits: int) -> Array:
    if bits == 24:
        # Three bytes become the upper three of four: the same number, 256 times as large.
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        values: Array = wide.view("<i4").reshape(-1)
        bits = 32
    else:
        values = np.frombuffer(raw, _KINDS[code, bits])
    samples = values.astype(np.float32)
    if code == _FLOATS:
        return samples
    if bits == 8:
        samples -= 128
    samples *= np.float32(1 / (1 << (bits - 1)))
    return samples


def is_empty(file: BinaryIO) -> bool:
    """Whether the file has no bytes. It is rewound afterwards."""
    is_nothing = not file.read(1)
    file.seek(0, io.SEEK_SET)
    return is_nothing
