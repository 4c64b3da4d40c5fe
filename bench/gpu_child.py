"""The processes of E that hold the GPU; run as `python -m bench.gpu_child save|save-varied|bare|predict …`.

KERAS_BACKEND in the environment chooses the framework. Prints one JSON document.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
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
    parser.add_argument("action", choices=("save", "save-varied", "bare", "predict"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype-policy", default="float32")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=5.0)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    if options.action == "save":
        document = save(options.model, options.dtype_policy)
    elif options.action == "save-varied":
        document = save_varied(options.model, options.dtype_policy)
    elif options.action == "bare":
        document = bare(options.model, options.batch, options.seconds)
    else:
        document = predict(options.model, options.batch, options.images)
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1:])
