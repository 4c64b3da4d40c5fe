"""tf.data's side of R: `model.fit` on a hand-written pipeline, or on Keras's own, from the files that Penstock reads.

Runs in the peers' environment, as `python -m bench.peers.tf_training KIND FOLDER …`, and prints one JSON document.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

from bench.photos import files_of
from bench.training_sizes import LABEL, PHOTO_SIZE, WINDOW_ROWS

AUTOTUNE = tf.data.AUTOTUNE


def photos(folder: Path, batch_size: int) -> Any:
    """All paths shuffled, files read and decoded side by side, batches made ahead."""
    paths = files_of(folder)
    classes = sorted({path.parent.name for path in paths})
    labels = [classes.index(path.parent.name) for path in paths]

    def load(path: Any, label: Any) -> Any:
        pixels = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.image.resize(pixels, PHOTO_SIZE), label

    dataset = tf.data.Dataset.from_tensor_slices(([str(path) for path in paths], labels)).shuffle(len(paths))
    return dataset.map(load, num_parallel_calls=AUTOTUNE).batch(batch_size).prefetch(AUTOTUNE)


def keras_photos(folder: Path, batch_size: int) -> Any:
    """As the documentation has it; it shuffles, decodes side by side and prefetches by itself."""
    return keras.utils.image_dataset_from_directory(folder, image_size=PHOTO_SIZE, batch_size=batch_size, verbose=False)


def rows(folder: Path, batch_size: int) -> Any:
    """Files in another order in every epoch, rows shuffled in windows as large as Penstock's, batches made ahead.

    A generator of whole batches: `unbatch` and `shuffle`, row by row, are many times slower.
    """
    paths = sorted(folder.iterdir())
    names = [name for name in pq.read_schema(paths[0]).names if name != LABEL]
    is_nested = len(names) == 1
    window_rows = WINDOW_ROWS[is_nested]
    rng = np.random.default_rng()

    def batches() -> Iterator[Any]:
        held: list[Any] = []
        left: Any = None
        for number in rng.permutation(len(paths)):
            file = pq.ParquetFile(paths[number], pre_buffer=True)
            for group in range(file.num_row_groups):
                held.append(_arrays(file.read_row_group(group), names, is_nested))
                while sum(len(y) for _, y in held) >= window_rows:
                    left = yield from cut(held, left)
        if held:
            left = yield from cut(held, left)
        if left is not None:
            yield left

    def cut(held: list[Any], left: Any) -> Generator[Any, None, Any]:
        """The batches of a shuffled window; what is left of it goes before the next one."""
        x, y = (np.concatenate(each) for each in zip(*held, strict=True))
        order = rng.permutation(len(y))
        held.clear()
        if left is not None:
            first = batch_size - len(left[1])
            now, order = order[:first], order[first:]
            yield np.concatenate([left[0], x[now]]), np.concatenate([left[1], y[now]])
        whole = len(order) - len(order) % batch_size
        for begin in range(0, whole, batch_size):
            now = order[begin : begin + batch_size]
            yield x[now], y[now]
        return (x[order[whole:]], y[order[whole:]]) if whole < len(order) else None

    x, y = _arrays(pq.ParquetFile(paths[0]).read_row_group(0).slice(0, 1), names, is_nested)
    signature = (tf.TensorSpec((None, x.shape[1]), x.dtype), tf.TensorSpec((None,), y.dtype))
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(AUTOTUNE)


def _arrays(table: Any, names: list[str], is_nested: bool) -> tuple[Any, Any]:
    y = table.column(LABEL).to_numpy()
    if is_nested:
        return table.column(names[0]).combine_chunks().flatten().to_numpy().reshape(len(y), -1), y
    return np.stack([table.column(name).to_numpy() for name in names], axis=1), y


class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
    """How long each epoch took, and how many steps all had."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.steps = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self.began)


PIPELINES = {"photos": photos, "keras-photos": keras_photos, "rows": rows}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(PIPELINES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args(arguments)
    model = keras.models.load_model(options.model)
    epochs = Epochs()
    dataset = PIPELINES[options.kind](options.folder, options.batch)
    history = model.fit(dataset, epochs=options.epochs, verbose=0, callbacks=[epochs])
    print(json.dumps({"epoch_s": epochs.seconds, "steps": epochs.steps, "loss": history.history["loss"]}))


if __name__ == "__main__":
    main(sys.argv[1:])
