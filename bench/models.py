"""The models of the workloads, saved by `python -m bench.models FOLDER`: only that process imports Keras."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bench import planned_models
from bench.data import FEATURES, PIXELS
from bench.photos import draw

PHOTO_SIDE = 224
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


def thousand_classes() -> Any:
    """K: the network of A1 with 1,000 classes, and the largest of their values."""
    kernel = keras.initializers.RandomNormal(stddev=PIXEL_KERNEL_STDDEV)
    image = keras.Input((PIXELS,), name="image")
    hidden = keras.layers.Dense(64, activation="relu", kernel_initializer=kernel)(image)
    classes = keras.layers.Dense(1000, activation="softmax", name="classes")(hidden)
    largest = keras.layers.GlobalMaxPooling1D(name="pool")(keras.layers.Reshape((1000, 1))(classes))
    return keras.Model(image, {"classes": classes, "largest": largest})


def photo_network() -> Any:
    """G, M and N: MobileNetV2 with random weights, for raw uint8 photos, answering 1,280 features."""
    return _for_photos(keras.applications.MobileNetV2, _normalise)


def residual_network() -> Any:
    """M and N: ResNet50 in the same way, answering 2,048 features."""
    return _for_photos(keras.applications.ResNet50, _normalise)


def noisy_photo_network() -> Any:
    """N: MobileNetV2 with random batch-norm statistics, which loses digits in float32."""
    return _for_photos(keras.applications.MobileNetV2, partial(_draw_statistics, variances=(0.0075, 0.075)))


def noisy_residual_network() -> Any:
    """N: ResNet50 in the same way."""
    return _for_photos(keras.applications.ResNet50, partial(_draw_statistics, variances=(0.1, 1.0)))


def _for_photos(application: Any, prepare: Callable[[Any], None]) -> Any:
    network = application(weights=None, include_top=False, pooling="avg", input_shape=(PHOTO_SIDE, PHOTO_SIDE, 3))
    prepare(network)
    photo = keras.Input((PHOTO_SIDE, PHOTO_SIDE, 3), name="image")
    features = network(keras.layers.Rescaling(1 / 127.5, offset=-1)(photo))
    return keras.Model(photo, keras.layers.Identity(name="features")(features))


def small_for_pixels() -> Any:
    """R: one layer on 784 raw pixels, compiled."""
    return _compiled(keras.Input((PIXELS,), name="image"), [keras.layers.Rescaling(1 / 255)], classes=10)


def small_for_features() -> Any:
    """R: one layer on 30 features, compiled."""
    return _compiled(keras.Input((FEATURES,), name="features"), [], classes=None)


def small_for_photos() -> Any:
    """R: a photo, averaged to 7 × 7, and one layer, compiled."""
    layers = [keras.layers.AveragePooling2D(32), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    return _compiled(keras.Input((PHOTO_SIDE, PHOTO_SIDE, 3), name="image"), layers, classes=10)


def _compiled(given: Any, layers: list[Any], classes: int | None) -> Any:
    last = keras.layers.Dense(classes or 1, activation="softmax" if classes else None)
    model = keras.Sequential([given, *layers, last])
    model.compile("adam", "sparse_categorical_crossentropy" if classes else "mse")
    return model


def _normalise(network: Any) -> None:
    """Smooth the random kernels, and give biases and batch normalisation statistics that fit them.

    With fresh statistics hardly anything gets through 53 layers: every photo would get the same answer. With rough
    kernels, what gets through is grain, which depends on how a photo was decoded and resized.
    """
    rng = np.random.default_rng(0)
    for layer in network.layers:
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)):
            kernel = np.asarray(layer.kernel)
            layer.kernel.assign(np.broadcast_to(kernel.mean(axis=(0, 1), keepdims=True), kernel.shape))
            if layer.use_bias:
                layer.bias.assign(rng.uniform(-0.3, 0.3, layer.bias.shape))
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
            layer.gamma.assign(rng.uniform(0.8, 1.6, layer.gamma.shape))
            layer.beta.assign(rng.uniform(-0.3, 0.3, layer.beta.shape))
    pictures = np.stack([draw(rng, PHOTO_SIDE, PHOTO_SIDE) for _ in range(32)])
    # Without momentum, one step of training sets mean and variance to those of these pictures.
    network(pictures / np.float32(127.5) - 1, training=True)


def _draw_statistics(network: Any, variances: tuple[float, float]) -> None:
    """Give batch normalisation statistics that fit nothing, with variances so small that photos still differ."""
    rng = np.random.default_rng(1)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            shape = layer.gamma.shape
            layer.gamma.assign(rng.uniform(0.5, 1.5, shape))
            layer.beta.assign(rng.normal(0, 0.5, shape))
            layer.moving_mean.assign(rng.normal(0, 0.5, shape))
            layer.moving_variance.assign(rng.uniform(*variances, shape))


BUILDERS = {
    "a1": image_mlp,
    "a2": feature_mlp,
    "mobilenet": photo_network,
    "thousand": thousand_classes,
    "resnet50": residual_network,
    "noisy-mobilenet": noisy_photo_network,
    "noisy-resnet50": noisy_residual_network,
    "lstm": planned_models.recurrent_network,
    "encoder": planned_models.encoder,
    "wide-and-deep": planned_models.wide_and_deep,
    "train-pixels": small_for_pixels,
    "train-features": small_for_features,
    "train-photos": small_for_photos,
}


def save_missing(folder: Path) -> list[str]:
    """Save the models that are not there, under their final names only when they are whole; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: build for name, build in BUILDERS.items() if not (folder / f"{name}.keras").exists()}
    return [_build(build, folder / f"{name}.keras") for name, build in missing.items()]


def _build(build: Callable[[], Any], path: Path) -> str:
    keras.utils.set_random_seed(0)
    return _save(build(), path)


def _save(model: Any, path: Path) -> str:
    staging = path.with_suffix(".tmp.keras")
    model.save(staging)
    return str(staging.rename(path))


if __name__ == "__main__":
    print(json.dumps({"models": save_missing(Path(sys.argv[1]))}))
