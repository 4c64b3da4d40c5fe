"""H's yardstick: TFRecordDataset, parse_example and one compiled step, in one process that writes Parquet with pyarrow.

Runs in the peers' environment, as `python -m bench.peers.tf_records run|sweep …`, and prints one JSON document.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

PIXELS = 784
FEATURES = {"image": tf.io.FixedLenFeature([PIXELS], tf.float32)}
BATCH_SIZES = (1024, 4096, 16384)
SWEEP_ROUNDS = 2


class Yardstick:
    """The model, its step traced, and the way from a folder to a file."""

    def __init__(self, model: Path) -> None:
        loaded = keras.models.load_model(model)
        signature = [tf.TensorSpec((None, PIXELS), tf.float32)]
        self._step: Any = tf.function(lambda x: loaded(x, training=False), input_signature=signature, autograph=False)
        self._step(tf.zeros((8, PIXELS)))

    def seconds(self, folder: Path, output: Path, batch_size: int) -> float:
        """Predict every record of the folder into one file."""
        began = time.perf_counter()
        files = tf.data.Dataset.list_files(f"{folder}/*", shuffle=False)
        records = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)
        batches = records.batch(batch_size).map(_parse_batch, num_parallel_calls=tf.data.AUTOTUNE)
        writer: Any = None
        for batch in batches.prefetch(tf.data.AUTOTUNE):
            table = _as_table(self._step(batch).numpy())
            writer = writer or pq.ParquetWriter(output / "predictions.parquet", table.schema)
            writer.write_table(table)
        writer.close()
        return time.perf_counter() - began


def _parse_batch(serialized: Any) -> Any:
    return tf.io.parse_example(serialized, FEATURES)["image"]


def _as_table(predictions: Any) -> pa.Table:
    width = predictions.shape[1]
    return pa.table({"prediction": pa.FixedSizeListArray.from_arrays(pa.array(predictions.ravel()), width)})


def sweep(yardstick: Yardstick, folder: Path, parent: Path) -> dict[str, Any]:
    """Find the best batch size on a piece of the input."""
    tried = dict.fromkeys(BATCH_SIZES, float("inf"))
    for _ in range(SWEEP_ROUNDS):
        for batch_size in BATCH_SIZES:
            with tempfile.TemporaryDirectory(dir=parent) as scratch:
                tried[batch_size] = min(tried[batch_size], yardstick.seconds(folder, Path(scratch), batch_size))
    return {"settings": {"batch_size": min(tried, key=tried.__getitem__)}, "tried": tried}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "sweep"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=4096)
    options = parser.parse_args(arguments)
    yardstick = Yardstick(options.model)
    if options.action == "sweep":
        print(json.dumps(sweep(yardstick, options.input, options.output.parent)))
        return
    options.output.mkdir()
    print(json.dumps({"run_seconds": yardstick.seconds(options.input, options.output, options.batch)}))


if __name__ == "__main__":
    main(sys.argv[1:])
