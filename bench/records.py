"""The TFRecord files that H reads, made by `python -m bench.records FOLDER FILES RECORDS` with TensorFlow's writer."""

import json
import os
import sys
from pathlib import Path

import numpy as np

from bench.data import IMAGE_COLUMN, PIXELS, fresh_staging
from bench.shell import QUIET_KERAS, run
from bench.sizes import RECORD_FILES, Sizes

LABELS = 10


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
    frames = [_around_the_floats(label) for label in range(LABELS)]
    for index in range(num_files):
        rng = np.random.default_rng(index)
        with tf.io.TFRecordWriter(os.fspath(staging / f"part-{index:03d}.tfrecord")) as writer:
            for label in rng.integers(LABELS, size=records_per_file):
                before, after = frames[label]
                # As large as pixels, for the model is A1's.
                writer.write(before + (255 * rng.random(PIXELS, np.float32)).tobytes() + after)
    return staging.rename(folder)


def _around_the_floats(label: int) -> tuple[bytes, bytes]:
    """Return what stands before and after the floats in a serialized example: only they differ between records."""
    import tensorflow as tf

    example = tf.train.Example()
    floats = np.arange(PIXELS, dtype=np.float32)
    example.features.feature[IMAGE_COLUMN].float_list.value.extend(floats.tolist())
    example.features.feature["label"].int64_list.value.append(label)
    before, found, after = example.SerializeToString(deterministic=True).partition(floats.tobytes())
    assert found, "floats are packed"
    return before, after


if __name__ == "__main__":
    made = write_records(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"folder": str(made)}))
