"""Parser of `tf.train.Example` and `tf.train.SequenceExample`, one record at a time, for all of the wire format.

It is slow. It is used for the first records of a file, from which the columns are learnt, and for records in an odd
layout, which `rewrite` puts into the one layout that `example_walk` reads in bulk.
"""

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

BYTES, FLOAT, INT64 = 1, 2, 3
"""The kinds of list in a feature, by their field numbers."""
KIND_NAMES = {BYTES: "bytes_list", FLOAT: "float_list", INT64: "int64_list"}

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINTS = re.compile(rb"(?:[\x80-\xff]{0,9}[\x00-\x7f])*")
_ONE_VARINT = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")


class BadExample(ValueError):
    """The bytes are no such message."""


@dataclass
class FeatureValues:
    """One feature. Numbers stay as they are packed: 4 bytes each, or varints."""

    kind: int = 0
    packed: bytearray = field(default_factory=bytearray)
    values: list[bytes] = field(default_factory=list)

    @property
    def count(self) -> int:
        if self.kind == BYTES:
            return len(self.values)
        return len(self.packed) // 4 if self.kind == FLOAT else sum(byte < 0x80 for byte in self.packed)


@dataclass
class Message:
    """A record. `lists` are the feature lists of a SequenceExample; an Example has none."""

    features: dict[bytes, FeatureValues] = field(default_factory=dict)
    lists: dict[bytes, list[FeatureValues]] = field(default_factory=dict)


@dataclass(frozen=True)
class WantedFeatures:
    """The features and feature lists to read; None for all. For the others, only their ends are found."""

    features: Container[bytes] | None = None
    lists: Container[bytes] | None = None


EVERYTHING = WantedFeatures()


def parse(raw: bytes, is_sequence: bool, wanted: WantedFeatures = EVERYTHING) -> Message:
    """A record as a message.

    Raises:
        BadExample: The record is no such message.
    """
    message = Message()
    for number, wire, value in _fields(raw):
        if number == 1 and wire == _LENGTH:
            for key, entry in _entries(value):
                if wanted.features is None or key in wanted.features:
                    message.features[key] = _feature(entry)
        elif number == 2 and wire == _LENGTH and is_sequence:
            for key, entry in _entries(value):
                if wanted.lists is None or key in wanted.lists:
                    message.lists[key] = [_feature(one) for n, w, one in _fields(entry) if n == 1 and w == _LENGTH]
    return message


def is_sequence(raw: bytes) -> bool:
    """Whether a record has feature lists: the only difference between a SequenceExample and an Example."""
    try:
        return bool(parse(raw, is_sequence=True).lists)
    except BadExample:
        return False


def _fields(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and bytes of every field, in order."""
    offset = 0
    while offset < len(raw):
        tag, offset = _varint(raw, offset)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise BadExample(f"a field has the number {number}")
        if wire == _VARINT:
            _, end = _varint(raw, offset)
        elif wire == _LENGTH:
            length, offset = _varint(raw, offset)
            end = offset + length
        elif wire in (_FIXED32, _FIXED64):
            end = offset + (4 if wire == _FIXED32 else 8)
        else:
            raise BadExample(f"a field has the wire type {wire}")
        if end > len(raw):
            raise BadExample("a field is longer than what holds it")
        yield number, wire, raw[offset:end]
        offset = end


def _varint(raw: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(offset, min(offset + 10, len(raw))):
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + 1
        shift += 7
    raise BadExample("a number does not end")


def _entries(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a map and the messages behind them. Joining the pieces of a message merges them."""
    for number, wire, entry in _fields(raw):
        if number != 1 or wire != _LENGTH:
            continue
        key, value = b"", b""
        for inner, inner_wire, piece in _fields(entry):
            if inner == 1 and inner_wire == _LENGTH:
                key = piece
            elif inner == 2 and inner_wire == _LENGTH:
                value += piece
        yield key, value


def _feature(raw: bytes) -> FeatureValues:
    feature = FeatureValues()
    for number, wire, value in _fields(raw):
        if number not in KIND_NAMES or wire != _LENGTH:
            continue
        if number != feature.kind:
            feature = FeatureValues(number)  # one of three: the last one counts
        for inner, inner_wire, piece in _fields(value):
            if inner == 1:
                _add(feature, inner_wire, piece)
    return feature


def _add(feature: FeatureValues, wire: int, piece: bytes) -> None:
    """One value, or a run of packed ones."""
    if feature.kind == BYTES:
        if wire == _LENGTH:
            feature.values.append(piece)
    elif feature.kind == FLOAT:
        if wire == _FIXED32 or (wire == _LENGTH and len(piece) % 4 == 0):
            feature.packed += piece
        elif wire == _LENGTH:
            raise BadExample(f"a float_list has {len(piece)} bytes")
    elif wire == _VARINT or (wire == _LENGTH and _VARINTS.fullmatch(piece)):
        feature.packed += piece
    elif wire == _LENGTH:
        raise BadExample("an int64_list is no run of numbers")


def integers(packed: bytes) -> list[int]:
    """The numbers in a packed int64_list."""
    values = [_varint(one, 0)[0] for one in _ONE_VARINT.findall(packed)]
    return [value - (1 << 64) if value >> 63 else value for value in values]


def rewrite(raw: bytes, is_sequence: bool, wanted: WantedFeatures) -> bytes:
    """The same record in the plain layout: keys once and before their values, lists packed, only what is wanted.

    Raises:
        BadExample: It is no such message.
    """
    return pack(parse(raw, is_sequence, wanted))


def pack(message: Message) -> bytes:
    """A message in the plain layout."""
    features = b"".join(_pack_entry(key, _pack_feature(one)) for key, one in message.features.items())
    packed = pack_field(1, features) if features else b""
    lists = b"".join(
        _pack_entry(key, b"".join(pack_field(1, _pack_feature(one)) for one in some))
        for key, some in message.lists.items()
    )
    return packed + (pack_field(2, lists) if lists else b"")


def _pack_entry(key: bytes, value: bytes) -> bytes:
    return pack_field(1, pack_field(1, key) + pack_field(2, value))


def _pack_feature(feature: FeatureValues) -> bytes:
    if not feature.kind:
        return b""
    if feature.kind == BYTES:
        return pack_field(BYTES, b"".join(pack_field(1, value) for value in feature.values))
    return pack_field(feature.kind, pack_field(1, bytes(feature.packed)) if feature.packed else b"")


def pack_field(number: int, value: bytes) -> bytes:
    return pack_varint(number << 3 | _LENGTH) + pack_varint(len(value)) + value


def pack_varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
