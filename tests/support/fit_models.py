"""Models and rows for the tests of training on files: `python -m tests.support.fit_models FOLDER`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, WIDTH, CLASSES = 203, 8, 3


def rows(count: int = ROWS) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows whose class is the largest of three sums: a small network learns it in a few epochs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, WIDTH)).astype(np.float32)
    return x, (x @ rng.normal(size=(WIDTH, CLASSES))).argmax(axis=1)


def write_rows(path: Path, count: int = ROWS) -> None:
    x, y = rows(count)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), WIDTH)
    names = [("ant", "bee", "cat")[each] for each in y]
    pq.write_table(pa.table({"x": column, "y": y, "name": names}), path, row_group_size=50)


def shift(block: Any) -> Any:
    """A function for loader processes."""
    return {"x": block["x"] + np.float32(0.25)}


def touch_input_once(block: Any) -> Any:
    """Changes nothing but the time of the input file, named by TOUCHED, when its first rows are read."""
    path = Path(os.environ["TOUCHED"])
    mark = path.with_suffix(".touched")
    if not mark.exists():
        mark.touch()
        os.utime(path)
    return {"x": block["x"]}


def kill_once(row: Any) -> Any:
    """Changes nothing, but kills the process that trains once, when there is a checkpoint in the folder KILLED_IN."""
    folder = os.environ.get("KILLED_IN")
    if folder and list(Path(folder).glob("checkpoints/*.safetensors")):
        with contextlib.suppress(FileExistsError):
            Path(folder).with_suffix(".killed").touch(exist_ok=False)
            os.kill(os.getppid(), signal.SIGKILL)
    name = "image" if "image" in row else "x"
    return {name: row[name]}


def step_of_infinite_slope(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    """A step whose loss is 0, and whose gradients are NaN."""
    import keras

    return keras.ops.sqrt(0 * keras.ops.sum(model(x, training=True)))


def build(*, is_compiled: bool = True, dropout: float = 0.2) -> Any:
    """With dropout and a momentum: what is random and what is kept between steps must survive a kill."""
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(12, "tanh"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(CLASSES, "softmax", name="kind"),
        ]
    )
    if is_compiled:
        model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def build_plain() -> Any:
    return build(is_compiled=False)


def build_photos() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((24, 24, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2, "softmax", name="kind"),
        ]
    )


if __name__ == "__main__":
    os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    folder = Path(sys.argv[1])
    build().save(folder / "model.keras")
    build_plain().save(folder / "plain.keras")
    build(dropout=0.0).save(folder / "sure.keras")
    write_rows(folder / "rows.parquet")
