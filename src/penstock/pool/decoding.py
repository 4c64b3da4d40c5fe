"""Batches of which rows are still encoded, on their way to the model."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import cast

from penstock.core.batching import Batch, note
from penstock.core.decoding import Decoder, DeviceDecoder
from penstock.core.records import Array, RowFailure
from penstock.errors import OutOfMemory

AHEAD = 3
"""How many batches are decoded before a lane is free for them."""
THREADS = 2
"""How many batches are decoded at once (ResNet50 on an H200: 11,400 images/s with 1, 12,400 with 2, 12,100 with 3)."""


class BatchDecoder:
    """Decodes batches. Their rows stay on the device where the replica takes them from there."""

    def __init__(self, kind: DeviceDecoder, *, stays_on_device: bool) -> None:
        self.kind = kind
        self._stays_on_device = stays_on_device and kind.on_host() is not kind
        self._decoder: Decoder = kind.open()
        self._shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, batch: Batch, span_start: int, *, for_host: bool = False) -> tuple[RowFailure, ...]:
        """Decode the encoded rows; returns those that cannot be decoded. Arrays with encoded rows are released.

        Args:
            batch: Its arrays are replaced.
            span_start: The number of the first row of its span.
            for_host: Whether the rows are to lie on the host in any case.

        Raises:
            OutOfMemory: The device has no memory left for it; the batch is as it was.
        """
        failures: dict[int, RowFailure] = {}
        numbers = [span_start + int(position) for position in batch.positions]
        decoded: dict[str, Array] = {}
        for name, sizes in batch.encoded.items():
            self._shapes[name] = batch.arrays[name].shape
            rows, bad = self._decoder.decode(batch.arrays[name], sizes, batch.rows)
            is_kept = self._stays_on_device and not for_host
            # Code that takes arrays of a batch takes these, too: see `OnDevice`.
            decoded[name] = cast("Array", rows) if is_kept else rows.on_host()
            note(bad, name, numbers, failures)
        batch.arrays = batch.arrays | decoded
        batch.encoded = {}
        batch.failures = (*batch.failures, *failures.values())
        return tuple(failures.values())

    def reserve(self, batches: int) -> None:
        """Allocate memory for so many batches like those that were decoded; what is not free now is allocated later."""
        with contextlib.suppress(OutOfMemory):
            for shape in self._shapes.values():
                self._decoder.reserve(shape, batches, THREADS)

    def go_on_without_device(self) -> bool:
        """Decode on the host from now on, where that changes no bit. No other thread may decode meanwhile."""
        if self.kind.decides_bits or self.kind.on_host() is self.kind:
            return False
        self.close()
        self._decoder, self._stays_on_device = self.kind.on_host().open(), False
        os.write(2, b"the device has no memory for decoding: photos are decoded on the host from now on\n")
        return True

    def close(self) -> None:
        """Give back what decoding takes on the device."""
        self._decoder.close()


class Places:
    """How many decoded batches there may be at once, from the beginning of their decoding to the end of their run."""

    def __init__(self, most: int) -> None:
        self._most = self._given = most
        self._taken = 0
        self._waiting = 0  # threads that wait until no other batch holds a place
        self.is_closed = False
        self._changed = threading.Condition()

    def take(self) -> bool:
        """Wait for a place and take it; False where they are closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or (self._taken < self._most and not self._waiting))
            self._taken += 1
            return not self.is_closed

    def give_back(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify_all()

    def take_alone(self) -> bool:
        """Reduce the places to one: give the caller's place back, and take the one when no other is taken.

        Returns False if no other was taken, so that waiting would change nothing, or if the places are closed.
        """
        with self._changed:
            was_alone = self._taken == 1 and not self._waiting
            self._most = 1
            if was_alone:
                return False
            self._taken -= 1
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._taken == 0 or self.is_closed)
            self._waiting -= 1
            self._taken += 1
            return not self.is_closed

    def open_all(self) -> None:
        """Restore the first number of places: no decoded rows lie on the device any more."""
        with self._changed:
            self._most = self._given
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
