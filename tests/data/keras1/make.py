"""How the files beside this one were made: by Keras 1.2.2 itself, on Theano 1.0.5, with Python 3.8.

    KERAS_BACKEND=theano THEANO_FLAGS=floatX=float32 python make.py

Each model is saved whole, and beside it, as `.npz`, what it was given and what it predicted.
"""

from typing import Any

import numpy as np
import theano.ifelse  # type: ignore[import-not-found, unused-ignore]  # noqa: F401 - Keras 1 forgets to
from keras import layers as kl  # type: ignore[import-untyped, unused-ignore]
from keras.models import Model, Sequential  # type: ignore[import-untyped, unused-ignore]

np.random.seed(7)
k: Any = kl


def save(name: str, model: Any, **inputs: Any) -> None:
    # Fresh biases are zeros and fresh statistics are the identity: nothing would be seen of them.
    model.set_weights([w + np.random.uniform(0.05, 0.4, w.shape).astype("f4") for w in model.get_weights()])
    model.save(name + ".h5")
    given = list(inputs.values())
    answers = model.predict(given if len(given) > 1 else given[0])
    answers = answers if isinstance(answers, list) else [answers]
    np.savez(name + ".npz", **inputs, **{f"answer_{i}": answer for i, answer in enumerate(answers)})


def normal(*shape: int) -> Any:
    return np.random.normal(size=shape).astype("f4")


def images_channels_first() -> None:
    model = Sequential()
    model.add(k.Convolution2D(4, 3, 3, border_mode="same", input_shape=(2, 8, 8), dim_ordering="th"))
    model.add(k.BatchNormalization(mode=0, axis=1))
    model.add(k.LeakyReLU(0.2))
    model.add(k.MaxPooling2D((2, 2), dim_ordering="th"))
    model.add(k.ZeroPadding2D((1, 1), dim_ordering="th"))
    model.add(k.AtrousConvolution2D(3, 2, 2, atrous_rate=(2, 2), activation="tanh", dim_ordering="th"))
    model.add(k.UpSampling2D((2, 2), dim_ordering="th"))
    model.add(k.Flatten())
    model.add(k.Dropout(0.5))
    model.add(k.Dense(5, activation="softsign", W_regularizer="l2"))
    save("images_channels_first", model, x=normal(6, 2, 8, 8))


def images_channels_last() -> None:
    x = k.Input((7, 7, 2), name="photo")
    y = k.Convolution2D(3, 3, 2, subsample=(2, 1), activation="relu", dim_ordering="tf")(x)
    y = k.Deconvolution2D(2, 3, 3, (None, 5, 8, 2), subsample=(1, 1), dim_ordering="tf")(y)
    y = k.AveragePooling2D((2, 2), border_mode="same", dim_ordering="tf")(y)
    y = k.PReLU()(y)
    y = k.LocallyConnected2D(2, 2, 2, dim_ordering="tf")(y)
    y = k.GlobalMaxPooling2D(dim_ordering="tf")(y)
    save("images_channels_last", Model(x, y), photo=normal(5, 7, 7, 2))


def sequences() -> None:
    model = Sequential()
    model.add(k.Embedding(20, 6, input_length=9, mask_zero=True))
    model.add(k.Bidirectional(k.LSTM(3, return_sequences=True), merge_mode="concat"))
    model.add(k.TimeDistributed(k.Dense(4, activation="tanh")))
    model.add(k.GRU(3, return_sequences=True))
    model.add(k.LSTM(3, consume_less="gpu", return_sequences=True))
    model.add(k.SimpleRNN(2))
    words = np.random.randint(1, 20, (8, 9))
    words[::2, 5:] = 0
    save("sequences", model, words=words.astype("i4"))


def signals() -> None:
    model = Sequential()
    model.add(k.Convolution1D(4, 3, input_shape=(12, 2), border_mode="same", subsample_length=2))
    model.add(k.Activation("hard_sigmoid"))
    model.add(k.MaxPooling1D(2))
    model.add(k.UpSampling1D(2))
    model.add(k.ZeroPadding1D(1))
    model.add(k.LocallyConnected1D(3, 2))
    model.add(k.TimeDistributedDense(2))
    model.add(k.Permute((2, 1)))
    model.add(k.Reshape((14,)))
    model.add(k.RepeatVector(2))
    model.add(k.ELU(0.7))
    save("signals", model, x=normal(5, 12, 2))


def graph() -> None:
    a, b = k.Input((4,), name="a"), k.Input((4,), name="b")
    shared = k.Dense(4, activation="relu", name="shared")
    tower = Sequential(name="tower")
    tower.add(k.Dense(5, input_dim=4))
    tower.add(k.BatchNormalization())
    left, right = shared(a), shared(b)
    joined = k.merge([left, right], mode="concat")
    added = k.merge([left, right], mode="sum")
    highest = k.merge([left, right], mode="max")
    averaged = k.merge([added, highest], mode="ave")
    multiplied = k.merge([averaged, highest], mode="mul")
    dotted = k.merge([left, multiplied], mode="dot", dot_axes=1)
    cosine = k.Flatten()(k.merge([left, multiplied], mode="cos", dot_axes=1))
    deep = k.SReLU()(k.MaxoutDense(3, nb_feature=2)(k.Highway(activation="tanh")(joined)))
    soft = k.ParametricSoftplus()(tower(averaged))
    first = k.Dense(2, name="first")(k.merge([deep, soft, dotted, cosine], mode="concat"))
    second = k.ThresholdedReLU(0.1, name="second")(k.BatchNormalization(mode=1)(multiplied))
    save("graph", Model([a, b], [first, second]), a=normal(6, 4), b=normal(6, 4))


def towers() -> None:
    left, right = Sequential(), Sequential()
    left.add(k.Dense(3, input_dim=2, bias=False))
    right.add(k.Dense(3, input_dim=4))
    model = Sequential()
    model.add(k.Merge([left, right], mode="concat"))
    model.add(k.Dense(2, activation="sigmoid"))
    save("towers", model, left=normal(6, 2), right=normal(6, 4))


if __name__ == "__main__":
    for made in (images_channels_first, images_channels_last, sequences, signals, graph, towers):
        made()
