"""Train on a GPU with `penstock.fit` and compare: prints a JSON document.

Run as `python -m tests.support.fit_on_gpu memory|mirrored [xla]` with KERAS_BACKEND. For `memory` the process has
3 GiB of the GPU: TensorFlow by what is set here, JAX by XLA_PYTHON_CLIENT_MEM_FRACTION. For `mirrored` one card is two
devices of TensorFlow.
"""

import contextlib
import io
import json
import re
import sys
from typing import Any

import keras
import numpy as np

import penstock

BACKEND = keras.backend.backend()
GIBIBYTE = 1024
ROWS, BATCH = 96, 64
LEARNING_RATE = 0.1


def limit_tensorflow(*megabytes: int) -> None:
    import tensorflow as tf

    (card,) = tf.config.list_physical_devices("GPU")
    limits = [tf.config.LogicalDeviceConfiguration(memory_limit=each) for each in megabytes]
    tf.config.set_logical_device_configuration(card, limits)
    # The same sums in float32 on every way.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.experimental.enable_op_determinism()


def images(size: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.random((ROWS, size, size, 3), dtype=np.float32), rng.integers(0, 10, ROWS)


def convolutions(size: int) -> Any:
    keras.utils.set_random_seed(7)
    inputs = keras.Input((size, size, 3))
    hidden = inputs
    for _ in range(4):
        hidden = keras.layers.Conv2D(64, 3, padding="same", activation="tanh")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(10, "softmax")(keras.layers.GlobalAveragePooling2D()(hidden)))
    # XLA of TensorFlow tries many kernels, each of which waits for memory that does not come: minutes.
    jit_compile = BACKEND == "jax" or "xla" in sys.argv
    model.compile(
        keras.optimizers.SGD(LEARNING_RATE),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )
    return model


def trained(model: Any, x: Any, y: Any, **options: Any) -> dict[str, Any]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        history = penstock.fit(model, x, y, batch_size=BATCH, epochs=2, verbose=2, shuffle=False, **options)
    return {
        "losses": history.history["loss"],
        "weights": [weights.ravel()[:50].tolist() for weights in model.get_weights()],
        "said": said.getvalue(),
    }


def main(what: str) -> None:
    if what == "memory":
        if BACKEND == "tensorflow":
            limit_tensorflow(3 * GIBIBYTE)
        x, y = images(256)
        # A whole batch needs more than 3 GiB; a part of one does not.
        too_large = trained(convolutions(256), x, y)
        pieces = int(re.findall(r"in (\d+) pieces", too_large["said"])[-1])
        results = {"too large": too_large, "in pieces": trained(convolutions(256), x, y, accumulate=pieces)}
    else:
        limit_tensorflow(4 * GIBIBYTE, 4 * GIBIBYTE)
        x, y = images(32)
        results = {
            "one": trained(convolutions(32), x[:-1], y[:-1], num_devices=1),
            "two": trained(convolutions(32), x[:-1], y[:-1]),
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
