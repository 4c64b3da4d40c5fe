"""Batches on their way to an accelerator: the next ones are gathered and copied while a step runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.core.training import TrainBatch
from penstock.runtimes.keras.training.read_ahead import ReadAhead, close_iterator

DEPTH = 3
"""How many batches are on the device, or on their way to it, beside the one that is worked on."""


@dataclass
class PlacedBatch(TrainBatch):
    """A batch that is on the device; its source was released."""

    placed: Any = None


def placed_ahead(batches: Iterator[TrainBatch], place: Callable[[TrainBatch], Any]) -> Iterator[TrainBatch]:
    """The same batches, placed by a thread that is up to `DEPTH` batches ahead. Closing it ends the thread."""
    with ReadAhead(_placed(batches, place), DEPTH) as ready:
        yield from ready


def _placed(batches: Iterator[TrainBatch], place: Callable[[TrainBatch], Any]) -> Iterator[PlacedBatch]:
    try:
        for batch in batches:
            placed = PlacedBatch(batch.rows, {}, {}, {}, batch.numbers, placed=place(batch))
            batch.release()
            yield placed
    finally:
        close_iterator(batches)
