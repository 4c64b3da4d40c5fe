"""What training is made of: the position in the data, batches with targets, and the protocols of data and trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from penstock.core.records import Array, Columns, RowFailure


@dataclass(frozen=True)
class Position:
    """How far training has come.

    `step` counts the steps since the beginning of training, and `batch` those of this epoch. `rows` counts the good
    rows of this epoch that were used: `TrainingData.batches(epoch, rows)` goes on from there.
    """

    epoch: int = 0
    step: int = 0
    rows: int = 0
    batch: int = 0

    def after(self, rows: int) -> Position:
        """The position after one more step, of so many rows."""
        return Position(self.epoch, self.step + 1, self.rows + rows, self.batch + 1)

    def next_epoch(self) -> Position:
        return Position(self.epoch + 1, self.step)


@dataclass(frozen=True)
class Progress:
    """What the loop of training itself needs to go on.

    Args:
        position: How far it has come.
        epoch_logs: Loss and metrics of this epoch, if all its steps are done and only its end is missing: validation,
            and the callbacks at that end.
        last_logs: Loss and metrics at the end of the last whole epoch.
        skipped: How many steps in a row were undone.
    """

    position: Position = field(default_factory=Position)
    epoch_logs: Mapping[str, float] | None = None
    last_logs: Mapping[str, float] = field(default_factory=dict)
    skipped: int = 0


def has_nan(value: Array) -> bool:
    """Whether a value is NaN somewhere."""
    # `min` of numbers with a NaN among them is NaN, and needs no array of answers.
    return bool(value.size) and value.dtype.kind not in "biu" and bool(np.isnan(value.min()))


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to end with the weights that it would have had without an interruption.

    Args:
        progress: How far training has come.
        state: The trainer's: weights, optimizer, metrics, seed generators.
        callbacks: The callbacks' state: values of JSON, arrays and numbers of numpy, and lists, tuples and dicts of
            these.
        failures: Bad rows that were found among those to train on.
        records: The history so far, from the loop's recorder, as JSON.
        facts: What else the job needs when it is resumed, as JSON: seed, vocabulary of labels …
        validation_failures: Bad rows that were found among those to validate with.
    """

    progress: Progress
    state: Mapping[str, Array]
    callbacks: Any = None
    failures: tuple[RowFailure, ...] = ()
    records: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    validation_failures: tuple[RowFailure, ...] = ()


@dataclass(frozen=True)
class Gang:
    """The place of a process among those that train together. The first one (`rank` 0) writes what is kept.

    Args:
        rank: Its number.
        size: How many processes there are.
        devices: How many devices they have, all together.
        coordinator: HOST:PORT where the first one answers.
    """

    rank: int
    size: int
    devices: int
    coordinator: str


class Exchange(Protocol):
    """Messages between the processes of a gang. All of them make the same calls, of each topic in the same order."""

    def gather(self, topic: str, message: str = "") -> list[str]:
        """The messages of all processes, in their order, without empty ones. Waits for all processes."""
        ...


def keep() -> None:
    """Releases nothing: for arrays on the heap."""


@dataclass
class TrainBatch:
    """One global batch: exactly `rows` rows, never padded. All of them are good.

    Where a batch is divided among the processes of a gang, arrays and numbers are those of one process. The keys of
    `inputs` are names of the model's inputs, those of `targets` and `weights` names of its outputs; where these names
    are not known, the only column of a role has the name "". A role without columns is empty. The arrays may lie in
    shared memory: they are valid until `release` is called, which may happen in any thread, once.
    """

    rows: int
    inputs: Columns
    targets: Columns
    weights: Columns
    numbers: Array
    """int64: the number of every row in the whole input, so that rows can be named."""
    release: Callable[[], None] = field(default=keep)

    @property
    def is_borrowed(self) -> bool:
        """Whether the arrays are valid only until `release`."""
        return self.release is not keep


class TrainingData(Protocol):
    """Rows for training, in an order that depends only on the seed and the epoch."""

    @property
    def rows(self) -> int | None:
        """How many good rows an epoch has, as far as that is known; None of a stream."""
        ...

    @property
    def failures(self) -> Mapping[int, RowFailure]:
        """The bad rows that were found so far, by their number. A checkpoint keeps them."""
        ...

    def batches(self, epoch: int, skip_rows: int = 0) -> Iterator[TrainBatch]:
        """The batches of an epoch, without its first `skip_rows` good rows. The last batch may be short.

        Closing the iterator ends the reading. Only one iterator is alive at a time. A few batches may be held at
        once; holding more without releasing any stops the reading.
        """
        ...

    def remarks(self) -> list[str]:
        """How the rows are shuffled and what is cached, in words."""
        ...

    def close(self) -> None:
        """End processes and free memory. Batches that were not released become invalid."""
        ...


class Trainer(Protocol):
    """A live model on all devices of one process."""

    def ahead(self, batches: Iterator[TrainBatch]) -> Iterator[TrainBatch]:
        """The same batches for `train_on`, copied to the device while steps run, where that is worth it."""
        ...

    def train_on(self, batch: TrainBatch) -> None:
        """One step. It may return before the devices have finished; the trainer releases the batch when it can."""
        ...

    def test_on(self, batch: TrainBatch) -> None:
        """Add a batch to the metrics without training. The trainer releases the batch."""
        ...

    def step_logs(self) -> Any:
        """Loss and metrics after the last step, as the framework has them: reading a value waits for the devices."""
        ...

    def results(self) -> dict[str, float]:
        """Loss and metrics since the last reset. Waits for the devices."""
        ...

    def undo(self) -> None:
        """Restore the state from before the last step, if the trainer was made to keep it."""
        ...

    def reset(self) -> None:
        """Begin to count loss and metrics anew."""
        ...

    def state(self) -> dict[str, Array]:
        """Everything that a step reads: weights, optimizer, metrics, seed generators."""
        ...

    def has_nan_weights(self) -> bool:
        """Whether weights are NaN. Waits for the last step."""
        ...

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore everything bit for bit to what it was when `state` was taken."""
        ...

    def finish(self) -> None:
        """Do what the optimizer requires after the last epoch."""
        ...

    def save(self, path: str) -> None:
        """Write the model as a `.keras` file."""
        ...

    def close(self) -> None: ...
