"""Which rows a job takes, where it does not take them all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.derived.selection import allot, overlap, sample_by_class, sample_evenly, to_runs

class_sizes = st.lists(st.integers(1, 200), min_size=1, max_size=12)
some_rows = st.sets(st.integers(0, 300), max_size=60).map(sorted)


def rows_of(runs: list[tuple[int, int]]) -> list[int]:
    return [row for first, count in runs for row in range(first, first + count)]


@given(counts=class_sizes, share=st.floats(0, 1))
def test_shares_add_up_and_no_class_gives_more_than_it_has(counts: list[int], share: float) -> None:
    wanted = round(share * sum(counts))
    shares = allot(np.array(counts), wanted)
    assert shares.sum() == wanted
    assert all(0 <= part <= count for part, count in zip(shares.tolist(), counts, strict=True))


@given(counts=class_sizes, extra=st.integers(0, 500))
def test_every_class_has_a_row_where_there_are_enough(counts: list[int], extra: int) -> None:
    wanted = min(len(counts) + extra, sum(counts))
    assert (allot(np.array(counts), wanted) >= 1).all()


@given(counts=class_sizes, data=st.data())
def test_where_there_are_not_enough_the_largest_classes_have_one(counts: list[int], data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, len(counts)))
    shares = allot(np.array(counts), wanted)
    assert set(shares.tolist()) <= {0, 1}
    chosen = [count for count, share in zip(counts, shares.tolist(), strict=True) if share]
    assert sorted(chosen) == sorted(counts)[len(counts) - wanted :]


@given(counts=st.lists(st.integers(50, 500), min_size=1, max_size=8), share=st.floats(0.1, 0.9))
def test_shares_are_those_of_the_whole_but_for_one_row(counts: list[int], share: float) -> None:
    wanted = round(share * sum(counts))
    exact = np.array(counts) * wanted / sum(counts)
    assert (np.abs(allot(np.array(counts), wanted) - exact) < 1.0 + 1e-9).all()


@given(total=st.integers(0, 500), wanted=st.integers(0, 600), seed=st.integers(0, 5))
def test_sample_is_rows_in_order_each_once_as_many_as_wanted(total: int, wanted: int, seed: int) -> None:
    rows = sample_evenly(total, wanted, seed).tolist()
    assert len(rows) == min(total, wanted)
    assert rows == sorted(set(rows))
    assert all(0 <= row < total for row in rows)


@given(classes=st.lists(st.integers(-3, 3), min_size=1, max_size=120), data=st.data(), seed=st.integers(0, 5))
def test_sample_by_class_keeps_every_share(classes: list[int], data: st.DataObject, seed: int) -> None:
    wanted = data.draw(st.integers(1, len(classes)))
    rows = sample_by_class(np.array(classes), wanted, seed).tolist()
    assert len(rows) == wanted
    assert rows == sorted(set(rows))
    names, counts = np.unique(classes, return_counts=True)
    taken = [sum(classes[row] == name for row in rows) for name in names]
    assert taken == allot(counts, wanted).tolist()


def test_same_seed_gives_the_same_rows_and_another_seed_others() -> None:
    classes = np.arange(1000) % 7
    assert sample_evenly(1000, 50, 3).tolist() == sample_evenly(1000, 50, 3).tolist()
    assert sample_evenly(1000, 50, 3).tolist() != sample_evenly(1000, 50, 4).tolist()
    assert sample_by_class(classes, 50, 3).tolist() == sample_by_class(classes, 50, 3).tolist()
    assert sample_by_class(classes, 50, 3).tolist() != sample_by_class(classes, 50, 4).tolist()


def test_every_row_is_as_likely_as_any_other() -> None:
    taken = np.zeros(20)
    for seed in range(2000):
        taken[sample_evenly(20, 5, seed)] += 1
    assert (np.abs(taken / 2000 - 0.25) < 0.05).all()


@pytest.mark.parametrize("wanted", [5, 9])
def test_sample_of_all_or_more_is_all(wanted: int) -> None:
    assert sample_evenly(5, wanted, 0).tolist() == [0, 1, 2, 3, 4]
    assert sample_by_class(np.array([1, 1, 2, 2, 2]), wanted, 0).tolist() == [0, 1, 2, 3, 4]


@given(rows=some_rows)
def test_runs_are_the_rows_and_as_few_as_there_can_be(rows: list[int]) -> None:
    runs = to_runs(np.array(rows, np.int64))
    assert rows_of(runs) == rows
    assert all(count > 0 for _, count in runs)
    stops = [first + count for first, count in runs]
    assert all(stop < first for stop, (first, _) in zip(stops, runs[1:], strict=False))


@given(rows=some_rows, start=st.integers(0, 300), length=st.integers(0, 100))
def test_overlap_is_the_rows_between(rows: list[int], start: int, length: int) -> None:
    found = list(overlap(to_runs(np.array(rows, np.int64)), start, start + length))
    assert rows_of(found) == [row for row in rows if start <= row < start + length]


@given(rows=some_rows, cuts=st.lists(st.integers(0, 301), max_size=6))
def test_overlaps_side_by_side_are_the_rows_again(rows: list[int], cuts: list[int]) -> None:
    runs = to_runs(np.array(rows, np.int64))
    edges = [0, *sorted(cuts), 301]
    pieces = [overlap(runs, start, stop) for start, stop in itertools.pairwise(edges)]
    assert [row for piece in pieces for row in rows_of(list(piece))] == rows
