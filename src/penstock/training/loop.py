"""The loop of training: epochs, steps, validation and callbacks, over any trainer and any data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from penstock.core.records import Array
from penstock.core.training import Checkpoint, Position, Progress, TrainBatch, Trainer, TrainingData
from penstock.errors import ModelError
from penstock.runtimes.keras.training.read_ahead import close_iterator
from penstock.training.bad_rows import in_order
from penstock.training.stages import Enter, Stage

STOP, SKIP, IGNORE = "stop", "skip", "ignore"
LOSSES_AT_ONCE = 16
MOST_SKIPPED = 10
"""After so many steps in a row whose loss is no number, not the rows but the weights are at fault."""


class Callbacks(Protocol):
    """The callbacks that the loop calls while training goes on."""

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

    def state(self) -> Any:
        """The state of the callbacks, for a checkpoint."""
        ...

    def restore(self, state: Any) -> None:
        """Give the callbacks their state back. This comes after the hooks that begin training and the epoch."""
        ...


class Keeper(Protocol):
    """Writes checkpoints."""

    def is_due(self, position: Position) -> bool: ...
    def keep(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint before this returns: its arrays change with the next step."""
        ...


class Recorder(Protocol):
    """Writes loss and metrics to files while training goes on."""

    def begin(self, position: Position, state: Any) -> None:
        """Begin anew (`state` is None), or go on from a checkpoint: records that were written after it are removed."""
        ...

    def step(self, position: Position, logs: Callable[[], Any]) -> None: ...
    def epoch(self, position: Position, logs: Mapping[str, float]) -> None: ...

    def state(self) -> Any:
        """The records that a checkpoint keeps, as JSON. All records so far are then on the disk."""
        ...


class TrainingStopped(Exception):
    """Training ended after a step because a stop was wanted. The keeper has got a checkpoint."""

    def __init__(self, position: Position) -> None:
        super().__init__(f"training was stopped after step {position.step}")
        self.position = position


def _never() -> bool:
    """The default of `is_stop_wanted`: no stop is wanted."""
    return False


def _nothing(position: Position) -> None:
    """The default of `after_step`: nothing is done."""


def _unseen(stage: Stage, rows: int) -> None:
    """The default of `enter`: stages are not observed."""


def _not_yet() -> None:
    """A `release` that keeps the memory of a batch, because its arrays are needed again after the step."""


def say_nothing(remark: str) -> None:
    """Drop a remark."""


@dataclass(frozen=True)
class Schedule:
    """How many epochs to train, how often to validate, and what is called meanwhile."""

    epochs: int = 1
    validation_freq: int | list[int] = 1
    on_nan: str = STOP
    after_step: Callable[[Position], None] = field(default=_nothing)
    """Called with the position after every step. An error in it ends training."""
    on_skip: Callable[[str], None] = field(default=say_nothing)
    """Called with a message for every step that was undone."""
    keeper: Keeper | None = None
    """Writes checkpoints. After every step and every epoch, its `is_due` is called."""
    recorder: Recorder | None = None
    """Gets loss and metrics of steps and epochs."""
    is_stop_wanted: Callable[[], bool] = field(default=_never)
    """Called after every step, also of validation. If it returns True, training ends there with a checkpoint."""
    enter: Enter = field(default=_unseen)
    """Called when a stage begins: for a watchdog, and for the times of a trace."""
    read: Callable[[Array], TrainBatch] | None = None
    """Returns the rows of these numbers; None where not all rows are in memory."""

    def validates(self, epoch: int) -> bool:
        """Whether validation follows this epoch; epochs count from 0."""
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq


class _Batches:
    """The batches of an epoch, with a look ahead whether another one follows. Waiting for a batch is a stage."""

    def __init__(self, batches: Iterator[TrainBatch], enter: Enter) -> None:
        self._batches = batches
        self._enter = enter
        self._next: list[TrainBatch] = []

    def __iter__(self) -> Iterator[TrainBatch]:
        return self

    def __next__(self) -> TrainBatch:
        if self._next:
            return self._next.pop()
        self._enter(Stage.WAIT, 0)
        return next(self._batches)

    def close(self) -> None:
        """Read no more, so that rows can be read again."""
        close_iterator(self._batches)

    def is_over(self) -> bool:
        """Whether there are no more batches. It waits for the next one."""
        if not self._next:
            self._enter(Stage.WAIT, 0)
            self._next = [batch for batch in [next(self._batches, None)] if batch is not None]
        return not self._next


@dataclass
class _Run:
    trainer: Trainer
    data: TrainingData
    callbacks: Callbacks
    schedule: Schedule
    validation: TrainingData | None
    position: Position
    logs: dict[str, float] = field(default_factory=dict)
    """Loss and metrics of the last whole epoch."""
    skipped: int = 0
    """How many steps in a row were undone."""
    kept: Position | None = None
    """The position of the last checkpoint."""
    pending: list[_Step] = field(default_factory=list)
    """The last steps, which the devices may still be working on."""
    checked: _Step | None = None
    """The last step whose loss was checked and is a number."""
    batches: _Batches | None = None
    """The batches of this epoch, or of the last one."""


@dataclass(frozen=True)
class _Step:
    """What is kept of a step until its loss is checked. It has no arrays of rows, which may be large."""

    loss: Any
    position: Position
    rows: int
    numbers: Array


def train(
    trainer: Trainer,
    data: TrainingData,
    callbacks: Callbacks,
    schedule: Schedule,
    *,
    validation: TrainingData | None = None,
    start: Checkpoint | None = None,
) -> Position:
    """Train until the last epoch, or until a callback stops it.

    Args:
        trainer: The model on its devices.
        data: The rows for training.
        callbacks: Called while training goes on.
        schedule: How many epochs to train, how often to validate, and what is called meanwhile.
        validation: The rows for validation after epochs.
        start: The checkpoint to go on from. It is restored after the hooks that begin training, because it was taken
            after them: what they change is undone.

    Returns:
        How far training has come.

    Raises:
        ModelError: The loss is NaN or infinite, or weights are NaN, or the checkpoint is of another model.
        TrainingStopped: `schedule.is_stop_wanted` returned True.
    """
    callbacks.train_begin()
    progress = start.progress if start is not None else Progress(Position(epoch=callbacks.initial_epoch))
    run = _Run(trainer, data, callbacks, schedule, validation, progress.position)
    run.logs, run.skipped = dict(progress.last_logs), progress.skipped
    if schedule.recorder is not None:
        schedule.recorder.begin(run.position, start.records if start is not None else None)
    is_over = False
    if start is not None and run.position.rows == 0:
        _restore(run, start)
        is_over = callbacks.is_stopped
        start = None
    while run.position.epoch < schedule.epochs and not is_over:
        _epoch(run, start)
        start = None
        is_over = callbacks.is_stopped
        _keep_if_due(run)
    if run.position.step > 0 and run.kept != run.position:
        _keep(run)  # if a kill comes while the model is saved, no step is repeated; without a keeper, only checks
    if schedule.epochs > 0:
        trainer.finish()
    callbacks.train_end(run.logs)
    return run.position


def _restore(run: _Run, start: Checkpoint) -> None:
    run.trainer.restore(start.state)
    run.callbacks.restore(start.callbacks)


def _epoch(run: _Run, start: Checkpoint | None) -> None:
    """Run one epoch, or the rest of it."""
    epoch = run.position.epoch
    if start is None:
        run.trainer.reset()
    run.callbacks.epoch_begin(epoch)
    logs: dict[str, float] | None = None
    if start is not None:
        _restore(run, start)
        logs = None if start.progress.epoch_logs is None else dict(start.progress.epoch_logs)
    if logs is None:
        _train_epoch(run)
        logs = run.trainer.results()
    if run.validation is not None and run.schedule.validates(epoch):
        logs |= {f"val_{name}": value for name, value in _validate(run, run.validation, dict(logs)).items()}
    run.callbacks.epoch_end(epoch, logs)
    if run.schedule.recorder is not None:
        run.schedule.recorder.epoch(run.position, logs)
    run.logs = logs
    run.position = run.position.next_epoch()


def _train_epoch(run: _Run) -> None:
    trainer, callbacks = run.trainer, run.callbacks
    enter = run.schedule.enter
    batches = _Batches(iter(trainer.ahead(run.data.batches(run.position.epoch, run.position.rows))), enter)
    run.batches = batches
    for batch in batches:
        enter(Stage.STEP, batch.rows)
        number = run.position.batch
        callbacks.train_batch_begin(number)
        # A step may be undone, and its rows are then checked afterwards: so their memory is held until then.
        is_held = run.schedule.on_nan == SKIP and batch.is_borrowed
        trainer.train_on(replace(batch, release=_not_yet) if is_held else batch)
        run.position = run.position.after(batch.rows)
        if run.schedule.on_nan == SKIP:
            _undo_if_nan(run, batch)
            if is_held:
                batch.release()
        elif run.schedule.on_nan == STOP:
            _check_loss(run, batch)
        callbacks.train_batch_end(number, trainer.step_logs)
        if run.schedule.recorder is not None:
            run.schedule.recorder.step(run.position, trainer.step_logs)
        run.schedule.after_step(run.position)
        _keep_if_due(run, batches)
        if callbacks.is_stopped:
            break
    _check_pending(run, len(run.pending))


def _validate(run: _Run, validation: TrainingData, epoch_logs: dict[str, float]) -> dict[str, float]:
    trainer, callbacks = run.trainer, run.callbacks
    callbacks.test_begin()
    trainer.reset()
    enter = run.schedule.enter
    for number, batch in enumerate(_Batches(iter(trainer.ahead(validation.batches(0))), enter)):
        enter(Stage.TEST, batch.rows)
        callbacks.test_batch_begin(number)
        trainer.test_on(batch)
        callbacks.test_batch_end(number, trainer.step_logs)
        if run.schedule.is_stop_wanted():
            _stop(run, epoch_logs)
    logs = trainer.results()
    callbacks.test_end(logs)
    return logs


def _keep_if_due(run: _Run, batches: _Batches | None = None) -> None:
    """Write a checkpoint if one is due after this step or epoch, and end training if a stop is wanted."""
    keeper, is_stop_wanted = run.schedule.keeper, run.schedule.is_stop_wanted()
    if not is_stop_wanted and (keeper is None or not keeper.is_due(run.position)):
        return
    epoch_logs = None
    if keeper is not None and batches is not None and (run.callbacks.is_stopped or batches.is_over()):
        epoch_logs = run.trainer.results()
    if is_stop_wanted:
        _stop(run, epoch_logs)
    _keep(run, epoch_logs)


def _stop(run: _Run, epoch_logs: dict[str, float] | None) -> None:
    _keep(run, epoch_logs)
    raise TrainingStopped(run.position)


def _keep(run: _Run, epoch_logs: dict[str, float] | None = None) -> None:
    """Write a checkpoint, after a check of all losses that were not checked yet, and of the weights."""
    _check_pending(run, len(run.pending))
    if run.schedule.on_nan != IGNORE and run.trainer.has_nan_weights():
        raise _spoiled(run.position)
    if run.schedule.keeper is None:
        return
    run.schedule.enter(Stage.CHECKPOINT, 0)
    progress = Progress(run.position, epoch_logs, run.logs, run.skipped)
    bad = tuple(in_order(run.data.failures.values()))
    held_out = tuple(in_order(run.validation.failures.values())) if run.validation is not None else ()
    run.kept = run.position
    records = run.schedule.recorder.state() if run.schedule.recorder is not None else None
    run.schedule.keeper.keep(
        Checkpoint(progress, run.trainer.state(), run.callbacks.state(), bad, records, {}, held_out)
    )


def _spoiled(position: Position) -> ModelError:
    """The error for NaN weights. The loss may still be a number: on some CPUs, TensorFlow's relu turns NaN into 0."""
    return ModelError(
        "weights are NaN, although the loss is a number",
        received=f"after step {position.step}",
        hint="look for NaN in the rows; a smaller learning rate or clipped gradients (clipnorm) may help",
    )


def _check_loss(run: _Run, batch: TrainBatch) -> None:
    """Keep the loss of a step, and look at the losses of many steps at once: reading one waits for its device.

    A loss is a mean since the beginning of the epoch: once it is NaN or infinite, it stays so.
    """
    loss = _loss_of(run.trainer)
    if loss is None:
        return
    run.pending.append(_Step(loss, run.position, batch.rows, batch.numbers))
    if len(run.pending) >= 2 * LOSSES_AT_ONCE:
        _check_pending(run, LOSSES_AT_ONCE)


def _loss_of(trainer: Trainer) -> Any:
    logs = trainer.step_logs()
    return logs.get("loss") if isinstance(logs, dict) else None


def _undo_if_nan(run: _Run, batch: TrainBatch) -> None:
    found = _loss_of(run.trainer)
    loss = 0.0 if found is None else float(found)
    is_number = math.isfinite(loss)
    if is_number and not run.trainer.has_nan_weights():
        run.skipped = 0
        return
    run.trainer.undo()
    run.skipped += 1
    read = run.schedule.read
    faulty = _values_in(_not_finite(batch if read is None else read(batch.numbers)))
    why = "weights were NaN after it" if is_number else f"its loss is {loss}"
    run.schedule.on_skip(f"step {run.position.step} was undone: {why}, {faulty or _named(batch.numbers)}")
    if run.skipped >= MOST_SKIPPED:
        raise (
            _spoiled(run.position)
            if is_number
            else _no_number(_Step(loss, run.position, batch.rows, batch.numbers), faulty)
        )


def _check_pending(run: _Run, count: int) -> None:
    """Look at the oldest `count` losses."""
    oldest, run.pending = run.pending[:count], run.pending[count:]
    if not oldest:
        return
    if math.isfinite(float(oldest[-1].loss)):
        run.checked = oldest[-1]
        return
    for step in oldest:
        if not math.isfinite(float(step.loss)):
            raise _no_number(step, _faulty_rows(run, step))
        run.checked = step


def _faulty_rows(run: _Run, step: _Step) -> str:
    """The rows that made a loss NaN or infinite, in words; empty if all their values are finite numbers.

    Training ends here, so rows can be read again: those of the step, and those of the step before, whose infinite
    values may have spoiled the weights while the loss was still a number.
    """
    if run.schedule.read is not None:
        before = _not_finite(run.schedule.read(run.checked.numbers)) if run.checked is not None else []
        faulty = _not_finite(run.schedule.read(step.numbers))
    elif run.batches is None or run.data.rows is None or len(step.numbers) < step.rows:
        return ""  # the caller's data cannot be read again; in a gang, this process has only a share of the batch
    else:
        run.batches.close()
        position = step.position
        begin = position.rows - step.rows
        size_before = begin // (position.batch - 1) if position.batch > 1 else 0
        batches = run.data.batches(position.epoch, begin - size_before)
        before = _not_finite(next(batches)) if size_before else []
        faulty = _not_finite(next(batches))
    return _values_in(faulty) or _values_in(before, " of the step before")


def _values_in(faulty: list[int], where: str = "") -> str:
    return f"NaN or infinite values in {_named(faulty)}{where}" if faulty else ""


def _not_finite(batch: TrainBatch) -> list[int]:
    """The numbers of rows with inputs, labels or weights that are NaN or infinite."""
    is_faulty = np.zeros(len(batch.numbers), bool)
    for column in (*batch.inputs.values(), *batch.targets.values(), *batch.weights.values()):
        if column.dtype.kind == "f":
            is_faulty |= ~np.isfinite(column).reshape(len(column), -1).all(axis=1)
    return sorted(map(int, batch.numbers[is_faulty]))


def _no_number(step: _Step, faulty: str) -> ModelError:
    place = f"{float(step.loss)} in step {step.position.step} (epoch {step.position.epoch + 1})"
    smaller = "look at these rows; a smaller learning rate or clipped gradients (clipnorm) may help"
    return ModelError(
        "the loss is NaN or infinite",
        received=f"{place}, {faulty or _named(step.numbers)}",
        hint="mend these rows or leave them out" if faulty else smaller,
    )


def _named(numbers: Iterable[int]) -> str:
    rows = [int(number) for number in numbers]
    if not rows:
        return "no rows"
    if len(rows) == 1:
        return f"row {rows[0]}"
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return f"rows {rows[0]} to {rows[-1]}"
    shown = ", ".join(map(str, rows[:8]))
    return f"rows {shown}{', …' if len(rows) > 8 else ''}"
