"""The frame of TFRecord files: length, checksum of the length, data, checksum of the data.

A file is scanned once, from record to record; the data is checked when it is read. Where a length is broken, the chain
of records is lost: the scan looks for the next place that can be a length, and all bytes before it are one failed row.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np

from penstock.core.records import Array
from penstock.sources.files.tapes import PIECE_BYTES, PLAIN, Tape, changed, compression_of, head_of

HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
PAD = bytes(64)
"""These bytes follow those of every frame, so that words can be read at any place in it."""

_KNOWN_LENGTHS = 1 << 14
_STRIDE_TRIAL = 8
"""After this many records of one length, it is worth comparing the headers of many at once."""
_LARGEST = 1 << 40
MOST_RECORD = 512 << 20
"""A longer record fails and is not read, because memory would have to hold it."""
_MOST_LOST = MOST_RECORD
"""How far behind a broken record the next one is searched for: no record that is read is longer."""
MOST_BEFORE = 64 << 20
"""How far the first record of a file is searched for: a compressed file without records may inflate to any length."""
_MOST_RECORDS = 4096
"""The most records that are read at once: what is noted of each must not take more memory than small records."""
_SMALL_PIECE = 64 << 10
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """The CRC32C as it stands in a TFRecord file: rotated, and with a constant added."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked_crcs(messages: Iterable[bytes]) -> Array:
    """The checksums of many messages."""
    return _masked(np.fromiter(map(google_crc32c.value, messages), np.uint32))


def _masked(crcs: Array) -> Array:
    return (crcs >> 15 | crcs << 17) + np.uint32(_MASK_DELTA)


def _word_tables() -> list[Array]:
    """Tables for each position in a word of 8 bytes: the share of each byte value in the word's checksum."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    tables = [table]
    for _ in range(7):
        tables.insert(0, table[tables[0] & 0xFF] ^ (tables[0] >> 8))
    return tables


_WORD_TABLES = _word_tables()


def masked_crcs_of_words(raw: Array, at: Array) -> Array:
    """The checksums of the 8 bytes of `raw` at each position, computed together: a million calls would be slow."""
    crcs = np.full(len(at), 0xFFFFFFFF, np.uint32)
    for position, table in enumerate(_WORD_TABLES):
        values = raw[at + position]
        crcs ^= table[values ^ 0xFF if position < 4 else values]
    return _masked(crcs)


@dataclass(frozen=True)
class Gap:
    """Bytes that are no record: one failed row. `end` is where reading goes on."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Stretch:
    """A run of rows, records and gaps, each of which begins where the one before it ends."""

    ends: Array
    gaps: tuple[Gap, ...] = ()
    is_lost: bool = False
    """Whether the chain of records was lost here, and not just cut off."""


@dataclass(frozen=True)
class Frames:
    """Records in memory: `raw` (padded), where their data begins and stops in it, where they lie in the file.

    `reasons` says which rows are broken, and why; their data is empty.
    """

    raw: bytes
    starts: Array
    stops: Array
    offsets: Array
    reasons: dict[int, str]

    def whole(self, most: int) -> list[bytes]:
        """The data of the first records that are not broken."""
        rows = [row for row in range(len(self.starts)) if row not in self.reasons][:most]
        return [self.raw[int(self.starts[row]) : int(self.stops[row])] for row in rows]


def how_compressed(path: str) -> str:
    """How a file is compressed, by its content: a plain TFRecord begins with a length that has a right checksum."""
    head = head_of(path, HEADER_BYTES)
    return PLAIN if length_of(head) is not None else compression_of(head)


def length_of(header: bytes) -> int | None:
    """The length of the data behind these 12 bytes; None where the checksum is wrong."""
    if len(header) < HEADER_BYTES or masked_crc(header[:8]) != int.from_bytes(header[8:12], "little"):
        return None
    return int.from_bytes(header[:8], "little")


class Hopper:
    """Goes from record to record inside a piece of bytes.

    It remembers headers that were right: records often have one of a few lengths, and looking a header up costs
    a third of its checksum.
    """

    def __init__(self) -> None:
        self._lengths: dict[bytes, int] = {}

    def length(self, header: bytes) -> int | None:
        length = self._lengths.get(header)
        if length is None:
            length = length_of(header)
            if length is not None and len(self._lengths) < _KNOWN_LENGTHS:
                self._lengths[header] = length
        return length

    def hop(self, raw: bytes, size: int, most: int) -> list[int]:
        """The ends of whole records from the beginning of `raw[:size]` on, at most `most` of them."""
        ends: list[int] = []
        offset, same, last, lengths = 0, 0, b"", self._lengths
        while offset + FRAME_BYTES <= size and len(ends) < most:
            header = raw[offset : offset + HEADER_BYTES]
            length = lengths.get(header)
            if length is None and (length := self.length(header)) is None:
                break
            end = offset + length + FRAME_BYTES
            if end > size:
                break
            ends.append(end)
            same = same + 1 if header == last else 0
            offset, last = end, header
            if same >= _STRIDE_TRIAL:
                count = _repeated(raw, offset, size, header, length + FRAME_BYTES, min(16 * same, most - len(ends)))
                stride = length + FRAME_BYTES
                ends += range(offset + stride, offset + (count + 1) * stride, stride)
                offset, same = ends[-1], (same + count if count else 0)
        return ends


def _repeated(raw: bytes, offset: int, size: int, header: bytes, stride: int, most: int) -> int:
    """How many whole records with this very header follow each other from `offset` on."""
    count = min(most, (size - offset) // stride)
    if count <= 0:
        return 0
    headers = np.ndarray((count,), f"V{HEADER_BYTES}", raw, offset, (stride,))
    words = np.ascontiguousarray(headers).view("<u4").reshape(-1, 3)
    differs = (words != np.frombuffer(header, "<u4")).any(axis=1)
    return int(np.argmax(differs)) if differs.any() else count


class Scan:
    """The rows of a tape from front to back, found without reading the data where the tape can skip it."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._hopper = Hopper()
        self._raw = b""
        self._offset = 0
        self._wanted = PIECE_BYTES
        self._is_over = False

    def stretches(self) -> Iterator[Stretch]:
        while not self._is_over and self._fill(HEADER_BYTES):
            ends = self._hopper.hop(self._raw, len(self._raw), len(self._raw))
            if ends:
                yield Stretch(np.array(ends, np.int64) + self._offset)
                self._drop(ends[-1])
            else:
                yield self._one()
        if not self._is_over and (self._raw or self._tape.problem is not None):
            yield self._tail(self._offset, None)

    def _one(self) -> Stretch:
        """Handle a record that is not whole in memory: one that goes on, a cut one, or a broken one."""
        length = self._hopper.length(self._raw[:HEADER_BYTES])
        if length is None:
            return self._gap()
        start, size = self._offset, length + FRAME_BYTES
        # Records this large are not worth reading ahead into the next.
        self._wanted = _SMALL_PIECE if size > PIECE_BYTES else PIECE_BYTES
        if not self._skip(size):
            return self._tail(start, length)
        gaps: tuple[Gap, ...] = ()
        if length > MOST_RECORD:
            gaps = (Gap(start, start + size, f"the record has {length:,} bytes; at most {MOST_RECORD:,} are read"),)
        return Stretch(np.array([start + size], np.int64), gaps)

    def _gap(self) -> Stretch:
        start = self._offset
        self._drop(1)
        while True:
            is_more = self._fill(PIECE_BYTES)
            header = _find_header(self._raw, _LARGEST)
            if header is not None:
                self._drop(header)
                break
            if not is_more:
                self._drop(len(self._raw))
                break
            self._drop(len(self._raw) - HEADER_BYTES + 1)
            if self._offset - start > (_MOST_LOST if start else MOST_BEFORE):
                self._is_over = True
                break
        reason = f"the length of a record is broken: bytes {start} to {self._offset} are skipped"
        if self._is_over:
            reason += ", and all that comes after them: no record begins there"
        return Stretch(np.array([self._offset], np.int64), (Gap(start, self._offset, reason),), True)

    def _tail(self, start: int, length: int | None) -> Stretch:
        """A record that is not whole, or the place where compressed data breaks off."""
        end_of_data = self._offset + len(self._raw)
        record = "a record" if length is None else f"a record of {length} bytes"
        problem = self._tape.problem or "the file is cut"
        reason = f"{problem}: {record} at byte {start} is not whole, {end_of_data - start} bytes of it are there"
        # Bytes just before damage may inflate in another way the next time, so they are never read again.
        end = start if self._tape.problem is not None else end_of_data
        self._raw, self._tape.problem = b"", None
        return Stretch(np.array([end], np.int64), (Gap(start, end, reason),))

    def _fill(self, nbytes: int) -> bool:
        """Read until `nbytes` are in memory; False where the tape ends before."""
        if len(self._raw) < nbytes:
            self._raw += self._tape.read(max(nbytes, self._wanted) - len(self._raw))
        return len(self._raw) >= nbytes

    def _drop(self, nbytes: int) -> None:
        self._raw = self._raw[nbytes:]
        self._offset += nbytes

    def _skip(self, nbytes: int) -> bool:
        """Move on past what is in memory; False where the tape ends before."""
        beyond = nbytes - len(self._raw)
        if beyond <= 0:
            self._drop(nbytes)
            return True
        self._drop(len(self._raw))
        moved = self._tape.skip(beyond)
        self._offset += moved
        return moved == beyond


def _find_header(raw: bytes, largest: int) -> int | None:
    """The first place in `raw` that can be the beginning of a record: a length with a right checksum."""
    count = len(raw) - HEADER_BYTES + 1
    if count <= 0:
        return None
    lengths = np.ndarray((count,), "<u8", raw, 0, (1,))
    checks = np.ndarray((count,), "<u4", raw, 8, (1,))
    is_wanted = lengths < largest
    is_wanted[1:] &= (lengths[1:] != lengths[:-1]) | (checks[1:] != checks[:-1])  # gigabytes of zeros are one case
    places = np.flatnonzero(is_wanted)
    for some in np.array_split(places, len(places) // (1 << 16) + 1):
        if len(some):
            right = some[masked_crcs_of_words(np.frombuffer(raw, np.uint8), some) == checks[some]]
            if len(right):
                return int(right[0])
    return None


Fetch = Callable[[int, int], bytes]
"""From a place and a number of bytes to the bytes there; fewer where they end. Places only grow."""


def frames_of(fetch: Fetch, first: int, end: int, gaps: Sequence[Gap], path: str) -> Iterator[Frames]:
    """The rows between two places of a file; checksums are checked.

    Raises:
        InputError: The records are not where they were when the file was scanned.
    """
    hopper, offset, waiting, wanted = Hopper(), first, list(gaps), PIECE_BYTES
    while offset < end or waiting:
        if waiting and offset == waiting[0].start:
            gap = waiting.pop(0)
            offset = gap.end
            yield _broken(gap)
            continue
        left = (waiting[0].start if waiting else end) - offset
        # A little more than is needed: the extra bytes serve as the pad, which would cost another copy of everything.
        raw = fetch(offset, min(wanted, left) + len(PAD))
        ends = hopper.hop(raw, min(len(raw), left), _MOST_RECORDS)
        if ends:
            yield _checked(raw if ends[-1] + len(PAD) <= len(raw) else raw + PAD, np.array(ends, np.int64), offset)
            offset, wanted = offset + ends[-1], PIECE_BYTES
            continue
        length = hopper.length(raw[:HEADER_BYTES])
        if length is None or length + FRAME_BYTES > left or wanted >= length + FRAME_BYTES:
            raise changed(path)
        wanted = length + FRAME_BYTES


def _broken(gap: Gap) -> Frames:
    nothing = np.zeros(1, np.int64)
    return Frames(PAD, nothing, nothing, np.array([gap.start], np.int64), {0: gap.reason})


def _checked(raw: bytes, ends: Array, offset: int) -> Frames:
    offsets = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    starts, stops = offsets + HEADER_BYTES, ends - FOOTER_BYTES
    slices = map(slice, starts.tolist(), stops.tolist())
    crcs = masked_crcs(map(raw.__getitem__, slices))
    stored_crcs = np.ndarray((len(raw) - 3,), "<u4", raw, 0, (1,))[stops]
    reasons: dict[int, str] = {}
    for row in np.flatnonzero(crcs != stored_crcs).tolist():
        reasons[row] = f"the checksum of the data is wrong: {int(stops[row] - starts[row])} bytes of data"
        stops[row] = starts[row]
    return Frames(raw, starts, stops, offsets + offset, reasons)


def pack_record(data: bytes) -> bytes:
    """A record as it stands in a file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data))))
