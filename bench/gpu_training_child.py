"""The processes of Q that hold the GPU; run as `python -m bench.gpu_training_child bare|keras|penstock …`.

KERAS_BACKEND in the environment chooses the framework. Prints one JSON document. `mixed_bfloat16` and `float32` build
the model for `penstock fit`.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

CLASSES = 1000
EPOCHS = 3
STEPS_PER_ROUND = 20
SECONDS = 6.0
Round = Callable[[], None]


def mixed_bfloat16() -> Any:
    """A ResNet50 of mixed precision, compiled."""
    return resnet("mixed_bfloat16")


def float32() -> Any:
    """A ResNet50, compiled."""
    return resnet("float32")


def resnet(policy: str) -> Any:
    keras.config.set_dtype_policy(policy)
    model = keras.applications.ResNet50(weights=None, classes=CLASSES)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    return model


def bare(model: Any, x: Any, y: Any) -> float:
    """Steps of a second, of the model's own step on data that lies on the device: the ceiling of any way to feed it."""
    run_round = (_jax_round if keras.backend.backend() == "jax" else _tensorflow_round)(model, x, y)
    run_round()
    rounds, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS:
        run_round()
        rounds += 1
    return rounds * STEPS_PER_ROUND / elapsed


def _jax_round(model: Any, x: Any, y: Any) -> Round:
    import jax

    model._symbolic_build(data_batch=(x, y))
    step = jax.jit(model.train_step, donate_argnums=0)
    state = tuple(
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )
    data = jax.device_put((x, y))

    def run_round() -> None:
        nonlocal state
        for _ in range(STEPS_PER_ROUND):
            logs, state = step(state, data)
        logs["loss"].block_until_ready()

    return run_round


def _tensorflow_round(model: Any, x: Any, y: Any) -> Round:
    import tensorflow as tf

    model._symbolic_build(data_batch=(x, y))
    step = tf.function(tf.autograph.experimental.do_not_convert(model.train_step), jit_compile=True)
    # Copies made by an operation lie where operations run; plain constants may stay on the host.
    data = tf.identity(tf.constant(x)), tf.identity(tf.constant(y))

    def run_round() -> None:
        for _ in range(STEPS_PER_ROUND):
            logs = step(data)
        float(logs["loss"])

    return run_round


def epochs(fit: Callable[..., Any]) -> float:
    """Seconds of an epoch behind the first."""

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())

    ends: list[float] = []
    fit(epochs=EPOCHS, verbose=0, callbacks=[Clock()])
    return (ends[-1] - ends[0]) / (EPOCHS - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("bare", "keras", "penstock"))
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--policy", required=True)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = options.batch if options.side == "bare" else options.images
    x = rng.integers(0, 256, (rows, 224, 224, 3), dtype=np.uint8)
    y = rng.integers(0, CLASSES, rows)
    model = resnet(options.policy)
    if options.side == "bare":
        rate = options.batch * bare(model, x, y)
    elif options.side == "keras":
        rate = rows / epochs(lambda **more: model.fit(x, y, batch_size=options.batch, **more))
    else:
        import penstock

        rate = rows / epochs(lambda **more: penstock.fit(model, x, y, batch_size=options.batch, **more))
    print(json.dumps({"rows_per_s": rate}))


if __name__ == "__main__":
    main()
