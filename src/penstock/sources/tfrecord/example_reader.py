"""Blocks of columns from the frames of a TFRecord."""

from collections.abc import Iterator, Sequence

import numpy as np

from penstock.core.records import Array, Block, Column, RowFailure
from penstock.sources.tfrecord.example_columns import columns_of, sequence_columns, take_ranges
from penstock.sources.tfrecord.example_features import FeatureSpec
from penstock.sources.tfrecord.example_walk import (
    Entry,
    FoundFeatures,
    Keys,
    Lists,
    Window,
    learn_pattern,
    walk,
    walk_sequences,
)
from penstock.sources.tfrecord.examples import BadExample, WantedFeatures, rewrite
from penstock.sources.tfrecord.framing import PAD, Frames

EXAMPLE = "example"
"""The column of whole records, unchanged, for a model that parses Examples itself."""

_MOST_CELLS = 1 << 20
_PATIENCE = 16
"""How many blocks may fit a pattern badly before another pattern is learnt."""


class ExampleReader:
    """Reads some features of records.

    It learns a pattern from the first record, and another one when records look different. The pattern only decides the
    speed, so threads may share a reader.
    """

    def __init__(self, specs: Sequence[FeatureSpec], is_sequence: bool) -> None:
        self._features = [spec for spec in specs if not spec.is_list]
        self._lists = [spec for spec in specs if spec.is_list]
        self._is_sequence = is_sequence
        self._keys = Keys([spec.key for spec in self._features])
        self._list_keys = Keys([spec.key for spec in self._lists])
        names, list_names = {spec.key for spec in self._features}, {spec.key for spec in self._lists}
        self._wanted = WantedFeatures(names, list_names)
        self._hides_example = EXAMPLE.encode() in names | list_names
        self._pattern: list[Entry] | None = None
        self._patience = _PATIENCE

    def blocks(self, frames: Frames, row: int, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of `frames`, the first of which is `row`; the origin of a failure is its place in the file."""
        most = max(1, _MOST_CELLS // max(1, len(self._features) + len(self._lists)))
        for first in range(0, len(frames.starts), most):
            some = slice(first, first + most)
            starts, stops = frames.starts[some], frames.stops[some]
            reasons = {at - first: why for at, why in frames.reasons.items() if first <= at < first + most}
            parsed: dict[str, Column] = {}
            if EXAMPLE in columns and not self._hides_example:
                parsed[EXAMPLE] = take_ranges(frames.raw, starts, stops)
            if self._features or self._lists:
                parsed.update(self._parsed(frames.raw, starts, stops, reasons))
            offsets = frames.offsets[some]
            failures = [
                RowFailure(row + first + at, f"at byte {int(offsets[at])}", "read", "BadRecord", why)
                for at, why in sorted(reasons.items())
            ]
            read = {name: parsed[name] for name in columns}
            yield Block(row + first, len(starts), read, tuple(failures), _explain_null)

    def _parsed(self, raw: bytes, starts: Array, stops: Array, reasons: dict[int, str]) -> dict[str, Column]:
        window = Window(raw)
        found, lists = self._walked(window, starts, stops)
        if found.odd.any():
            window, starts, stops = self._mended(raw, starts, stops, found.odd, reasons)
            found, lists = self._walked(window, starts, stops)
        columns, wrong = columns_of(window, found, self._features)
        if lists is not None:
            columns.update(sequence_columns(window, lists, len(starts), self._lists, wrong.setdefault))
        for row, reason in wrong.items():
            reasons.setdefault(row, reason)
        return columns

    def _walked(self, window: Window, starts: Array, stops: Array) -> tuple[FoundFeatures, Lists | None]:
        sizes = (len(self._features), len(self._lists))
        if self._is_sequence:
            return walk_sequences(window, starts, stops, (self._keys, self._list_keys), sizes)
        if self._pattern is None or self._patience < 0:
            self._pattern = learn_pattern(window, int(starts[0]), int(stops[0]), self._keys, sizes[0])
            self._patience = _PATIENCE
        found = walk(window, starts, stops, self._keys, sizes[0], self._pattern)
        self._patience -= found.unexpected > len(starts)
        return found, None

    def _mended(
        self, raw: bytes, starts: Array, stops: Array, odd: Array, reasons: dict[int, str]
    ) -> tuple[Window, Array, Array]:
        """The same records, those in an odd layout rewritten; a record that is no message becomes empty, and fails."""
        pieces, end = [raw], len(raw)
        starts, stops = starts.copy(), stops.copy()
        for row in np.flatnonzero(odd).tolist():
            record = raw[int(starts[row]) : int(stops[row])]
            try:
                plain = rewrite(record, self._is_sequence, self._wanted)
            except BadExample as error:
                kind = "SequenceExample" if self._is_sequence else "Example"
                reasons.setdefault(row, f"the record is no tf.train.{kind}: {error}")
                plain = b""
            starts[row], stops[row] = end, end + len(plain)
            pieces.append(plain)
            end += len(plain)
        return Window(b"".join([*pieces, PAD])), starts, stops


def _explain_null(column: str, position: int) -> str:
    """Why a value is null: the record has none."""
    return "is missing: the record has no value for it"
