"""Writes the models that the tests run: `python make_models.py FOLDER`. Real ones, made by the real framework."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.core.records import ModelFile
from penstock.runtimes.environment import lean_imports


def main(folder: Path) -> None:
    with lean_imports(ModelFile("keras", "", "", ()), "tensorflow"):
        import keras
        import tensorflow as tf

    keras.utils.set_random_seed(3)
    layers = keras.layers

    keras.Sequential(
        [
            keras.Input((64,), name="pixels"),
            layers.Rescaling(1 / 16),
            layers.Reshape((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu", bias_initializer="random_normal"),
            layers.Flatten(),
            layers.Dense(32, activation="relu", bias_initializer="random_normal"),
            layers.Dense(10, activation="softmax", name="digit"),
        ]
    ).save(folder / "digits.keras")

    left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
    joined = layers.Concatenate()([left, right])
    keras.Model(
        {"left": left, "right": right},
        {"total": layers.Dense(1, name="t")(joined), "pair": layers.Dense(2, name="p")(joined)},
    ).save(folder / "two_by_two.keras")

    # On a CPU, TensorFlow rejects an index that is out of range: a model that fails for some rows only.
    ids = keras.Input((1,), dtype="int32", name="id")
    keras.Model(ids, layers.Flatten(name="vector")(layers.Embedding(100, 4)(ids))).save(folder / "embedding.keras")

    keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: x * 2)]).save(folder / "lambda.keras")

    # The mean colour of a photo: whoever draws the photo knows the answer.
    photo = keras.Input((32, 32, 3), name="photo")
    keras.Model(photo, layers.GlobalAveragePooling2D(name="colour")(photo)).save(folder / "colour.keras")
    any_size = keras.Input((None, None, 3), name="photo")
    keras.Model(any_size, layers.GlobalMaxPooling2D(name="brightest")(any_size)).save(folder / "any_size.keras")

    steps = keras.Input((None, 3), name="series")
    keras.Model(steps, layers.Dense(2, name="trend")(layers.LSTM(6)(steps))).save(folder / "series.keras")
    windows = layers.GlobalAveragePooling1D()(layers.Conv1D(4, 3)(steps))
    keras.Model(steps, layers.Dense(2, name="trend")(windows)).save(folder / "window.keras")

    words = keras.Input((None,), dtype="int32", name="words")
    embedded = layers.Embedding(50, 4, mask_zero=True)(words)
    pooled = layers.GlobalAveragePooling1D()(embedded)
    keras.Model(words, layers.Dense(2, name="sense")(pooled)).save(folder / "words.keras")

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    mask = keras.Input((None,), name="token_mask")
    weighted = layers.Multiply()([layers.Embedding(50, 4)(tokens), layers.Reshape((-1, 1))(mask)])
    keras.Model({"tokens": tokens, "token_mask": mask}, {"tags": layers.Dense(3, name="tags")(weighted)}).save(
        folder / "tags.keras"
    )

    class Two(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(tf.random.stateless_normal((4, 2), seed=(1, 2)))

        @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
        def double(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"doubled": x * 2.0}

        @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
        def project(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"projected": tf.matmul(x, self.weight), "length": tf.norm(x, axis=1)}

    module = Two()
    tf.saved_model.save(
        module, str(folder / "two_signatures"), signatures={"double": module.double, "project": module.project}
    )

    class Fixed(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((8, 4), tf.float32, name="x")])
        def half(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"halved": x / 2.0}

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="text")])
        def shout(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"shouted": tf.strings.upper(text), "length": tf.strings.length(text)}

    fixed = Fixed()
    tf.saved_model.save(fixed, str(folder / "fixed_batch"), signatures={"half": fixed.half, "shout": fixed.shout})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
