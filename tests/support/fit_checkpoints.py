"""Train small models with a checkpoint after every step, go on from some of them, and compare the ends bit for bit.

Prints one JSON document: for each case, the digests of the undisturbed run and of every resumed one.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from penstock.core.training import Checkpoint, TrainBatch
from penstock.errors import ModelError
from penstock.runtimes.keras.training.callbacks import KerasCallbacks
from penstock.runtimes.keras.training.keras_trainer import StepSettings
from penstock.runtimes.keras.training.opening import open_trainer
from penstock.training import loop
from penstock.training.checkpoints import Cadence, CheckpointFolder, CheckpointKeeper
from penstock.training.history import TrainingRecords
from tests.support.training_arrays import from_arrays

ROWS, BATCH, EPOCHS = 50, 12, 3
STEPS_OF_EPOCH = 5
RESUMED = (1, 4, 5, 8, 10, 14)
"""In the middle of epochs, at their last steps, and behind them."""


def pack(batch: TrainBatch) -> Any:
    return batch.inputs[""], batch.targets[""]


def data(seed: int | None, nan_row: int | None = None) -> Any:
    random = np.random.default_rng(5)
    x = random.normal(size=(ROWS, 6)).astype("float32")
    y = (x[:, :1] * 2 - x[:, 1:2] + random.normal(size=(ROWS, 1)) * 0.1).astype("float32")
    if nan_row is not None:
        x[nan_row] = np.nan
    return from_arrays({"": x}, {"": y}, batch_size=BATCH, seed=seed)


def model(optimizer: Any, *layers: Any) -> Any:
    """The model is built by its first step, as `model.fit` does it."""
    made = keras.Sequential([keras.layers.Dense(8, "relu"), *layers, keras.layers.Dense(1)])
    made.compile(optimizer, "mse", metrics=["mae"])
    return made


class OwnLogs(keras.Model):  # type: ignore[misc]
    """A step that logs what is no metric."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, *arguments: Any) -> Any:
        logs = super().train_step(*arguments)
        if isinstance(logs, tuple):
            return {**logs[0], "twice": logs[0]["loss"] * 2}, *logs[1:]
        return {**logs, "twice": logs["loss"] * 2}


def own_logs() -> Any:
    made = OwnLogs()
    made.compile(keras.optimizers.SGD(0.05), "mse")
    return made


@dataclass(frozen=True)
class Case:
    """A model, its callbacks, and how it is trained."""

    make: Callable[[], Any]
    callbacks: Callable[[], list[Any]] = field(default=list)
    settings: StepSettings = field(default_factory=StepSettings)
    has_validation: bool = False
    on_nan: str = loop.STOP
    nan_row: int | None = None


def _slower(epoch: int, rate: float) -> float:
    return rate * 0.7


def _stopping() -> list[Any]:
    # The validation loss must improve by much: the best weights are those of an early epoch.
    stop = keras.callbacks.EarlyStopping(min_delta=100.0, patience=2, restore_best_weights=True)
    return [stop, keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=100.0, factor=0.3)]


CASES = {
    "all at once": Case(
        lambda: model("adam", keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)),
        _stopping,
        has_validation=True,
    ),
    "momentum": Case(lambda: model(keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True))),
    "adam, dropout, batch normalisation": Case(
        lambda: model("adam", keras.layers.BatchNormalization(), keras.layers.Dropout(0.3, seed=3))
    ),
    "dropout of the global seed": Case(lambda: model("adam", keras.layers.Dropout(0.3))),
    "early stopping": Case(lambda: model(keras.optimizers.Adam(0.1)), _stopping, has_validation=True),
    "a rate that follows from the last": Case(
        lambda: model(keras.optimizers.Adam(0.1)), lambda: [keras.callbacks.LearningRateScheduler(_slower)]
    ),
    "gradients that Keras accumulates": Case(lambda: model(keras.optimizers.Adam(0.1, gradient_accumulation_steps=3))),
    "gradients of pieces": Case(lambda: model("adam"), settings=StepSettings(accumulate=3)),
    "averaged weights": Case(lambda: model(keras.optimizers.Adam(0.1, use_ema=True, ema_overwrite_frequency=4))),
    "own logs": Case(own_logs),
    "undone steps": Case(lambda: model("adam"), settings=StepSettings(is_undoable=True), on_nan=loop.SKIP, nan_row=7),
}
FEW = ("all at once",)
FEW_RESUMED = (5, 8)


def run(case: Case, folder: Path, seed: int, start: Checkpoint | None = None) -> dict[str, Any]:
    """Train to the end, from the beginning or from a checkpoint."""
    keras.utils.set_random_seed(seed)
    made = case.make()
    rows = data(seed=1, nan_row=case.nan_row)
    trainer = open_trainer(made, pack, pack(next(rows.batches(0))), case.settings, num_devices=1)
    callbacks = KerasCallbacks(made, case.callbacks(), verbose=0, epochs=EPOCHS, steps=None)
    keeper = CheckpointKeeper(CheckpointFolder(str(folder / "checkpoints"), keep=100), Cadence(steps=1), print)
    records = TrainingRecords(str(folder), every_steps=2, has_events=True, say=print)
    schedule = loop.Schedule(EPOCHS, on_nan=case.on_nan, keeper=keeper, recorder=records)
    validation = data(seed=None) if case.has_validation else None
    end = loop.train(trainer, rows, callbacks, schedule, validation=validation, start=start)
    trainer.close()
    records.close()
    digest = hashlib.sha256()
    for name, value in sorted(trainer.state().items()):
        digest.update(name.encode() + value.tobytes())
    return {
        "step": end.step,
        "state": digest.hexdigest(),
        "history": made.history.history,
        "files": [(folder / name).read_text() for name in ("history.csv", "steps.csv")],
    }


def resumed(case: Case, whole: Path, step: int) -> dict[str, Any]:
    """Go on from the checkpoint of a step, in a folder where later ones are not there yet."""
    folder = whole.parent / f"{whole.name} {step}"
    shutil.copytree(whole, folder)
    for path in (folder / "checkpoints").iterdir():
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()
    found = CheckpointFolder(str(folder / "checkpoints")).newest()
    assert found is not None
    assert found.checkpoint.progress.position.step == step
    return run(case, folder, 100 + step, found.checkpoint)


def refused(folder: Path) -> list[str]:
    """What models that a checkpoint is not of answer."""
    found = CheckpointFolder(str(folder / "checkpoints")).newest()
    assert found is not None
    answers = []
    for other in (model("adam", keras.layers.Dense(8)), model("sgd"), model("adam", keras.layers.Dense(9))):
        trainer = open_trainer(other, pack, pack(next(data(1).batches(0))), num_devices=1)
        try:
            trainer.restore(found.checkpoint.state)
        except ModelError as error:
            answers.append(str(error))
    return answers


def main(folder: Path, names: list[str]) -> None:
    document: dict[str, Any] = {"cases": {}}
    for name in names or FEW:
        case = CASES[name]
        whole = run(case, folder / name, 1)
        again = {
            step: resumed(case, folder / name, step)
            for step in (RESUMED if names else FEW_RESUMED)
            if step <= whole["step"]
        }
        document["cases"][name] = {"whole": whole, "resumed": again}
    document["refused"] = refused(folder / FEW[0])
    document["events"] = _events(folder / FEW[0] / "tensorboard" / "train")
    print(json.dumps(document))


def _events(folder: Path) -> list[Any]:
    """What TensorFlow itself reads in the event files."""
    if keras.backend.backend() != "tensorflow":
        return []
    import tensorflow as tf

    [path] = folder.iterdir()
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
    return [[event.step, value.tag] for event in events for value in event.summary.value]


if __name__ == "__main__":
    chosen = list(CASES) if sys.argv[2:] == ["all"] else sys.argv[2:]
    main(Path(sys.argv[1]), chosen)
