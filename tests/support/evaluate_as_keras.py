"""Compares `penstock.evaluate` with `model.evaluate` on this backend, on two devices; writes models for the command.

python -m tests.support.evaluate_as_keras FOLDER [few], with KERAS_BACKEND set. FOLDER gets `model.keras` (one-hot
labels, many metrics), `digits.parquet`, `expected.json` with what Keras says; and, unless only few models are wanted,
`sparse.keras`, `two.keras` (two outputs) and `own_step.keras`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.evaluation.compiled_metrics import depends_on_batches
from tests.support import own_metrics
from tests.support.digits import load_digits

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
layers = keras.layers
pixels, digit = load_digits()
pixels = pixels.astype(np.float32)
one_hot = np.eye(10, dtype=np.float32)[digit]
weights = np.random.default_rng(0).uniform(0.2, 3, len(pixels)).astype(np.float32)
is_even = (digit % 2 == 0).astype(np.int64)


def make(activation: str | None = "softmax") -> Any:
    return keras.Sequential(
        [
            keras.Input((64,), name="pixels"),
            layers.Rescaling(1 / 16),
            layers.Dense(24, activation="relu", kernel_regularizer="l2"),
            layers.Dense(10, activation=activation),
        ]
    )


def check(what: str, model: Any, *data: Any, **arguments: Any) -> dict[str, float]:
    """What Keras says, after it was compared."""
    dataset = arguments.pop("dataset", lambda: data)
    evaluate: Any = penstock.evaluate
    ours = evaluate(model, *dataset(), verbose=0, return_dict=True, **arguments)
    again = evaluate(model, *dataset(), verbose=0, **arguments)
    if isinstance(getattr(model, "outputs", None), list) and len(model.outputs) > 1:
        # On TensorFlow, Keras takes the mean of the batches' means for the loss of each output: one batch is exact.
        arguments = {"batch_size": len(pixels), **arguments}
    theirs = model.evaluate(*dataset(), verbose=0, return_dict=True, **arguments)
    assert ours.keys() == theirs.keys(), (what, ours, theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-6, atol=1e-6, err_msg=f"{what}: {name}")
    expected = model._flatten_metrics_in_order(theirs)
    np.testing.assert_allclose(again, expected, rtol=1e-6, atol=1e-6, err_msg=what)
    return {name: float(value) for name, value in theirs.items()}


def compiled_with_much() -> Any:
    model = make()
    metrics = keras.metrics
    model.compile(
        "adam",
        "categorical_crossentropy",
        metrics=[
            "accuracy", "mse", metrics.AUC(name="auc"), metrics.Precision(thresholds=0.2, name="precision"),
            metrics.Recall(thresholds=0.2, name="recall"), metrics.F1Score(average="macro", name="f1"),
            metrics.TopKCategoricalAccuracy(3, name="top3"), own_metrics.Confidence(), own_metrics.worst_of_batch,
        ],
        weighted_metrics=["accuracy", "mae"],
    )  # fmt: skip
    model.fit(pixels, one_hot, epochs=2, verbose=0)
    return model


def two_outputs() -> Any:
    inputs = keras.Input((64,), name="pixels")
    hidden = layers.Dense(16, activation="relu")(layers.Rescaling(1 / 16)(inputs))
    which = layers.Dense(10, activation="softmax", name="which")(hidden)
    even = layers.Dense(1, activation="sigmoid", name="even")(hidden)
    model = keras.Model(inputs, {"which": which, "even": even})
    model.compile(
        loss={"which": "sparse_categorical_crossentropy", "even": "binary_crossentropy"},
        loss_weights={"which": 1.0, "even": 0.5},
        metrics={"which": ["accuracy"], "even": ["accuracy", "auc"]},
    )
    model.fit(pixels, {"which": digit, "even": is_even}, epochs=1, verbose=0)
    return model


def batches() -> Any:
    for start in range(0, len(pixels), 100):
        rows = slice(start, start + 100)
        yield pixels[rows], digit[rows], weights[rows]


def main(folder: Path, *, is_few: bool) -> None:
    keras.utils.set_random_seed(3)
    expected: dict[str, dict[str, float]] = {}
    model = compiled_with_much()
    expected["plain"] = check("arrays", model, pixels, one_hot)
    expected["weighted"] = check("sample weights", model, pixels, one_hot, sample_weight=weights)
    model.save(folder / "model.keras")
    if not is_few:
        check_others(folder, expected)
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    columns = {
        "pixels": pa.FixedSizeListArray.from_arrays(pa.array(pixels.astype(np.uint8).reshape(-1)), 64),
        "digit": digit, "name": [NAMES[each] for each in digit], "weight": weights, "even": is_even,
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(one_hot.reshape(-1)), 10),
    }  # fmt: skip
    pq.write_table(pa.table(columns), folder / "digits.parquet", row_group_size=400)


def check_others(folder: Path, expected: dict[str, dict[str, float]]) -> None:
    sparse = make(activation=None)
    sparse.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    sparse.fit(pixels, digit, epochs=2, verbose=0)
    expected["sparse"] = check("whole numbers", sparse, pixels, digit)
    check("another batch size", sparse, pixels, digit, batch_size=100)
    check("a generator", sparse, dataset=lambda: (batches(),))
    check("few rows", sparse, pixels[:7], digit[:7])
    sparse.save(folder / "sparse.keras")
    sparse.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"))
    check("a loss that is a sum", sparse, pixels, digit)
    check("a sum over the batches of a generator", sparse, dataset=lambda: (batches(),))
    check_ignored_class(sparse, folder, expected)

    two = two_outputs()
    expected["two"] = check("two outputs", two, pixels, {"which": digit, "even": is_even})
    two.save(folder / "two.keras")

    for layer in (two.get_layer("which"), two.get_layer("even")):
        layer.set_weights([600 * each for each in layer.get_weights()])
    expected["sure"] = check("answers of 0 and 1 that are wrong", two, pixels, {"which": digit, "even": is_even})
    assert expected["sure"]["which_loss"] > 20 or keras.backend.backend() != "tensorflow", expected
    two.save(folder / "sure.keras")
    check_plain_softmax()

    own_step = own_metrics.OwnStep.of(make())
    own_step.compile(loss="categorical_crossentropy", metrics=["accuracy"])
    expected["own step"] = check("a test_step of its own", own_step, pixels, one_hot)
    own_step.save(folder / "own_step.keras")
    check_list_of_outputs(folder, expected)
    check_dependence_on_batches()
    check_rows_that_fail(folder)

    bare = make()
    with pytest.raises(penstock.ModelError, match="compiled"):
        penstock.evaluate(bare, pixels, one_hot)
    with pytest.raises(
        penstock.UsageError, match=r"allowed: acc, accuracy, auc, .*\nhint: did you mean accuracy, binary_accuracy"
    ):
        penstock.evaluate(bare, pixels, digit, metrics="acuracy")
    with pytest.raises(penstock.UsageError, match="Keras has no metric of this name"):
        penstock.evaluate(bare, pixels, digit, metrics="mean")
    with pytest.raises(penstock.UsageError, match="label="):
        penstock.evaluate(bare, pixels)
    by_name = penstock.evaluate(bare, pixels, digit, metrics=["accuracy", "auc"], return_dict=True)
    bare.compile(metrics=["accuracy"], loss="sparse_categorical_crossentropy")
    assert abs(by_name["accuracy"] - bare.evaluate(pixels, digit, verbose=0)[1]) < 1e-6
    with pytest.raises(penstock.InputError, match="0 to 9"):
        penstock.evaluate(bare, pixels, digit + 3)
    with pytest.raises(penstock.InputError, match="number of rows"):
        penstock.evaluate(bare, pixels, digit[:-1])


def check_ignored_class(model: Any, folder: Path, expected: dict[str, dict[str, float]]) -> None:
    """Keras divides the loss of a batch by its rows that are not ignored: batches have more and fewer of these."""
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    labels = np.where(np.arange(len(digit)) % 1000 < 700, digit, 0)
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0, name="metric")
    model.compile(loss=crossentropy, metrics=["accuracy", metric, crossentropy])
    check("an ignored class", model, pixels, labels, sample_weight=weights)
    # On TensorFlow, Keras counts one batch more of a generator for a loss that is given as a metric.
    model.compile(loss=crossentropy, weighted_metrics=[metric])
    check("an ignored class in the batches of a generator", model, dataset=lambda: (batches(),))
    expected["ignored"] = check("an ignored class in batches of 100", model, pixels, labels, batch_size=100)
    in_one = model.evaluate(pixels, labels, batch_size=len(pixels), verbose=0, return_dict=True)
    assert abs(in_one["loss"] - expected["ignored"]["loss"]) > 1e-3, "batches make no difference"
    model.save(folder / "ignored.keras")
    write_rows(folder / "ignored.parquet", y=labels)


def check_plain_softmax() -> None:
    """A softmax that is no activation of a layer, or of another width, of a model that is sure of what is wrong."""
    inputs = keras.Input((64,))
    wide = keras.Model(inputs, layers.Dense(10, activation="softmax", dtype="float64")(inputs))
    wide.compile(loss=keras.losses.SparseCategoricalCrossentropy(dtype="float64"))
    if keras.backend.backend() != "jax":  # which has no float64 unless it is told to
        check("float64", wide, pixels[:150], digit[:150])
    model = keras.Model(inputs, keras.ops.softmax(layers.Dense(10)(inputs)))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["sparse_categorical_crossentropy"])
    for run_eagerly in (False, True):
        model.run_eagerly = run_eagerly
        check("a softmax without a layer", model, pixels[:150], digit[:150])


def check_list_of_outputs(folder: Path, expected: dict[str, dict[str, float]]) -> None:
    """Losses in a list belong to outputs by their order, which is not that of their names, in a folder, too."""
    inputs = keras.Input((64,), name="pixels")
    model = keras.Model(inputs, [layers.Dense(1, name="zz")(inputs), layers.Dense(1, name="aa")(inputs)])
    model.compile(loss=["mse", "mae"])
    targets = [digit.astype(np.float32), is_even.astype(np.float32)]
    expected["list"] = check("a list of outputs", model, pixels, targets)
    model.save(folder / "list.keras")
    evaluate: Any = penstock.evaluate
    rows, output = write_rows(folder / "list.parquet", z=targets[0], a=targets[1]), folder / "list"
    labels = {"zz": "z", "aa": "a"}
    for found in (
        evaluate(model, rows, label=labels, verbose=0),
        evaluate(model, rows, label=labels, output=output, verbose=0),
        evaluate(model, label=labels, from_predictions=output, verbose=0),
    ):
        assert found.metrics == pytest.approx(expected["list"], rel=1e-5), found
    with pytest.raises(penstock.InputError, match=r"(?s)output 'zz' are no classes.*OTHER=COLUMN"):
        evaluate(model, label=labels, from_predictions=output, per_class=True, verbose=0)
    found = evaluate(model, label={"aa": "a"}, metrics="mae", from_predictions=output, per_class=True, verbose=0)
    assert [each["rows"] for each in found.per_class["aa"].values()] == np.bincount(is_even).tolist(), found


def check_rows_that_fail(folder: Path) -> None:
    """Rows that fail count in the whole input, are left out of the metrics, and may be as many as `max_failures`."""
    evaluate: Any = penstock.evaluate
    model = keras.Sequential([keras.Input((64,), name="pixels"), layers.Dense(10, activity_regularizer="l2")])
    model.compile(loss="mse")
    rows = write_rows(
        folder / "gaps.parquet", missing=60, y=[None if row == 70 else one_hot[row] for row in range(150)]
    )
    found = evaluate(model, rows, label="y", skip=50, verbose=0)
    good = [row for row in range(50, 150) if row not in (60, 70)]
    assert (found.rows, found.failed) == (98, 2), found
    assert found.example.startswith(f"row 60 ({rows}, row 60): "), found
    theirs = model.evaluate(pixels[good], one_hot[good], verbose=0)
    assert found.metrics["loss"] == pytest.approx(theirs, rel=1e-5), found

    sparse = make()
    sparse.compile(loss="sparse_categorical_crossentropy")
    rows = write_rows(folder / "few_labels.parquet", y=[None if row % 3 else int(digit[row]) for row in range(150)])
    with pytest.raises(penstock.TooManyFailures, match=r"of (the first )?150 rows"):
        evaluate(sparse, rows, label="y", output=folder / "few_labels", verbose=0)
    with pytest.raises(penstock.TooManyFailures, match="10%"):
        evaluate(sparse, label="y", from_predictions=folder / "few_labels", verbose=0)


def check_dependence_on_batches() -> None:
    """Losses over whole batches are folded in the batches of Keras; means over rows in any."""
    losses = keras.losses
    for loss, is_dependent in (
        ("mse", False),
        (losses.MeanSquaredError(), False),
        (losses.MeanSquaredError(reduction="sum"), True),
        ("dice", True),
        (losses.Dice(), True),
        (losses.Tversky(), True),
        (losses.tversky, True),
        (losses.Circle(), True),
        (losses.SparseCategoricalCrossentropy(), False),
        (losses.SparseCategoricalCrossentropy(ignore_class=0), True),
    ):
        model = make()
        model.compile(loss=loss)
        assert depends_on_batches(model) is is_dependent, loss


def write_rows(path: Path, missing: int | None = None, **columns: Any) -> str:
    """The pixels of as many rows as the columns have; row `missing` has none."""
    count = len(next(iter(columns.values())))
    values = [None if row == missing else pixels[row] for row in range(count)]
    pq.write_table(pa.table({"pixels": pa.array(values, pa.list_(pa.float32(), 64)), **columns}), path)
    return str(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_few=sys.argv[2:] == ["few"])
