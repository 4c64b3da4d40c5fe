"""`--batch-size auto`: the smallest batch that trains nearly as many rows a second as larger ones.

Steps are timed for 32 rows, 64, 128 … until larger batches gain little, do not fit into memory, or would leave too few
steps in an epoch. Afterwards, the model has its old state again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import psutil

from penstock.core.training import TrainBatch
from penstock.pool.devices.memory import available_bytes
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, StepSettings, forget_steps
from penstock.runtimes.keras.training.opening import open_trainer

FIRST_SIZE = 32
"""Keras's own batch size: the smallest that is chosen."""
LARGEST_SIZE = 8192
LEAST_STEPS = 20
"""The least number of steps in an epoch, even if a larger batch is faster: the weights change once a step."""
_WORTH = 1.1
"""A batch of twice the rows is chosen if it trains at least this many times the rows a second."""
_LEAST_TIMED, _MOST_TIMED, _TIMED_S = 3, 50, 0.3
_MOST_BYTES = 1 << 30


def find_batch_size(model: Any, first: Any, rows: int, settings: StepSettings, num_devices: int | None) -> int:
    """Time the steps of several batch sizes, and choose one.

    Args:
        model: A compiled Keras model.
        first: A batch as its step takes it; larger batches repeat its rows.
        rows: How many rows an epoch has.
        settings: How a batch is worked on.
        num_devices: How many devices to use; None for all.
    """
    trainer = open_trainer(model, _as_it_is, first, replace(settings, is_measured=True), num_devices)
    try:
        smallest = -(-FIRST_SIZE // trainer.num_devices) * trainer.num_devices
        before = trainer.state()
        fits = _MemoryWatch(first)
        found = knee(smallest, min(LARGEST_SIZE, rows // LEAST_STEPS), lambda size: _rate(trainer, first, size), fits)
        trainer.restore(before)
    finally:
        trainer.close()
        # These steps were traced for many sizes; the next trainer needs only one.
        forget_steps(model)
    return found


def described(size: int) -> str:
    return f"batch size {size:,}, chosen by timing steps: --batch-size {size} fixes it. The learning rate is unchanged"


def knee(smallest: int, largest: int, rate: Callable[[int], float | None], fits: Callable[[int], bool]) -> int:
    """The batch size from which on twice the rows gain little; `rate` gives None for a size that runs out of memory.

    >>> knee(32, 1000, {32: 100.0, 64: 190.0, 128: 300.0, 256: 310.0}.get, lambda size: True)
    128
    """
    size, best = smallest, None
    while 2 * size <= largest and fits(2 * size):
        best = rate(size) if best is None else best
        found = rate(2 * size) if best is not None else None
        if best is None or found is None or found < _WORTH * best:
            break
        size, best = 2 * size, found
    return size


class _MemoryWatch:
    """Whether a batch of twice the rows will fit into this machine's memory: on a CPU, no error comes in time."""

    def __init__(self, first: Any) -> None:
        leaves = [leaf for leaf in keras.tree.flatten(first) if leaf is not None]
        self._row_bytes = sum(leaf.nbytes for leaf in leaves) / len(leaves[0])
        self._process = psutil.Process()
        self._at_first = self._process.memory_info().rss

    def __call__(self, size: int) -> bool:
        grown = self._process.memory_info().rss - self._at_first
        return bool(size * self._row_bytes <= _MOST_BYTES) and 2 * max(0, grown) <= available_bytes() / 2


def _rate(trainer: KerasTrainer, first: Any, size: int) -> float | None:
    """Rows a second; None where a batch does not fit into memory."""
    data = keras.tree.map_structure(lambda leaf: None if leaf is None else _repeated(leaf, size), first)
    batch = TrainBatch(size, {"": data}, {}, {}, np.arange(size))
    for placed in trainer.ahead(iter([batch])):
        if not trainer.fits(placed):
            return None
    steps, began = 0, time.perf_counter()
    for placed in trainer.ahead(repeat(batch, _MOST_TIMED)):
        trainer.train_on(placed)
        steps += 1
        if steps >= _LEAST_TIMED and time.perf_counter() - began > _TIMED_S:
            break
    trainer.results()  # waits for the devices
    return steps * size / (time.perf_counter() - began)


def _repeated(leaf: Any, size: int) -> Any:
    leaf = np.asarray(leaf)
    return leaf[np.arange(size) % len(leaf)]


def _as_it_is(batch: TrainBatch) -> Any:
    return batch.inputs[""]
