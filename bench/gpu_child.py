"""The processes of E that hold the GPU; run as `python -m bench.gpu_child save|bare|predict|photos …`.

KERAS_BACKEND in the environment chooses the framework. Prints one JSON document.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

# Enough to hide the wait at the end of a round; few enough that the queue of the device stays short.
STEPS_PER_ROUND = 20
Round = Callable[[], None]


def save(path: str, dtype_policy: str) -> dict[str, Any]:
    """Save a ResNet50; random weights take as long as trained ones."""
    keras.config.set_dtype_policy(dtype_policy)
    keras.applications.ResNet50(weights=None).save(path)
    return {"model": path}


def save_varied(path: str, dtype_policy: str) -> dict[str, Any]:
    """Save a ResNet50 whose answers differ by image: a plan compares answers, and constant ones prove nothing."""
    keras.config.set_dtype_policy(dtype_policy)
    model = keras.applications.ResNet50(weights=None, include_top=False, pooling="avg", input_shape=(224, 224, 3))
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.gamma.assign(rng.uniform(0.5, 1.5, layer.gamma.shape))
            layer.beta.assign(rng.uniform(-0.3, 0.3, layer.beta.shape))
            layer.moving_mean.assign(rng.normal(0, 0.1, layer.moving_mean.shape))
            layer.moving_variance.assign(rng.uniform(0.5, 1.5, layer.moving_variance.shape))
    model.save(path)
    return {"model": path}


def save_ranking(path: str, dtype_policy: str, folder: str) -> dict[str, Any]:
    """Save a ResNet50 of 1,000 classes which ranks other classes first for other photos, as a trained one does.

    Its last layer weighs features by how far they are from their means over a few photos.
    """
    save_varied(path, dtype_policy)
    body = keras.models.load_model(path)
    names = sorted(str(each) for each in Path(folder).rglob("*.jpg"))[:24]
    photos = np.stack([keras.utils.img_to_array(keras.utils.load_img(name, target_size=(224, 224))) for name in names])
    features = np.asarray(body.predict(photos, batch_size=8, verbose=0), np.float32)
    weights = np.random.default_rng(1).normal(size=(features.shape[1], 1000)) / features.shape[1] ** 0.5
    weights /= np.maximum(features.std(axis=0), 1e-3)[:, None]
    head = keras.layers.Dense(1000, activation="softmax", dtype="float32", name="predictions")
    model = keras.Model(body.input, head(body.output))
    head.set_weights([weights, -features.mean(axis=0) @ weights])
    model.save(path)
    return {"model": path}


def predict_photos(path: str, folder: str, batch_size: int, num_images: int) -> dict[str, Any]:
    """Measure `tf.data` into `model.predict`, written as its guides have it: all that can be tuned is left to AUTOTUNE,
    photos are decoded in parallel, bytes go to the GPU, and XLA compiles the step.
    """
    import tensorflow as tf

    def read(name: Any) -> Any:
        pixels = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        return tf.cast(tf.round(tf.image.resize(pixels, (224, 224))), tf.uint8)

    names = sorted(str(each) for each in Path(folder).rglob("*.jpg"))
    # Only whole batches: a shorter one would be compiled once more.
    count = num_images // batch_size * batch_size
    dataset = tf.data.Dataset.from_tensor_slices(names[:count]).map(read, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    model = keras.models.load_model(path)
    model.compile(jit_compile=True)
    model.predict(dataset.take(8), verbose=0)
    began = time.perf_counter()
    answers = model.predict(dataset, verbose=0)
    seconds = time.perf_counter() - began
    return {"rows_per_s": len(answers) / seconds, "rows": len(answers), "batch": batch_size}


def bare(path: str, batch_size: int, seconds: float) -> dict[str, Any]:
    """Measure the compiled step on data that lies on the device: the ceiling of any way to feed it."""
    model = keras.models.load_model(path)
    images = random_images(batch_size)
    make_round = _jax_round if keras.backend.backend() == "jax" else _tensorflow_round
    run_round = make_round(model, images)
    run_round()
    num_rounds, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        run_round()
        num_rounds += 1
    return {"rows_per_s": num_rounds * STEPS_PER_ROUND * batch_size / elapsed, "rounds": num_rounds}


def predict(path: str, batch_size: int, num_images: int) -> dict[str, Any]:
    """Measure `model.predict` on a float32 array, as its users call it."""
    model = keras.models.load_model(path)
    images = random_images(num_images).astype(np.float32)
    model.predict(images[:batch_size], batch_size=batch_size, verbose=0)
    began = time.perf_counter()
    model.predict(images, batch_size=batch_size, verbose=0)
    return {"rows_per_s": num_images / (time.perf_counter() - began)}


def random_images(num_images: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, (num_images, 224, 224, 3), dtype=np.uint8)


def _jax_round(model: Any, images: Any) -> Round:
    """Weights are arguments: as constants they would be folded into the program and compiled for minutes."""
    import jax

    def call(trainable: Any, other: Any, batch: Any) -> Any:
        return model.stateless_call(trainable, other, batch.astype("float32"), training=False)[0]

    step = jax.jit(call)
    trainable = [variable.value for variable in model.trainable_variables]
    other = [variable.value for variable in model.non_trainable_variables]
    batch = jax.device_put(images)

    def run_round() -> None:
        for _ in range(STEPS_PER_ROUND):
            answer = step(trainable, other, batch)
        # One stream: when the last step is done, all are.
        answer.block_until_ready()

    return run_round


def _tensorflow_round(model: Any, images: Any) -> Round:
    import tensorflow as tf

    def call(batch: Any) -> Any:
        return model(tf.cast(batch, tf.float32), training=False)

    step = tf.function(call, jit_compile=True, autograph=False)
    # A copy made by an operation lies where operations run; a plain constant may stay on the host.
    batch = tf.identity(tf.constant(images))

    def run_round() -> None:
        for _ in range(STEPS_PER_ROUND):
            answer = step(batch)
        # Fetching one number waits for the last step, and so for all.
        float(answer[0, 0])

    return run_round


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("save", "save-varied", "save-ranking", "bare", "predict", "photos"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype-policy", default="float32")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--photos", default="")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    if options.action == "save":
        document = save(options.model, options.dtype_policy)
    elif options.action == "save-varied":
        document = save_varied(options.model, options.dtype_policy)
    elif options.action == "save-ranking":
        document = save_ranking(options.model, options.dtype_policy, options.photos)
    elif options.action == "photos":
        document = predict_photos(options.model, options.photos, options.batch, options.images)
    elif options.action == "bare":
        document = bare(options.model, options.batch, options.seconds)
    else:
        document = predict(options.model, options.batch, options.images)
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1:])
