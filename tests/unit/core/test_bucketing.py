"""Rows of different sizes: few sizes to pad to, every row once, order restored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import Batch, on_the_heap
from penstock.core.bucketing import (
    LEAST_STEP,
    MOST_BOUNDARIES,
    MOST_PADDING,
    Boundaries,
    boundary,
    choose_boundaries,
    cut_by_one_size,
    cut_by_size,
)
from penstock.core.columns import to_arrow
from penstock.core.deferred import Announce, BadRows, Deferred
from penstock.core.feeds import Dense, Encoded, Feed, LoadedRows, Mask, Ragged
from penstock.core.records import KEPT, UNWATCHED, Array, Column, Result, RowFailure, Span, Watch
from penstock.core.reordering import to_result

from .encoded import Diary, Letters, poisoned

FIRST_ROW = 1000
row_lengths = st.lists(st.integers(0, 40), min_size=1, max_size=60)


def waste(lengths: list[int], boundaries: Boundaries) -> float:
    """The share of padding where every row is padded to its own boundary."""
    real = sum(max(1, length) for length in lengths)
    return 1 - real / sum(boundary(max(1, length), boundaries) for length in lengths)


@given(lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=200))
def test_boundaries_grow_and_the_last_holds_the_longest_row(lengths: list[int]) -> None:
    boundaries = choose_boundaries(np.array(lengths))
    assert list(boundaries) == sorted(set(boundaries))
    assert boundaries[0] >= 1
    assert boundaries[-1] >= max(lengths)
    assert len(boundaries) <= MOST_BOUNDARIES


@given(
    lengths=st.lists(st.one_of(st.integers(1, 64), st.integers(1, 3000), st.just(8)), min_size=1, max_size=300),
    tail=st.lists(st.integers(3000, 20_000), max_size=3),
)
def test_little_is_wasted_unless_there_are_as_many_boundaries_as_there_may_be(
    lengths: list[int], tail: list[int]
) -> None:
    seen = lengths + tail
    boundaries = choose_boundaries(np.array(seen))
    step = LEAST_STEP if max(seen) >= LEAST_STEP else 1
    has_all = {-(-length // step) * step for length in seen} <= set(boundaries)
    assert waste(seen, boundaries) <= MOST_PADDING or len(boundaries) == MOST_BOUNDARIES or has_all


def test_a_few_long_rows_among_many_short_ones_are_not_padded_to_the_longest() -> None:
    lengths = [8] * 999 + [5000] * 10 + [10_000]
    boundaries = choose_boundaries(np.array(lengths))
    assert waste(lengths, boundaries) <= MOST_PADDING
    assert 5000 in boundaries


@given(length=st.integers(1, 10_000), rows=st.integers(1, 50))
def test_rows_of_one_length_are_not_padded(length: int, rows: int) -> None:
    assert choose_boundaries(np.full(rows, length)) == (length,)


def test_boundaries_of_nothing_and_of_empty_rows_are_one() -> None:
    assert choose_boundaries(np.array([], np.int64)) == (1,)
    assert choose_boundaries(np.array([0, 0])) == (1,)


@given(lengths=st.lists(st.integers(1, 500), min_size=2, max_size=100), most=st.integers(1, 4))
def test_there_are_no_more_boundaries_than_asked_for(lengths: list[int], most: int) -> None:
    assert len(choose_boundaries(np.array(lengths), most=most)) <= most


def test_boundaries_do_not_depend_on_the_order_of_the_rows() -> None:
    lengths = np.random.default_rng(3).integers(1, 900, 500)
    assert choose_boundaries(lengths) == choose_boundaries(np.sort(lengths)) == choose_boundaries(lengths[::-1])


@given(boundaries=st.sets(st.integers(1, 5000), min_size=1, max_size=8).map(sorted), length=st.integers(0, 1 << 20))
def test_boundary_is_the_next_one_and_beyond_the_last_it_doubles(boundaries: list[int], length: int) -> None:
    end = boundary(length, boundaries)
    assert end >= length
    if length <= boundaries[-1]:
        assert end == min(candidate for candidate in boundaries if candidate >= length)
    else:
        doublings = end // boundaries[-1]
        assert end % boundaries[-1] == 0
        assert doublings & (doublings - 1) == 0
        assert end < 2 * length


def test_boundary_beyond_the_last_is_no_further_than_needed() -> None:
    assert [boundary(length, (8, 16)) for length in (16, 17, 32, 33, 64, 65)] == [16, 32, 32, 64, 64, 128]


def pieces_of(rows: list[list[int]], cuts: list[int], *, failed: set[int] | None = None) -> list[LoadedRows]:
    """Rows as ragged pieces of a span, with a mask, a column of fixed size, kept columns, and failures."""
    pieces: list[LoadedRows] = []
    stops = sorted({min(cut, len(rows)) for cut in cuts} | {len(rows)})
    start = 0
    for stop in stops:
        if stop == start:
            continue
        own = rows[start:stop]
        numbers = np.arange(FIRST_ROW + start, FIRST_ROW + stop)
        tokens = Ragged(np.array([v for row in own for v in row], np.int32), np.cumsum([0, *map(len, own)]))
        feeds: dict[str, Feed] = {
            "tokens": tokens,
            "mask": Mask(tokens.sizes()[:, 0], np.dtype(np.bool_)),
            "number": Dense(numbers),
        }
        kept: dict[str, Column] = {"row": numbers, "name": pa.array([f"r{row}" for row in numbers])}
        why = {
            int(row): RowFailure(int(row), "", "read", "E", f"why {row}") for row in numbers if row in (failed or ())
        }
        pieces.append(LoadedRows(FIRST_ROW + start, stop - start, feeds, kept, why))
        start = stop
    return pieces


def tokens_of(lengths: list[int]) -> list[list[int]]:
    """Rows of these lengths, no value of which is zero."""
    return [[1 + (7 * row + place) % 100 for place in range(length)] for row, length in enumerate(lengths)]


def batches_of(
    pieces: list[LoadedRows], batch_size: int, boundaries: list[int], watch: Watch = UNWATCHED
) -> list[Batch]:
    buckets = {"tokens": [boundaries], "mask": [boundaries]}
    known = {name: sizes for name, sizes in buckets.items() if name in pieces[0].feeds}
    return list(cut_by_size(pieces, batch_size, known, on_the_heap, watch))


cuts = st.lists(st.integers(0, 60), max_size=5)
batch_sizes = st.integers(1, 9)
some_boundaries = st.sets(st.integers(1, 50), min_size=1, max_size=5).map(sorted).filter(lambda ends: ends[-1] >= 3)
"""None so small that the longest of these rows would be refused as far beyond it."""


@given(lengths=row_lengths, cuts=cuts, batch_size=batch_sizes, boundaries=some_boundaries)
def test_every_row_is_in_one_batch_whole_and_masked(
    lengths: list[int], cuts: list[int], batch_size: int, boundaries: list[int]
) -> None:
    rows = tokens_of(lengths)
    batches = batches_of(pieces_of(rows, cuts), batch_size, boundaries)
    assert len(batches) == -(-len(rows) // batch_size)
    assert [batch.index for batch in batches] == list(range(len(batches)))
    places = [int(place) for batch in batches for place in batch.positions]
    assert sorted(places) == list(range(len(rows)))
    for batch in batches:
        assert batch.rows == len(batch.positions)
        for place, row in enumerate(batch.positions.tolist() if not isinstance(batch.positions, range) else []):
            own = batch.arrays["tokens"][place]
            assert own[: len(rows[row])].tolist() == rows[row]
            assert not own[len(rows[row]) :].any()
            assert batch.arrays["mask"][place].tolist() == [i < len(rows[row]) for i in range(len(own))]
            assert batch.arrays["number"][place] == FIRST_ROW + row


@given(lengths=row_lengths, cuts=cuts, batch_size=batch_sizes, boundaries=some_boundaries)
def test_shapes_are_those_of_the_boundaries_and_every_batch_is_full(
    lengths: list[int], cuts: list[int], batch_size: int, boundaries: list[int]
) -> None:
    allowed = {boundary(length, boundaries) for length in lengths}
    for batch in batches_of(pieces_of(tokens_of(lengths), cuts), batch_size, boundaries):
        assert batch.arrays["tokens"].shape[0] == batch_size
        assert batch.arrays["tokens"].shape[1] in allowed
        assert batch.arrays["tokens"].shape == batch.arrays["mask"].shape
        assert batch.arrays["number"].shape == (batch_size,)
        for array in batch.arrays.values():
            assert (array[batch.rows :] == array[batch.rows - 1]).all()


@given(lengths=row_lengths, cuts=cuts, batch_size=batch_sizes, boundaries=some_boundaries)
def test_padding_is_counted(lengths: list[int], cuts: list[int], batch_size: int, boundaries: list[int]) -> None:
    pieces = pieces_of(tokens_of(lengths), cuts)
    for piece in pieces:
        piece.feeds = {name: feed for name, feed in piece.feeds.items() if name != "mask"}
    batches = batches_of(pieces, batch_size, boundaries)
    for batch in batches:
        assert batch.values == batch.arrays["tokens"].size
        # No value of a real row is zero, and the rows that fill up a batch are no real rows.
        assert batch.values - batch.padded == int((batch.arrays["tokens"][: batch.rows] != 0).sum())
        assert batch.lengths["tokens"].tolist() == [lengths[place] for place in batch.positions]
    assert sum(batch.values - batch.padded for batch in batches) == sum(lengths)


@given(lengths=row_lengths, cuts=cuts, batch_size=batch_sizes, data=st.data())
def test_order_is_restored_and_kept_columns_and_failures_stay_with_their_rows(
    lengths: list[int], cuts: list[int], batch_size: int, data: st.DataObject
) -> None:
    numbers = range(FIRST_ROW, FIRST_ROW + len(lengths))
    failed = data.draw(st.sets(st.sampled_from(numbers)))
    batches = batches_of(pieces_of(tokens_of(lengths), cuts, failed=failed), batch_size, [8, 32])
    for batch in batches:
        own = {FIRST_ROW + int(place) for place in batch.positions}
        assert {failure.row for failure in batch.failures} == own & failed
        assert batch.kept["row"].tolist() == sorted(own)
    result = put_together(batches, len(lengths))
    alive = [row for row in numbers if row not in failed]
    assert result.columns["total"].tolist() == [sum(tokens_of(lengths)[row - FIRST_ROW]) for row in alive]
    assert result.columns[KEPT + "row"].tolist() == alive
    assert to_arrow(result.columns[KEPT + "name"]).to_pylist() == [f"r{row}" for row in alive]
    assert [failure.row for failure in result.failures] == sorted(failed)
    assert all(failure.reason == f"why {failure.row}" for failure in result.failures)


def put_together(batches: list[Batch], rows: int) -> Result:
    """The result of a span for a model that sums its rows."""
    answered = [
        (batch.positions, {"total": batch.arrays["tokens"][: batch.rows].sum(axis=1)}, batch.kept) for batch in batches
    ]
    failures = sorted((failure for batch in batches for failure in batch.failures), key=lambda failure: failure.row)
    return to_result(Span(0, FIRST_ROW, rows, ()), answered, failures)


def test_long_rows_come_first_and_share_their_batches() -> None:
    batches = batches_of(pieces_of(tokens_of([1, 30, 2, 31, 3, 29]), [3]), 3, [4, 32])
    assert [list(batch.positions) for batch in batches] == [[1, 3, 5], [0, 2, 4]]
    assert [batch.arrays["tokens"].shape[1] for batch in batches] == [32, 4]


def test_nothing_to_cut_makes_no_batch() -> None:
    assert list(cut_by_size([], 4, {"tokens": [[8]]}, on_the_heap, UNWATCHED)) == []


def test_broken_rows_are_named_and_poisoned_ones_left_out_wherever_their_batch_puts_them() -> None:
    column = Letters([b"a", b"bcdef", b"!", b"kill", b"gh"])
    pieces = [
        LoadedRows(FIRST_ROW, 2, {"x": Encoded(column[0:2], np.dtype(np.uint8), (None,))}),
        LoadedRows(FIRST_ROW + 2, 3, {"x": Encoded(column[2:5], np.dtype(np.uint8), (None,))}),
    ]
    watch = Diary(poisoned=poisoned(FIRST_ROW + 3))
    batches = list(cut_by_size(pieces, 2, {"x": [[4, 8]]}, on_the_heap, watch))
    assert sorted(int(place) for batch in batches for place in batch.positions) == [0, 1, 2, 3, 4]
    (failure,) = [failure for batch in batches for failure in batch.failures]
    assert (failure.row, failure.stage, failure.error) == (FIRST_ROW + 2, "load", "OSError")
    assert failure.reason == "OSError: broken: !"
    assert sorted(row for row, _ in watch.begun) == [FIRST_ROW, FIRST_ROW + 1, FIRST_ROW + 2, FIRST_ROW + 4]
    assert b"kill" not in column.decoded


class Rectangles(Deferred):
    """Images of ones, of different heights and widths."""

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> Rectangles:
        return Rectangles(self._rows[rows])

    def raw(self) -> pa.Array:
        return pa.array([f"{height}x{width}" for height, width in self._rows])

    def sizes(self) -> Array:
        return np.array(self._rows, np.int64)

    def fill(self, out: Array, announce: Announce) -> BadRows:
        out[:] = 0
        for place, (height, width) in enumerate(self._rows):
            out[place, :height, :width] = 1
        return BadRows()


@pytest.mark.parametrize("sizes", [[(2, 3), (5, 1), (4, 4)], [(1, 1)] * 5], ids=["different", "equal"])
def test_images_of_different_sizes_are_padded_in_both_dimensions(sizes: list[tuple[int, int]]) -> None:
    feed = Encoded(Rectangles(sizes), np.dtype(np.uint8), (None, None, 1))
    buckets = {"x": [[2, 8], [4]]}
    (batch,) = cut_by_size([LoadedRows(0, len(sizes), {"x": feed})], 8, buckets, on_the_heap, UNWATCHED)
    heights = [height for height, _ in sizes]
    assert batch.arrays["x"].shape == (8, boundary(max(heights), [2, 8]), 4, 1)
    assert batch.values - batch.padded == sum(h * w for h, w in sizes) == batch.arrays["x"][: len(sizes)].sum()
    assert not batch.lengths, "no output follows two dimensions at once"


def batches_of_one_size(pieces: list[LoadedRows], batch_size: int, fewest_rows: int) -> list[Batch]:
    buckets = {"tokens": [[4, 64]], "mask": [[4, 64]]}
    return list(cut_by_one_size(pieces, batch_size, fewest_rows, buckets, on_the_heap, UNWATCHED))


@given(lengths=row_lengths, cuts=cuts, batch_size=batch_sizes, data=st.data())
def test_batch_of_one_size_holds_no_padding_and_every_row_is_in_one(
    lengths: list[int], cuts: list[int], batch_size: int, data: st.DataObject
) -> None:
    rows, fewest = tokens_of(lengths), data.draw(st.integers(1, batch_size))
    batches = batches_of_one_size(pieces_of(rows, cuts), batch_size, fewest)
    assert [batch.index for batch in batches] == list(range(len(batches)))
    assert sorted(int(place) for batch in batches for place in batch.positions) == list(range(len(rows)))
    for batch in batches:
        assert [batch.arrays["tokens"][place].tolist() for place in range(batch.rows)] == [
            rows[int(row)] for row in batch.positions
        ]
        assert batch.arrays["mask"].all()
        assert batch.size >= max(fewest, batch.rows)
        assert batch.size in {1, 2, 4, 8, fewest, batch_size}
        for array in batch.arrays.values():
            assert (array[batch.rows :] == array[batch.rows - 1]).all()


def test_most_common_size_comes_first() -> None:
    batches = batches_of_one_size(pieces_of(tokens_of([9, 2, 2, 5, 2]), [3]), 2, 1)
    assert [list(batch.positions) for batch in batches] == [[1, 2], [4], [0], [3]]
    assert [batch.arrays["tokens"].shape for batch in batches] == [(2, 2), (1, 2), (1, 9), (1, 5)]


def test_row_that_failed_already_needs_no_batch_of_its_own() -> None:
    batches = batches_of_one_size(pieces_of(tokens_of([3, 0, 3]), [], failed={FIRST_ROW + 1}), 4, 1)
    (batch,) = batches
    assert batch.arrays["tokens"].shape == (4, 3)
    assert [failure.row for failure in batch.failures] == [FIRST_ROW + 1]


def test_photos_that_cannot_be_decoded_are_no_size_of_their_own() -> None:
    feed = Encoded(Rectangles([(0, 0), (2, 3), (0, 0)]), np.dtype(np.uint8), (None, None, 1))
    (batch,) = cut_by_one_size([LoadedRows(0, 3, {"x": feed})], 8, 1, {"x": [[2, 8], [4]]}, on_the_heap, UNWATCHED)
    assert batch.arrays["x"].shape == (4, 2, 3, 1)


def test_giant_row_gets_no_batch_where_every_batch_is_as_large_as_all_others() -> None:
    pieces = pieces_of(tokens_of([3, 5000, 3]), [])
    batches = batches_of_one_size(pieces, 4, 4)
    assert sorted(batch.arrays["tokens"].shape[1] for batch in batches) == [1, 3]
    (failure,) = [failure for batch in batches for failure in batch.failures]
    assert failure.row == FIRST_ROW + 1
    assert "5,000 values" in failure.reason
    assert max(batch.arrays["tokens"].shape[1] for batch in batches_of_one_size(pieces, 4, 1)) == 5000


def test_rows_that_all_failed_have_the_smallest_size_that_was_planned() -> None:
    (batch,) = batches_of_one_size(pieces_of(tokens_of([0, 0]), [], failed={FIRST_ROW, FIRST_ROW + 1}), 4, 1)
    assert batch.arrays["tokens"].shape == (2, 4)


def test_span_of_which_a_whole_batch_failed_keeps_the_order_of_the_others() -> None:
    pieces = pieces_of(tokens_of([3, 1, 3, 2, 1]), [])
    whole = [batch for batch in batches_of_one_size(pieces, 4, 1) if batch.arrays["tokens"].shape[1] != 1]
    failures = [RowFailure(FIRST_ROW + place, "", "predict", "E", "too short") for place in (1, 4)]
    answered = [(batch.positions, {"y": batch.arrays["number"][: batch.rows]}, batch.kept) for batch in whole]
    result = to_result(Span(0, FIRST_ROW, 5, ()), answered, failures)
    assert result.columns["y"].tolist() == [FIRST_ROW, FIRST_ROW + 2, FIRST_ROW + 3]
    assert result.row_numbers().tolist() == [FIRST_ROW, FIRST_ROW + 2, FIRST_ROW + 3]
