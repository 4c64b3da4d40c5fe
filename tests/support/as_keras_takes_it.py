"""Inputs of every kind that `model.predict` takes, and some that it does not: the answers of penstock are Keras's.

Run by itself, with KERAS_BACKEND set, because a process has one backend.
"""

from __future__ import annotations

import importlib
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import penstock

scipy_sparse: Any = importlib.import_module("scipy.sparse")
layers = keras.layers
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
rng = np.random.default_rng(2)
x = rng.normal(size=(100, 5)).astype("f4")


def same(ours: Any, theirs: Any, what: str) -> None:
    keras.tree.assert_same_structure(ours, theirs)
    for a, b in zip(keras.tree.flatten(ours), keras.tree.flatten(theirs), strict=True):
        assert type(a) is type(b), (what, type(a), type(b))
        a, b = (each.to_tensor().numpy() if hasattr(each, "to_tensor") else each for each in (a, b))
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (what, a.dtype, b.dtype, a.shape, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=what)


def check(model: Any, data: Any, what: str, **options: Any) -> None:
    same(penstock.predict(model, data, **options), model.predict(data, verbose=0, **options), what)


def refused(kind: type[penstock.PenstockError], text: str, model: Any, data: Any, **options: Any) -> None:
    with pytest.raises(kind) as caught:
        penstock.predict(model, data, **options)
    assert text in str(caught.value), (text, str(caught.value))
    assert "--" not in str(caught.value), str(caught.value)
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 2


def structures() -> None:
    entry = keras.Input((5,))
    outputs = [layers.Dense(2, name="zz")(entry), layers.Dense(3, name="aa")(entry)]
    check(keras.Model(entry, outputs), x, "outputs that are not in the order of their names")
    check(keras.Sequential([layers.Dense(3)]), x, "a model without weights")
    a, b, c = (keras.Input((2,), name=name) for name in ("x0", "x1", "y"))
    nested = keras.Model({"x": [a, b], "y": c}, layers.Dense(1)(layers.Concatenate()([a, b, c])))
    data = {"x": [x[:, :2], x[:, 1:3]], "y": x[:, 2:4]}
    check(nested, data, "nested inputs")

    class Nested(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, given: Any) -> Any:
            return {"z": self.dense(given["x"][0] + given["x"][1]), "a": [given["y"], given["y"] * 2]}

    check(Nested(), data, "nested inputs of a subclass without weights")

    class Pair(keras.Model):
        def call(self, pair: Any) -> Any:
            first, second = pair
            assert isinstance(pair, tuple), type(pair)
            return first + second

    check(Pair(), (x, x * 2), "a tuple of inputs")


def streams() -> None:
    fixed = keras.Sequential([keras.Input((5,)), layers.Dense(2)])
    images = keras.Sequential([keras.Input((None, None, 3)), layers.Conv2D(2, 3), layers.GlobalAveragePooling2D()])

    def uneven() -> Iterator[Any]:
        for rows in (3, 1, 7, 2):
            yield (x[:rows],)

    def pictures() -> Iterator[Any]:
        for size in range(5):
            yield (np.random.default_rng(size).normal(size=(2, 5 + size, 8, 3)).astype("f4"),)

    def endless() -> Iterator[Any]:
        while True:
            yield (x[:10],)

    class Mean(keras.Model):
        def call(self, given: Any) -> Any:
            return keras.ops.mean(given, axis=1)

    words = keras.Sequential([keras.Input((None, 3)), layers.LSTM(4)])
    rows = [rng.normal(size=(length, 3)).astype("f4") for length in (4, 7, 4, 2, 9, 7)]
    expected = np.concatenate([words.predict(row[None], verbose=0) for row in rows])
    same(penstock.predict(words, rows), expected, "a list of arrays of different lengths")
    same(penstock.predict(words, tuple(rows)), expected, "a tuple of them")
    held = np.empty(len(rows), object)
    held[:] = rows
    same(penstock.predict(words, held), expected, "an array of objects")
    same(penstock.predict(words, iter([(row[None],) for row in rows])), expected, "batches of different lengths")
    same(penstock.predict(fixed, uneven()), fixed.predict(uneven(), verbose=0), "batches of different sizes")
    same(penstock.predict(images, pictures()), images.predict(pictures(), verbose=0), "pictures of different sizes")
    same(penstock.predict(Mean(), pictures()), Mean().predict(pictures(), verbose=0), "a subclass takes any size")
    same(penstock.predict(fixed, endless(), steps=3), fixed.predict(endless(), steps=3, verbose=0), "endless data")
    check(fixed, x, "steps of arrays", steps=2, batch_size=16)
    check(fixed, x, "steps of arrays that say nothing of their size", steps=2)
    assert sum(len(block["row"]) for block in penstock.stream(fixed, endless(), steps=4)) == 40

    class Endless(keras.utils.PyDataset):
        @property
        def num_batches(self) -> None:
            return None

        def __getitem__(self, number: int) -> Any:
            return (x[number : number + 4],)

    same(penstock.predict(fixed, Endless(), steps=5), fixed.predict(Endless(), steps=5, verbose=0), "a PyDataset")


def sparse_ones() -> None:
    dense = keras.Sequential([keras.Input((5,)), layers.Dense(2)])
    matrix = scipy_sparse.random(50, 5, density=0.3, format="csr", dtype="float32", random_state=1)
    expected = dense.predict(matrix.toarray(), verbose=0)
    same(penstock.predict(dense, matrix), expected, "scipy")
    same(penstock.predict(dense, iter([(matrix[:20],), (matrix[20:],)])), expected, "batches of scipy")
    if IS_TENSORFLOW:
        ragged_and_sparse(dense, matrix.toarray(), expected)
    else:
        from jax.experimental import sparse

        same(penstock.predict(dense, sparse.BCOO.fromdense(matrix.toarray())), expected, "BCOO")


def ragged_and_sparse(dense: Any, rows: Any, expected: Any) -> None:
    import tensorflow as tf

    same(penstock.predict(dense, tf.sparse.from_dense(rows)), expected, "tf.SparseTensor")

    class Product(keras.Model):
        def call(self, given: Any) -> Any:
            assert isinstance(given, tf.SparseTensor), type(given)
            return tf.sparse.sparse_dense_matmul(given, tf.ones((5, 2)))

    check(Product(), tf.sparse.from_dense(rows), "a subclass that takes sparse tensors")

    class Twice(keras.Model):
        def call(self, given: Any) -> Any:
            return given * 2

    ragged = tf.ragged.constant([[1.0, 2.0], [3.0], [], [4.0, 5.0, 6.0]])
    check(Twice(), ragged, "tf.RaggedTensor")
    check(keras.Sequential([Twice()]), ragged, "tf.RaggedTensor for a Sequential")
    entry = keras.Input((None,))
    check(keras.Model(entry, Twice()(entry)), ragged, "tf.RaggedTensor for an input that is not declared ragged")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(7)
    check(dense, dataset, "tf.data with targets")


def lookups() -> None:
    numbers = np.arange(20, dtype="int32")[:, None]
    check(keras.Sequential([keras.Input((1,), dtype="int32"), layers.Hashing(8)]), numbers, "Hashing of integers")
    entry = keras.Input((1,), dtype="int64")
    known = keras.Model(entry, layers.IntegerLookup(vocabulary=[3, 5, 7])(entry))
    check(known, numbers.astype("int64"), "IntegerLookup")
    if IS_TENSORFLOW:
        import tensorflow as tf

        words = keras.Input((), dtype="string")
        counted = layers.TextVectorization(vocabulary=["good", "film"], output_mode="count")
        model = keras.Model(words, counted(words))
        texts = ["good film", "bad film", "", "a/b.txt"]
        expected = model.predict(tf.constant(texts), verbose=0)
        same(penstock.predict(model, texts), expected, "a list of text")
        same(penstock.predict(model, tuple(texts)), expected, "a tuple of text")
        same(penstock.predict(model, np.array(texts)), expected, "an array of text")
        refused(penstock.InputError, "text for the model comes in a list", model, "good film")
        refused(penstock.InputError, "no such file", dense_of_five(), ["good film"])


def dense_of_five() -> Any:
    return keras.Sequential([keras.Input((5,), name="x"), layers.Dense(2)])


def steps_and_callbacks() -> None:
    class Noting(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[Any] = []

        def on_predict_begin(self, logs: Any = None) -> None:
            self.told.append("begin")

        def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.told.append(batch)

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            self.told.append((batch, [each.shape for each in keras.tree.flatten(logs["outputs"])]))
            if len(self.told) > 20:
                self.model.stop_predicting = True

        def on_predict_end(self, logs: Any = None) -> None:
            self.told.append("end")

    model = dense_of_five()
    for at_once in (1, 3):
        model.compile(steps_per_execution=at_once)
        ours, theirs = Noting(), Noting()
        y = penstock.predict(model, x, 16, callbacks=[ours])
        same(y, model.predict(x, 16, verbose=0, callbacks=[theirs]), "with callbacks")
        assert ours.told == theirs.told, (ours.told, theirs.told)

    def endless() -> Iterator[Any]:
        while True:
            yield (x[:3],)

    model.compile()
    ours, theirs = Noting(), Noting()
    y = penstock.predict(model, endless(), callbacks=[ours])
    same(y, model.predict(endless(), verbose=0, callbacks=[theirs]), "a callback that stops it")
    assert ours.told == theirs.told

    class Moving(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.set_weights([weight + 1 for weight in self.model.get_weights()])

    before = model.get_weights()
    y = penstock.predict(model, x, 25, callbacks=[Moving()])
    model.set_weights(before)
    same(y, model.predict(x, 25, verbose=0, callbacks=[Moving()]), "a callback that changes the weights")
    refused(penstock.UsageError, "this is no callback of Keras", model, x, callbacks=[print])
    refused(penstock.UsageError, "steps must be", model, x, steps=0)
    refused(penstock.UsageError, "unknown verbose", model, x, verbose=3)


def own_steps() -> None:
    class Own(keras.Model):
        def predict_step(self, *given: Any) -> Any:
            if keras.backend.backend() == "jax":
                outputs, state = super().predict_step(*given)
                return outputs * 2, state
            return super().predict_step(*given) * 2

    entry = keras.Input((5,))
    check(Own(entry, layers.Dense(2)(entry)), x, "a predict_step of its own")

    class Naming(keras.Model):
        def predict_step(self, *given: Any) -> Any:
            answered, data = super().predict_step(*given), given[-1]
            if keras.backend.backend() == "jax":
                return {"y": answered[0], "a": data["a"]}, answered[1]
            return {"y": answered, "a": data["a"]}

    a, b = keras.Input((5,), name="a"), keras.Input((5,), name="b")
    check(Naming({"a": a, "b": b}, layers.Dense(2)(a - b)), {"a": x, "b": x[::-1]}, "a step that reads inputs by name")

    class Shifting(keras.Model):
        def predict_step(self, *given: Any) -> Any:
            return super().predict_step(*given[:-1], given[-1] - 1.0)

    check(Shifting(entry, layers.Dense(2)(entry)), x, "a step that changes its input")
    eager = dense_of_five()
    eager.compile(run_eagerly=True)
    check(eager, x, "run_eagerly")


def failed_rows() -> None:
    model = dense_of_five()
    rows = [[1.0, 2.0, 3.0, 4.0, 5.0], None, [5.0, 4.0, 3.0, 2.0, 1.0]]
    expected = model.predict(np.array([rows[0], rows[2]], "f4"), verbose=0)
    refused(penstock.InputError, "on_error='skip'", model, rows)
    refused(penstock.UsageError, "unknown on_error", model, rows, on_error="ignore")
    refused(penstock.UsageError, "on_error is for predictions", model, rows, on_error="nan", output="never")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        np.testing.assert_allclose(penstock.predict(model, rows, on_error="skip"), expected, rtol=1e-5)
        filled = penstock.predict(model, rows, on_error="nan")
        (block,) = penstock.stream(model, rows, on_error="nan")
        (gap,) = penstock.stream(model, rows)
    assert any("1 of 3 rows failed" in str(each.message) and each.filename == __file__ for each in told)
    np.testing.assert_allclose(filled[[0, 2]], expected, rtol=1e-5)
    assert np.isnan(filled[1]).all()
    assert block["row"].tolist() == [0, 1, 2]
    assert gap["row"].tolist() == [0, 2]


def refusals() -> None:
    model = dense_of_five()
    refused(penstock.InputError, "inputs={'x': 'q'}", model, {"q": x, "r": x})
    refused(penstock.InputError, "inputs={'y': …}", model, {"q": x}, inputs={"y": "q"})
    refused(penstock.InputError, "does not take the shape", model, np.zeros((3, 7)))
    refused(penstock.InputError, "differ in the number of their dimensions", model, [np.zeros(5), np.zeros((5, 5))])
    refused(penstock.InputError, "cannot be put into one column", model, [[1.0, "a", 2], [object()]])
    refused(penstock.InputError, "has no rows", model, np.zeros((0, 5)))
    refused(penstock.InputError, "not understood", model, 5)
    for name, value in (("devices", "cpu:2"), ("threads", 1), ("runtime", "onnx"), ("check", True)):
        refused(penstock.UsageError, f"{name}=", model, x, **{name: value})
        refused(penstock.UsageError, f"{name}=", model, x, output="never", **{name: value})
    refused(penstock.UsageError, "callbacks are called with a live model", "no.keras", x, callbacks=[1])


def main() -> None:
    for part in (structures, streams, sparse_ones, lookups, steps_and_callbacks, own_steps, failed_rows, refusals):
        part()
    print("ALL THE SAME")


if __name__ == "__main__":
    main()
