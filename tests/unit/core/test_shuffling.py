"""Seeded orders of rows: permutations without a list, and splits."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import shuffling
from penstock.core.shuffling import AllRows, DrawnRows, ListedRows, Permutation, row_seeds, split_by_class, split_rows

KEYS = st.tuples(st.integers(0, 2**63), st.integers(0, 1000))


@pytest.fixture(params=[True, False], ids=["kept", "computed"], autouse=True)
def _whether_small_ones_are_kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(shuffling, "_KEPT_NUMBERS", 0)


@given(st.integers(1, 3000), KEYS)
def test_every_number_is_there_once_and_the_inverse_finds_it(size: int, key: tuple[int, int]) -> None:
    permutation = Permutation(size, key)
    numbers = permutation(np.arange(size))
    assert np.array_equal(np.sort(numbers), np.arange(size))
    assert np.array_equal(permutation.inverse(numbers), np.arange(size))


def test_rows_beyond_any_memory_are_shuffled_where_they_are_asked_for() -> None:
    permutation = Permutation(10**15, (1, 2))
    positions = np.array([0, 1, 10**15 - 1])
    numbers = permutation(positions)
    assert len(set(numbers.tolist())) == 3
    assert numbers.max() < 10**15
    assert np.array_equal(permutation.inverse(numbers), positions)


def test_another_epoch_or_seed_is_another_order() -> None:
    orders = {Permutation(100, (seed, epoch))(np.arange(100)).tobytes() for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_every_row_comes_to_every_place_equally_often() -> None:
    found = Counter(int(Permutation(50, (seed, 0))(np.array([7]))[0]) for seed in range(10_000))
    # 200 of each are expected, with a standard deviation of 14.
    assert len(found) == 50
    assert min(found.values()) > 130
    assert max(found.values()) < 270


def test_neighbours_do_not_stay_together() -> None:
    numbers = Permutation(100_000, (3, 1))(np.arange(100_000))
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
    assert np.count_nonzero(np.abs(np.diff(numbers)) == 1) < 20


def test_seeds_of_rows_differ_by_row_and_epoch_and_are_the_same_again() -> None:
    seeds = row_seeds(np.arange(1000), 1, 0)
    assert len(set(seeds.tolist())) == 1000
    assert seeds.min() >= 0
    assert np.array_equal(seeds, row_seeds(np.arange(1000), 1, 0))
    assert not np.intersect1d(seeds, row_seeds(np.arange(1000), 1, 1)).size


@given(st.integers(2, 500), st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_split_has_every_row_on_one_side(total: int, share: float, seed: int) -> None:
    train, held_out = split_rows(total, share, seed)
    sides = [rows.numbers(np.arange(rows.count)) for rows in (train, held_out)]
    assert np.array_equal(np.sort(np.concatenate(sides)), np.arange(total))
    assert abs(held_out.count - total * share) <= 1
    assert train.contains(sides[0]).all()
    assert not train.contains(sides[1]).any()
    assert np.array_equal(held_out.ranks(sides[1]), np.arange(held_out.count))


def test_a_stratified_split_keeps_the_shares_and_even_rare_classes_on_both_sides() -> None:
    classes = np.array([0] * 90 + [1] * 8 + [2] * 2 + [3])
    train, held_out = split_by_class(np.random.default_rng(1).permutation(classes), 0.25, seed=5)
    shuffled = np.random.default_rng(1).permutation(classes)
    counted = [np.bincount(shuffled[rows.numbers(np.arange(rows.count))], minlength=4) for rows in (train, held_out)]
    assert counted[1].tolist() == [22, 2, 1, 0]
    assert (counted[0] + counted[1]).tolist() == [90, 8, 2, 1]


def test_listed_rows_are_found_by_number() -> None:
    rows = ListedRows(np.array([2, 5, 9]))
    assert rows.contains(np.array([0, 2, 9, 10])).tolist() == [False, True, True, False]
    assert rows.ranks(np.array([5])).tolist() == [1]
    assert not ListedRows(np.array([], np.int64)).contains(np.array([1])).any()
    assert AllRows(3).contains(np.array([1])).all()
    assert DrawnRows(10, 0, 10, 1).contains(np.arange(10)).all()
