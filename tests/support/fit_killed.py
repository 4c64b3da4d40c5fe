"""Train a small model with checkpoints, from the newest there is; every step is a line, and the weights are a file."""

import hashlib
import sys
from pathlib import Path

import keras

from penstock.core.training import Position
from penstock.runtimes.keras.training.callbacks import KerasCallbacks
from penstock.runtimes.keras.training.opening import open_trainer
from penstock.training import loop
from penstock.training.checkpoints import Cadence, CheckpointFolder, CheckpointKeeper
from penstock.training.history import TrainingRecords
from tests.support.fit_checkpoints import data, model, pack

EPOCHS = 40


def say(position: Position) -> None:
    """Say that a step was made: whoever kills this process counts them."""
    print(position.step, flush=True)


def main(folder: Path) -> None:
    checkpoints = CheckpointFolder(str(folder / "checkpoints"))
    found = checkpoints.newest()
    keras.utils.set_random_seed(1 if found is None else 2)
    made = model("adam", keras.layers.BatchNormalization(), keras.layers.Dropout(0.3))
    rows = data(seed=1)
    trainer = open_trainer(made, pack, pack(next(rows.batches(0))), num_devices=1)
    stop = keras.callbacks.EarlyStopping(patience=EPOCHS, restore_best_weights=True)
    callbacks = KerasCallbacks(made, [stop], verbose=0, epochs=EPOCHS, steps=None)
    keeper = CheckpointKeeper(checkpoints, Cadence(steps=3), say=lambda remark: None)
    records = TrainingRecords(str(folder), every_steps=4)
    schedule = loop.Schedule(EPOCHS, after_step=say, keeper=keeper, recorder=records)
    start = found.checkpoint if found is not None else None
    loop.train(trainer, rows, callbacks, schedule, validation=data(seed=None), start=start)
    digest = hashlib.sha256(b"".join(value.tobytes() for _, value in sorted(trainer.state().items())))
    (folder / "weights.txt").write_text(digest.hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
