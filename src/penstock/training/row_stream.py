"""The stream of training rows: epochs in a seeded order, without bad rows, in batches that are loaded ahead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.records import Array, RowFailure, Span
from penstock.core.training import TrainBatch, keep
from penstock.errors import InputError
from penstock.pool.loading import load_batches
from penstock.runtimes.keras.training.read_ahead import Item, ReadAhead
from penstock.sources.derived.shuffled import EpochRows
from penstock.sources.python.memory import InMemory
from penstock.training.cutting import GoodRows, cut_batches, good_rows

READY_BATCHES = 2
"""How many batches, or loaded pieces with several small batches, wait for the trainer."""
INLINE_BYTES = 1 << 20
"""The trainer's own thread cuts batches up to this size: passing each of them between threads would take longer."""


Loaded = tuple[Span, Batch, Callable[[], None]]
"""A span, some of its rows in order, and a function that frees their memory."""


class Reader(Protocol):
    """Turns spans into batches of arrays, in this process or in loader processes."""

    def begin(self, spans: Iterator[Span]) -> None:
        """Read these spans from now on, and forget earlier ones. The iterator may be endless."""
        ...

    def read(self) -> Loaded | None:
        """The next rows, in the order of spans; None behind the last."""
        ...

    def cancel(self) -> None:
        """Let a call of `read` in another thread return None soon. All later calls return None, too, until `begin`."""
        ...

    def close(self) -> None: ...


class ThisProcess:
    """Reads in the thread that calls `read`: for arrays in memory, and for files without loader processes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._loaded: Iterator[Loaded] = iter(())

    def begin(self, spans: Iterator[Span]) -> None:
        job = self._job
        self._loaded = ((span, batch, keep) for span in spans for batch in load_batches(job, span))

    def read(self) -> Loaded | None:
        return next(self._loaded, None)

    def cancel(self) -> None:
        """A read cannot be ended early."""

    def close(self) -> None:
        self._job.source.close()


class RowStream:
    """Training rows of any source (`TrainingData`).

    The order of good rows depends only on the seed and the epoch, and batches are cut from it. So batches depend
    neither on the number of loaders, nor on which of them is faster or dies.

    Args:
        job: Its source gives epochs; its batch size is how many rows are loaded at once.
        source: The source of the job.
        batch_size: Rows of a global batch.
        reader: Reads the spans of the job.
        failures: Bad rows that are known already.
        epochs: How many epochs there are; None where that is not known. The reader reads ahead into the next epoch, but
            not beyond the last one.
    """

    def __init__(
        self,
        job: Job,
        source: EpochRows,
        batch_size: int,
        reader: Reader,
        failures: Iterable[RowFailure] = (),
        epochs: int | None = None,
    ) -> None:
        self._job = job
        self._source = source
        self._batch_size = batch_size
        self._reader = reader
        self._failures = {failure.row: failure for failure in failures}
        self._epochs = epochs
        self._indices = itertools.count()
        self._next_epoch: int | None = None
        """The epoch with which the reader goes on, if the last epoch was read to its end."""
        self._scheduled: dict[int, int] = {}
        """How many rows, some of which may be bad, the scheduled spans of an epoch have."""
        self._numbers: tuple[int, Array] = (-1, np.empty(0, np.int64))
        row_bytes = sum(binding.row_bytes for binding in job.bindings)
        self._is_inline = source.read_of(batch_size) * row_bytes <= INLINE_BYTES
        self._is_in_memory = isinstance(reader, ThisProcess) and isinstance(source.source, InMemory)

    @property
    def rows(self) -> int | None:
        return self._source.good(self.failures)

    @property
    def failures(self) -> Mapping[int, RowFailure]:
        return dict(self._failures)

    @property
    def is_shared(self) -> bool:
        """Whether other processes read the other rows of every batch."""
        return self._source.share is not None

    def good(self, bad: Iterable[int]) -> int:
        """How many rows an epoch has without these."""
        return self._source.good(bad)

    def remarks(self) -> list[str]:
        return self._source.remarks()

    def batches(self, epoch: int, skip_rows: int = 0) -> Iterator[TrainBatch]:
        """The batches of an epoch.

        Raises:
            InputError: Not a single row is good.
        """
        if epoch != self._next_epoch or skip_rows:
            self._scheduled = {epoch: self._to_read(skip_rows)}
            self._reader.begin(self._spans(epoch, skip_rows))
        self._next_epoch = None
        if not self._is_inline:
            with self._ahead(self._cut(self._pieces(epoch), skip_rows)) as ready:
                yield from ready
        elif self._is_in_memory:
            yield from self._cut(self._pieces(epoch), skip_rows)
        else:
            with self._ahead(self._pieces(epoch)) as ready:
                yield from self._cut(ready, skip_rows)
        self._next_epoch = None if self._is_last(epoch) else epoch + 1
        if not self.rows:
            first = next(iter(self._failures.values()))
            raise InputError(
                "there is no row to train on: every row of the input is bad",
                received=f"{len(self._failures):,} rows; the first: {first.origin}: {first.reason}",
            )

    def close(self) -> None:
        self._reader.close()

    def leave_out(self, failures: Iterable[RowFailure]) -> None:
        """Leave out bad rows that another process found, from the next call of `batches` on."""
        self._failures = {failure.row: failure for failure in failures} | self._failures
        self._next_epoch = None

    def _to_read(self, skip: int) -> int:
        """How many rows this process reads of an epoch behind its first `skip` rows."""
        return self._source.read_of(self._source.good(self._failures)) - self._source.read_of(skip)

    def _cut(self, pieces: Iterator[GoodRows], skip: int) -> Iterator[TrainBatch]:
        share, buckets = self._source.share, self._job.buckets
        if share is None:
            return (piece.as_batch(buckets) for piece in cut_batches(pieces, itertools.repeat(self._batch_size)))
        sizes, totals = itertools.tee(share.batches(self._source.good(self._failures), skip))
        cut = cut_batches(pieces, (size for size, _ in sizes))
        return (replace(piece.as_batch(buckets), rows=total) for piece, (_, total) in zip(cut, totals, strict=False))

    def _ahead(self, items: Iterator[Item]) -> ReadAhead[Item]:
        return ReadAhead(items, READY_BATCHES, self._reader.cancel)

    def _spans(self, epoch: int, skip: int) -> Iterator[Span]:
        """The spans of this epoch and of all later ones: loaders go on with the next epoch at the end of one."""
        while self._source.good(self._failures):
            self._scheduled.setdefault(epoch, self._to_read(skip))
            for span in self._source.spans(epoch, self._job.batch_size, list(self._failures), skip):
                yield replace(span, index=next(self._indices))
            if self._is_last(epoch):
                return
            epoch, skip = epoch + 1, 0

    def _is_last(self, epoch: int) -> bool:
        return self._epochs is not None and epoch + 1 >= self._epochs

    def _pieces(self, epoch: int) -> Iterator[GoodRows]:
        """The good rows of an epoch, in the pieces in which they were loaded."""
        left = self._scheduled.pop(epoch, None)
        if left is None:
            left = self._to_read(0)
        while left > 0 and (loaded := self._reader.read()) is not None:
            span, batch, release = loaded
            self._scheduled.pop(epoch, None)
            left -= batch.rows
            piece, failures = good_rows(batch, span, self._numbers_of(span), release)
            for failure in failures:
                self._note(failure, span)
            yield piece

    def _note(self, failure: RowFailure, span: Span) -> None:
        """Keep a bad row, once."""
        if failure.row not in self._failures:
            place = int(np.flatnonzero(self._numbers_of(span) == failure.row)[0])
            origin = failure.origin or self._source.origin(span, span.start + place)
            self._failures[failure.row] = replace(failure, origin=origin)

    def _numbers_of(self, span: Span) -> Array:
        if self._numbers[0] != span.index:
            self._numbers = span.index, self._source.numbers(span)
        return self._numbers[1]
