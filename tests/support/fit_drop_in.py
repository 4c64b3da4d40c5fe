"""`penstock.fit` beside `model.fit` for all that the latter takes, on one device: the same histories and weights."""

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import pytest

import penstock
from tests.support.virtual_devices import X, Y

ROWS = 203
SMALL_X, SMALL_Y = X[:ROWS], Y[:ROWS]


class Batches(keras.utils.PyDataset):
    """Batches of 20 rows."""

    def __len__(self) -> int:
        return -(-ROWS // 20)

    def __getitem__(self, index: int) -> Any:
        rows = slice(20 * index, 20 * index + 20)
        return SMALL_X[rows], SMALL_Y[rows]


def endless() -> Iterator[Any]:
    while True:
        for index in range(len(Batches())):
            yield Batches()[index]


def dataset() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((SMALL_X, SMALL_Y)).batch(30)


def arrays(**more: Any) -> dict[str, Any]:
    return {"x": SMALL_X, "y": SMALL_Y, "batch_size": 30, **more}


def stops_early() -> list[Any]:
    callbacks = keras.callbacks
    return [
        callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
    ]


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "validation split": lambda: arrays(validation_split=0.2, validation_freq=2, epochs=2),
    "first epoch": lambda: arrays(initial_epoch=1, epochs=3, sample_weight=np.linspace(0, 1, ROWS)),
    "early stopping": lambda: arrays(epochs=6, callbacks=stops_early()),
    "generator": lambda: {"x": endless(), "steps_per_epoch": 4, "epochs": 3},
    "PyDataset": lambda: {"x": Batches(), "epochs": 2, "validation_data": Batches()},
    "tf.data": lambda: {"x": dataset(), "epochs": 2, "validation_data": dataset(), "validation_steps": 2},
    "float64": lambda: arrays(x=SMALL_X.astype("float64")),
}


def make() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(10, "softmax")])
    model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def differences(cases: list[str]) -> list[str]:
    """What `penstock.fit` does differently, by case."""
    found = []
    for name in cases:
        arguments = CASES[name]
        ours, theirs = make(), make()
        theirs.fit(**arguments(), shuffle=False, verbose=0)
        keras.utils.set_random_seed(0)
        history = penstock.fit(ours, **arguments(), shuffle=False, verbose=0, num_devices=1)
        found += [f"{name}: {problem}" for problem in _compare(history, theirs.history, ours, theirs)]
    return found


def _compare(history: Any, expected: Any, ours: Any, theirs: Any) -> list[str]:
    problems = []
    if history.history.keys() != expected.history.keys() or history.epoch != expected.epoch:
        return [f"{history.history.keys()}, {history.epoch} for {expected.history.keys()}, {expected.epoch}"]
    for key, curve in expected.history.items():
        if not np.allclose(history.history[key], curve, rtol=1e-6):
            problems.append(f"{key} {history.history[key]} for {curve}")
    pairs = zip(ours.get_weights(), theirs.get_weights(), strict=True)
    if not all(np.allclose(a, b, rtol=1e-6) for a, b in pairs):
        problems.append("weights")
    if history.params != expected.params:
        problems.append(f"params {history.params} for {expected.params}")
    if history is not ours.history:
        problems.append("model.history")
    return problems


def _say_that_xla_is_off(model: Any) -> None:
    """A model that was compiled with XLA trains without it, and has it again afterwards."""
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        penstock.fit(model, SMALL_X, SMALL_Y, 100, 1, 2)
    assert "jit_compile is off" in said.getvalue(), said.getvalue()
    assert model.jit_compile


def _name_a_label_out_of_range() -> None:
    labels = np.where(np.arange(len(SMALL_Y)) == 7, 10, SMALL_Y)
    with pytest.raises(penstock.PenstockError, match="row 7: 10"):
        penstock.fit(make(), SMALL_X, labels, verbose=0)


def _name_rows_without_numbers() -> None:
    """Of shuffled arrays, with the number that a row has in them; where steps are undone, too."""

    def without_relu() -> Any:  # that of TensorFlow may make 0 of NaN
        model = keras.Sequential([keras.layers.Dense(10, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    odd = SMALL_X.copy()
    odd[[7, 190], 3] = np.nan
    faulty = "NaN or infinite values in (row 7|row 190|rows 7, 190)$"
    with pytest.raises(penstock.ModelError) as told:
        penstock.fit(without_relu(), odd, SMALL_Y, 30, verbose=0)
    assert re.search(faulty, told.value.received or ""), told.value
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        penstock.fit(without_relu(), odd, SMALL_Y, 30, verbose=2, on_nan="skip")
    remarks = [line for line in said.getvalue().splitlines() if "was undone" in line]
    assert remarks, said.getvalue()
    assert all(re.search(faulty, line) for line in remarks), remarks


def on_all_devices() -> dict[str, Any]:
    """A model that was not built, with callbacks that save and look at it, on 4 devices; then used as ever."""
    seen: list[int] = []

    class Watcher(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)
            assert set(logs) == {"loss", "accuracy"}

    _name_a_label_out_of_range()
    _name_rows_without_numbers()
    model = make()
    with TemporaryDirectory() as folder:
        saves = keras.callbacks.ModelCheckpoint(f"{folder}/model.keras", monitor="loss")
        before = penstock.fit(model, SMALL_X, SMALL_Y, 30, 2, 0, [Watcher(), saves])
        saved = keras.models.load_model(f"{folder}/model.keras").predict(SMALL_X, verbose=0)
    answers = model.predict(SMALL_X, verbose=0)
    np.testing.assert_allclose(saved, answers, rtol=1e-6)
    after = model.fit(SMALL_X, SMALL_Y, verbose=0)
    rate = float(model.optimizer.learning_rate)
    again = penstock.fit(model, SMALL_X, SMALL_Y, verbose=0, scale_lr="linear")
    # The seventh of 7 steps that lead to the rate times the number of devices.
    factor = 1 if keras.backend.backend() == "torch" else 4
    expected = rate * (1 + (factor - 1) * 6 / 7)
    np.testing.assert_allclose(float(model.optimizer.learning_rate), expected, rtol=1e-6)
    if keras.backend.backend() == "tensorflow":
        _say_that_xla_is_off(model)
    losses = [history.history["loss"][0] for history in (before, after, again)]
    return {"steps": seen, "rows": len(answers), "losses": losses}
