"""The loop of training: epochs, steps, validation and callbacks, over any trainer and any data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.core.records import Array
from penstock.core.training import Position as Position
from penstock.core.training import TrainBatch, Trainer, TrainingData
from penstock.errors import ModelError

STOP, SKIP, IGNORE = "stop", "skip", "ignore"
LOSSES_AT_ONCE = 16
MOST_SKIPPED = 10
"""So many steps in a row without a number: the weights are spoiled, not the rows."""


class Callbacks(Protocol):
    """What is called as training goes on."""

    @property
    def is_stopped(self) -> bool: ...
    @property
    def initial_epoch(self) -> int: ...
    def train_begin(self) -> None: ...
    def train_end(self, logs: dict[str, float]) -> None: ...
    def epoch_begin(self, epoch: int) -> None: ...
    def epoch_end(self, epoch: int, logs: dict[str, float]) -> None: ...
    def train_batch_begin(self, step: int) -> None: ...
    def train_batch_end(self, step: int, logs: Callable[[], Any]) -> None: ...
    def test_begin(self) -> None: ...
    def test_batch_begin(self, step: int) -> None: ...
    def test_batch_end(self, step: int, logs: Callable[[], Any]) -> None: ...
    def test_end(self, logs: dict[str, float]) -> None: ...


def _nothing(position: Position) -> None:
    """Called after every step where nobody else is."""


def say_nothing(remark: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Schedule:
    """How long and how often."""

    epochs: int = 1
    validation_freq: int | list[int] = 1
    on_nan: str = STOP
    after_step: Callable[[Position], None] = field(default=_nothing)
    """Called with the position after every step: checkpoints are written there. What it raises ends training."""
    on_skip: Callable[[str], None] = field(default=say_nothing)
    """Told of every step that was undone."""

    def validates(self, epoch: int) -> bool:
        """Whether validation follows this epoch; epochs count from 0."""
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq


@dataclass
class _Run:
    trainer: Trainer
    data: TrainingData
    callbacks: Callbacks
    schedule: Schedule
    position: Position
    skipped: int = 0
    """How many steps in a row were undone."""
    pending: list[tuple[Any, Position, Array]] = field(default_factory=list)
    """Losses of the last steps, which the devices may still be working on, with the numbers of their rows."""


def train(
    trainer: Trainer,
    data: TrainingData,
    callbacks: Callbacks,
    schedule: Schedule,
    *,
    validation: TrainingData | None = None,
    start: Position | None = None,
) -> Position:
    """Train until the last epoch, or until a callback stops it.

    Args:
        trainer: The model on its devices.
        data: What it is trained on.
        callbacks: What is called as training goes on.
        schedule: How many epochs, and how often to validate.
        validation: What it is tested on after epochs.
        start: Where to go on, after `trainer.restore`. Metrics are kept if this is in the middle of an epoch.

    Returns:
        How far training has come.

    Raises:
        ModelError: The loss is no number.
    """
    callbacks.train_begin()
    position = start or Position(epoch=callbacks.initial_epoch)
    run = _Run(trainer, data, callbacks, schedule, position)
    logs: dict[str, float] = {}
    for epoch in range(run.position.epoch, schedule.epochs):
        if run.position.rows == 0:
            trainer.reset()
        callbacks.epoch_begin(epoch)
        _train_epoch(run)
        logs = trainer.results()
        if validation is not None and schedule.validates(epoch):
            logs |= {f"val_{name}": value for name, value in _validate(run, validation).items()}
        callbacks.epoch_end(epoch, logs)
        run.position = Position(epoch + 1, run.position.step, 0)
        if callbacks.is_stopped:
            break
    if schedule.epochs > 0:
        trainer.finish()
    callbacks.train_end(logs)
    return run.position


def _train_epoch(run: _Run) -> None:
    trainer, callbacks = run.trainer, run.callbacks
    epoch = run.position.epoch
    batches = trainer.ahead(run.data.batches(epoch, run.position.rows))
    for number, batch in enumerate(batches):
        callbacks.train_batch_begin(number)
        trainer.train_on(batch)
        run.position = Position(epoch, run.position.step + 1, run.position.rows + batch.rows)
        if run.schedule.on_nan == SKIP:
            _undo_if_nan(run, batch)
        elif run.schedule.on_nan == STOP:
            _check_loss(run, batch)
        callbacks.train_batch_end(number, trainer.step_logs)
        run.schedule.after_step(run.position)
        if callbacks.is_stopped:
            break
    _check_pending(run, len(run.pending))


def _validate(run: _Run, validation: TrainingData) -> dict[str, float]:
    trainer, callbacks = run.trainer, run.callbacks
    callbacks.test_begin()
    trainer.reset()
    for number, batch in enumerate(trainer.ahead(validation.batches(0))):
        callbacks.test_batch_begin(number)
        trainer.test_on(batch)
        callbacks.test_batch_end(number, trainer.step_logs)
    logs = trainer.results()
    callbacks.test_end(logs)
    return logs


def _check_loss(run: _Run, batch: TrainBatch) -> None:
    """Keep the loss of a step, and look at the losses of many steps at once: reading one waits for its device.

    A loss is a mean since the beginning of the epoch: once it is no number, it stays so.
    """
    loss = _loss_of(run.trainer)
    if loss is None:
        return
    run.pending.append((loss, run.position, batch.numbers))
    if len(run.pending) >= 2 * LOSSES_AT_ONCE:
        _check_pending(run, LOSSES_AT_ONCE)


def _loss_of(trainer: Trainer) -> Any:
    logs = trainer.step_logs()
    return logs.get("loss") if isinstance(logs, dict) else None


def _undo_if_nan(run: _Run, batch: TrainBatch) -> None:
    loss = _loss_of(run.trainer)
    if loss is None or math.isfinite(float(loss)):
        run.skipped = 0
        return
    run.trainer.undo()
    run.skipped += 1
    run.schedule.on_skip(f"step {run.position.step} was undone: its loss is {float(loss)}, {_named(batch.numbers)}")
    if run.skipped >= MOST_SKIPPED:
        raise _no_number(float(loss), run.position, batch.numbers)


def _check_pending(run: _Run, count: int) -> None:
    """Look at the oldest `count` losses."""
    oldest, run.pending = run.pending[:count], run.pending[count:]
    if not oldest or math.isfinite(float(oldest[-1][0])):
        return
    for loss, position, numbers in oldest:
        if not math.isfinite(float(loss)):
            raise _no_number(float(loss), position, numbers)


def _no_number(loss: float, position: Position, numbers: Array) -> ModelError:
    return ModelError(
        "the loss is no number any more",
        received=f"{loss} in step {position.step} (epoch {position.epoch + 1}), {_named(numbers)}",
        hint="look at these rows; a smaller learning rate or clipped gradients (clipnorm) may help",
    )


def _named(numbers: Array) -> str:
    rows = [int(number) for number in numbers]
    if not rows:
        return "no rows"
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return f"rows {rows[0]} to {rows[-1]}"
    shown = ", ".join(map(str, rows[:8]))
    return f"rows {shown}{', …' if len(rows) > 8 else ''}"
