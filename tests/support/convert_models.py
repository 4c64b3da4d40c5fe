"""Converts steps of many models in one process, because TensorFlow takes seconds to import: `convert_models.py FOLDER`.

Every model is written to a file, loaded as a replica loads it, and exported to `FOLDER/NAME`. What it was fed, what it
answered, and why it was not converted if it was not, is pickled to `FOLDER/told.pickle`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from penstock.core.output_selection import Answers
from penstock.core.records import STRING, Binding, Columns, Device, ModelFile, Scaling
from penstock.pool.guard.strangers import answer_strangers
from penstock.runtimes.tensorflow import to_onnx
from penstock.runtimes.tensorflow.runtime import TensorFlowRuntime, prepare_tensorflow
from tests.support.told import ROWS, Told

RANDOM = np.random.default_rng(7)


@dataclass(frozen=True)
class Case:
    """A model, and what it is fed. `lengths` are those that vary from batch to batch."""

    name: str
    model: Any
    batch: Columns
    options: dict[str, Any]
    lengths: tuple[int, ...] = ()


def cases() -> Iterator[Case]:
    pixels = RANDOM.integers(0, 256, (ROWS, 12, 12, 3), dtype=np.uint8)
    yield Case("image", image(), {"image": pixels}, {"scaling": Scaling((1 / 255,))})
    yield Case("groups", groups(), {"image": pixels}, {})
    yield Case("ranked", several(), fed_to_several(), {"answers": Answers(top_k=3)})
    yield Case("several", several(), fed_to_several(), {})
    sequence = RANDOM.normal(size=(ROWS, 9, 5)).astype("f4")
    yield Case("lstm", recurrent(layers.LSTM(8)), {"x": sequence}, {})
    padded = sequence.copy()
    padded[:3, 6:] = 0
    yield Case("masked gru", recurrent(layers.GRU(8), layers.Masking()), {"x": padded}, {}, lengths=(0,))
    yield Case("encoder", encoder(), {"tokens": RANDOM.integers(0, 50, (ROWS, 10)).astype("i4")}, {})
    yield Case("quantized", quantized("int8", 5, 16), {"x": sequence[:, 0]}, {})
    yield Case("wide", wide(), {"x": np.arange(10_000, 10_000 + ROWS, dtype="f4")[:, None]}, {})
    words = np.array([b"a", b"b", b"z"] * 2, object)
    yield Case("words", lookup(layers.Embedding(5, 3)), {"word": words}, {})
    yield Case("bins", bins(), {"x": sequence[:, 0, :1]}, {})
    small = RANDOM.integers(0, 256, (ROWS, 8, 8, 3), dtype=np.uint8)
    large = heavy()
    yield Case("heavy", large, {"image": small}, {"scaling": Scaling((1 / 255,))})
    yield Case("heavy with weights", large, {"image": small}, {"scaling": Scaling((1 / 255,))})
    vector = RANDOM.normal(size=(ROWS, 256)).astype("f4")
    yield Case("heavy int4", quantized("int4", 256, 512), {"x": vector}, {})
    yield Case("heavy int8", quantized("int8", 256, 512), {"x": vector}, {})
    yield Case("heavy bfloat16", embedded(), {"place": np.arange(ROWS, dtype="i4")[:, None]}, {})
    yield Case("heavy lstm", recurrent(layers.LSTM(128)), {"x": sequence}, {})
    yield Case("heavy words", lookup(layers.Embedding(2000, 16)), {"word": words}, {})
    yield Case("bfloat16", half("mixed_bfloat16"), {"x": sequence[:, 0]}, {})


def with_random_weights(model: Any) -> Any:
    """Biases of zero would hide what is done to them."""
    for weight in model.weights:
        values = weight.numpy()
        if values.dtype.kind == "f":
            weight.assign(np.abs(values + RANDOM.uniform(0.1, 0.5, values.shape).astype(values.dtype)))
    return model


def image() -> Any:
    given = layers.Input((12, 12, 3), name="image")
    hidden = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(given)
    hidden = layers.BatchNormalization()(layers.DepthwiseConv2D(3)(layers.Dropout(0.5)(hidden)))
    return with_random_weights(keras.Model(given, layers.GlobalAveragePooling2D()(hidden)))


def groups() -> Any:
    """Keras leaves such a convolution to XLA."""
    given = layers.Input((12, 12, 3), name="image")
    return keras.Model(given, layers.GlobalAveragePooling2D()(layers.Conv2D(6, 3, groups=3)(given)))


def several() -> Any:
    """Names that mean something to TensorFlow or to ONNX; an output that is an input; one given out twice."""
    left, right = layers.Input((8,), name="left hand"), layers.Input((4,), name="right:0")
    hidden = layers.Dense(16, activation="relu")(layers.Concatenate()([left, right]))
    share = layers.Dense(12)(hidden)
    outputs = {"p/q": share, "again": share, "one": layers.Dense(1)(hidden), "same": left}
    return keras.Model({"left hand": left, "right:0": right}, outputs)


def fed_to_several() -> Columns:
    return {
        "left hand": RANDOM.integers(0, 9, (ROWS, 8)).astype("u1"),
        "right:0": RANDOM.normal(size=(ROWS, 4)).astype("f4"),
    }


def recurrent(layer: Any, before: Any = None) -> Any:
    given = layers.Input((None, 5), name="x")
    return with_random_weights(keras.Model(given, layer(before(given) if before is not None else given)))


def encoder() -> Any:
    tokens = layers.Input((10,), dtype="int32", name="tokens")
    hidden = layers.Embedding(50, 16)(tokens) + layers.Embedding(10, 16)(keras.ops.arange(10))
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 8)(hidden, hidden))
    hidden = layers.Dense(16)(layers.Dense(32, activation="gelu")(hidden))
    return keras.Model(tokens, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden)))


def quantized(kind: str, features: int, units: int) -> Any:
    model = keras.Sequential([layers.Input((features,), name="x"), layers.Dense(units), layers.Dense(3)])
    model.quantize(kind)
    return model


def embedded() -> Any:
    """A table that is rounded to bfloat16 before rows of it are taken."""
    place = layers.Input((1,), dtype="int32", name="place")
    return keras.Model(place, keras.ops.cast(layers.Embedding(2000, 16, dtype="mixed_bfloat16")(place), "float32"))


def wide() -> Any:
    """Floats outside, whole numbers of 64 bits inside."""
    given = layers.Input((1,), name="x")
    rest = keras.ops.mod(keras.ops.cast(given, "int64") * 1_000_003, 9973)
    return keras.Model(given, keras.ops.cast(rest, "float32"))


def heavy() -> Any:
    """Weights of every size: kernels that are used twice, cut into groups, transposed, or of a layer like any other."""
    image = layers.Input((8, 8, 3), name="image")
    hidden = layers.Conv2D(64, 3, padding="same", activation="relu")(image)
    again = layers.Conv2D(64, 3, padding="same")
    hidden = layers.BatchNormalization()(again(again(hidden)))
    hidden = layers.Conv2D(64, 3, groups=2, padding="same")(hidden)
    hidden = layers.Conv2DTranspose(64, 3, strides=2)(layers.DepthwiseConv2D(3, depth_multiplier=4)(hidden))
    hidden = layers.Dense(300, activation="gelu")(layers.GlobalAveragePooling2D()(hidden))
    return with_random_weights(keras.Model(image, hidden))


def lookup(embedding: Any) -> Any:
    word = layers.Input((), dtype="string", name="word")
    return keras.Model(word, embedding(layers.StringLookup(vocabulary=["a", "b"])(word)))


def bins() -> Any:
    value = layers.Input((1,), name="x")
    return keras.Model(value, layers.Embedding(4, 3)(layers.Discretization(bin_boundaries=[0.0, 1.0])(value)))


def half(policy: str) -> Any:
    return keras.Sequential([layers.Input((5,), name="x"), layers.Dense(4, dtype=policy)])


def convert(folder: Path, file: ModelFile, case: Case) -> Told:
    replica = TensorFlowRuntime().load(file, Device("cpu", 0), 1)
    answers = replica.predict(dict(case.batch))
    bindings = [
        Binding(
            name,
            (name,),
            STRING if array.dtype == object else array.dtype.name,
            tuple(None if place in case.lengths else length for place, length in enumerate(array.shape[1:])),
        )
        for name, array in case.batch.items()
    ]
    (folder / case.name).mkdir()
    reason = replica.export(str(folder / case.name), bindings)
    return Told(reason, dict(case.batch), answers, replica.signature, answer_strangers(replica, case.batch))


def convert_with_weights(folder: Path, file: ModelFile, case: Case) -> Told:
    with mock.patch.object(to_onnx, "_LARGE_BYTES", sys.maxsize):
        return convert(folder, file, case)


def convert_without_weights(folder: Path, file: ModelFile, case: Case) -> Told:
    """There is no way back to the graph with its weights."""
    with mock.patch.object(to_onnx, "_without_xla", side_effect=AssertionError("tried with its weights")):
        return convert(folder, file, case)


WAYS = {"heavy": convert_without_weights, "heavy with weights": convert_with_weights}


def saved_model(folder: Path) -> Case:
    """One signature that takes a constant and whole numbers, and gives two outputs."""
    module = tf.Module()
    module.table = tf.Variable(RANDOM.normal(size=(20, 4)).astype("f4"))

    def pick(place: Any, factor: Any) -> Any:
        rows = tf.gather(module.table, place)
        return {"rows": rows * factor, "sums": tf.reduce_sum(rows, axis=-1)}

    specs = [tf.TensorSpec([None], tf.int64, "place"), tf.TensorSpec([], tf.float32, "factor")]
    module.pick = tf.function(pick, input_signature=specs)
    tf.saved_model.save(module, str(folder), signatures=module.pick)
    return Case("saved model", None, {"place": np.arange(ROWS)}, {"constants": {"factor": "2.5"}})


def divided() -> tuple[Case, Any]:
    """Whole numbers below zero: quotients are rounded down, and no class is one of them."""

    def divide(place: Any) -> Any:
        classes = tf.one_hot(place % 3, 3) + tf.one_hot(place, 4)[:, :3]
        return {"quotients": tf.cast(place // 4, tf.float32), "classes": classes}

    return Case("divided", None, {"place": np.arange(-5, ROWS - 5, dtype="i4")}, {}), signed(divide, place=tf.int32)


def carried() -> tuple[Case, Any]:
    """What loops carry round unchanged is an output, and goes into another loop."""

    def carry(x: Any) -> Any:
        def run(kept: Any, start: Any) -> Any:
            more = lambda step, kept, total: step < 3  # noqa: E731
            once = lambda step, kept, total: (step + 1, kept, total + kept * tf.cast(step, tf.float32))  # noqa: E731
            return tf.while_loop(more, once, (tf.size(x) * 0, kept, start))[1:]

        kept, total = run(x * 2, x)
        again, result = run(kept, total)
        return {"kept": kept, "again": again, "total": result}

    return Case("carried", None, {"x": RANDOM.normal(size=ROWS).astype("f4")}, {}), signed(carry, x=tf.float32)


def wide_loop() -> tuple[Case, Any]:
    def multiply(x: Any) -> Any:
        once = lambda step, total: (step + 1, total * 1_000_003)  # noqa: E731
        start = (tf.size(x) * 0, tf.cast(x, tf.int64))
        return {"rest": tf.cast(tf.while_loop(lambda step, total: step < 2, once, start)[1] % 997, tf.float32)}

    return Case("wide loop", None, {"x": np.arange(ROWS, dtype="i4")}, {}), signed(multiply, x=tf.int32)


def wide_table() -> tuple[Case, Any]:
    """Whole numbers of 64 bits come out of a table, by ids of 32."""
    table = tf.constant(np.arange(10, dtype="i8") * 10**12)
    return Case("wide table", None, {"x": np.arange(ROWS, dtype="i4")}, {}), signed(
        lambda x: {"prices": tf.gather(table, x)}, x=tf.int32
    )


def last_of_each() -> tuple[Case, Any]:
    """One of four values of each row: OpenVINO looks for it without asking whether there is one."""

    def pick(x: Any) -> Any:
        values = tf.cast(x, tf.float32)[:, None] + tf.range(4, dtype=tf.float32)
        return {"last": tf.gather_nd(values, tf.stack([tf.range(tf.size(x)), tf.cast(x, tf.int32) - 1], axis=1))}

    return Case("last of each", None, {"x": np.array([1, 2, 3, 4, 2, 1], "i2")}, {}), signed(pick, x=tf.int16)


def signed(function: Any, **types: Any) -> Any:
    module = tf.Module()
    specs = [tf.TensorSpec([None], kind, name) for name, kind in types.items()]
    module.run = tf.function(function, input_signature=specs)
    return module


def frozen_graph(path: Path) -> Case:
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, [None, 5], name="x")
        tf.nn.softmax(tf.matmul(given, RANDOM.normal(size=(5, 3)).astype("f4")), name="share")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return Case("frozen graph", None, {"x": RANDOM.normal(size=(ROWS, 5)).astype("f4")}, {})


def main(folder: Path) -> None:
    prepare_tensorflow(Device("cpu", 0), 1)  # before the models are made
    # The same weights in every run: a value of the quantized model that falls between two steps may be rounded
    # either way, which is not what is tested here.
    keras.utils.set_random_seed(7)
    told: dict[str, Told] = {}
    for case in cases():
        path = folder / f"{case.name}.keras"
        case.model.save(path)
        file = ModelFile("keras", str(path), "", ("tensorflow",), **case.options)
        told[case.name] = WAYS.get(case.name, convert)(folder, file, case)
    for kind, case, path in (
        ("saved_model", saved_model(folder / "saved"), folder / "saved"),
        ("frozen_graph", frozen_graph(folder / "frozen.pb"), folder / "frozen.pb"),
    ):
        told[case.name] = convert(folder, ModelFile(kind, str(path), "", ("tensorflow",), **case.options), case)
    for case, module in (divided(), carried(), wide_loop(), wide_table(), last_of_each()):
        path = folder / f"saved {case.name}"
        tf.saved_model.save(module, str(path), signatures=module.run)
        told[case.name] = convert(folder, ModelFile("saved_model", str(path), "", ("tensorflow",)), case)
    (folder / "told.pickle").write_bytes(pickle.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
