"""Writes models as Keras 2 wrote them: `TF_USE_LEGACY_KERAS=1 python make_legacy_models.py FOLDER`.

Beside each model NAME lies NAME.npz with what it was given and what it predicted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.records import ModelFile
from penstock.runtimes.environment import lean_imports

OWN_LAYER = """
import tensorflow as tf

class Twice(tf.keras.layers.Layer):
    def call(self, x):
        return 2.0 * x
"""
BUILDERS = """
import keras
import tensorflow as tf

def small(width=3):
    x = keras.Input((4,), name="x")
    hidden = keras.layers.Dense(5, activation="tanh", name="hidden")(x)
    return keras.Model(x, keras.layers.Dense(width, name="last")(hidden))

def wide():
    return small(7)

def deep():
    x = keras.Input((4,), name="x")
    hidden = keras.layers.Dense(5, name="hidden")(x)
    return keras.Model(x, keras.layers.Dense(3, name="more")(keras.layers.Dense(3, name="last")(hidden)))

def of_tf_keras():
    import tf_keras
    return tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(4,))])

def legacy():
    x = tf.keras.Input((4,), name="x")
    hidden = tf.keras.layers.Dense(5, activation="tanh", name="hidden")(x)
    return tf.keras.Model(x, tf.keras.layers.Dense(3, name="last")(hidden))
"""
RNG = np.random.default_rng(11)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype("f4")


def keep(folder: Path, name: str, model: Any, **inputs: Any) -> None:
    """What a model predicts, beside it."""
    answers = model.predict(inputs if len(inputs) > 1 else next(iter(inputs.values())), verbose=0)
    named = answers if isinstance(answers, dict) else {"answer": answers}
    np.savez(folder / f"{name}.npz", **inputs, **named)


def main(folder: Path) -> None:
    with lean_imports(ModelFile("h5", "", "", ()), "tensorflow"):
        import tf_keras

    tf_keras.utils.set_random_seed(3)
    for make in (pictures, refused, two_inputs, ragged_and_sparse, own_layer, weights):
        make(folder)


def pictures(folder: Path) -> None:
    from tf_keras import Input, Model, layers

    x = Input((8, 8, 2), name="picture")
    y = layers.Conv2D(4, 3, padding="same", strides=2, bias_initializer="random_normal")(x)
    y = layers.BatchNormalization(moving_mean_initializer="random_normal", beta_initializer="random_normal")(y)
    y = layers.GlobalMaxPooling2D()(layers.LeakyReLU()(y))
    model = Model(x, layers.Dense(3, activation="softmax", name="kind")(y))
    keep(folder, "pictures", model, picture=normal(6, 8, 8, 2))
    model.save(folder / "pictures.h5")
    model.save(folder / "pictures_folder", save_format="tf")


def refused(folder: Path) -> None:
    from tf_keras import Input, Model, Sequential, layers

    thresholded = Sequential([Input((4,), name="x"), layers.Dense(3), layers.ThresholdedReLU(0.1, name="above")])
    keep(folder, "thresholded", thresholded, x=normal(6, 4))
    thresholded.save(folder / "thresholded.h5")
    x = Input((5, 2), name="x")
    gated = Model(x, layers.GRU(3, recurrent_activation="hard_sigmoid", reset_after=False, name="gated")(x))
    keep(folder, "gated", gated, x=normal(6, 5, 2))
    gated.save(folder / "gated.h5")
    gated.save(folder / "gated.keras")


def two_inputs(folder: Path) -> None:
    from tf_keras import Input, Model, layers

    a, b = Input((3,), name="a"), Input((2,), name="b")
    joined = layers.Concatenate()([a, b])
    model = Model({"b": b, "a": a}, {"sum": layers.Dense(2)(joined), "first": layers.Dense(1)(a)})
    keep(folder, "two", model, a=normal(6, 3), b=normal(6, 2))
    model.save(folder / "two.keras")


def ragged_and_sparse(folder: Path) -> None:
    import tensorflow as tf
    from tf_keras import Input, Model, layers

    words = Input((None,), dtype="int32", ragged=True, name="words")
    marks = Input((6,), sparse=True, name="marks")
    pooled = layers.GlobalAveragePooling1D()(layers.Embedding(20, 3)(words))
    model = Model([words, marks], layers.Concatenate(name="both")([pooled, layers.Dense(2)(marks)]))
    given = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11]]
    dense = np.where(normal(4, 6) > 0.5, 1.0, 0.0).astype("f4")
    answers = model([tf.ragged.constant(given, dtype=tf.int32), tf.sparse.from_dense(dense)]).numpy()
    flat = np.concatenate([np.array(row, "i4") for row in given])
    np.savez(folder / "ragged.npz", flat=flat, lengths=[len(row) for row in given], marks=dense, both=answers)
    model.save(folder / "ragged.h5")


def own_layer(folder: Path) -> None:
    (folder / "own_layers.py").write_text(OWN_LAYER)
    sys.path.insert(0, str(folder))
    import own_layers  # type: ignore[import-not-found]
    from tf_keras import Input, Sequential, layers

    model = Sequential([Input((4,), name="x"), own_layers.Twice(name="twice"), layers.Dense(2, name="last")])
    keep(folder, "own", model, x=normal(6, 4))
    model.save(folder / "own.h5")
    Sequential([Input((4,), name="x"), layers.Lambda(lambda x: x * 2, name="code")]).save(folder / "lambda.h5")


def weights(folder: Path) -> None:
    (folder / "builders.py").write_text(BUILDERS)
    import builders  # type: ignore[import-not-found]

    x = normal(6, 4)
    new, old = builders.small(), builders.legacy()
    keep(folder, "new_weights", new, x=x)
    new.save_weights(folder / "new.weights.h5")
    keep(folder, "old_weights", old, x=x)
    old.save_weights(folder / "old.h5")
    old.save_weights(folder / "checkpoint" / "at_the_end", save_format="tf")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
