"""The wire format, as parsers accept it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.models.facts import Malformed
from penstock.models.scan import flat_buffers, wire
from tests.unit.models.written import entry, field, flatbuffer, varint

CONTENT = st.one_of(st.binary(max_size=40), st.integers(0, 2**64 - 1))


def walked(message: bytes) -> list[tuple[int, bytes | int]]:
    found = wire.fields(memoryview(message))
    return [(number, value if isinstance(value, int) else bytes(value)) for number, value in found]


@given(st.lists(st.tuples(st.integers(1, 2**20), CONTENT, st.integers(0, 3))))
def test_every_field_is_found_however_long_its_length_is_written(fields: list[tuple[int, bytes | int, int]]) -> None:
    message = b"".join(field(number, content, extra) for number, content, extra in fields)
    assert walked(message) == [(number, content) for number, content, _ in fields]


@given(st.binary(max_size=200))
def test_any_bytes_are_walked_or_refused(message: bytes) -> None:
    try:
        walked(message)
    except Malformed:
        pass


@pytest.mark.parametrize(
    "message",
    [b"\x0a", b"\x0a\x05abc", b"\x08", b"\x08\xff", b"\x0d\0\0", b"\x09\0\0\0", b"\x0b", b"\x02\x01a", b"\xff" * 11],
)
def test_cut_off_and_impossible_fields_are_refused(message: bytes) -> None:
    with pytest.raises(Malformed):
        walked(message)


def test_fixed_numbers_are_passed_over() -> None:
    assert walked(b"\x0d\1\2\3\4" + b"\x11\1\2\3\4\5\6\7\x08" + field(3, "x"))[-1] == (3, b"x")


def test_the_last_of_a_text_counts_and_all_are_told() -> None:
    message = memoryview(field(2, "first") + field(2, "last"))
    assert wire.text(message, 2) == "last"
    assert wire.texts(message, 2) == ["first", "last"]
    assert wire.text(message, 9) == ""


def test_integers_are_read_packed_or_not() -> None:
    packed = field(2, varint(1) + varint(300))
    assert wire.integers(memoryview(packed + field(2, 7)), 2) == [1, 300, 7]


def test_maps_give_their_entries() -> None:
    message = memoryview(field(5, entry("a", b"x")) + field(5, entry("b", b"y")) + field(5, field(1, "bare")))
    assert [(key, bytes(value)) for key, value in wire.map_entries(message, 5)] == [
        ("a", b"x"),
        ("b", b"y"),
        ("bare", b""),
    ]


def test_flatbuffers_give_texts_numbers_and_nothing_for_what_is_not_set() -> None:
    table = flat_buffers.root(memoryview(flatbuffer([b"name", 9, None, b"data"])))
    assert table.text(0) == "name"
    assert table.number(1, 2) == 9
    assert bytes(table.data(2)) == b""
    assert bytes(table.data(3)) == b"data"
    assert table.number(99, 4) == 0


@given(st.binary(max_size=80))
def test_flatbuffers_never_read_beyond_their_end(content: bytes) -> None:
    try:
        table = flat_buffers.root(memoryview(content))
        table.text(0)
        list(zip(range(5), table.tables(1), strict=False))
    except Malformed:
        pass
