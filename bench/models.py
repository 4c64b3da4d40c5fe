"""The models of the workloads, saved by `python -m bench.models FOLDER`: only that process imports Keras."""

import json
import sys
from pathlib import Path
from typing import Any

import keras

from bench.data import FEATURES, PIXELS

# Raw pixels reach 255: without a small first kernel every softmax would be exactly 0 or 1, and comparing two
# sides' predictions would prove nothing.
PIXEL_KERNEL_STDDEV = 1.0 / (147.0 * 28.0)


def image_mlp() -> Any:
    """A1: 784 raw pixels, Dense(64)-Dense(10)."""
    kernel = keras.initializers.RandomNormal(stddev=PIXEL_KERNEL_STDDEV)
    return keras.Sequential(
        [
            keras.Input((PIXELS,), name="image"),
            keras.layers.Dense(64, activation="relu", kernel_initializer=kernel),
            keras.layers.Dense(10, activation="softmax", name="digit"),
        ]
    )


def feature_mlp() -> Any:
    """A2: 30 features, 30-64-64-1."""
    return keras.Sequential(
        [
            keras.Input((FEATURES,), name="features"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1, name="score"),
        ]
    )


def unit_mlp() -> Any:
    """B and C: the network of A1, for float32 inputs between 0 and 1."""
    return keras.Sequential(
        [
            keras.Input((PIXELS,), name="image"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax", name="digit"),
        ]
    )


def save_all(folder: Path) -> list[str]:
    """Save A1's and A2's models, under their final names only when they are whole; return their paths."""
    models = {"a1": image_mlp, "a2": feature_mlp}
    keras.utils.set_random_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    return [_save(build(), folder / f"{name}.keras") for name, build in models.items()]


def _save(model: Any, path: Path) -> str:
    staging = path.with_suffix(".tmp.keras")
    model.save(staging)
    return str(staging.rename(path))


if __name__ == "__main__":
    print(json.dumps({"models": save_all(Path(sys.argv[1]))}))
