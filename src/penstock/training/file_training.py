"""Training on files, in the process that holds the model: from the newest checkpoint to the end."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from penstock.core.training import Checkpoint, Position, TrainBatch
from penstock.crash_points import crash_point
from penstock.errors import InputError, ModelError, WorkersDied, one_line
from penstock.evaluation.compiled_metrics import by_output, check_request, named
from penstock.evaluation.metric_records import MetricRequest
from penstock.jobs.trained_with import columns_fed, fed_otherwise
from penstock.options.table import AUTO
from penstock.runtimes.environment import lean_imports
from penstock.runtimes.frameworks import jax, keras
from penstock.runtimes.keras.call import KerasCall
from penstock.runtimes.keras.loading import load_keras_model
from penstock.runtimes.keras.training.callbacks import KerasCallbacks
from penstock.runtimes.keras.training.compiling import CompileRequest, check_trainable, compile_for_training
from penstock.runtimes.keras.training.environment import prepare
from penstock.runtimes.keras.training.gang import JaxGang
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, StepSettings
from penstock.runtimes.keras.training.learning_rate import scaled_learning_rate
from penstock.runtimes.keras.training.mixed_precision import FLOAT16, apply_policy, built_under
from penstock.runtimes.keras.training.opening import open_trainer
from penstock.runtimes.keras.training.packing import pack_by_name
from penstock.runtimes.keras.training.scaled_data import ScaledData
from penstock.runtimes.keras.training.user_step import load_step
from penstock.storage.disk import fsync_folder, internal, output_errors, write_whole
from penstock.training import loop
from penstock.training.bad_rows import BadRowReport
from penstock.training.batch_size import FIRST_SIZE, described, find_batch_size
from penstock.training.checkpoints import Cadence, CheckpointFacts, CheckpointFolder, CheckpointKeeper, FoundCheckpoint
from penstock.training.file_data import FileData, outputs_of
from penstock.training.fit_job import (
    BATCH_SIZE,
    CHECKPOINTS,
    MODEL,
    CheckpointReport,
    EndReport,
    EpochReport,
    FitJob,
    Note,
    StartReport,
    StepReport,
    Times,
)
from penstock.training.gang_keeper import GangKeeper
from penstock.training.history import TrainingRecords
from penstock.training.job_rows import ClassWeights, JobRows, compare_classes
from penstock.training.label_packing import (
    LabelPack,
    check_class_weights,
    check_num_classes,
)
from penstock.training.stages import Stage, StageClock

_TOLD_EVERY_S = 0.5
_REPORTED_EARLY = 32
Send = Callable[[object], None]


class FileTraining:
    """One run of a job, in this process.

    Args:
        job: The job.
        send: Takes reports for the coordinator.
        is_stop_wanted: Whether to end after the step that is under way.
        stages: Shows the coordinator what this process does.
    """

    def __init__(self, job: FitJob, send: Send, is_stop_wanted: Callable[[], bool], stages: StageClock) -> None:
        self._job = job
        self._send = send
        self._is_stop_wanted = is_stop_wanted
        self._stages = stages
        self._gang: JaxGang | None = None
        self._pack: LabelPack | None = None
        self._inputs: dict[str, list[str]] = {}
        self._told = time.monotonic()
        self._step = self._steps_made = self._kept = 0

    def run(self) -> None:
        """Train to the end, or until a stop is wanted.

        Raises:
            InputError: The input changed meanwhile, or cannot be read.
            WorkersDied: A computation across the processes of a gang failed: one of them may be gone.
        """
        try:
            self._run()
        except InputError:
            self._job.check_input()  # a file that changed looks damaged: then this is the better error
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error, ModelError) else error
            if self._gang is None or not isinstance(cause, jax.errors.JaxRuntimeError):
                raise
            raise WorkersDied("a step across workers failed", received=one_line(cause)) from error

    def _run(self) -> None:
        job = self._job
        model = self._load()
        call = KerasCall(model)
        outputs = outputs_of(call.signature, dict(job.asked.label))
        if job.class_weights:
            check_class_weights(outputs)
        check_num_classes(job.classes, call.signature)
        data = FileData(job, call.signature, outputs, sys.stderr.fileno(), self._stages.beat, self._gang)
        # This comes first, so that a missing column is refused before a loss is proposed.
        self._inputs = columns_fed(data.inputs())
        # The coordinator has compared the options already: they are left out here.
        feeding = [*fed_otherwise(job.model.location, {}, data.inputs()), *data.feeding()]
        remarks = compile_for_training(model, self._compile_request(list(outputs)), data.label_specs())
        for remark in (*feeding, *remarks):
            self._note(remark)
        check_trainable(model, job.model.location)
        if job.asked.batch_size == AUTO:
            self._job = job = self._with_batch_size(model, call, data)
            data = replace(data, job=job)
        found = self._newest_checkpoint()
        start = found.checkpoint if found is not None else None
        for damage in found.damaged if found is not None else ():
            self._note(damage)
        with contextlib.ExitStack() as stack:
            weigh = ClassWeights(job.class_weights) if job.class_weights else None
            train = JobRows(data.train(start.failures if start is not None else ()), weigh=weigh)
            stack.callback(train.close)
            held_back = data.validation(start.validation_failures if start is not None else ())
            validation = None
            if held_back is not None:
                validation = JobRows(held_back)
                stack.callback(validation.close)
            for remark in train.remarks():
                self._note(remark)
            if job.asked.cache is not None:
                self._job.check_input()  # the whole input was read, and is not read again
            trainer = self._trainer(model, call, train)
            stack.callback(trainer.close)
            self._train(trainer, train, validation, start)

    def _load(self) -> Any:
        job = self._job
        with lean_imports(job.model, job.backend, "scipy"):
            importlib.import_module("keras")  # here, so that it is imported leanly

        prepare(job.backend, job.devices, job.threads)
        if job.gang is not None:
            self._gang = JaxGang(job.gang)
        keras.utils.set_random_seed(job.asked.seed % (1 << 32))
        policy = job.asked.mixed_precision
        is_built = job.model.kind == "builder"
        with built_under(policy if is_built else None):
            model = load_keras_model(job.model, is_compiled=True)
        if policy is not None:
            apply_policy(model, policy, is_built_under=is_built)
        return model

    def _newest_checkpoint(self) -> FoundCheckpoint | None:
        """The newest whole checkpoint. In a gang, all processes use the one that the first process finds."""
        folder = CheckpointFolder(os.path.join(self._job.folder, CHECKPOINTS))
        found = folder.newest() if self._job.is_first else None
        if self._gang is None:
            return found
        names = self._gang.gather("checkpoint", os.path.basename(found.path) if found is not None else "")
        return folder.named(names[0]) if names and found is None else found

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
        """The job with the batch size with which it began, or with one that is measured now."""
        job = self._job
        path = internal(job.folder, BATCH_SIZE)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return replace(job, asked=replace(job.asked, batch_size=json.load(file)))
        probe = replace(job, asked=replace(job.asked, batch_size=FIRST_SIZE, cache=None))
        with contextlib.closing(JobRows(replace(data, job=probe).train(()))) as train:
            first, rows = _packed(train.first(), self._label_pack(model, call)), train.rows or 0
        size = find_batch_size(model, first, rows, self._settings(call, first), len(job.devices))
        with output_errors():
            write_whole(path, json.dumps(size).encode(), job.staging)
        self._note(described(size))
        return replace(job, asked=replace(job.asked, batch_size=size))

    def _settings(self, call: KerasCall, first: Any) -> StepSettings:
        asked, scaling = self._job.asked, self._job.model.scaling
        return StepSettings(
            asked.accumulate,
            is_undoable=asked.on_nan == loop.SKIP,
            are_errors_told=True,
            step=load_step(asked.step),
            scaled=ScaledData.of(scaling, call, first) if scaling is not None else None,
            all_reduce=asked.all_reduce,
        )

    def _label_pack(self, model: Any, call: KerasCall) -> LabelPack:
        shapes = {spec.name: spec.shape for spec in call.signature.outputs if spec.shape is not None}
        return LabelPack(model, pack_by_name(model), shapes)

    def _trainer(self, model: Any, call: KerasCall, train: JobRows) -> KerasTrainer:
        job = self._job
        self._pack = pack = self._label_pack(model, call)
        first = _packed(train.first(), pack)
        trainer = open_trainer(model, pack, first, self._settings(call, first), len(job.devices))
        for remark in trainer.remarks:
            self._note(remark)
        trainer.on_remark = self._note
        return trainer

    def _train(
        self, trainer: KerasTrainer, train: JobRows, validation: JobRows | None, start: Checkpoint | None
    ) -> None:
        job, asked = self._job, self._job.asked
        bad = BadRowReport(
            train, validation, job.validation_is_of_train, job.options.max_failures, job.folder, job.staging
        )
        bad.is_written = job.is_first
        steps = -(-(train.rows or 0) // job.batch_size)
        position = start.progress.position if start is not None else Position()
        records = None
        if job.is_first:
            records = TrainingRecords(job.folder, asked.log_every, asked.tensorboard, self._note, job.staging)
        devices = tuple(map(str, job.devices[: trainer.num_devices]))
        self._send(StartReport(train.rows or 0, steps, position.step, devices, self._inputs))
        made = self._callbacks(trainer, steps, bad)
        callbacks = KerasCallbacks(trainer.model, made, verbose=0, epochs=asked.epochs, steps=steps)
        every = asked.checkpoint_every
        cadence = Cadence(every.steps, every.minutes) if every is not None else Cadence(by_cost=True)
        folder = CheckpointFolder(os.path.join(job.folder, CHECKPOINTS), asked.keep_checkpoints, job.staging)
        self._step = self._kept = position.step
        facts = CheckpointFacts(job.cache_key, tuple(variable.path for variable in trainer.model.variables))
        if start is not None:
            facts.check(start)
        check = self._job.check_input if asked.cache is None else None
        keeper = CheckpointKeeper(folder, cadence, self._note, asdict(facts), self._keep, check)
        together = None
        if self._gang is not None:
            own = keeper if job.is_first else None
            together = GangKeeper(self._gang, own, self._is_stop_wanted, lambda: self._step)
        schedule = loop.Schedule(
            asked.epochs,
            on_nan=asked.on_nan,
            after_step=lambda position: self._after_step(position, trainer, bad),
            on_skip=self._note,
            keeper=together or keeper,
            recorder=records,
            is_stop_wanted=together.is_stop_wanted if together is not None else self._is_stop_wanted,
            enter=self._stages.enter,
        )
        try:
            ended = loop.train(trainer, train, callbacks, schedule, validation=validation, start=start)
        except loop.TrainingStopped as stopped:
            bad.write()
            self._end(stopped.position, bad, is_stopped=True)
            return
        bad.write()
        self._stages.enter(Stage.SAVE)
        trainer.close()
        if job.is_first:
            self._save(trainer)
        self._end(ended, bad, is_stopped=False, history=records.epochs if records is not None else ())

    def _callbacks(self, trainer: KerasTrainer, steps: int, bad: BadRowReport) -> list[Any]:
        asked, callbacks = self._job.asked, keras.callbacks
        made: list[Any] = []
        if asked.scale_lr is not None:
            made.append(scaled_learning_rate(trainer.model, asked.scale_lr, trainer.num_devices, steps))
        if asked.early_stopping is not None:
            monitor = "loss" if bad.validation is None else "val_loss"
            made.append(
                callbacks.EarlyStopping(monitor, patience=asked.early_stopping, restore_best_weights=True, mode="min")
            )

        def epoch_ended(epoch: int, logs: Mapping[str, float]) -> None:
            self._send(EpochReport(epoch, self._step, dict(logs)))
            bad.check(is_whole=True)
            has_classes = self._pack is not None and self._pack.has_classes
            # For labels of text, the coordinator has compared the classes before. A process of a gang sees only some
            # of the rows, and so maybe not all classes.
            if bad.validation is not None and has_classes and not self._job.classes and self._gang is None:
                for remark in compare_classes(bad.train, bad.validation):
                    self._note(remark)

        made.append(callbacks.LambdaCallback(on_epoch_end=epoch_ended))
        return made

    def _keep(self, step: int) -> None:
        self._kept = step
        self._send(CheckpointReport(step))

    def _after_step(self, position: Position, trainer: KerasTrainer, bad: BadRowReport) -> None:
        self._step = position.step
        self._steps_made += 1
        now = time.monotonic()
        # A report waits for the devices. A few early ones are sent only for that: the coordinator must see how long
        # steps take before many of them are under way.
        is_early = self._steps_made & (self._steps_made - 1) == 0 and self._steps_made <= _REPORTED_EARLY
        if now - self._told < _TOLD_EVERY_S and not is_early:
            return
        self._told = now
        self._send(
            StepReport(position.epoch, position.batch, position.rows, position.step, trainer.results(), self._times())
        )
        bad.check(is_whole=False)

    def _times(self) -> Times:
        return Times(
            {str(stage): seconds for stage, seconds in self._stages.seconds.items()}, self._stages.take_marks()
        )

    def _save(self, trainer: KerasTrainer) -> None:
        """Write the model, whole or not at all."""
        path = os.path.join(self._job.folder, MODEL)
        temporary = os.path.join(self._job.staging, MODEL)  # Keras needs this suffix
        with output_errors():
            trainer.save(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            crash_point("publish_begun")
            os.replace(temporary, path)
            crash_point("publish_renamed")
            fsync_folder(self._job.folder)

    def _end(
        self,
        position: Position,
        bad: BadRowReport,
        *,
        is_stopped: bool,
        history: Sequence[Mapping[str, float]] = (),
    ) -> None:
        self._stages.beat()
        if self._gang is not None:
            self._gang.part()
        self._send(
            EndReport(
                position.epoch,
                position.step,
                is_stopped,
                len(bad.all()),
                bad.first(),
                tuple(history),
                self._times(),
                self._kept,
                bad.train.rows or 0,
            )
        )

    def _note(self, text: str) -> None:
        self._send(Note(text))


def _packed(batch: TrainBatch, pack: LabelPack) -> Any:
    """A batch as a step takes it, copied so that it stays valid when its slot is given back."""
    return keras.tree.map_structure(_copied, pack(batch))


def _copied(leaf: Any) -> Any:
    """A copy of an array, which may lie in a slot."""
    return leaf.copy() if hasattr(leaf, "copy") else leaf
