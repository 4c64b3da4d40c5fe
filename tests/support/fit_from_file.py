"""Train a small model from a file for one epoch, with loader processes: `python -m … FILE WIDTH`. TensorFlow trains."""

from __future__ import annotations

import sys

import keras
import numpy as np

from penstock.core.records import Binding
from penstock.runtimes.keras.training.keras_trainer import StepSettings
from penstock.runtimes.keras.training.opening import open_trainer
from penstock.runtimes.keras.training.packing import pack_by_name
from penstock.sources.catalog import open_files
from penstock.training import data as training_data
from penstock.training.data import Loading, RowFormat, from_source

BATCH = 500
training_data.WINDOW_BYTES = 2 << 20  # several windows also in a small file


def main() -> None:
    width = int(sys.argv[2])
    (column,) = (source := open_files([sys.argv[1]])).schema()
    inputs = keras.Input((width,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(width)(inputs))
    model.compile("sgd", "mse")
    row_format = RowFormat(
        (Binding("input:x", (column,), "float32", (width,)), Binding("target:", (column,), "float32", (width,)))
    )
    data = from_source(source, row_format, Loading(2, sys.stderr.fileno()), batch_size=BATCH, seed=1)
    pack = pack_by_name(model)
    like_a_batch = np.zeros((BATCH, width), np.float32)
    trainer = open_trainer(model, pack, (like_a_batch, like_a_batch), StepSettings(), 1)
    rows = 0
    for batch in trainer.ahead(data.batches(0)):
        trainer.train_on(batch)
        rows += batch.rows
    assert trainer.results()["loss"] > 0
    trainer.finish()
    trainer.close()
    data.close()
    print(rows)


if __name__ == "__main__":
    main()
