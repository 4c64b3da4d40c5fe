"""Training on files, in the process that holds the model: from the newest checkpoint to the end."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from penstock.core.records import RowFailure
from penstock.core.training import Checkpoint, Position, TrainBatch, TrainingData
from penstock.errors import TooManyFailures
from penstock.options.table import AUTO
from penstock.runtimes.environment import lean_imports
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.call import KerasCall
from penstock.runtimes.keras.loading import load_keras_model
from penstock.runtimes.keras.training.callbacks import KerasCallbacks
from penstock.runtimes.keras.training.compiling import CompileRequest, compile_for_training
from penstock.runtimes.keras.training.environment import prepare
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, StepSettings
from penstock.runtimes.keras.training.learning_rate import scaled_learning_rate
from penstock.runtimes.keras.training.mixed_precision import FLOAT16, apply_policy, built_under
from penstock.runtimes.keras.training.opening import open_trainer
from penstock.runtimes.keras.training.packing import pack_by_name
from penstock.runtimes.keras.training.user_step import load_step
from penstock.storage.disk import fsync_folder, internal, output_errors, write_whole
from penstock.training import loop
from penstock.training.batch_size import FIRST_SIZE, described, find_batch_size
from penstock.training.checkpoints import Cadence, CheckpointFolder, CheckpointKeeper
from penstock.training.compiled_metrics import by_output, check_request, named
from penstock.training.file_data import FileData, outputs_of
from penstock.training.fit_job import (
    BATCH_SIZE,
    CHECKPOINTS,
    MODEL,
    Begun,
    Ended,
    EpochEnded,
    FitJob,
    Kept,
    Note,
    Stepped,
)
from penstock.training.history import TrainingRecords
from penstock.training.label_packing import ClassWeights, LabelPack, check_class_weights
from penstock.training.metric_records import MetricRequest

_TOLD_EVERY_S = 0.5
_CHECKPOINT_MINUTES = 5.0
_JUDGED_FROM_ROWS = 100
Send = Callable[[object], None]


class FileTraining:
    """One run of a job, in this process.

    Args:
        job: The job.
        send: Takes reports for the coordinator.
        is_stop_wanted: Whether to end after the step that is under way.
    """

    def __init__(self, job: FitJob, send: Send, is_stop_wanted: Callable[[], bool]) -> None:
        self._job = job
        self._send = send
        self._is_stop_wanted = is_stop_wanted
        self._told = self._began = time.monotonic()
        self._waits = 0.0
        self._known_failures = -1
        self._step = 0

    def run(self) -> None:
        """Train to the end, or until a stop is wanted."""
        job = self._job
        model = self._load()
        call = KerasCall(model)
        outputs = outputs_of(call.signature, dict(job.asked.label))
        if job.class_weights:
            check_class_weights(outputs)
        data = FileData(job, call.signature, outputs, sys.stderr.fileno())
        for remark in compile_for_training(model, self._compile_request(list(outputs)), data.label_specs()):
            self._note(remark)
        if job.asked.batch_size == AUTO:
            self._job = job = self._with_batch_size(model, call, data)
            data = replace(data, job=job)
        found = CheckpointFolder(os.path.join(job.folder, CHECKPOINTS)).newest()
        start = found.checkpoint if found is not None else None
        for damage in found.damaged if found is not None else ():
            self._note(damage)
        known = start.failures if start is not None else ()
        with contextlib.ExitStack() as stack:
            weigh = ClassWeights(job.class_weights) if job.class_weights else None
            train = _Watched(data.train(known), self._waited, weigh=weigh)
            stack.callback(train.close)
            held_back = data.validation()
            validation = None
            if held_back is not None:
                validation = _Watched(held_back, lambda seconds: None, has_failures=job.validation_is_of_train)
                stack.callback(validation.close)
            for remark in train.remarks():
                self._note(remark)
            trainer = self._trainer(model, call, train)
            stack.callback(trainer.close)
            self._train(trainer, train, validation, start)

    def _load(self) -> Any:
        job = self._job
        with lean_imports(job.model, job.backend, "scipy"):
            importlib.import_module("keras")  # here, so that it is imported leanly

        prepare(job.backend, job.devices, job.threads)
        keras.utils.set_random_seed(job.asked.seed % (1 << 32))
        policy = job.asked.mixed_precision
        is_built = job.model.kind == "builder"
        with built_under(policy if is_built else None):
            model = load_keras_model(job.model, is_compiled=True)
        if policy is not None:
            apply_policy(model, policy, is_built_under=is_built)
        return model

    def _compile_request(self, outputs: list[str]) -> CompileRequest:
        asked = self._job.asked
        if asked.loss or asked.metrics:
            check_request(None, MetricRequest(asked.loss, asked.metrics))
        losses = by_output(asked.loss, outputs, lambda name, output: named(name), "--loss")
        return CompileRequest(
            {output: each[0] for output, each in losses.items()},
            by_output(asked.metrics, outputs, lambda name, output: named(name), "--metrics"),
            asked.optimizer,
            asked.learning_rate,
            asked.clip_norm,
            scales_loss=asked.mixed_precision == FLOAT16,
        )

    def _with_batch_size(self, model: Any, call: KerasCall, data: FileData) -> FitJob:
        """The job with the batch size that it began with, or with one that is measured now."""
        job = self._job
        path = internal(job.folder, BATCH_SIZE)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return replace(job, asked=replace(job.asked, batch_size=json.load(file)))
        probe = replace(job, asked=replace(job.asked, batch_size=FIRST_SIZE, cache=None))
        with contextlib.closing(replace(data, job=probe).train(())) as train:
            first, rows = _first_of(train, self._pack(model, call)), train.rows or 0
        size = find_batch_size(model, first, rows, self._settings(), len(job.devices))
        with output_errors():
            write_whole(path, json.dumps(size).encode())
        self._note(described(size))
        return replace(job, asked=replace(job.asked, batch_size=size))

    def _settings(self) -> StepSettings:
        asked = self._job.asked
        is_undoable = asked.on_nan == loop.SKIP
        return StepSettings(asked.accumulate, is_undoable, load_step(asked.step), asked.all_reduce)

    def _pack(self, model: Any, call: KerasCall) -> LabelPack:
        shapes = {spec.name: spec.shape for spec in call.signature.outputs if spec.shape is not None}
        return LabelPack(model, pack_by_name(model), shapes)

    def _trainer(self, model: Any, call: KerasCall, train: TrainingData) -> KerasTrainer:
        job = self._job
        pack = self._pack(model, call)
        trainer = open_trainer(model, pack, _first_of(train, pack), self._settings(), len(job.devices))
        for remark in trainer.remarks:
            self._note(remark)
        trainer.on_remark = self._note
        return trainer

    def _train(
        self, trainer: KerasTrainer, train: TrainingData, validation: TrainingData | None, start: Checkpoint | None
    ) -> None:
        job, asked = self._job, self._job.asked
        steps = -(-(train.rows or 0) // job.batch_size)
        position = start.progress.position if start is not None else Position()
        records = TrainingRecords(job.folder, asked.log_every, asked.tensorboard, self._note)
        self._send(Begun(train.rows or 0, steps, position.step, tuple(map(str, job.devices[: trainer.num_devices]))))
        made = self._callbacks(trainer, steps, validation)
        callbacks = KerasCallbacks(trainer.model, made, verbose=0, epochs=asked.epochs, steps=steps)
        every = asked.checkpoint_every
        cadence = Cadence(every.steps, every.minutes) if every is not None else Cadence(minutes=_CHECKPOINT_MINUTES)
        folder = CheckpointFolder(os.path.join(job.folder, CHECKPOINTS), asked.keep_checkpoints)
        keeper = _Keeper(folder, cadence, self._note, kept=lambda step: self._send(Kept(step)))
        schedule = loop.Schedule(
            asked.epochs,
            on_nan=asked.on_nan,
            after_step=lambda position: self._after_step(position, trainer, train),
            on_skip=self._note,
            keeper=keeper,
            recorder=records,
            is_stop_wanted=self._is_stop_wanted,
        )
        self._began, self._waits = time.monotonic(), 0.0
        try:
            ended = loop.train(trainer, train, callbacks, schedule, validation=validation, start=start)
        except loop.TrainingStopped as stopped:
            self._write_failures(train)
            self._end(stopped.position, train, is_stopped=True)
            return
        self._check_failures(train)
        self._write_failures(train)
        self._save(trainer)
        self._end(ended, train, is_stopped=False, history=records.epochs)

    def _callbacks(self, trainer: KerasTrainer, steps: int, validation: TrainingData | None) -> list[Any]:
        asked, callbacks = self._job.asked, keras.callbacks
        made: list[Any] = []
        if asked.scale_lr is not None:
            made.append(scaled_learning_rate(trainer.model, asked.scale_lr, trainer.num_devices, steps))
        if asked.early_stopping is not None:
            monitor = "loss" if validation is None else "val_loss"
            made.append(
                callbacks.EarlyStopping(monitor, patience=asked.early_stopping, restore_best_weights=True, mode="min")
            )

        def epoch_ended(epoch: int, logs: Mapping[str, float]) -> None:
            self._send(EpochEnded(epoch, self._step, dict(logs)))

        made.append(callbacks.LambdaCallback(on_epoch_end=epoch_ended))
        return made

    def _after_step(self, position: Position, trainer: KerasTrainer, train: TrainingData) -> None:
        self._step = position.step
        now = time.monotonic()
        if now - self._told < _TOLD_EVERY_S:
            return
        self._told = now
        waited = self._waits / max(1e-9, now - self._began)
        report = Stepped(position.epoch, position.batch, position.rows, position.step, trainer.results(), waited)
        self._send(report)
        self._check_failures(train)

    def _waited(self, seconds: float) -> None:
        self._waits += seconds

    def _check_failures(self, train: TrainingData) -> None:
        """End training where too many rows are bad.

        Raises:
            TooManyFailures: More than are allowed.
        """
        failures, allowed = train.failures, self._job.options.max_failures
        if len(failures) == self._known_failures:
            return
        self._known_failures = len(failures)
        rows = (train.rows or 0) + len(failures)
        if rows >= _JUDGED_FROM_ROWS and len(failures) > allowed * rows:
            first = min(failures.values(), key=lambda failure: failure.row)
            raise TooManyFailures(
                "too many rows are bad",
                received=f"{len(failures):,} of {rows:,} rows; the first: {first.origin}: {first.reason}",
                allowed=f"{100 * allowed:.3g}%",
                hint="raise --max-failures, or mend the input",
            )

    def _write_failures(self, train: TrainingData) -> None:
        failures = sorted(train.failures.values(), key=lambda failure: failure.row)
        if failures:
            lines = "".join(json.dumps(asdict(failure)) + "\n" for failure in failures)
            with output_errors():
                write_whole(internal(self._job.folder, "failures.jsonl"), lines.encode())

    def _save(self, trainer: KerasTrainer) -> None:
        """Write the model, whole or not at all."""
        path = os.path.join(self._job.folder, MODEL)
        trainer.close()
        # Keras goes by the suffix.
        temporary = internal(self._job.folder, f"new-{MODEL}")
        with output_errors():
            trainer.save(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            fsync_folder(self._job.folder)

    def _end(
        self,
        position: Position,
        train: TrainingData,
        *,
        is_stopped: bool,
        history: Sequence[Mapping[str, float]] = (),
    ) -> None:
        failures = train.failures
        first = min(failures.values(), key=lambda failure: failure.row, default=None)
        example = None if first is None else f"{first.origin}: {first.reason}"
        self._send(Ended(position.epoch, position.step, is_stopped, len(failures), example, tuple(history)))

    def _note(self, text: str) -> None:
        self._send(Note(text))


class _Keeper(CheckpointKeeper):
    """Checkpoints, of which the coordinator hears."""

    def __init__(
        self, folder: CheckpointFolder, cadence: Cadence, say: Callable[[str], None], kept: Callable[[int], None]
    ) -> None:
        super().__init__(folder, cadence, say)
        self._kept = kept

    def keep(self, checkpoint: Checkpoint) -> None:
        before = self.written
        super().keep(checkpoint)
        if self.written != before:
            self._kept(checkpoint.progress.position.step)


class _Watched:
    """Training data of which is known how long steps wait for it (`TrainingData`).

    Bad rows of another input than the one that is trained on are its own affair: their numbers mean other rows.
    `weigh` changes the weights of every batch.
    """

    def __init__(
        self,
        data: TrainingData,
        waited: Callable[[float], None],
        *,
        has_failures: bool = True,
        weigh: Callable[[TrainBatch], TrainBatch] | None = None,
    ) -> None:
        self._data = data
        self._waited = waited
        self._has_failures = has_failures
        self._weigh = weigh

    @property
    def rows(self) -> int | None:
        return self._data.rows

    @property
    def failures(self) -> Mapping[int, RowFailure]:
        return self._data.failures if self._has_failures else {}

    def batches(self, epoch: int, skip_rows: int = 0) -> Iterator[TrainBatch]:
        batches = self._data.batches(epoch, skip_rows)
        while True:
            asked = time.monotonic()
            batch = next(batches, None)
            self._waited(time.monotonic() - asked)
            if batch is None:
                return
            yield self._weigh(batch) if self._weigh is not None else batch

    def remarks(self) -> list[str]:
        return self._data.remarks()

    def close(self) -> None:
        self._data.close()


def _first_of(train: TrainingData, pack: LabelPack) -> Any:
    """The first batch as a step takes it; it comes again."""
    batches = train.batches(0)
    first = next(iter(batches))
    packed = keras.tree.map_structure(_copied, pack(first))
    first.release()
    batches.close()  # type: ignore[attr-defined]
    return packed


def _copied(leaf: Any) -> Any:
    """A copy of what lies in a slot that is given back."""
    return leaf.copy() if hasattr(leaf, "copy") else leaf
