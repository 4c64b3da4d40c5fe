"""Samples of rows. They are seeded: the same input gives the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from penstock.core.records import Array

Runs = list[tuple[int, int]]
"""Rows as (first row, number of rows), in order."""


def sample_evenly(total: int, wanted: int, seed: int) -> Array:
    """`wanted` of `total` rows, each as likely as any other, in order."""
    if wanted >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(seed).choice(total, wanted, replace=False))


def sample_by_class(classes: Array, wanted: int, seed: int) -> Array:
    """Rows in which every class has the share that it has in the whole, and at least one row where that is possible.

    Args:
        classes: A number for the class of every row.
        wanted: How many rows.
        seed: Decides which rows of a class.
    """
    total = len(classes)
    if wanted >= total:
        return np.arange(total)
    _, inverse, counts = np.unique(classes, return_inverse=True, return_counts=True)
    shares = allot(counts, wanted)
    generator = np.random.default_rng(seed)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(counts)
    picked = [
        generator.choice(order[end - count : end], share, replace=False)
        for end, count, share in zip(ends, counts, shares, strict=True)
    ]
    return np.sort(np.concatenate(picked))


def allot(counts: Array, wanted: int) -> Array:
    """How many rows of each class: in proportion, by largest remainder, at least one for the largest classes first.

    >>> allot(np.array([90, 9, 1]), 10).tolist()
    [8, 1, 1]
    """
    least = np.zeros(len(counts), np.int64)
    least[np.argsort(-counts, kind="stable")[:wanted]] = 1
    exact = counts * wanted / counts.sum()
    shares: Array = np.maximum(np.floor(exact).astype(np.int64), least)
    while shares.sum() > wanted:
        over = np.where(shares > least, shares - exact, -np.inf)
        shares[int(np.argmax(over))] -= 1
    while shares.sum() < wanted:
        under = np.where(shares < counts, exact - shares, -np.inf)
        shares[int(np.argmax(under))] += 1
    return shares


def to_runs(rows: Array) -> Runs:
    """Sorted row numbers as runs.

    >>> to_runs(np.array([3, 4, 5, 9]))
    [(3, 3), (9, 1)]
    """
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = np.concatenate(([0], breaks))
    stops = np.concatenate((breaks, [len(rows)]))
    return [(int(rows[start]), int(stop - start)) for start, stop in zip(starts, stops, strict=True)]


def overlap(runs: Iterable[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The pieces of runs that lie from `start` to `stop`."""
    for first, rows in runs:
        begin, end = max(first, start), min(first + rows, stop)
        if begin < end:
            yield begin, end - begin
