"""Numbers for TensorBoard: event files, written byte by byte, so that no framework is needed for them.

A file is a TFRecord file of `Event` messages. A file of a resumed run names its first step: TensorBoard then drops
later steps that earlier files of the folder have.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping

from penstock.sources.tfrecord.framing import masked_crc
from penstock.storage.disk import append_whole

_VERSION = b"brain.Event:2"
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_BEGUN = b"\x08\x01"  # SessionLog(status=START)


class ScalarEvents:
    """One event file of a run.

    Args:
        folder: The folder of the run; it is made.
        step: The first step that this file may have.
    """

    def __init__(self, folder: str, step: int) -> None:
        os.makedirs(folder, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}.{step}"
        self._file = open(os.path.join(folder, name), "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        self._write(_field(_FILE_VERSION, _BYTES, _sized(_VERSION)))
        if step > 0:
            self._write(_field(_STEP, _VARINT, _varint(step)) + _field(_SESSION_LOG, _BYTES, _sized(_BEGUN)))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the values of a step.

        Raises:
            OSError: The disk refuses.
        """
        summary = b"".join(_field(1, _BYTES, _sized(_value(tag, value))) for tag, value in scalars.items())
        self._write(_field(_STEP, _VARINT, _varint(step)) + _field(_SUMMARY, _BYTES, _sized(summary)))

    def close(self) -> None:
        self._file.close()

    def _write(self, fields: bytes) -> None:
        event = _field(_WALL_TIME, _DOUBLE, struct.pack("<d", time.time())) + fields
        length = struct.pack("<Q", len(event))
        frame = length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))
        append_whole(self._file, frame)


def _value(tag: str, value: float) -> bytes:
    return _field(1, _BYTES, _sized(tag.encode())) + _field(2, _FLOAT, struct.pack("<f", value))


def _field(number: int, kind: int, content: bytes) -> bytes:
    return bytes([number << 3 | kind]) + content


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """A number in groups of 7 bits, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
