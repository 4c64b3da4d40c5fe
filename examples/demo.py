"""The demo: train a small classifier on handwritten digits, predict 100,000 images from the shell, check the answers.

Run it with `make demo`. Everything it writes is under `.demo/`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(".demo")
MODEL, IMAGES, PREDICTIONS = FOLDER / "digits.keras", FOLDER / "images.parquet", FOLDER / "predictions"
REPEATS = 112
WANTED_ACCURACY = 0.95


def train() -> None:
    """Train in a process of its own, whose framework may chatter unheard unless it fails."""
    ran = subprocess.run(
        [sys.executable, __file__, "train"], stdout=None, stderr=subprocess.PIPE, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"training failed:\n{ran.stderr}")


def train_and_write() -> None:
    """Train on half of scikit-learn's digits; write the other half, many times over, as a Parquet of images."""
    import keras
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(7).permutation(len(digits.target))
    images, labels = digits.images.astype(np.uint8)[order], digits.target[order]
    half = len(images) // 2
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((8, 8), name="image"),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax", name="digit"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images[:half], labels[:half], epochs=20, batch_size=32, verbose=0)
    model.save(MODEL)
    test_images = np.tile(images[half:], (REPEATS, 1, 1))
    test_labels = np.tile(labels[half:], REPEATS)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(test_images)
    pq.write_table(pa.table({"image": column, "label": test_labels}), IMAGES, row_group_size=16384)
    print(f"trained on {half} digits; wrote {len(test_labels):,} images to {IMAGES}")


def predict() -> None:
    """The command that a user would type."""
    command = ["predict", str(MODEL), str(IMAGES), "--keep", "label", "--output", str(PREDICTIONS)]
    print("\n$ penstock " + " ".join(command), flush=True)
    subprocess.run([sys.executable, "-m", "penstock", *command], check=True)


def check() -> None:
    """Open the folder as a user would, show the first rows, and hold the answers against the labels."""
    import numpy as np
    import pandas as pd

    frame = pd.read_parquet(PREDICTIONS)
    print("\n>>> pandas.read_parquet('.demo/predictions')")
    shown = frame.head().copy()
    shown["digit"] = [np.round(row, 3) for row in shown["digit"]]
    print(shown.to_string(index=False))
    guesses = np.stack(frame["digit"].to_list()).argmax(axis=1)
    accuracy = float((guesses == frame["label"]).mean())
    in_order = bool((frame["row"] == np.arange(len(frame))).all())
    print(f"\n{len(frame):,} rows, in order: {in_order}, accuracy {accuracy:.3f}")
    if accuracy < WANTED_ACCURACY or not in_order:
        sys.exit(f"the demo failed: accuracy {accuracy:.3f}, wanted {WANTED_ACCURACY}; in order: {in_order}")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    train()
    predict()
    check()


if __name__ == "__main__":
    train_and_write() if sys.argv[1:] == ["train"] else main()
