"""tf.data's side of F: read_file, decode_jpeg, resize, batch, everything that can be tuned left to AUTOTUNE.

Runs in the peers' environment, as `python -m bench.peers.tf_photos FOLDER …`, and prints one JSON document.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import tensorflow as tf

from bench.decoders import SIDE
from bench.photos import files_of


def read_photo(path: Any) -> Any:
    """A photo as uint8, as on the other sides."""
    pixels = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.cast(tf.round(tf.image.resize(pixels, (SIDE, SIDE))), tf.uint8)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=int, required=True, help="how many are decoded while the clock runs")
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args(arguments)
    paths = [str(path) for path in files_of(options.folder)]
    dataset = tf.data.Dataset.from_tensor_slices(paths).repeat()
    dataset = dataset.map(read_photo, num_parallel_calls=tf.data.AUTOTUNE)
    batches = iter(dataset.batch(options.batch).prefetch(tf.data.AUTOTUNE))
    for _ in range(16):  # AUTOTUNE needs some batches to find its settings
        next(batches)
    timed = -(-options.photos // options.batch)
    began = time.perf_counter()
    rows = sum(len(next(batches)) for _ in range(timed))
    print(json.dumps({"rate": rows / (time.perf_counter() - began)}))


if __name__ == "__main__":
    main(sys.argv[1:])
