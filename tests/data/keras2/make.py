"""How the files beside this one were made, by the Keras that was current at the time.

    python make.py 2.15       with tensorflow 2.15.1, which brings Keras 2.15.0, on Python 3.11
    python make.py 2.2        with keras 2.2.4 and Theano 1.0.5, on Python 3.8: KERAS_BACKEND=theano
    python make.py 3.0        with keras 3.0.0 and jax 0.4.25, on Python 3.10: KERAS_BACKEND=jax

Beside each model lies, as `.npz`, what it was given and what it predicted.
"""

import sys
from typing import Any

import numpy as np

np.random.seed(5)


def normal(*shape: int) -> Any:
    return np.random.normal(size=shape).astype("f4")


def keep(name: str, model: Any, **inputs: Any) -> None:
    given = list(inputs.values())
    answers = model.predict(given if len(given) > 1 else given[0], verbose=0)
    np.savez(name + ".npz", answer=answers, **inputs)


def of_2_15() -> None:
    from tensorflow import keras  # type: ignore[attr-defined, unused-ignore]

    layers: Any = keras.layers
    x = keras.Input((6, 6, 2), name="picture")
    y = layers.BatchNormalization(beta_initializer="random_normal")(layers.Conv2D(3, 3, activation="relu")(x))
    y = layers.Bidirectional(layers.LSTM(2))(layers.Reshape((16, 3))(y))
    model = keras.Model(x, layers.Dense(3, activation="softmax", name="kind")(y))
    keep("keras_2_15", model, picture=normal(5, 6, 6, 2))
    model.save("keras_2_15.keras")
    model.save("keras_2_15.h5")


def of_2_2() -> None:
    import theano.ifelse  # type: ignore[import-not-found, unused-ignore]  # noqa: F401 - Keras forgets to
    from keras import layers, models

    model: Any = models.Sequential()
    model.add(layers.Conv2D(3, 3, activation="relu", padding="same", input_shape=(5, 4, 2), name="conv"))
    model.add(layers.BatchNormalization())
    model.add(layers.Reshape((20, 3)))
    model.add(layers.GRU(3, return_sequences=True))
    model.add(layers.LSTM(2, name="last"))
    model.set_weights([w + np.random.uniform(0.05, 0.3, w.shape).astype("f4") for w in model.get_weights()])
    keep("keras_2_2_theano", model, x=normal(5, 5, 4, 2))
    model.save("keras_2_2_theano.h5")


def of_3_0() -> None:
    import keras
    from keras import layers

    x = keras.Input((6, 6, 2), name="picture")
    y = layers.BatchNormalization()(layers.Conv2D(3, 3, activation="relu", bias_initializer="random_normal")(x))
    y = layers.GRU(4)(layers.Reshape((16, 3))(y))
    model = keras.Model(x, layers.Dense(3, activation="softmax", name="kind")(y))
    keep("keras_3_0", model, picture=normal(5, 6, 6, 2))
    model.save("keras_3_0.keras")


if __name__ == "__main__":
    {"2.15": of_2_15, "2.2": of_2_2, "3.0": of_3_0}[sys.argv[1]]()
