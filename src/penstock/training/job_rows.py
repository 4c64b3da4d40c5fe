"""Rows of a training job: their weights by class, and the classes that occur in training and validation."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.core.records import Array, RowFailure
from penstock.core.training import TrainBatch, TrainingData

_MOST_CLASSES = 10_000
_MOST_NAMED = 10


class SeenClasses:
    """The classes in the batches so far, if the labels are whole numbers, one for each row."""

    def __init__(self) -> None:
        self._values: set[int] = set()
        self.is_open = True
        """Whether more classes are to be collected."""

    def add(self, batch: TrainBatch) -> None:
        labels = next(iter(batch.targets.values()), None)
        if self.is_open and labels is not None and labels.dtype.kind in "iub" and labels.ndim == 1:
            self._values.update(np.unique(labels).tolist())
            self.is_open = len(self._values) <= _MOST_CLASSES

    def missing(self, other: SeenClasses) -> list[int]:
        """The classes that occur only in these batches and not in `other`; none if one of the two has too many."""
        return sorted(self._values - other._values) if self.is_open and other.is_open else []


class ClassWeights:
    """Weights rows by their class. This is for training only: in validation, Keras does not weight rows by class.

    Args:
        weights: How much a row counts, by its class. Rows of other classes count 1.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._classes = np.array(sorted(weights))
        self._weights = np.array([weights[each] for each in sorted(weights)], np.float32)

    def __call__(self, batch: TrainBatch) -> TrainBatch:
        [labels] = batch.targets.values()
        labels = labels.reshape(len(labels), -1)[:, 0]
        places = np.searchsorted(self._classes, labels).clip(max=len(self._classes) - 1)
        made: Array = np.where(self._classes[places] == labels, self._weights[places], np.float32(1))
        for given in batch.weights.values():
            made = made * given
        return replace(batch, weights={"": made})


class JobRows:
    """Rows of a training job (`TrainingData`). It collects their classes.

    Args:
        data: The rows.
        weigh: Changes the weights of every batch.
    """

    def __init__(self, data: TrainingData, *, weigh: ClassWeights | None = None) -> None:
        self._data = data
        self._weigh = weigh
        self.seen = SeenClasses()
        self._begun: tuple[TrainBatch, Generator[TrainBatch]] | None = None

    @property
    def rows(self) -> int | None:
        return self._data.rows

    @property
    def failures(self) -> Mapping[int, RowFailure]:
        return self._data.failures

    def first(self) -> TrainBatch:
        """The very first batch. Do not release it: `batches(0)` yields it again, and goes on after it."""
        batches = self._read(0, 0)
        batch = next(batches)
        self._begun = batch, batches
        return batch

    def batches(self, epoch: int, skip_rows: int = 0) -> Generator[TrainBatch]:
        begun, self._begun = self._begun, None
        if begun is not None and (epoch, skip_rows) == (0, 0):
            first, others = begun
            with contextlib.closing(others):
                yield first
                yield from others
            return
        _give_up(begun)
        yield from self._read(epoch, skip_rows)

    def _read(self, epoch: int, skip_rows: int) -> Generator[TrainBatch]:
        for batch in self._data.batches(epoch, skip_rows):
            self.seen.add(batch)
            yield batch if self._weigh is None else self._weigh(batch)

    def remarks(self) -> list[str]:
        return self._data.remarks()

    def close(self) -> None:
        begun, self._begun = self._begun, None
        _give_up(begun)
        self._data.close()


def _give_up(begun: tuple[TrainBatch, Generator[TrainBatch]] | None) -> None:
    """End an epoch of which only the first batch was read."""
    if begun is not None:
        first, others = begun
        first.release()
        others.close()


def no_row_of(classes: Sequence[str], side: str) -> str:
    """A remark that one side, training or validation, has no row of these classes."""
    more = ", …" if len(classes) > _MOST_NAMED else ""
    return f"no row of {', '.join(classes[:_MOST_NAMED])}{more} is on the side of {side}"


def compare_classes(train: JobRows, validation: JobRows) -> list[str]:
    """Remarks on classes that only one side has had so far. Only the first call makes any."""
    if not train.seen.is_open:
        return []
    remarks: list[str] = []
    for name, missing in (
        ("validation", train.seen.missing(validation.seen)),
        ("training", validation.seen.missing(train.seen)),
    ):
        if missing:
            remarks.append(no_row_of(list(map(str, missing)), name))
    train.seen.is_open = validation.seen.is_open = False
    return remarks
