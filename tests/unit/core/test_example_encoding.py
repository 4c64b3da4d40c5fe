"""Records that are built from columns are read back by the reader of TFRecord files."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.example_encoding import encode
from penstock.core.records import STRING, Feature
from penstock.sources.tfrecord.examples import BYTES, INT64, integers, parse

INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
TEXTS = st.text(max_size=20).map(str.encode)
VALUES = {"int64": INTS, "float32": FLOATS, STRING: TEXTS}
ARROW = {"int64": pa.int64(), "float32": pa.float32(), STRING: pa.large_binary()}


def read(record: bytes) -> dict[str, list[Any]]:
    """The features of a record, by the reader that TFRecord files have."""
    found: dict[str, list[Any]] = {}
    for key, feature in parse(record, is_sequence=False).features.items():
        if feature.kind == BYTES:
            values: list[Any] = list(feature.values)
        elif feature.kind == INT64:
            values = integers(bytes(feature.packed))
        else:
            values = list(struct.unpack(f"<{feature.count}f", feature.packed))
        found[key.decode()] = values
    return found


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[list[list[Any] | None]], list[Feature]]:
    """Lists of values for some features, of one length or of any, with nulls where the feature may be absent."""
    rows = draw(st.integers(1, 5))
    features, given_values = [], []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(sorted(VALUES)))
        length = draw(st.none() | st.integers(0, 3))
        is_required = draw(st.booleans())
        name = f"{draw(st.text(max_size=5))}{number}"
        features.append(Feature(name, kind, None if length is None else (length,), is_required))
        low, high = (0, 4) if length is None else (length, length)
        values = st.lists(VALUES[kind], min_size=low, max_size=high)
        one = values if is_required else st.none() | values
        given_values.append(draw(st.lists(one, min_size=rows, max_size=rows)))
    return given_values, features


@given(columns())
def test_whatever_is_in_the_columns_is_in_the_records(case: tuple[list[list[list[Any] | None]], list[Feature]]) -> None:
    values, features = case
    arrays = [pa.array(some, pa.list_(ARROW[one.dtype])) for some, one in zip(values, features, strict=True)]
    records, bad = encode(arrays, features)
    assert not bad
    for row, record in enumerate(records):
        expected = {one.name: some[row] for one, some in zip(features, values, strict=True) if some[row] is not None}
        assert read(record) == expected


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"])
def test_whole_numbers_of_every_width_are_int64(kind: str) -> None:
    column = np.array([0, 1, 100]).astype(kind)
    records, bad = encode([column], [Feature("n", "int64", ())])
    assert [read(record) for record in records] == [{"n": [int(value)]} for value in column]
    assert not bad


def test_numbers_of_every_kind_are_floats_where_the_model_parses_floats() -> None:
    columns: list[Any] = [
        np.array([1.5, 2.5]),
        np.array([3, 4], "u1"),
        np.array([1.5, 0], "f2"),
        pa.array([True, False]),
    ]
    records, _ = encode(columns, [Feature(name, "float32", (1,)) for name in "abcd"])
    assert read(records[0]) == {"a": [1.5], "b": [3.0], "c": [1.5], "d": [1.0]}


def test_vectors_and_images_are_flat() -> None:
    image = np.arange(12.0).reshape(2, 3, 2)
    records, _ = encode([image], [Feature("image", "float32", (6,))])
    assert read(records[1]) == {"image": [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]}
    nested = pa.array([[["a"], ["b", "c"]], []])
    records, _ = encode([nested], [Feature("words", STRING, None, is_required=False)])
    assert [read(record) for record in records] == [{"words": [b"a", b"b", b"c"]}, {"words": []}]


def test_text_of_every_type_is_bytes() -> None:
    words = ["Grüße", "", "a"]
    columns = [
        pa.array(words), pa.array(words).dictionary_encode(), np.array(words, object), np.array(["x", "y", "z"]),
        pa.array([word.encode() for word in words], pa.binary()),
    ]  # fmt: skip
    records, bad = encode(columns, [Feature(name, STRING, ()) for name in "abcde"])
    raw = "Grüße".encode()
    assert read(records[0]) == {"a": [raw], "b": [raw], "c": [raw], "d": [b"x"], "e": [raw]}
    assert not bad


def test_a_null_is_absent_where_there_is_a_default_and_a_failed_row_where_there_is_none() -> None:
    columns = [pa.array([1.0, None]), pa.array(["a", None]), np.array(["b", None], object), pa.array([[1], None])]
    optional = [
        Feature(name, kind, (), is_required=False) for name, kind in (("x", "float32"), ("y", STRING), ("z", STRING))
    ]
    features = [*optional, Feature("l", "int64", None, is_required=False)]
    records, bad = encode(columns, features)
    assert not bad
    assert read(records[1]) == {}
    required = [Feature(one.name, one.dtype, one.shape) for one in features]
    records, bad = encode(columns, required)
    assert {position: dict(rows) for position, rows in bad.items()} == {n: {1: "is null"} for n in range(4)}
    assert read(records[1])["x"] == [0.0], "a failed row keeps its place with something that can be parsed"


def test_rows_that_do_not_fit_are_named_and_no_other() -> None:
    columns = [
        pa.array([[1.0, 2.0], [1.0], [3.0, 4.0]]), pa.array([[1, None], [2], [3]]), pa.array([[1.0, 2.0], [1.0], []]),
        np.array([1, 2**63, 3], "u8"), pa.array([["a"], ["b", "c"], ["d"]]),
    ]  # fmt: skip
    features = [
        Feature("pair", "float32", (2,)), Feature("list", "int64", None, is_required=False),
        Feature("twos", "float32", (None, 2), is_required=False), Feature("big", "int64", ()),
        Feature("one", STRING, (1,)),
    ]  # fmt: skip
    records, bad = encode(columns, features)
    assert {features[position].name: dict(rows) for position, rows in bad.items()} == {
        "pair": {1: "has 1 values, not 2"},
        "list": {0: "has a value that is null"},
        "twos": {1: "has 1 values, which is no multiple of 2"},
        "big": {1: "does not fit into int64"},
        "one": {1: "has 2 values, not 1"},
    }
    assert read(records[2]) == {"pair": [3.0, 4.0], "list": [3], "twos": [], "big": [3], "one": [b"d"]}


def test_parts_of_columns_are_encoded_as_they_are() -> None:
    """A block is often a slice of what was read."""
    columns = [pa.array(["a", "b", "c"])[1:], pa.array([[1], [2, 3], [4]])[1:], pa.array([0.5, 1.5, 2.5])[1:]]
    features = [Feature("t", STRING, ()), Feature("l", "int64", None, False), Feature("f", "float32", ())]
    records, _ = encode(columns, features)
    assert [read(record) for record in records] == [
        {"t": [b"b"], "l": [2, 3], "f": [1.5]},
        {"t": [b"c"], "l": [4], "f": [2.5]},
    ]


def test_no_rows_are_no_records() -> None:
    records, bad = encode([pa.array([], pa.string())], [Feature("t", STRING, ())])
    assert len(records) == 0
    assert not bad
