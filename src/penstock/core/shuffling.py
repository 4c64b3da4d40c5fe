"""Seeded orders of rows that are computed where they are needed: no list of all rows is ever made. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from penstock.core.records import Array

_ROUNDS = 6
_KEPT_NUMBERS = 1 << 18
"""A permutation of up to so many numbers is kept after it was computed: at most 2 MB."""
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


@dataclass(frozen=True)
class Permutation:
    """A permutation of the numbers below `size`, which depends only on `key`. Its memory does not grow with `size`.

    A number is split into two digits, and in turn a function of one digit is added to the other (a Feistel network).
    This permutes slightly more numbers than `size`. A result that is not below `size` goes through the network again
    until it is, so that the whole stays a permutation.
    """

    size: int
    key: tuple[int, ...]

    def __call__(self, positions: Array) -> Array:
        """The numbers at these positions."""
        if self.size <= _KEPT_NUMBERS:
            made: Array = self._table[positions]
            return made
        return self._walk(positions, is_inverse=False)

    def inverse(self, numbers: Array) -> Array:
        """The positions of these numbers."""
        return self._walk(numbers, is_inverse=True)

    @cached_property
    def _table(self) -> Array:
        return self._walk(np.arange(self.size), is_inverse=False)

    def _walk(self, values: Array, *, is_inverse: bool) -> Array:
        found = self._encrypt(np.asarray(values, np.uint64), is_inverse=is_inverse)
        outside = np.flatnonzero(found >= self.size)
        while len(outside):
            moved = self._encrypt(found[outside], is_inverse=is_inverse)
            found[outside] = moved
            outside = outside[moved >= self.size]
        return found.astype(np.int64)

    def _encrypt(self, values: Array, *, is_inverse: bool) -> Array:
        base = self._base
        high, low = np.divmod(values, base)
        numbered = list(enumerate(self._keys))
        for number, key in reversed(numbered) if is_inverse else numbered:
            if number % 2:
                high = _added(high, _mixed(low, key), base, is_inverse=is_inverse)
            else:
                low = _added(low, _mixed(high, key), base, is_inverse=is_inverse)
        made: Array = high * base + low
        return made

    @cached_property
    def _base(self) -> np.uint64:
        """The base of the two digits: the square root of the size, rounded up."""
        return np.uint64(math.isqrt(max(1, self.size) - 1) + 1)

    @cached_property
    def _keys(self) -> Array:
        return np.random.SeedSequence(self.key).generate_state(_ROUNDS, np.uint64)


@lru_cache(maxsize=4)
def permutation(size: int, *key: int) -> Permutation:
    """The permutation of a key; the last four are kept."""
    return Permutation(size, key)


def _added(digits: Array, others: Array, base: np.uint64, *, is_inverse: bool) -> Array:
    """Digits to which others, scaled from numbers of 32 bits, are added or, with `is_inverse`, subtracted."""
    others = (others * base) >> np.uint64(32)
    made: Array = digits + (base - others if is_inverse else others)
    made -= (made >= base) * base
    return made


def _mixed(values: Array, key: np.uint64) -> Array:
    """Numbers in which every bit depends on every bit of a value and of the key."""
    mixed = (values + key) * _MIX
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX
    made: Array = mixed >> np.uint64(32)
    return made


def row_seeds(numbers: Array, *key: int) -> Array:
    """int64 that is not negative: a seed for every row, which follows from its number and the key."""
    (start,) = np.random.SeedSequence(key).generate_state(1, np.uint64)
    seeds = _mixed(np.asarray(numbers, np.uint64), start) << np.uint64(31)
    return (seeds ^ _mixed(np.asarray(numbers, np.uint64), start ^ _MIX)).astype(np.int64)


class RowSet(Protocol):
    """Some rows of an input. Each of them has a rank; the order of ranks means nothing."""

    @property
    def count(self) -> int: ...

    def numbers(self, ranks: Array) -> Array:
        """The numbers in the whole input of the rows with these ranks."""
        ...

    def ranks(self, numbers: Array) -> Array:
        """The ranks of rows that are all in the set."""
        ...

    def contains(self, numbers: Array) -> Array:
        """Which of these rows are in the set."""
        ...


@dataclass(frozen=True)
class AllRows:
    """All rows of an input."""

    count: int

    def numbers(self, ranks: Array) -> Array:
        return ranks

    def ranks(self, numbers: Array) -> Array:
        return numbers

    def contains(self, numbers: Array) -> Array:
        return np.ones(len(numbers), bool)


@dataclass(frozen=True)
class DrawnRows:
    """`count` rows of an input of `total`, drawn by a seed: those from place `first` of a permutation."""

    total: int
    first: int
    count: int
    seed: int

    @cached_property
    def _drawn(self) -> Permutation:
        return Permutation(self.total, (self.seed, _SPLIT))

    def numbers(self, ranks: Array) -> Array:
        return self._drawn(ranks + self.first)

    def ranks(self, numbers: Array) -> Array:
        return self._drawn.inverse(numbers) - self.first

    def contains(self, numbers: Array) -> Array:
        ranks = self.ranks(numbers)
        made: Array = (ranks >= 0) & (ranks < self.count)
        return made


class ListedRows:
    """Rows that are listed, in ascending order: 8 bytes for each."""

    def __init__(self, rows: Array) -> None:
        self._rows = np.asarray(rows, np.int64)

    @property
    def count(self) -> int:
        return len(self._rows)

    def numbers(self, ranks: Array) -> Array:
        made: Array = self._rows[ranks]
        return made

    def ranks(self, numbers: Array) -> Array:
        return np.searchsorted(self._rows, numbers)

    def contains(self, numbers: Array) -> Array:
        if not len(self._rows):
            return np.zeros(len(numbers), bool)
        nearest = np.minimum(self.ranks(numbers), len(self._rows) - 1)
        made: Array = self._rows[nearest] == numbers
        return made


_SPLIT = 0x5E7
"""Makes the key of a split different from that of an epoch."""


def split_rows(total: int, share: float, seed: int) -> tuple[RowSet, RowSet]:
    """Rows to train on, and a share of all rows, drawn by the seed, to validate with: at least one row each.

    >>> [rows.count for rows in split_rows(10, 0.25, seed=1)]
    [8, 2]
    """
    held_out = min(max(1, round(total * share)), total - 1)
    return DrawnRows(total, held_out, total - held_out, seed), DrawnRows(total, 0, held_out, seed)


def split_by_class(classes: Array, share: float, seed: int) -> tuple[RowSet, RowSet]:
    """As `split_rows`, but every class has its share on both sides; a class of two rows or more is on both."""
    order = np.lexsort((Permutation(len(classes), (seed, _SPLIT)).inverse(np.arange(len(classes))), classes))
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    is_held_out = np.zeros(len(classes), bool)
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        wanted = min(max(1, round(count * share)), count - 1)
        is_held_out[order[start : start + wanted]] = True
    return ListedRows(np.flatnonzero(~is_held_out)), ListedRows(np.flatnonzero(is_held_out))
