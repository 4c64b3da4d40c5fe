"""Examples in every layout that the wire format allows: in bulk, and one by one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.core.records import STRING, Block, Shape
from penstock.sources.tfrecord import example_reader
from penstock.sources.tfrecord.example_features import FeatureSpec
from penstock.sources.tfrecord.example_reader import ExampleReader
from penstock.sources.tfrecord.examples import (
    BYTES,
    FLOAT,
    INT64,
    WantedFeatures,
    is_sequence,
    pack,
    parse,
    rewrite,
)
from penstock.sources.tfrecord.framing import PAD, Frames
from tests.support.tfrecord_writer import (
    Floats,
    Ints,
    Strings,
    Values,
    entry,
    example,
    feature,
    features,
    field,
    sequence_example,
    varint,
)

LEAST, MOST = -(1 << 63), (1 << 63) - 1


def frames_of(records: Sequence[bytes]) -> Frames:
    """Records as they come from a file, with something between them."""
    raw, starts, stops = b"", [], []
    for one in records:
        raw += b"\xff" * 12
        starts.append(len(raw))
        raw += one
        stops.append(len(raw))
    edges = np.array(starts, np.int64), np.array(stops, np.int64)
    return Frames(raw + b"\xff" * 4 + PAD, *edges, edges[0] - 12, {})


def read(records: Sequence[bytes], *specs: FeatureSpec) -> tuple[dict[str, list[Any]], dict[int, str], Block]:
    reader = ExampleReader(specs, any(spec.is_list for spec in specs))
    (block,) = reader.blocks(frames_of(records), 0, [spec.name for spec in specs])
    assert block.rows == len(records)
    columns: dict[str, list[Any]] = {}
    for name, column in block.columns.items():
        columns[name] = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()  # type: ignore[union-attr]
        assert len(columns[name]) == len(records)
    return columns, {failure.row: failure.reason for failure in block.failures}, block


def ints(shape: Shape = (), dtype: str = "int64", name: str = "a") -> FeatureSpec:
    return FeatureSpec(name, INT64, dtype, shape)


def floats(shape: Shape = (), dtype: str = "float32", name: str = "a") -> FeatureSpec:
    return FeatureSpec(name, FLOAT, dtype, shape)


def strings(shape: Shape = (), dtype: str = STRING, name: str = "a") -> FeatureSpec:
    return FeatureSpec(name, BYTES, dtype, shape)


def values_of(records: Sequence[bytes], spec: FeatureSpec) -> list[Any]:
    columns, failures, _ = read(records, spec)
    assert failures == {}
    return columns[spec.name]


class TestOneFeature:
    def test_integers_of_every_size(self) -> None:
        numbers = [0, 1, 127, 128, 300, -1, LEAST, MOST, *(1 << shift for shift in range(63)), 5]
        assert values_of([example({"a": [number]}) for number in numbers], ints()) == numbers
        assert values_of([example({"a": numbers}), example({"a": numbers[::-1]})], ints((len(numbers),))) == [
            numbers,
            numbers[::-1],
        ]

    def test_lists_that_vary(self) -> None:
        rows = [[1, 2, 300], [], [-1], [LEAST, MOST], [7] * 500]
        assert values_of([example({"a": Ints(row)}) for row in rows], ints((None,))) == rows
        halves = [[float(value) / 2 for value in row[:2]] for row in rows]
        assert values_of([example({"a": Floats(row)}) for row in halves], floats((None,))) == [
            [float(np.float32(value)) for value in row] for row in halves
        ]

    def test_floats_keep_their_bits(self) -> None:
        rows = [[1.5, float("inf")], [-0.0, 1e-40], [3.25, float("-inf")]]
        _, _, block = read([example({"a": row}) for row in rows], floats((2,)))
        found = block.columns["a"]
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        assert found.tobytes() == np.array(rows, np.float32).tobytes()

    def test_strings_of_every_length(self) -> None:
        rows = [b"", b"a", b"\0\xff" * 100, b"x" * 70_000, b"end"]
        assert values_of([example({"a": [row]}) for row in rows], strings()) == rows

    def test_lists_of_strings(self) -> None:
        rows = [[b"a", b"bc"], [], [b""], [b"", b"", b"x" * 200], [b"z"] * 400]
        assert values_of([example({"a": Strings(row)}) for row in rows], strings((None,))) == rows
        assert values_of([example({"a": row}) for row in ([b"a", b"b"], [b"", b"c"])], strings((2,))) == [
            [b"a", b"b"],
            [b"", b"c"],
        ]

    def test_raw_bytes_are_numbers(self) -> None:
        pictures = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
        records = [example({"a": [picture.tobytes()]}) for picture in pictures]
        assert values_of(records, strings((3, 4), "uint8")) == pictures.tolist()
        assert values_of(records, strings((6,), "int16")) == pictures.reshape(2, 12).view("<i2").tolist()
        assert values_of(records, strings((None, 4), "uint8")) == pictures.tolist()
        assert values_of(records, strings((12,), "bool")) == (pictures.reshape(2, 12) != 0).tolist()

    def test_integers_become_what_was_asked_for(self) -> None:
        records = [example({"a": [value]}) for value in (0, 1, 255, 256, -1)]
        columns, failures, _ = read(records, ints((), "uint8"))
        assert columns["a"] == [0, 1, 255, None, None]
        assert list(failures) == [3, 4]
        assert "256" in failures[3]
        columns, failures, _ = read(records, ints((), "uint64"))
        assert list(failures) == [4]
        assert values_of(records, ints((), "float32")) == [0.0, 1.0, 255.0, 256.0, -1.0]

    def test_missing_is_null_and_harms_no_other_row(self) -> None:
        records = [example({"a": [1]}), example({"b": [2]}), b"", example({"a": [3]}), field(1, entry("a", b""))]
        assert values_of(records, ints()) == [1, None, None, 3, None]
        strange = [example({"a": [b"x"]}), b"", example({"a": [b"y"]})]
        assert values_of(strange, strings()) == [b"x", None, b"y"]
        rows = [example({"a": [1.0, 2.0]}), b"", example({"a": [3.0, 4.0]})]
        assert values_of(rows, floats((2,))) == [[1.0, 2.0], None, [3.0, 4.0]]
        _, _, block = read(rows, floats((1, 2)))
        assert block.columns["a"].null_count == 1  # type: ignore[union-attr]
        assert values_of(rows, floats((None,))) == [[1.0, 2.0], None, [3.0, 4.0]]

    @pytest.mark.parametrize(
        "spec", [ints((2,)), ints(), floats((2,)), strings((2,)), strings(), strings((2,), "uint8")], ids=str
    )
    def test_wrong_number_of_values_fails_its_row_with_a_reason(self, spec: FeatureSpec) -> None:
        def some(count: int) -> Values:
            if spec.is_raw:
                return [bytes(count)]
            if spec.kind == BYTES:
                return Strings([b"v"] * count)
            return Ints(range(count)) if spec.kind == INT64 else Floats(map(float, range(count)))

        count = spec.per_feature
        columns, failures, _ = read([example({"a": some(n)}) for n in (count, count + 1, 0, count)], spec)
        assert list(failures) == [1, 2]
        assert "'a'" in failures[1]
        assert f"not {count}" in failures[1]
        assert [row is None for row in columns["a"]] == [False, True, True, False]

    def test_another_kind_of_list_fails_its_row_with_a_reason(self) -> None:
        records = [example({"a": [1]}), example({"a": [1.5]}), example({"a": [b"x"]}), example({"a": [b"x", b"y"]})]
        for spec, good in ((ints(), 0), (floats(), 1), (strings(), 2)):
            _, failures, _ = read(records, spec)
            assert sorted(failures) == [row for row in range(4) if row != good]
        _, failures, _ = read(records, ints())
        assert failures[1] == "feature 'a' is a float_list, not a int64_list"

    def test_numbers_that_do_not_end_fail_their_row(self) -> None:
        broken = [b"\x80", b"\x80" * 10 + b"\0", b"\x01\x80", b"\xff" * 9]
        records = [field(1, entry("a", field(3, field(1, packed)))) for packed in broken]
        for shape in ((), (None,), (1,)):
            columns, failures, _ = read([example({"a": [5]}), *records, example({"a": [6]})], ints(shape))
            assert list(failures) == [1, 2, 3, 4]
            assert columns["a"][1:5] == [None] * 4
            assert np.ravel([columns["a"][0], columns["a"][5]]).tolist() == [5, 6]
        _, failures, _ = read([field(1, entry("a", field(2, field(1, b"12345"))))], floats((None,)))
        assert list(failures) == [0]


UNPACKED = field(3, b"".join(b"\x08" + varint(value) for value in (1, 300, -1)))
ODD_LAYOUTS = {
    "unpacked integers": field(1, entry("a", UNPACKED)),
    "packed in two runs": field(1, entry("a", field(3, field(1, varint(1) + varint(300)) + field(1, varint(-1))))),
    "packed and not": field(
        1, entry("a", field(3, field(1, varint(1)) + b"\x08" + varint(300) + b"\x08" + varint(-1)))
    ),
    "value before key": field(1, field(1, field(2, feature([1, 300, -1])) + field(1, b"a"))),
    "features in two pieces": field(1, features({"b": [1.0]})) + field(1, features({"a": [1, 300, -1]})),
    "unknown field first": varint(15 << 3) + b"\x05" + example({"a": [1, 300, -1]}),
    "unknown field last": example({"a": [1, 300, -1]}) + field(99, b"new"),
    "unknown field among the entries": field(1, field(7, b"new") + features({"a": [1, 300, -1]})),
    "unknown fixed fields": b"\x1d1234" + b"\x2112345678" + example({"a": [1, 300, -1]}),
    "unknown field in the feature": field(1, entry("a", field(9, b"x") + feature([1, 300, -1]))),
    "key twice": field(1, features({"a": [5]}) + features({"a": [1, 300, -1]})),
    "key twice, once of another kind": field(1, features({"a": [b"x"]}) + features({"a": [1, 300, -1]})),
    "value in two pieces": field(1, field(1, field(1, b"a") + field(2, feature([1])) + field(2, feature([300, -1])))),
    "one of three: the last": field(1, entry("a", feature([b"x"]) + feature([1, 300, -1]))),
}


class TestOddLayouts:
    @pytest.mark.parametrize("raw", ODD_LAYOUTS.values(), ids=ODD_LAYOUTS)
    def test_any_layout_means_the_same(self, raw: bytes) -> None:
        plain = example({"a": [1, 300, -1]})
        for records in ([raw], [plain, raw, plain], [raw, plain], [plain] * 50 + [raw]):
            assert values_of(records, ints((3,))) == [[1, 300, -1]] * len(records)

    @pytest.mark.parametrize("raw", ODD_LAYOUTS.values(), ids=ODD_LAYOUTS)
    def test_rewriting_gives_the_plain_layout(self, raw: bytes) -> None:
        assert rewrite(raw, False, WantedFeatures({b"a"}, ())) == example({"a": [1, 300, -1]})

    def test_lengths_may_take_more_bytes_than_they_need(self) -> None:
        value = feature([1, 300, -1])
        inside = b"\x0a\x81\x00a" + b"\x12" + bytes([len(value) | 0x80, 0]) + value
        raw = field(1, b"\x0a" + bytes([len(inside) | 0x80, 0x80, 0]) + inside)
        assert values_of([raw, example({"a": [1, 300, -1]})], ints((3,))) == [[1, 300, -1]] * 2

    def test_unpacked_floats(self) -> None:
        raw = field(1, entry("a", field(2, b"".join(b"\x0d" + struct.pack("<f", value) for value in (1.5, 2.5)))))
        assert values_of([raw, example({"a": [3.0, 4.0]})], floats((2,))) == [[1.5, 2.5], [3.0, 4.0]]

    def test_entries_without_key_or_value_are_nothing(self) -> None:
        raw = field(1, field(1, b"") + field(1, field(1, b"a")) + field(1, field(2, feature([5]))))
        assert values_of([raw, example({"a": [1]})], ints()) == [None, 1]
        assert values_of([field(1, features({"a": [5]}) + field(1, field(1, b"a")))], ints()) == [None]

    def test_keys_in_any_order_and_of_any_length(self) -> None:
        names = ["", "a", "ab", "b" * 8, "b" * 9, "c" * 200, "image/object/bbox/xmin", "image/object/bbox/xmax"]
        everything: dict[str, Values] = {name: [number] for number, name in enumerate(names)}
        turned = [dict(list(everything.items())[turn:] + list(everything.items())[:turn]) for turn in range(len(names))]
        for name in names[1:]:
            assert values_of([example(one) for one in turned], ints(name=name)) == [everything[name][0]] * len(names)

    def test_keys_that_differ_only_by_zeros_are_different(self) -> None:
        records = [example({"a\0": [1], "a": [2]}), example({"a\0\0": [1], "a": [3]})]
        assert values_of(records, ints()) == [2, 3]

    @pytest.mark.parametrize(
        "raw",
        [
            b"\x0a",
            b"\x0a\x05ab",
            b"\xff" * 30,
            b"\x0b",
            b"\x00\x01",
            b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
            b"text",
        ],
    )
    def test_what_is_no_message_fails_its_row_alone(self, raw: bytes) -> None:
        columns, failures, _ = read([example({"a": [1]}), raw, example({"a": [2]})], ints())
        assert columns["a"] == [1, None, 2]
        assert list(failures) == [1]
        assert "no tf.train.Example" in failures[1]

    def test_record_of_very_many_entries_is_read(self) -> None:
        many = {f"k{number}": [number] for number in range(20_000)}
        assert values_of([example({"a": [1]}), example({**many, "a": [7]})], ints()) == [1, 7]
        assert values_of([example({"a": [b"v"] * 50_000})], strings((None,))) == [[b"v"] * 50_000]


class TestSequences:
    FRAMES = FeatureSpec("f", FLOAT, "float32", (None, 2), is_list=True)

    def records(self) -> list[bytes]:
        return [
            sequence_example({"a": [7]}, {"f": [[1.0, 2.0], [3.0, 4.0]], "w": [[b"x"], [b"y"]]}),
            sequence_example({"a": [8]}, {"f": [], "w": []}),
            sequence_example({}, {"f": [[5.0, 6.0]], "w": [[b"z"]]}),
            sequence_example({"a": [9]}, {"w": []}),
            b"",
        ]

    def test_context_and_lists_are_columns(self) -> None:
        words = FeatureSpec("w", BYTES, STRING, (None,), is_list=True)
        columns, failures, _ = read(self.records(), ints(), self.FRAMES, words)
        assert failures == {}
        assert columns == {
            "a": [7, 8, None, 9, None],
            "f": [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]], None, None],
            "w": [[b"x", b"y"], [], [b"z"], [], None],
        }

    def test_lists_of_lists_that_vary(self) -> None:
        rows = [[[1, 2], [], [300]], [[4]]]
        records = [sequence_example({}, {"f": [Ints(one) for one in row]}) for row in rows]
        spec = FeatureSpec("f", INT64, "int64", (None, None), is_list=True)
        columns, failures, _ = read(records, spec)
        assert (columns["f"], failures) == (rows, {})

    def test_frame_of_another_size_fails_its_row_alone(self) -> None:
        records = [self.records()[0], sequence_example({}, {"f": [[1.0, 2.0], [3.0]]}), self.records()[2]]
        columns, failures, _ = read(records, self.FRAMES)
        assert columns["f"] == [[[1.0, 2.0], [3.0, 4.0]], None, [[5.0, 6.0]]]
        assert list(failures) == [1]
        assert "1 values, not 2" in failures[1]

    def test_odd_layout_means_the_same(self) -> None:
        lists = field(2, entry("f", field(1, feature([1.0, 2.0]))))
        odd = [lists + field(1, features({"a": [7]})), field(9, b"x") + field(1, features({"a": [7]})) + lists]
        odd.append(field(1, features({"a": [7]})) + field(2, entry("f", field(1, feature([9.0])))) + lists)
        for raw in odd:
            columns, failures, _ = read([raw, self.records()[0]], ints(), self.FRAMES)
            assert failures == {}
            assert columns["a"] == [7, 7]
            assert columns["f"][0] == [[1.0, 2.0]]

    def test_are_told_from_examples(self) -> None:
        assert is_sequence(sequence_example({"a": [1]}, {"f": [[1]]}))
        assert not is_sequence(example({"a": [1]}))
        assert not is_sequence(b"\xff")


def test_message_packs_to_what_it_was_parsed_from() -> None:
    for raw in (example({"a": [1], "c": [b"x", b""]}), sequence_example({"a": [1]}, {"f": [[1.0], [2.0]]})):
        assert pack(parse(raw, is_sequence=True)) == raw


def test_pattern_is_learnt_again_where_records_change_their_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_reader, "_PATIENCE", 1)
    reader = ExampleReader([ints()], False)
    rows = [example({"a": [1], "b": [1.0]}), example({"b": [1.0], "c": [1.0], "a": [2]})]
    for raw in (rows[0], *[rows[1]] * 6, rows[0]):
        (block,) = reader.blocks(frames_of([raw] * 3), 0, ["a"])
        assert block.columns["a"].tolist() == [1 if raw is rows[0] else 2] * 3  # type: ignore[union-attr]
