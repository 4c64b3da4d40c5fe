"""Train to the end, and once more from a state of mid-epoch with another model: both must end in the same bits."""

import hashlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from penstock.core.records import RowFailure
from penstock.core.training import Checkpoint, Position, TrainBatch
from penstock.runtimes.keras.training.callbacks import KerasCallbacks
from penstock.runtimes.keras.training.opening import open_trainer
from penstock.training import loop
from tests.support.virtual_devices import X, Y

KEPT_AFTER = 23
EPOCHS, BATCH = 2, 100


class Digits:
    """Rows in an order that depends on the epoch."""

    rows = len(X)
    failures: dict[int, RowFailure] = {}  # noqa: RUF012

    def batches(self, epoch: int, skip_rows: int = 0) -> Iterator[TrainBatch]:
        order = np.random.default_rng(epoch).permutation(len(X))
        for begin in range(skip_rows, len(X), BATCH):
            numbers = order[begin : begin + BATCH]
            yield TrainBatch(len(numbers), {"": X[numbers]}, {"": Y[numbers]}, {}, numbers)

    def remarks(self) -> list[str]:
        return []

    def close(self) -> None: ...


def pack(batch: TrainBatch) -> Any:
    return batch.inputs[""], batch.targets[""]


def make(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(24, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, "softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Kept(list[Checkpoint]):
    """One checkpoint in mid-epoch."""

    def is_due(self, position: Position) -> bool:
        return position.step == KEPT_AFTER

    def keep(self, checkpoint: Checkpoint) -> None:
        if checkpoint.progress.position.step == KEPT_AFTER:
            self.append(checkpoint)


def run(trainer: Any, start: Checkpoint | None = None) -> list[Checkpoint]:
    """Train to the end; returns a checkpoint of mid-epoch."""
    kept = Kept()
    callbacks = KerasCallbacks(trainer.model, None, verbose=0, epochs=EPOCHS, steps=None)
    schedule = loop.Schedule(EPOCHS, keeper=kept)
    loop.train(trainer, Digits(), callbacks, schedule, start=start)
    return kept


def digest_of_weights(model: Any) -> str:
    return hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights())).hexdigest()


def digest(trainer: Any) -> str:
    total = hashlib.sha256()
    for name, value in sorted(trainer.state().items()):
        if not name.startswith("seed/"):
            total.update(name.encode() + value.tobytes())
    return total.hexdigest()


def resumed(num_devices: int) -> dict[str, Any]:
    """Whether training that was interrupted in the second epoch ends with the same bits."""
    first = (X[:2], Y[:2])
    whole = open_trainer(make(0), pack, first, num_devices=num_devices)
    [checkpoint] = run(whole)
    again = open_trainer(make(1), pack, first, num_devices=num_devices)
    run(again, checkpoint)
    document = {
        "devices": num_devices,
        "states": [digest(trainer) for trainer in (whole, again)],
        "losses": [trainer.model.history.history["loss"][-1] for trainer in (whole, again)],
    }
    for trainer in (whole, again):
        trainer.close()
    document["weights"] = [digest_of_weights(trainer.model) for trainer in (whole, again)]
    return document
