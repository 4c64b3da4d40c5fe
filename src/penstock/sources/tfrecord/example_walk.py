"""Finds the features of many records at once.

The wire format says where a field ends only at its beginning, so a record must be walked; but records of one file look
alike, and one step of the walk is taken by all records together. Each step first tries what the first record has at
this place (same key, same widths), which a comparison of two or three words settles; the steps of records that differ
are then read in the general way, all together. Records in an odd layout are named; `examples.rewrite` mends them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.records import Array
from penstock.sources.tfrecord.examples import BYTES, FLOAT, INT64

MANY = 4
"""A bytes_list of no or several values: `inner` is where the list begins."""
_ENTRY, _KEY, _VALUE = 0x0A, 0x0A, 0x12
_KIND_OF_TAG = np.zeros(256, np.int8)
_KIND_OF_TAG[[0x0A, 0x12, 0x1A]] = (BYTES, FLOAT, INT64)

_MOST_STEPS = 256
"""Up to this many steps are taken by all records together; the few records with more fields are then walked alone."""
_FEW = 16

_U = np.uint64
_STOP_BITS = _U(0x8080808080808080)


class Window:
    """Bytes that can be read as bytes and as words at any place; padded at the end."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.bytes = np.frombuffer(raw, np.uint8)
        self.words = np.ndarray((len(raw) - 7,), "<u8", raw, 0, (1,))

    def lengths(self, at: Array) -> tuple[Array, Array]:
        """The varints at these places, and where they end. One that is too long to be a length becomes 2**40."""
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
        for word in range(self._width // 8):
            words[:, word] &= window.words[np.minimum(starts + 8 * word, last)]
        nearest = np.minimum(np.searchsorted(self._hashes, _hash(words)), len(self._hashes) - 1)
        same = fits & (self._sizes[nearest] == sizes) & (self._words[nearest] == words).all(axis=1)
        return np.where(same, self._order[nearest], -1)


def _hash(words: Array) -> Array:
    mixed = np.zeros(len(words), _U)
    for word in range(words.shape[1]):
        mixed = (mixed ^ words[:, word]) * _U(0x9E3779B97F4A7C15)
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
    for position in places:
        unit[position] = 1
    data_bytes = end - data
    base = bytearray(header.ljust(words * 8, b"\0"))
    for position in places:
        base[position] -= data_bytes
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
    return tuple(_U(int.from_bytes(raw[offset : offset + 8], "little")) for offset in range(0, len(raw), 8))


def unsettled(known: int) -> Entry:
    """A step whose entry cannot be predicted."""
    return Entry(known, 0, 8, (_U(0),), (_U(1),), (_U(0),), 0, 0)


@dataclass
class FoundFeatures:
    """For each wanted feature (first axis) and record: its kind, and where its data lies.

    `starts` to `ends` is the data: packed numbers, or the one value of a bytes_list. `inner` is where the list begins.
    A kind of 0 is a feature that is not there. `odd` names the records that could not be read this way.
    """

    kinds: Array
    inner: Array
    starts: Array
    ends: Array
    odd: Array
    unexpected: int = 0
    """How many entries the pattern did not settle."""

    @classmethod
    def nothing(cls, features: int, records: int) -> FoundFeatures:
        inner, starts, ends = np.zeros((3, features, records), np.int64)
        return cls(np.zeros((features, records), np.int8), inner, starts, ends, np.zeros(records, np.bool_))


@dataclass
class Lists:
    """The features inside feature lists, each with its list's name and record, in their order."""

    known: Array
    record: Array
    kinds: Array
    inner: Array
    starts: Array
    ends: Array
    present: Array
    """Whether a record has a list at all; the axes are names and records."""


@dataclass
class _Entries:
    """Entries of maps: which record, and where they begin and end."""

    record: Array
    starts: Array
    ends: Array


def walk(
    window: Window, starts: Array, stops: Array, keys: Keys, features: int, pattern: Sequence[Entry]
) -> FoundFeatures:
    """The wanted features of Examples. `pattern` is what the first record has, step by step."""
    found = FoundFeatures.nothing(features, len(starts))
    begins, ends = _only_field(window, starts, stops, found)
    rest = _walk_by_pattern(window, begins, ends, found, pattern)
    found.unexpected = len(rest.record)
    _read_entries(window, rest, keys, found)
    return found


def _only_field(window: Window, starts: Array, stops: Array, found: FoundFeatures) -> tuple[Array, Array]:
    """Where the features of each record lie: in field 1, which must be its only field. An empty record has none."""
    lengths, begins = window.lengths(starts + 1)
    fits = (window.bytes[starts] == _ENTRY) & (begins + lengths == stops)
    found.odd |= ~fits & (stops > starts)
    return np.where(fits, begins, stops), stops


def _walk_by_pattern(
    window: Window, at: Array, limits: Array, found: FoundFeatures, pattern: Sequence[Entry]
) -> _Entries:
    """Step through the entries of all records together; returns those that the pattern did not settle."""
    records: Array | slice = slice(None)
    rest: list[_Entries] = []
    step = 0
    while True:
        is_left = at < limits
        if not is_left.all():
            numbers = np.arange(len(found.odd))[records]
            records, at, limits = numbers[is_left], at[is_left], limits[is_left]
        if not len(at):
            return _joined(rest)
        if step > 2 * len(pattern) + _MOST_STEPS:
            found.odd[records] = True
            return _joined(rest)
        if step < len(pattern):
            at = _step_by_entry(window, at, limits, records, found, pattern[step], rest)
        else:
            at = _step(window, at, limits, np.arange(len(found.odd))[records], found.odd, rest)
        step += 1


def _step_by_entry(
    window: Window,
    at: Array,
    limits: Array,
    records: Array | slice,
    found: FoundFeatures,
    entry: Entry,
    rest: list[_Entries],
) -> Array:
    same, ends = entry.match(window, at)
    same &= ends <= limits
    if same.all():
        _store(found, entry, records, at, ends)
        return ends
    numbers = np.arange(len(found.odd))[records]
    _store(found, entry, numbers[same], at[same], ends[same])
    differs = ~same
    ends[differs] = _step(window, at[differs], limits[differs], numbers[differs], found.odd, rest)
    return ends


def _store(found: FoundFeatures, entry: Entry, records: Array | slice, at: Array, ends: Array) -> None:
    if entry.known < 0:
        return
    found.kinds[entry.known, records] = entry.kind
    found.starts[entry.known, records] = at + entry.size
    found.ends[entry.known, records] = ends
    if entry.kind == BYTES:
        found.inner[entry.known, records] = at + (entry.size - 2)


def _step(
    window: Window, at: Array, limits: Array, records: Array, odd: Array, rest: list[_Entries], tag: int = _ENTRY
) -> Array:
    """One entry of each record, whatever it is; returns where it ends. A record that has no entry here is odd."""
    lengths, begins = window.lengths(at + 1)
    ends = begins + lengths
    fits = (window.bytes[at] == tag) & (ends <= limits)
    if fits.all():
        rest.append(_Entries(records, begins, ends))
        return ends
    odd[records[~fits]] = True
    rest.append(_Entries(records[fits], begins[fits], ends[fits]))
    return np.where(fits, ends, limits)


def _joined(rest: Sequence[_Entries]) -> _Entries:
    if len(rest) == 1:
        return rest[0]
    nothing = np.zeros(0, np.int64)
    some = rest or [_Entries(nothing, nothing, nothing)]
    return _Entries(*(np.concatenate([getattr(one, name) for one in some]) for name in ("record", "starts", "ends")))


def _read_entries(window: Window, entries: _Entries, keys: Keys, found: FoundFeatures) -> None:
    if not len(entries.record):
        return
    known, values = _read_keys(window, entries, keys, found.odd)
    wanted = known >= 0
    known, record = known[wanted], entries.record[wanted]
    seen = np.full(found.kinds.shape, -1, np.int64)
    order = np.arange(len(known))
    seen[known, record] = order
    # Two entries of one key: the last one counts, which `examples.rewrite` finds.
    found.odd[record[(seen[known, record] != order) | (found.kinds[known, record] != 0)]] = True
    kinds, inner, starts, ends, fits = _read_features(window, values[wanted], entries.ends[wanted])
    fits &= ~_has_broken_values(window, kinds, inner, ends)
    found.odd[record[~fits]] = True
    places = (known[fits], record[fits])
    found.kinds[places], found.inner[places] = kinds[fits], inner[fits]
    found.starts[places], found.ends[places] = starts[fits], ends[fits]


def _read_keys(window: Window, entries: _Entries, keys: Keys, odd: Array) -> tuple[Array, Array]:
    """The number of each entry's key, -1 where it is of no interest, and where its value begins."""
    key_bytes, key_starts = window.lengths(entries.starts + 1)
    key_ends = key_starts + key_bytes
    fits = (window.bytes[entries.starts] == _KEY) & (key_ends < entries.ends)
    tag_at = np.where(fits, key_ends, 0)
    value_bytes, values = window.lengths(tag_at + 1)
    fits &= (window.bytes[tag_at] == _VALUE) & (values + value_bytes == entries.ends)
    odd[entries.record[~fits]] = True
    return np.where(fits, keys.find(window, key_starts, key_bytes), -1), values


def _read_features(window: Window, begins: Array, ends: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Kind, beginning of the list, beginning and end of the data of each feature; and which are in plain layout."""
    is_there = begins < ends
    kinds = np.where(is_there, _KIND_OF_TAG[window.bytes[begins]], 0).astype(np.int8)
    list_bytes, inner = window.lengths(begins + 1)
    fits = ~is_there | ((kinds != 0) & (inner + list_bytes == ends))
    inner = np.where(is_there & fits, inner, ends)
    data_bytes, starts = window.lengths(inner + 1)
    is_one = (inner < ends) & (window.bytes[inner] == _KEY) & (starts + data_bytes == ends)
    is_many = ~is_one & (kinds == BYTES)
    fits &= is_one | (inner == ends) | is_many
    kinds[is_many] = MANY
    return kinds, inner, np.where(is_one, starts, inner), ends, fits


def _has_broken_values(window: Window, kinds: Array, inner: Array, ends: Array) -> Array:
    """Which bytes_lists of several values hold anything but values."""
    broken = np.zeros(len(kinds), np.bool_)
    many = np.flatnonzero((kinds == MANY) & (inner < ends))
    if len(many):
        _repeated(window, _Entries(many, inner[many], ends[many]), broken)
    return broken


def walk_sequences(
    window: Window, starts: Array, stops: Array, keys: tuple[Keys, Keys], sizes: tuple[int, int]
) -> tuple[FoundFeatures, Lists]:
    """The wanted features and feature lists of SequenceExamples: by name, `keys` and `sizes` are for both."""
    found = FoundFeatures.nothing(sizes[0], len(starts))
    fields: list[_Entries] = []
    records = np.flatnonzero(stops > starts)
    at, limits = starts[records], stops[records]
    has_context = window.bytes[at] == _ENTRY
    at[has_context] = _step(window, at[has_context], limits[has_context], records[has_context], found.odd, fields)
    context = _joined(fields)
    fields = []
    more = at < limits
    at = _step(window, at[more], limits[more], records[more], found.odd, fields, _VALUE)
    found.odd[records[more][at < limits[more]]] = True
    _read_entries(window, _repeated(window, context, found.odd), keys[0], found)
    entries = _repeated(window, _joined(fields), found.odd)
    known, values = _read_keys(window, entries, keys[1], found.odd)
    return found, _read_lists(window, entries, known, values, found.odd, sizes[1])


def _read_lists(window: Window, entries: _Entries, known: Array, values: Array, odd: Array, names: int) -> Lists:
    wanted = known >= 0
    known, record = known[wanted], entries.record[wanted]
    present = np.zeros((names, len(odd)), np.int64)
    np.add.at(present, (known, record), 1)
    odd |= (present > 1).any(axis=0)
    broken = np.zeros(len(known), np.bool_)
    inside = _repeated(window, _Entries(np.arange(len(known)), values[wanted], entries.ends[wanted]), broken)
    kinds, inner, starts, ends, fits = _read_features(window, inside.starts, inside.ends)
    fits &= ~_has_broken_values(window, kinds, inner, ends)
    broken[inside.record[~fits]] = True
    odd[record[broken]] = True
    return Lists(known[inside.record], record[inside.record], kinds, inner, starts, ends, present > 0)


def _repeated(window: Window, holders: _Entries, odd: Array) -> _Entries:
    """The fields inside each holder, which must all be field 1; in the order of the holders."""
    rest: list[_Entries] = []
    numbers = np.flatnonzero(holders.starts < holders.ends)
    at, limits = holders.starts[numbers], holders.ends[numbers]
    step = 0
    while len(at):
        at = _step(window, at, limits, holders.record[numbers], odd, rest)
        is_left = at < limits
        numbers, at, limits = numbers[is_left], at[is_left], limits[is_left]
        step += 1
        if step > _MOST_STEPS and len(at) < _FEW:
            for number, first, limit in zip(numbers.tolist(), at.tolist(), limits.tolist(), strict=True):
                rest.append(_walk_alone(window.raw, first, limit, int(holders.record[number]), odd))
            break
    joined = _joined(rest)
    order = np.lexsort((joined.starts, joined.record))
    return _Entries(joined.record[order], joined.starts[order], joined.ends[order])


def _walk_alone(raw: bytes, at: int, limit: int, record: int, odd: Array) -> _Entries:
    """The rest of one long run of fields."""
    starts: list[int] = []
    ends: list[int] = []
    while at < limit:
        length, shift, offset, byte = 0, 0, at + 1, 0x80
        while byte & 0x80 and shift < 35:
            byte = raw[offset]
            length |= (byte & 0x7F) << shift
            offset, shift = offset + 1, shift + 7
        if raw[at] != _ENTRY or byte & 0x80 or offset + length > limit:
            odd[record] = True
            break
        starts.append(offset)
        at = offset + length
        ends.append(at)
    return _Entries(np.full(len(starts), record, np.int64), np.array(starts, np.int64), np.array(ends, np.int64))


def values_of_lists(window: Window, inner: Array, ends: Array) -> tuple[Array, Array, Array]:
    """The values of bytes_lists, in order: which list, where they begin and end. The lists must be whole."""
    values = _repeated(window, _Entries(np.arange(len(inner)), inner, ends), np.zeros(len(inner), np.bool_))
    return values.record, values.starts, values.ends


def learn_pattern(window: Window, start: int, stop: int, keys: Keys, features: int) -> list[Entry]:
    """What one record has, step by step; empty where it is odd."""
    found = FoundFeatures.nothing(features, 1)
    begins, ends = _only_field(window, np.array([start]), np.array([stop]), found)
    entries = _walk_by_pattern(window, begins, ends, found, ())
    known, values = _read_keys(window, entries, keys, found.odd)
    kinds, inner, starts, _, fits = _read_features(window, values, entries.ends)
    wanted = known[known >= 0]
    if found.odd.any() or len(set(wanted.tolist())) != len(wanted):
        return []
    pattern: list[Entry] = []
    places = begins.tolist() + entries.ends.tolist()
    for step, (first, end) in enumerate(itertools.pairwise(places)):
        is_plain = bool(fits[step]) and kinds[step] in (BYTES, FLOAT, INT64) and starts[step] > inner[step]
        if not is_plain:
            pattern.append(unsettled(int(known[step])))
        else:
            pattern.append(learn_entry(window.raw, first, int(starts[step]), end, int(known[step]), int(kinds[step])))
    return pattern
