"""Models that are noisy in float32: `python -m tests.support.noisy_models FOLDER` writes them, and what it found.

`noisy.keras` is a small network of depthwise convolutions with random batch-norm statistics. Its last layer weighs
features of about 1,000 against one another, and about 50 is left of them: the order of the sum matters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.agreement import Noise, distances
from penstock.core.records import ModelFile
from penstock.runtimes.environment import lean_imports

PHOTOS, SIDE = 64, 32
OFFSET = 1000.0


def photos() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(11).integers(0, 256, (PHOTOS, SIDE, SIDE, 3), dtype=np.uint8)


def main(folder: Path) -> None:
    with lean_imports(ModelFile("keras", "", "", ()), "tensorflow"):
        import keras
        import tensorflow as tf
    from penstock.runtimes.tensorflow.float64 import run_in_float64

    keras.utils.set_random_seed(7)
    model = noisy(keras)
    model.save(folder / "noisy.keras")
    np.save(folder / "photos.npy", photos())
    found: dict[str, Any] = {}

    def look(name: str, step: Any, batch: Any) -> None:
        plain = {key: value.numpy() for key, value in step(batch).items()}
        exact = run_in_float64(step, batch)
        found[name] = {
            "dtypes": sorted({str(array.dtype) for array in exact.values()}),
            "share": Noise(distances(plain, exact)).largest_share(plain),
        }

    look("noisy", tf.function(lambda x: {"y": model(x["photo"])}), {"photo": photos()[:16]})
    series = np.random.default_rng(5).normal(size=(8, 12, 3)).astype(np.float32)
    lstm = keras.layers.LSTM(6)
    look("loop", tf.function(lambda x: {"y": lstm(x["series"])}), {"series": series})
    look("fused", tf.function(fused_norm(tf)), {"x": photos()[:8].astype(np.float32)})
    refused = {"resized": lambda x: {"y": tf.image.resize(x["x"], (9, 9))}, "short": in_16_bits(tf)}
    for name, step in refused.items():
        try:
            run_in_float64(tf.function(step), {"x": photos()[:2].astype(np.float32)})
        except Exception as error:  # whatever it is: there is no answer
            found[name] = type(error).__name__
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def noisy(keras: Any) -> Any:
    """Depthwise convolutions with random statistics, and a last layer that takes large numbers from one another."""
    rng, layers = np.random.default_rng(3), keras.layers
    photo = hidden = keras.Input((SIDE, SIDE, 3), name="photo")
    hidden = layers.Rescaling(1 / 127.5, offset=-1)(hidden)
    for channels in (16, 32, 64):
        for layer in (layers.Conv2D(channels, 1), layers.DepthwiseConv2D(3, strides=2, padding="same")):
            hidden = layers.ReLU(max_value=6.0)(layers.BatchNormalization()(layer(hidden)))
    shifted = layers.Conv2D(32, 2, activation="relu", name="shifted")(hidden)
    model = keras.Model(photo, layers.Flatten(name="features")(layers.Conv2D(64, 3, name="contrast")(shifted)))
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            shape = layer.gamma.shape
            layer.set_weights(
                [
                    rng.uniform(0.5, 2, shape),
                    rng.normal(1, 1, shape),
                    rng.normal(0, 0.5, shape),
                    rng.uniform(0.1, 2, shape),
                ]
            )
    kernel, bias = model.get_layer("shifted").get_weights()
    model.get_layer("shifted").set_weights([kernel, bias + OFFSET])
    weights = rng.normal(size=(3, 3, 32, 64))
    model.get_layer("contrast").set_weights([weights - weights.mean(axis=(0, 1, 2)), rng.normal(size=64)])
    return model


def fused_norm(tf: Any) -> Any:
    """A normalization as Keras 2 saved it, which TensorFlow computes in float32 only."""

    def step(tensors: Any) -> Any:
        statistics = [
            tf.constant(values, tf.float32) for values in ([1, 2, 3], [0, 1, 0], [100, 120, 140], [900, 800, 700])
        ]
        outputs = tf.compat.v1.nn.fused_batch_norm(tensors["x"], *statistics, epsilon=1e-3, is_training=False)
        return {"y": outputs[0]}

    return step


def in_16_bits(tf: Any) -> Any:
    return lambda tensors: {"y": tf.cast(tf.cast(tensors["x"], tf.float16) * 2, tf.float32)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
