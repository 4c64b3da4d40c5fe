"""The TFRecord files that H reads, made by `python -m bench.records FOLDER FILES RECORDS` with TensorFlow's writer."""

import json
import os
import sys
from pathlib import Path

import numpy as np

from bench.data import IMAGE_COLUMN, PIXELS, fresh_staging
from bench.shell import QUIET_KERAS, run
from bench.sizes import RECORD_FILES, Sizes


def records_folder(root: Path, sizes: Sizes) -> Path:
    """Return H's folder: a feature of 784 floats and an int64 label; made once, in a process of its own."""
    folder = root / f"h-{RECORD_FILES}x{sizes.records_per_file}"
    if not folder.exists():
        numbers = (str(RECORD_FILES), str(sizes.records_per_file))
        run([sys.executable, "-m", "bench.records", str(folder), *numbers], QUIET_KERAS)
    return folder


def write_records(folder: Path, num_files: int, records_per_file: int) -> Path:
    """Write the files under a temporary name and rename the folder."""
    import tensorflow as tf

    staging = fresh_staging(folder)
    for index in range(num_files):
        rng = np.random.default_rng(index)
        with tf.io.TFRecordWriter(os.fspath(staging / f"part-{index:03d}.tfrecord")) as writer:
            for _ in range(records_per_file):
                example = tf.train.Example()
                features = example.features.feature
                # As large as pixels, for the model is A1's.
                features[IMAGE_COLUMN].float_list.value.extend(rng.uniform(0, 255, PIXELS).astype(np.float32))
                features["label"].int64_list.value.append(int(rng.integers(10)))
                writer.write(example.SerializeToString())
    return staging.rename(folder)


if __name__ == "__main__":
    made = write_records(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"folder": str(made)}))
