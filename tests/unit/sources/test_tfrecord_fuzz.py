"""Any bytes as examples: the bulk road says what the slow road says, and neither raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.tfrecord.example_features import FeatureSpec
from penstock.sources.tfrecord.examples import (
    BYTES,
    INT64,
    BadExample,
    FeatureValues,
    Message,
    WantedFeatures,
    integers,
    parse,
)
from tests.support.tfrecord_writer import Floats, Ints, Strings, Values, example, sequence_example

from .test_tfrecord_examples import LEAST, MOST, floats, ints, read, strings

FEATURE_VALUES = (
    st.lists(st.integers(LEAST, MOST), max_size=5).map(Ints)
    | st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(Floats)
    | st.lists(st.binary(max_size=150), max_size=4).map(Strings)
)
EXAMPLES = st.dictionaries(st.sampled_from(["a", "b", "c", "long name", ""]), FEATURE_VALUES, max_size=4)
SPECS = (
    ints((None,)),
    floats((None,), name="b"),
    strings((None,), name="c"),
    FeatureSpec("long name", INT64, "int64", ()),
)


def told(message: Message, spec: FeatureSpec) -> tuple[Any, bool]:
    """What the slow road says of a feature: its value, and whether the row fails."""
    found = message.features.get(spec.key)
    if found is None or not found.kind:
        return None, False
    if found.kind != spec.kind:
        return None, True
    values = values_in(found)
    if spec.shape == ():
        return (values[0], False) if len(values) == 1 else (None, True)
    return values, False


def values_in(found: FeatureValues) -> list[Any]:
    if found.kind == BYTES:
        return list(found.values)
    return integers(bytes(found.packed)) if found.kind == INT64 else np.frombuffer(found.packed, "<f4").tolist()


def check_against_the_slow_road(records: Sequence[bytes]) -> None:
    columns, failures, _ = read(records, *SPECS)
    for row, raw in enumerate(records):
        try:
            message = parse(raw, False, WantedFeatures({spec.key for spec in SPECS}))
        except BadExample:
            assert row in failures
            continue
        expected = [told(message, spec) for spec in SPECS]
        # As text: a damaged float may be no number, which equals nothing.
        assert repr([columns[spec.name][row] for spec in SPECS]) == repr([value for value, _ in expected])
        assert (row in failures) == any(fails for _, fails in expected)


class TestFuzz:
    @given(st.lists(EXAMPLES, min_size=1, max_size=12))
    def test_bulk_and_slow_road_agree_on_any_examples(self, rows: list[Mapping[str, Values]]) -> None:
        check_against_the_slow_road([example(row) for row in rows])

    @given(st.lists(EXAMPLES, min_size=1, max_size=6), st.data())
    def test_bulk_and_slow_road_agree_on_damaged_examples(self, rows: list[Mapping[str, Values]], data: Any) -> None:
        records = []
        for row in rows:
            raw = bytearray(example(row))
            for _ in range(data.draw(st.integers(0, 3))):
                raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
            records.append(bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw))
        check_against_the_slow_road(records)

    @given(st.lists(st.binary(max_size=60), min_size=1, max_size=8))
    def test_bulk_and_slow_road_agree_on_random_bytes(self, records: list[bytes]) -> None:
        check_against_the_slow_road(records)

    @given(st.binary(max_size=80))
    def test_random_bytes_as_sequences_never_raise(self, raw: bytes) -> None:
        read([raw, sequence_example({"a": [1]}, {"f": [[1]]})], ints(), FeatureSpec("f", INT64, "int64", (None,), True))
