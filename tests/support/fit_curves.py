"""Train digits with `model.fit` and with `penstock.fit` on virtual devices, and compare: prints a JSON document.

Run as `python -m tests.support.fit_curves [all | CASE…]` with KERAS_BACKEND and, for JAX,
XLA_FLAGS=--xla_force_host_platform_device_count=4: the process has 4 virtual devices. The 1,797 rows, the
batches of 50 and the last one of 47 rows are divided by none of 2 and 4, or not by both.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import penstock
from tests.support.fit_drop_in import CASES as DROP_IN
from tests.support.fit_drop_in import differences, on_all_devices
from tests.support.fit_resume import resumed
from tests.support.virtual_devices import X, Y

BACKEND = keras.backend.backend()
if BACKEND == "tensorflow":
    import tensorflow as tf

layers, losses, optimizers = keras.layers, keras.losses, keras.optimizers
COUNTS = (1,) if BACKEND == "torch" else (1, 2, 4)
EPOCHS, BATCH = 2, 50
WEIGHTS = np.random.default_rng(0).random(len(X)).astype("float32")


class OwnSum(keras.Model):
    """A model whose own loss adds up rows."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *rest: Any, **more: Any) -> Any:
        return keras.ops.sum(losses.sparse_categorical_crossentropy(y, y_pred))


if BACKEND == "tensorflow":

    class OwnStep(keras.Model):
        """A model with a `train_step` of its own, as the guides of Keras write it."""

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

    class ByHand(keras.Model):
        """A model that computes its loss by hand, with a tracker of its own, and logs something else, too."""

        own_tracker: Any = None

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            self.own_tracker = keras.metrics.Mean(name="own_loss")

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.reduce(losses.sparse_categorical_crossentropy(y, self(x, training=True)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.own_tracker.update_state(loss)
            return {"own_loss": self.own_tracker.result()}

        def reduce(self, values: Any) -> Any:
            return tf.reduce_mean(values)

    class OwnLoss(keras.Model):
        """A model that says only what its loss is."""

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *rest: Any, **more: Any) -> Any:
            return tf.reduce_mean(losses.sparse_categorical_crossentropy(y, y_pred)) + sum(self.losses)

    class SumByHand(ByHand):
        """A model whose loss adds up the rows."""

        def reduce(self, values: Any) -> Any:
            return tf.reduce_sum(values)

    OWN: dict[str, Any] = {
        "own step": (lambda: compiled(optimizers.SGD(0.1), kind=OwnStep), {"x": X, "y": Y}, {}),
        "mean by hand": (lambda: compiled(optimizers.SGD(0.1), kind=ByHand), {"x": X, "y": Y}, {}),
        "own loss": (lambda: compiled(optimizers.SGD(0.1), kind=OwnLoss), {"x": X, "y": Y}, {}),
        "own step in pieces": (
            lambda: compiled(optimizers.SGD(0.1), kind=OwnStep),
            {"x": X, "y": Y},
            {"accumulate": 3},
        ),
        "sum by hand": (lambda: compiled(optimizers.SGD(1e-3), kind=SumByHand), {"x": X, "y": Y}, {}),
    }
else:
    OWN = {}


def step_of_rows(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    """A step function: the loss of every row, and the predictions."""
    predictions = model(x, training=True)
    rows = losses.sparse_categorical_crossentropy(y, predictions)
    return rows if sample_weight is None else rows * sample_weight, predictions


def step_of_means(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    """A step function: the mean loss."""
    return keras.ops.mean(step_of_rows(model, x, y, sample_weight)[0])


def small(inputs: Any = None, kind: Any = keras.Model) -> Any:
    inputs = keras.Input((64,))
    hidden = layers.Dense(24, "relu", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
    return kind(inputs, layers.Dense(10, "softmax")(hidden))


def compiled(optimizer: Any, loss: Any = "sparse_categorical_crossentropy", kind: Any = keras.Model) -> Any:
    model = small(kind=kind)
    model.compile(optimizer, loss, metrics=None if hasattr(kind, "own_tracker") else ["accuracy"])
    return model


def two_outputs() -> Any:
    inputs = keras.Input((64,), name="pixels")
    hidden = layers.Dense(24, "relu")(inputs)
    model = keras.Model(
        {"pixels": inputs},
        {"digit": layers.Dense(10, "softmax", name="digit")(hidden), "ink": layers.Dense(1, name="ink")(hidden)},
    )
    model.compile(
        optimizers.RMSprop(1e-3),
        {"digit": "sparse_categorical_crossentropy", "ink": "mse"},
        loss_weights={"digit": 1.0, "ink": 0.3},
        metrics={"digit": ["accuracy"]},
        weighted_metrics={"ink": ["mae"]},
    )
    return model


def by_sum() -> Any:
    return compiled(optimizers.SGD(1e-3), losses.SparseCategoricalCrossentropy(reduction="sum"))


def one_number(y: Any, y_pred: Any) -> Any:
    """A loss that is one number for all rows, computed with an object of Keras and by hand."""
    digits = keras.ops.one_hot(keras.ops.cast(keras.ops.reshape(y, (-1,)), "int32"), 10)
    return losses.SparseCategoricalCrossentropy()(y, y_pred) + keras.ops.mean(keras.ops.square(digits - y_pred))


def total(y: Any, y_pred: Any) -> Any:
    """A loss that adds up rows by itself."""
    return keras.ops.sum(losses.sparse_categorical_crossentropy(y, y_pred))


def without_penalty(loss: Any) -> Any:
    model = keras.Sequential([keras.Input((64,)), layers.Dense(24, "relu"), layers.Dense(10, "softmax")])
    model.compile(optimizers.SGD(1e-3), loss, metrics=["accuracy"])
    return model


def embedding() -> Any:
    inputs = keras.Input((64,), dtype="int32")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(17, 6)(inputs))
    model = keras.Model(inputs, layers.Dense(10, "softmax")(hidden))
    model.compile(optimizers.Adam(1e-2, clipnorm=0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


PLAIN: dict[str, Any] = {"x": X, "y": Y}
TWO: dict[str, Any] = {
    "x": {"pixels": X},
    "y": {"digit": Y, "ink": X.mean(axis=1, keepdims=True)},
    "sample_weight": {"digit": WEIGHTS, "ink": 1 - WEIGHTS},
}
VALIDATED = {**PLAIN, "validation_data": (X[:333], Y[:333], WEIGHTS[:333]), "validation_batch_size": 100}
FEW: dict[str, Any] = {"x": X[:202], "y": Y[:202]}
"""The last batch has two rows: fewer than devices."""
CLASSES = {digit: 1 + digit / 10 for digit in range(10)}
Case = tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "momentum": (lambda: compiled(optimizers.SGD(0.1, momentum=0.9)), VALIDATED, {}),
    "clipnorm": (lambda: compiled(optimizers.Adam(1e-2, clipnorm=0.05)), PLAIN, {}),
    "global clipnorm, weight decay": (
        lambda: compiled(optimizers.AdamW(1e-2, weight_decay=1e-2, global_clipnorm=0.05)),
        {**PLAIN, "sample_weight": WEIGHTS},
        {},
    ),
    "two outputs": (two_outputs, TWO, {}),
    "class weights": (lambda: compiled(optimizers.Adam(1e-3)), {**PLAIN, "class_weight": CLASSES}, {}),
    "sum": (by_sum, PLAIN, {}),
    "sum without a penalty": (lambda: without_penalty(losses.SparseCategoricalCrossentropy(reduction="sum")), FEW, {}),
    "sum in pieces": (by_sum, FEW, {"accumulate": 2}),
    "one number": (lambda: compiled(optimizers.SGD(0.1), one_number), FEW, {}),
    "one number without a penalty": (lambda: without_penalty(one_number), FEW, {}),
    "a sum by itself": (lambda: without_penalty(total), PLAIN, {}),
    "own sum in pieces": (lambda: compiled(optimizers.SGD(1e-3), kind=OwnSum), FEW, {"accumulate": 2}),
    "loss scale": (
        lambda: compiled(optimizers.LossScaleOptimizer(optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5))),
        PLAIN,
        {},
    ),
    "a last batch of two rows": (embedding, {"x": (X[:202] * 16).astype("int32"), "y": Y[:202]}, {}),
    **OWN,
    "step function": (
        lambda: compiled(optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5)),
        {**VALIDATED, "sample_weight": WEIGHTS},
        {"step": step_of_rows},
    ),
    "step function in pieces": (
        lambda: compiled(optimizers.Adam(1e-2)),
        PLAIN,
        {"step": step_of_means, "accumulate": 3},
    ),
    "accumulated": (lambda: compiled(optimizers.Adam(1e-2, clipnorm=0.05)), PLAIN, {"accumulate": 3}),
}
IN_TENSORFLOW = ("sum in pieces", "a sum by itself")
"""Elsewhere such losses are not worked on in pieces, or a step is compiled for the whole batch."""
SOME: dict[str, list[str]] = {
    "tensorflow": ["momentum", "one number", "sum in pieces", "mean by hand", "accumulated"],
    "jax": ["momentum", "accumulated", "own sum in pieces"],
    "torch": ["momentum", "accumulated"],
}
"""What the fast tests compare. On JAX a step is compiled for the whole batch, whatever it does."""


def trained(make: Callable[[], Any], fit: Callable[..., Any], data: dict[str, Any], **keywords: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = make()
    history = fit(model, **data, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, **keywords)
    return model, history.history


def compare(name: str, num_devices: int, reference: Any) -> dict[str, Any]:
    """How far curves and weights are from those of `model.fit`, relative to the latter."""
    make, data, keywords = CASES[name]
    ours, curves = trained(make, penstock.fit, data, num_devices=num_devices, **keywords)
    theirs, expected = reference
    if keywords.get("step") is step_of_means:
        expected = {"loss": expected["loss"]}  # it gives no predictions to measure
    assert curves.keys() == expected.keys(), (curves.keys(), expected.keys())
    # On TensorFlow, Keras weights the batches in the losses of outputs by what it knows of their shape while it traces.
    # On several devices ours are weighted by rows, and add up.
    of_outputs = [key for key in expected if key in ("digit_loss", "ink_loss")]
    if of_outputs and BACKEND == "tensorflow":
        if num_devices > 1:
            total = np.add(curves["digit_loss"], np.multiply(0.3, curves["ink_loss"]))
            np.testing.assert_allclose(total, curves["loss"], rtol=1e-5)
        expected = {key: value for key, value in expected.items() if key not in of_outputs}
    curve = max(float(np.max(np.abs(np.subtract(curves[key], expected[key])))) for key in expected)
    pairs = zip(ours.get_weights(), theirs.get_weights(), strict=True)
    weights = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    slots = zip(ours.optimizer.variables, theirs.optimizer.variables, strict=True)
    steps = [int(model.optimizer.iterations) for model in (ours, theirs)]
    slot = max(float(np.abs(np.subtract(a, b)).max()) for a, b in slots)
    return {"case": name, "devices": num_devices, "curve": curve, "weights": weights, "slots": slot, "steps": steps}


def both(num_devices: int) -> list[tuple[Any, dict[str, Any]]]:
    """`model.fit` and ours, with what ours is given in addition."""
    return [(keras.Model.fit, {}), (penstock.fit, {"num_devices": num_devices})]


def statistics(num_devices: int) -> dict[str, Any]:
    """Moving means of batch normalisation, which are linear in the rows: here all shards have as many."""
    means, models = [], []
    for fit, keywords in both(num_devices):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((64,)), layers.BatchNormalization(), layers.Dense(10, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        data: dict[str, Any] = {"validation_data": (X[:99], Y[:99]), "epochs": 2, "verbose": 0, "shuffle": False}
        history = fit(model, X[:200], Y[:200], batch_size=100, **data, **keywords).history
        means.append(np.array(model.layers[0].moving_mean))
        models.append(model)
    tested = models[1].evaluate(X[:99], Y[:99], verbose=0)
    return {
        "apart": float(np.abs(means[0] - means[1]).max() / np.abs(means[0]).max()),
        "validation": [history["val_loss"][-1], tested],
    }


def dice(num_devices: int) -> list[float]:
    """The logged loss of `model.fit` and ours, of a loss that counts over all rows of a batch or shard."""
    logged = []
    for fit, keywords in both(num_devices):
        keras.utils.set_random_seed(0)
        model = without_penalty(losses.Dice())
        one_hot = keras.utils.to_categorical(Y[:400], 10)
        logged.append(
            fit(model, X[:400], one_hot, batch_size=200, shuffle=False, verbose=0, **keywords).history["loss"][0]
        )
    return logged


def main() -> None:
    is_all = sys.argv[1:] == ["all"]
    of_backend = [name for name in CASES if BACKEND == "tensorflow" or name not in IN_TENSORFLOW]
    chosen = of_backend if is_all else sys.argv[1:] or SOME[BACKEND]
    results = []
    # Two devices where there are several: a step is traced for each of them, and that takes longer than training.
    counts = COUNTS if is_all else COUNTS[:2][-1:]
    for name in chosen:
        make, data, _ = CASES[name]
        reference = trained(make, lambda model, **arguments: model.fit(**arguments), data)
        results += [compare(name, count, reference) for count in counts]
    document: dict[str, Any] = {
        "curves": results,
        "resumes": [resumed(count) for count in (COUNTS[::2] if is_all else counts)],
        "differences": differences(list(DROP_IN) if is_all else ["validation split", "early stopping"]),
        "on all devices": on_all_devices(),
    }
    if BACKEND == "tensorflow":
        document["statistics"] = statistics(counts[-1])
    if is_all:
        document["dice"] = dice(COUNTS[-1])
    print(json.dumps(document))


if __name__ == "__main__":
    main()
