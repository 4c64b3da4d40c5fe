"""Models that change when they are called, and what `model.predict` answers: run as a script, it writes them.

    python state_models.py FOLDER

writes `NAME.keras`, `NAME/` (a SavedModel), `NAME.npy` (the input), `NAME-answers.npy` (what `model.predict` gives, of
random numbers one draw of many), and `counter.parquet`, the rows of `counter.npy` in row groups of 50.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BATCH = {"recurrent": 4, "counter": 32, "dropout": 32}
ROWS = {"recurrent": 80, "counter": 333, "dropout": 333}


@keras.saving.register_keras_serializable("state")
class Counter(keras.layers.Layer):  # type: ignore[misc]
    """Adds how often it was called."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        return x + self.calls


@keras.saving.register_keras_serializable("state")
class AlwaysDropout(keras.layers.Dropout):  # type: ignore[misc]
    """Monte-Carlo dropout: it drops at inference, too."""

    def call(self, x: Any, training: bool = False) -> Any:
        return super().call(x, training=True)


def recurrent() -> Any:
    series = keras.Input((5, 3), batch_size=BATCH["recurrent"])
    return keras.Model(series, keras.layers.Dense(2)(keras.layers.LSTM(6, stateful=True)(series)))


def counter() -> Any:
    x = keras.Input((3,), name="x")
    return keras.Model(x, Counter()(x))


def dropout() -> Any:
    x = keras.Input((8,), name="x")
    return keras.Model(x, keras.layers.Dense(4)(AlwaysDropout(0.5)(x)))


def plain() -> Any:
    """Nothing changes: dropout and normalisation do nothing of the kind at inference."""
    x = keras.Input((8,), name="x")
    return keras.Model(x, keras.layers.BatchNormalization()(keras.layers.Dropout(0.5)(keras.layers.Dense(4)(x))))


def rows_for(name: str) -> Any:
    shape = (5, 3) if name == "recurrent" else (3,) if name == "counter" else (8,)
    return np.random.default_rng(3).random((ROWS.get(name, 333), *shape), dtype=np.float32)


def write(folder: Path) -> None:
    for name in BATCH:
        keras.utils.set_random_seed(1)
        model = globals()[name]()
        model.save(folder / f"{name}.keras")
        if name != "recurrent":
            model.export(folder / name, verbose=False)
        np.save(folder / f"{name}.npy", rows_for(name))
        np.save(folder / f"{name}-answers.npy", model.predict(rows_for(name), batch_size=BATCH[name], verbose=0))
    rows = rows_for("counter")
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 3)})
    pq.write_table(table, folder / "counter.parquet", row_group_size=50)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
