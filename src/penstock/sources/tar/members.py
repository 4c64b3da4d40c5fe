"""The members of a tar file, in order, from any member on. Damaged bytes are skipped and reported.

Only names and places are read here. Nothing is ever written or followed: `../` and absolute paths are just names.
Python's `tarfile` stops at the first damage, and takes three times as long for a member (measured: 70 µs against 23).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 512
_ZEROS = bytes(BLOCK)
_MAGIC_AT = 257
_SCAN_BYTES = 1 << 20
_LONGEST_NAME = 1 << 20

CUT = "cut: the archive ends inside it"
FOLDER = "a folder"
_FILE_KINDS, _EMPTY_KINDS = (b"0", b"\0", b"7"), (b"1", b"2", b"3", b"4", b"5", b"6")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"
_KINDS = {
    b"1": "a hard link",
    b"2": "a link",
    b"3": "a device",
    b"4": "a device",
    b"5": FOLDER,
    b"6": "a pipe",
    b"S": "a sparse file",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One member: where its headers begin, where its content lies, and why it cannot be read, if so."""

    start: int
    name: str
    offset: int
    size: int
    problem: str | None = None

    @property
    def end(self) -> int:
        return self.offset + -(-self.size // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of an archive that cannot be read."""

    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} at byte {self.start}; {self.end - self.start:,} bytes cannot be read"


class NotATar(ValueError):
    """The file does not begin with a member."""


def walk(file: BinaryIO, length: int, start: int = 0, stop: int | None = None) -> Iterator[Member | Damage]:
    """Members that begin in `start` to `stop`, without folders, and the damage between them.

    After a broken header, the search goes on to the next whole one. Blocks of zeros end an archive; whatever follows
    them is read, too, as archives may be joined. An archive without them was cut, or never finished: that is damage at
    the place `length`, and part of the walk where `stop` is larger.

    Raises:
        NotATar: There is no member at all at the start of the file.
    """
    offset = start
    stop = length + 1 if stop is None else stop
    is_ended = is_cut = False
    while offset < min(stop, length):
        file.seek(offset)
        header = file.read(BLOCK)
        if header == _ZEROS:
            offset, is_ended = offset + BLOCK, True
            continue
        member_or_problem = _member(file, header, offset, length)
        if isinstance(member_or_problem, Member):
            offset, is_ended, is_cut = member_or_problem.end, False, member_or_problem.problem == CUT
            if member_or_problem.problem != FOLDER:
                yield member_or_problem
            continue
        following = _next_header(file, offset + 1, length)
        if offset == 0 and following is None:
            raise NotATar(member_or_problem)
        end = length if following is None else following
        if not is_ended or following is not None:
            yield Damage(offset, end, member_or_problem)
        offset, is_ended = end, True
    if stop > length and not is_ended and not is_cut:
        yield Damage(min(offset, length), length, "the archive has no end: it was cut, or never finished,")


def _member(file: BinaryIO, header: bytes, offset: int, length: int) -> Member | str:
    """The member whose headers begin at `offset`, or what is wrong with them."""
    start = offset
    name: bytes | None = None
    size: int | None = None
    while True:
        if not is_header(header):
            return "the archive ends inside a header" if len(header) < BLOCK else "a header is damaged"
        kind = header[156:157]
        stored = _number(header[124:136])
        if stored is None or stored < 0:
            return "a header is damaged"
        if kind not in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            break
        if stored > _LONGEST_NAME:
            return "a header is damaged"
        content = file.read(stored)
        if kind == _LONG_NAME:
            name = content.rstrip(b"\0")
        elif kind == _PAX:
            extended = _pax(content)
            name = extended.get(b"path", name)
            size = _decimal(extended.get(b"size")) if b"size" in extended else size
        offset += BLOCK + -(-stored // BLOCK) * BLOCK
        file.seek(offset)
        header = file.read(BLOCK)
    size = stored if size is None else size
    problem = _KINDS.get(kind, "of an unknown kind") if kind not in _FILE_KINDS else None
    if kind in _EMPTY_KINDS:
        size = 0
    elif problem is None and offset + BLOCK + size > length:
        problem = CUT
    text = (_stored_name(header) if name is None else name).decode("utf-8", "backslashreplace")
    return Member(start, text, offset + BLOCK, size, problem)


def is_header(block: bytes) -> bool:
    """Whether a block is a header: its checksum, which counts the bytes of itself as spaces, is right."""
    if len(block) < BLOCK:
        return False
    checksum = _number(block[148:156])
    return checksum is not None and checksum == sum(block) - sum(block[148:156]) + 8 * 32


def _next_header(file: BinaryIO, offset: int, length: int) -> int | None:
    """The next block that is a header, by its magic word and its checksum."""
    offset = -(-offset // BLOCK) * BLOCK
    while offset < length:
        file.seek(offset)
        raw = file.read(_SCAN_BYTES)
        magic = raw.find(b"ustar")
        while magic >= 0:
            block = magic - _MAGIC_AT
            if block >= 0 and block % BLOCK == 0 and is_header(raw[block : block + BLOCK]):
                return offset + block
            magic = raw.find(b"ustar", magic + 1)
        offset += _SCAN_BYTES
    return None


def _number(field: bytes) -> int | None:
    """A number of a header: octal digits, or binary with the first bit set."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1) if field[0] == 0x80 else None
    digits = field.split(b"\0", 1)[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


def _decimal(digits: bytes | None) -> int | None:
    return int(digits) if digits is not None and digits.isdigit() else None


def _stored_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(content: bytes) -> dict[bytes, bytes]:
    """Records of `length key=value` and a line feed."""
    records: dict[bytes, bytes] = {}
    while content:
        length = _decimal(content.split(b" ", 1)[0]) or 0
        record = content[:length]
        key, equals, value = record[record.find(b" ") + 1 :].rstrip(b"\n").partition(b"=")
        if not length or not equals:
            break
        records[key] = value
        content = content[length:]
    return records
