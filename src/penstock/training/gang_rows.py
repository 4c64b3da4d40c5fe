"""Training rows of one process of a gang: its share of every global batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from zlib import crc32

from penstock.core.records import Array, RowFailure
from penstock.core.sharing import Share
from penstock.core.training import Exchange, TrainBatch
from penstock.errors import InputError
from penstock.runtimes.keras.training.read_ahead import close_iterator
from penstock.training.row_stream import RowStream

_BAD, _READY, _SEEN = "bad rows of ", "ready for ", "rows of "


class GangRows:
    """One process's share of every batch (`TrainingData`). The batches are the same as in training by one process.

    Where the stream reads only this process's rows, each process finds other bad rows. Before a batch is used, all
    processes exchange the bad rows that they found. If there are any, all processes read on from this batch without
    them. In other streams every process reads all rows, and uses its own.

    Args:
        stream: The rows.
        share: The share of this process.
        exchange: The line to the other processes.
        name: A name for these rows, which is part of the topics of messages.
        known: Numbers of the bad rows that all processes know already.
    """

    def __init__(
        self, stream: RowStream, share: Share, exchange: Exchange, name: str, known: Iterable[int] = ()
    ) -> None:
        self._stream = stream
        self._share = share
        self._exchange = exchange
        self._name = name
        self._known = set(known)

    @property
    def rows(self) -> int | None:
        return self._stream.rows

    @property
    def failures(self) -> Mapping[int, RowFailure]:
        return self._stream.failures

    def batches(self, epoch: int, skip_rows: int = 0) -> Iterator[TrainBatch]:
        """This process's share of the batches of an epoch.

        Raises:
            InputError: The machines do not read the same rows.
        """
        return self._own(epoch, skip_rows) if self._stream.is_shared else self._cut(epoch, skip_rows)

    def remarks(self) -> list[str]:
        how = "its own rows" if self._stream.is_shared else "all rows, and uses its own; --cache memory reads them once"
        return [*self._stream.remarks(), f"each of {self._share.size} workers reads {how}"]

    def close(self) -> None:
        self._stream.close()

    def _own(self, epoch: int, skip: int) -> Iterator[TrainBatch]:
        is_whole = False
        while not is_whole:
            batches = self._stream.batches(epoch, skip)
            try:
                while skip < self._stream.good(self._known):
                    batch = next(batches, None)
                    found = self._hear_of_bad_rows()
                    if found:
                        if batch is not None:
                            batch.release()
                        close_iterator(batches)  # until this returns, its thread may note more bad rows
                        self._stream.leave_out(found)
                        break
                    assert batch is not None  # only bad rows make a share smaller, and there are none
                    skip += batch.rows
                    yield batch
                else:
                    is_whole = True
                    next(batches, None)  # end the iterator, so that the reader goes on with the next epoch
            finally:
                close_iterator(batches)

    def _hear_of_bad_rows(self) -> list[RowFailure]:
        """The bad rows that any process found since the last call."""
        found = [failure for row, failure in self._stream.failures.items() if row not in self._known]
        told = self._exchange.gather(_BAD + self._name, json.dumps([asdict(each) for each in found]) if found else "")
        failures = [RowFailure(**each) for message in told for each in json.loads(message)]
        self._known.update(failure.row for failure in failures)
        return failures

    def _cut(self, epoch: int, skip: int) -> Iterator[TrainBatch]:
        seen = 0
        for batch in self._stream.batches(epoch, skip):
            seen = crc32(batch.numbers.tobytes(), seen)
            self._exchange.gather(_READY + self._name)  # wait here, so that no step waits for a process that reads
            yield _part(batch, *self._share.bounds(batch.rows))
        if len(set(self._exchange.gather(_SEEN + self._name, f"{seen:08x}"))) > 1:
            raise InputError(
                "the machines did not read the same rows",
                received=f"{self._name}, epoch {epoch + 1}: other rows are bad on one of them",
                hint="_penstock/failures.jsonl names bad rows; are files the same everywhere? --row-timeout?",
            )


def _part(batch: TrainBatch, begin: int, end: int) -> TrainBatch:
    """Some rows of a batch; its `rows` stays that of the whole batch."""

    def of(columns: Mapping[str, Array]) -> dict[str, Array]:
        return {name: column[begin:end] for name, column in columns.items()}

    return replace(
        batch,
        inputs=of(batch.inputs),
        targets=of(batch.targets),
        weights=of(batch.weights),
        numbers=batch.numbers[begin:end],
    )
