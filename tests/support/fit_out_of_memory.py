"""Train a model whose step runs out of memory for more than a few heavy rows, really: prints a JSON document.

The heavy rows are the second half of each batch: of two pieces, the first has been added up when the second fails.

Run as `python -m tests.support.fit_out_of_memory` with KERAS_BACKEND=tensorflow or torch: XLA would not compute what
the layer does with its memory.
"""

import contextlib
import io
import json
from typing import Any

import keras
import numpy as np

import penstock
from tests.support.virtual_devices import X, Y

MOST_ROWS, BATCH, ROWS = 10, 50, 197
HEAVY = 0  # the column that says whether a row is: black in every digit
_FLOATS_OF_A_ROW = (1 << 20, 1 << 26)
"""More than any machine gives to a process."""


class Hungry(keras.layers.Layer):
    """Leaves rows as they are, and takes memory for every heavy row above `MOST_ROWS`."""

    def call(self, inputs: Any) -> Any:
        ops = keras.ops
        heavy = ops.sum(ops.cast(inputs[:, HEAVY] > 1, "int32"))
        extra = ops.maximum(heavy - MOST_ROWS, 0)
        eaten = ops.sort(ops.broadcast_to(ops.stop_gradient(inputs[0, 0]), (extra, *_FLOATS_OF_A_ROW)))
        return inputs + 0 * ops.stop_gradient(ops.sum(eaten[:, :1, :1]))

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def rows() -> Any:
    x = X[:ROWS].copy()
    x[:, HEAVY] = 2 * (np.arange(ROWS) % BATCH >= BATCH // 2)  # Keras on torch builds models with ones
    return x


def make() -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([keras.Input((64,)), Hungry(), layers.Dense(24, "relu"), layers.Dense(10, "softmax")])
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def trained(num_devices: int, **keywords: Any) -> tuple[Any, str, list[float]]:
    model, said = make(), io.StringIO()
    with contextlib.redirect_stderr(said):
        history = penstock.fit(model, rows(), Y[:ROWS], BATCH, 2, 2, num_devices=num_devices, shuffle=False, **keywords)
    return model.get_weights(), said.getvalue(), history.history["loss"]


def main() -> None:
    found = []
    on_two = [(2, 4)] if keras.backend.backend() == "tensorflow" else []
    for num_devices, pieces in ((1, 8), *on_two):
        weights, said, losses = trained(num_devices)
        expected, _, expected_losses = trained(num_devices, accumulate=pieces)
        found.append(
            {
                "devices": num_devices,
                "said": said,
                "is same": all(np.array_equal(a, b) for a, b in zip(weights, expected, strict=True)),
                "losses": [losses, expected_losses],
            }
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
