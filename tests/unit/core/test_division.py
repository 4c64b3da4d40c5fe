"""How large spans and parts are."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.division import (
    PART_BYTES,
    PART_SECONDS,
    SPAN_BATCHES,
    SPAN_INPUT_BYTES,
    SPAN_OUTPUT_BYTES,
    divide_into_parts,
    rows_per_part,
    rows_per_span,
)
from penstock.core.records import Span

sizes = st.integers(0, 1 << 34)


@given(batch_size=st.integers(1, 8192), input_bytes=sizes, output_bytes=sizes)
def test_span_is_whole_batches_and_at_least_one(batch_size: int, input_bytes: int, output_bytes: int) -> None:
    rows = rows_per_span(batch_size, input_bytes, output_bytes)
    assert rows >= batch_size
    assert rows % batch_size == 0


@given(batch_size=st.integers(1, 8192), input_bytes=st.integers(1, 1 << 34), output_bytes=st.integers(1, 1 << 34))
def test_span_of_several_batches_stays_within_its_bytes(batch_size: int, input_bytes: int, output_bytes: int) -> None:
    rows = rows_per_span(batch_size, input_bytes, output_bytes)
    if rows > batch_size:
        assert rows * input_bytes <= SPAN_INPUT_BYTES
        assert rows * output_bytes <= SPAN_OUTPUT_BYTES


@given(batch_size=st.integers(1, 8192), part_rows=st.integers(1, 100_000))
def test_span_is_at_most_eight_batches_and_one_part(batch_size: int, part_rows: int) -> None:
    assert rows_per_span(batch_size, 1, 1) <= SPAN_BATCHES * batch_size
    assert rows_per_span(batch_size, 1, 1, part_rows) <= max(batch_size, part_rows)


def test_span_uses_most_of_its_bytes() -> None:
    rows = rows_per_span(8192, 784, 48)
    assert SPAN_INPUT_BYTES // 2 < rows * 784 <= SPAN_INPUT_BYTES


@given(output_bytes=st.integers(1, 1 << 34), rate=st.floats(0, 1e9))
def test_part_is_at_most_64_megabytes_and_30_seconds(output_bytes: int, rate: float) -> None:
    rows = rows_per_part(output_bytes, rate)
    assert rows >= 1
    if rows > 1:
        assert rows * output_bytes <= PART_BYTES
        assert rows <= PART_SECONDS * rate


def test_part_of_a_slow_model_is_small_and_of_a_fast_one_is_full() -> None:
    assert rows_per_part(48, 1.0) == 16
    assert rows_per_part(64, 1e9) == PART_BYTES // 64
    assert rows_per_part(48, 0.0) == 1


def spans_of(rows: list[int]) -> list[Span]:
    starts = [sum(rows[:index]) for index in range(len(rows))]
    return [Span(index, start, count, ()) for index, (start, count) in enumerate(zip(starts, rows, strict=True))]


@given(rows=st.lists(st.integers(1, 30), min_size=1, max_size=30), part_rows=st.integers(1, 60))
def test_parts_cover_every_span_and_hold_no_more_rows_than_allowed(rows: list[int], part_rows: int) -> None:
    spans = spans_of(rows)
    starts = divide_into_parts(spans, part_rows)
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    for first, stop in zip(starts, [*starts[1:], len(spans)], strict=True):
        held = [span.rows for span in spans[first:stop]]
        assert held
        assert sum(held) <= part_rows or len(held) == 1


@given(rows=st.lists(st.integers(1, 30), min_size=2, max_size=30), part_rows=st.integers(1, 60))
def test_a_part_ends_only_where_the_next_span_would_not_fit(rows: list[int], part_rows: int) -> None:
    spans = spans_of(rows)
    starts = divide_into_parts(spans, part_rows)
    for first, stop in itertools.pairwise(starts):
        assert sum(span.rows for span in spans[first : stop + 1]) > part_rows


def test_division_into_parts_is_deterministic() -> None:
    spans = spans_of([10] * 5)
    assert divide_into_parts(spans, 20) == divide_into_parts(spans, 20) == [0, 2, 4]


def test_no_spans_make_no_part() -> None:
    assert divide_into_parts([], 20) == []
