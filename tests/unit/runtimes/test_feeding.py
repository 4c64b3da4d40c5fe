"""Batches that a thread brings to the device ahead of time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from penstock.core.training import TrainBatch
from penstock.runtimes.keras.training.feeding import PlacedBatch, placed_ahead
from penstock.runtimes.keras.training.keras_trainer import piece_bounds


def batches(count: int, released: list[int]) -> Iterator[TrainBatch]:
    for number in range(count):
        numbers = np.array([number])
        yield TrainBatch(1, {"": numbers}, {}, {}, numbers, partial(released.append, number))


def test_all_batches_come_in_order_and_are_released() -> None:
    released: list[int] = []
    placed = placed_ahead(batches(7, released), lambda batch: batch.inputs[""] * 10)
    values = [int(batch.placed[0]) for batch in placed if isinstance(batch, PlacedBatch)]
    assert values == [0, 10, 20, 30, 40, 50, 60]
    assert released == list(range(7))


def test_an_error_of_the_data_reaches_the_loop() -> None:
    def broken() -> Iterator[TrainBatch]:
        yield from batches(1, [])
        raise OSError("gone")

    placed = placed_ahead(broken(), lambda batch: batch.inputs)
    next(placed)
    with pytest.raises(OSError, match="gone"):
        next(placed)


def test_closing_ends_the_thread() -> None:
    before = threading.active_count()
    placed = placed_ahead(batches(1000, []), lambda batch: batch.inputs)
    next(placed)
    placed.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.mark.parametrize(("rows", "pieces"), [(50, 4), (47, 4), (3, 4), (1, 1), (7, 7)])
def test_pieces_cover_all_rows_and_differ_by_one_at_most(rows: int, pieces: int) -> None:
    cuts = piece_bounds(rows, pieces)
    sizes = [end - begin for begin, end in cuts]
    assert cuts[0][0] == 0
    assert sum(sizes) == rows == cuts[-1][1]
    assert max(sizes) - min(sizes) <= 1
