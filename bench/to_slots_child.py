"""Our side of F: real loader processes that decode a folder of photos into slots, each freed as soon as it is full.

`python -m bench.to_slots_child FOLDER --loaders 2 --photos 8000` prints images per second in the steady state: loaders
are up and have decoded some batches before the clock starts, and are still decoding when it stops.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from bench.decoders import MOST_DIFFERENCE, OF_INTERPOLATION, SIDE, largest_difference
from bench.shell import BenchError
from penstock.core import kinds
from penstock.core.batching import default_batch_size
from penstock.core.division import rows_per_span
from penstock.core.job import Job
from penstock.core.messages import Chunk, Filled, SpanLoaded
from penstock.core.records import Array, Binding, ModelFile, Span
from penstock.core.stillness import Timeouts
from penstock.engines.loader_feed import slot_bytes_of
from penstock.options.records import ReadOptions
from penstock.pool.processes.loader_pool import LoaderPool
from penstock.pool.processes.supervisor import Launch
from penstock.pool.transfer.batches import open_batch
from penstock.pool.transfer.results import Assembly
from penstock.pool.transfer.slots import Slots
from penstock.sources.catalog import open_files

SHAPE = (SIDE, SIDE, 3)
BATCH = default_batch_size(SIDE * SIDE * 3)
# As many as a run with one replica has: two for each loader, and what the replica holds.
SLOTS_BESIDE_LOADERS = 5
SPANS_SUBMITTED = 6
ROW_TIMEOUT_S = 60.0
CHECKED_PHOTOS = 16


class Feeding:
    """The loaders, and the count of what they delivered."""

    def __init__(self, folder: Path, loaders: int, launch: Launch, interpolation: str) -> None:
        source = open_files([str(folder)], ReadOptions(interpolation=interpolation))
        binding = Binding("image", ("image",), "uint8", SHAPE)
        self._job = Job(source, (binding,), ("path",), BATCH)
        self._spans = _endless(list(source.divide(rows_per_span(BATCH, SIDE * SIDE * 3, 4 * 1280))))
        self._pool = LoaderPool(launch, self._take, Timeouts(ROW_TIMEOUT_S))
        slot_bytes, slot_count = slot_bytes_of(self._job), 2 * loaders + SLOTS_BESIDE_LOADERS
        self._pool.begin(self._job, loaders, slot_bytes, slot_count)
        self._slots = Slots(launch.batch_slots, slot_count, slot_bytes)
        self.delivered = 0
        self.first_pixels: Array = np.empty(0, np.uint8)
        self.first_paths: list[str] = []

    def until(self, photos: int) -> float:
        """Go on until so many photos were delivered in all; return the moment of the last."""
        while self.delivered < photos:
            for line in wait(list(self._pool.signs), timeout=ROW_TIMEOUT_S):
                self._pool.handle(self._pool.signs[line])
        return time.perf_counter()

    def begin(self) -> None:
        for _ in range(SPANS_SUBMITTED):
            self._pool.submit(next(self._spans))

    def waited_share(self) -> float:
        """How much of their time loaders waited for a free slot."""
        return self._pool.wait_s / max(1e-9, self._pool.busy_s + self._pool.wait_s)

    def close(self) -> None:
        self._pool.close()

    def _take(self, message: Chunk | Filled | SpanLoaded) -> None:
        match message:
            case SpanLoaded():
                self._pool.submit(next(self._spans))
            case Filled():
                if message.failures:
                    raise BenchError(f"a photo was not decoded: {message.failures[0].reason}")
                if message.span == 0:
                    self._remember(message)
                self.delivered += message.rows
                if message.slot is not None:
                    self._pool.release(message.slot)
            case Chunk():
                raise BenchError("a batch did not fit into its slot")

    def _remember(self, message: Filled) -> None:
        batch = open_batch(message, self._slots, Assembly(self._slots))
        self.first_pixels = batch.arrays["image"][:CHECKED_PHOTOS].copy()
        self.first_paths = [str(path) for path in batch.kept["path"][:CHECKED_PHOTOS]]


def _endless(spans: list[Span]) -> Iterator[Span]:
    """The folder again and again, as one stream of spans."""
    for index, span in enumerate(itertools.cycle(spans)):
        yield replace(span, index=index)


def check_pixels(paths: list[str], pixels: Array, interpolation: str) -> int:
    """Hold what lay in the slot against what the library itself makes of the same photos; return the difference."""
    difference = largest_difference([Path(path) for path in paths], pixels, interpolation)
    if difference > MOST_DIFFERENCE:
        raise BenchError(f"pixels differ by {difference} of 255 from those of {interpolation}")
    return difference


def measure(folder: Path, loaders: int, photos: int, interpolation: str, log: Any) -> dict[str, float]:
    model = ModelFile("keras", "none", "none", ("tensorflow",))
    launch = Launch(kinds.runtime("tensorflow").make(), model, 1, log)
    feeding = Feeding(folder, loaders, launch, interpolation)
    try:
        feeding.begin()
        warm = 4 * BATCH * loaders
        began = feeding.until(warm)
        counted, cpu = feeding.delivered, time.process_time()
        seconds = feeding.until(counted + photos) - began
        rate = (feeding.delivered - counted) / seconds
        own_share = (time.process_time() - cpu) / seconds
        waited_share = feeding.waited_share()
    finally:
        feeding.close()
        launch.close()
    difference = check_pixels(feeding.first_paths, feeding.first_pixels, interpolation)
    return {"rate": rate, "coordinator": own_share, "waited_for_slots": waited_share, "difference": difference}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loaders", type=int, required=True)
    parser.add_argument("--photos", type=int, required=True, help="how many are decoded while the clock runs")
    parser.add_argument("--interpolation", choices=OF_INTERPOLATION, default="keras")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryFile() as log:
        print(json.dumps(measure(options.folder, options.loaders, options.photos, options.interpolation, log)))


if __name__ == "__main__":
    main(sys.argv[1:])
