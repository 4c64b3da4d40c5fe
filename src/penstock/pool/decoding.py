"""Batches of which rows are still encoded, on their way to the model."""

from penstock.core.batching import Batch, note
from penstock.core.decoding import Decoder, DeviceDecoder
from penstock.core.records import RowFailure


class BatchDecoder:
    """Decodes batches in place. Several threads may call it."""

    def __init__(self, kind: DeviceDecoder) -> None:
        self.kind = kind
        self._decoder: Decoder = kind.open()

    def __call__(self, batch: Batch, span_start: int) -> tuple[RowFailure, ...]:
        """Decode what is encoded; returns the rows that cannot be, which are zero now."""
        failures: dict[int, RowFailure] = {}
        numbers = [span_start + int(position) for position in batch.positions]
        for name, sizes in batch.encoded.items():
            array = batch.arrays[name]
            bad = self._decoder.decode(array[: batch.rows], sizes[: batch.rows])
            if sizes[batch.rows - 1]:
                array[batch.rows :] = array[batch.rows - 1]  # what fills the batch up is its last row
            note(bad, name, numbers, failures)
        batch.encoded = {}
        batch.failures = (*batch.failures, *failures.values())
        return tuple(failures.values())
