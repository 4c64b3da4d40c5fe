"""What sources of files share: spans over several files, and streams that are read on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.records import Column
from penstock.sources.files.file_source import OpenStreams, even_parts, spans_of_files


class Counting:
    """A stream of 100 rows that remembers how it was used."""

    opened = 0

    def __init__(self) -> None:
        type(self).opened += 1
        self.row = 0
        self.skipped = 0

    def read(self, rows: int) -> Iterator[Mapping[str, Column]]:
        while rows:
            taken = min(rows, 3)
            yield {"x": np.arange(self.row, self.row + taken)}
            self.row, rows = self.row + taken, rows - taken

    def skip(self, rows: int) -> None:
        self.row += rows
        self.skipped += rows


@pytest.fixture(autouse=True)
def nothing_is_open() -> None:
    Counting.opened = 0


def take(streams: OpenStreams, key: str, start: int, rows: int) -> list[int]:
    with streams.at(key, start, Counting) as place:
        return [int(value) for piece in place.read(rows) for value in piece["x"]]


def test_next_span_goes_on_where_the_last_one_ended() -> None:
    streams = OpenStreams()
    for start in range(0, 50, 10):
        assert take(streams, "a", start, 10) == list(range(start, start + 10))
    assert Counting.opened == 1


def test_span_further_on_skips_what_lies_between() -> None:
    streams = OpenStreams()
    take(streams, "a", 0, 5)
    with streams.at("a", 20, Counting) as place:
        assert [int(v) for piece in place.read(2) for v in piece["x"]] == [20, 21]
        assert isinstance(place.stream, Counting)
        assert place.stream.skipped == 15
    assert Counting.opened == 1


def test_span_before_the_place_opens_the_stream_again() -> None:
    streams = OpenStreams()
    take(streams, "a", 20, 5)
    assert take(streams, "a", 3, 4) == [3, 4, 5, 6]
    assert Counting.opened == 2


def test_streams_of_different_keys_do_not_disturb_each_other() -> None:
    streams = OpenStreams()
    for start in (0, 5, 10):
        assert take(streams, "a", start, 5) == take(streams, "b", start, 5)
    assert Counting.opened == 2


def test_only_so_many_streams_stay_open() -> None:
    streams = OpenStreams(capacity=2)
    for key in "abc":
        take(streams, key, 0, 5)
    take(streams, "c", 5, 5)
    assert Counting.opened == 3
    assert take(streams, "a", 5, 5) == [5, 6, 7, 8, 9]
    assert Counting.opened == 4


def test_stream_that_was_left_in_the_middle_is_opened_again() -> None:
    streams = OpenStreams()

    def leave() -> None:
        with streams.at("a", 0, Counting) as place:
            next(iter(place.read(10)))
            raise RuntimeError("left")

    with pytest.raises(RuntimeError, match="left"):
        leave()
    assert take(streams, "a", 0, 10) == list(range(10))
    assert Counting.opened == 2


def test_two_readers_of_one_stream_take_turns() -> None:
    streams = OpenStreams()
    is_inside, may_leave = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with streams.at("a", 0, Counting) as place:
            is_inside.set()
            assert may_leave.wait(60)
            order.append(f"first {sum(len(piece['x']) for piece in place.read(10))}")

    def second() -> None:
        order.append(f"second {take(streams, 'a', 10, 5)}")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert is_inside.wait(60)
    threads[1].start()
    threads[1].join(timeout=0.05)
    assert order == []
    may_leave.set()
    for thread in threads:
        thread.join(timeout=10)
    assert order == ["first 10", "second [10, 11, 12, 13, 14]"]
    assert Counting.opened == 1


@given(files=st.lists(st.integers(0, 40), max_size=10), rows_per_span=st.integers(1, 25))
def test_spans_cover_every_row_of_every_file_once_in_order(files: list[int], rows_per_span: int) -> None:
    spans = list(spans_of_files(files, rows_per_span))
    runs = [run for span in spans for run in span.locator]
    covered = [(file, row) for file, start, rows in runs for row in range(start, start + rows)]
    assert covered == [(file, row) for file, rows in enumerate(files) for row in range(rows)]
    assert [span.index for span in spans] == list(range(len(spans)))
    assert [span.start for span in spans] == [sum(s.rows for s in spans[:i]) for i in range(len(spans))]
    assert all(span.rows == sum(rows for _, _, rows in span.locator) for span in spans)
    assert all(span.rows == rows_per_span for span in spans[:-1])


@given(rows=st.integers(1, 5000), limit=st.integers(1, 600), multiple=st.integers(1, 64))
def test_parts_are_even_within_the_limit_and_multiples(rows: int, limit: int, multiple: int) -> None:
    limit = -(-limit // multiple) * multiple
    parts = even_parts(rows, limit, multiple)
    assert [start for start, _ in parts] == [sum(taken for _, taken in parts[:i]) for i in range(len(parts))]
    assert sum(taken for _, taken in parts) == rows
    assert all(0 < taken <= limit for _, taken in parts)
    assert all(taken % multiple == 0 for _, taken in parts[:-1])
    assert len({taken for _, taken in parts[:-1]}) <= 1
    assert len(parts) == -(-rows // limit)


def test_known_parts() -> None:
    assert even_parts(100, 64, 8) == [(0, 56), (56, 44)]
    assert even_parts(64, 64, 8) == [(0, 64)]
