"""What `Estimator.predict` does, in one process that imports TensorFlow once: `python estimator_scenarios.py OUT.json`.

`OUT.json slow` runs the slow ones. Every scenario gives plain JSON; the tests say what is right. Keras 3 is in use,
as in a script that knows nothing of the older one.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
from absl import flags

from penstock import estimator
from penstock.core.output_selection import Answers
from penstock.core.records import Device
from penstock.errors import PenstockError
from penstock.estimator import handing_over
from penstock.estimator.calling import user_code
from penstock.estimator.opening import open_estimator
from penstock.runtimes.tensorflow import session as graph_session
from tests.support import digits_model_fn, scaled_model_fn, words_model_fn
from tests.support.requests_one_by_one import Requests, Taker, Warnings, is_handed_over

DATA = Path(__file__).parent.parent / "data" / "estimator"
CHECKPOINT = str(DATA / "model_fn_ckpt")
EXPECTED = np.load(DATA / "digits_expected.npz")
IMAGES = EXPECTED["image"]
PREDICT = "infer"
FLAGS = flags.FLAGS
flags.DEFINE_integer("factor", 1, "a flag of the script")


def digits(model_fn: Any, devices: str = "cpu:1", **options: Any) -> estimator.Estimator:
    return estimator.Estimator(model_fn, CHECKPOINT, estimator.RunConfig(devices=devices), **options)


def distance(found: Any) -> float:
    return float(np.abs(np.asarray(found) - EXPECTED["probabilities"]).max())


def images(size: int = 100) -> Any:
    return tf.data.Dataset.from_tensor_slices({"image": IMAGES}).batch(size)


def the_three_spellings() -> Any:
    found: dict[str, Any] = {}
    for name in ("with_layers", "with_tf_estimator", "with_keras_layers"):
        rows = list(digits(getattr(digits_model_fn, name)).predict(images))
        is_same = [row["classes"] for row in rows] == EXPECTED["classes"].tolist()
        found[name] = [distance([row["probabilities"] for row in rows]), is_same]
    single = digits(digits_model_fn.with_variables).predict(lambda: tf.data.Dataset.from_tensors(IMAGES))
    found["with_variables"] = [distance(list(single)), True]
    return found


def a_plain_session() -> Any:
    """How far TensorFlow itself is from the file on this machine, and how far we are from it."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        image = v1.placeholder(tf.float32, [None, 8, 8])
        spec = digits_model_fn.with_layers({"image": image}, None, PREDICT)
        v1.train.Saver().restore(session, f"{CHECKPOINT}/model.ckpt-300")
        plain = session.run(spec.predictions["probabilities"], {image: IMAGES})
    ours = next(digits(digits_model_fn.with_layers).predict(lambda: images(2000), yield_single_examples=False))
    return [distance(plain), float(np.abs(plain - ours["probabilities"]).max())]


def words() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        params = {"size": 4}
        with user_code():
            expected = words_model_fn.train(folder, params)
        fed = words_model_fn.rows(200)
        trained = estimator.Estimator(words_model_fn.model_fn, folder, estimator.RunConfig(devices="cpu"), params)
        found = list(trained.predict(lambda: tf.data.Dataset.from_tensor_slices(fed).batch(7)))
        columns = graph_session.load(
            open_estimator("tests.support.words_model_fn:model_fn", folder, params), Device("cpu", 0), 1
        ).predict(fed)
        other = estimator.Estimator(words_model_fn.model_fn, folder, estimator.RunConfig(devices="cpu"), {"size": 5})
        return {
            "scores": float(np.abs(np.stack([row["scores"] for row in found]) - expected["scores"]).max()),
            "columns": float(np.abs(columns["scores"] - expected["scores"]).max()),
            "tastes": [row["taste"] for row in found] == list(expected["taste"]) == list(columns["taste"]),
            "words": [row["word"] for row in found] == [word.encode() for word in fed["word"]],
            "classes": sorted({row["taste"].decode() for row in found}),
            "misfit": told(lambda: next(other.predict(lambda: tf.data.Dataset.from_tensor_slices(fed).batch(7)))),
        }


def told(call: Callable[[], Any]) -> list[Any]:
    try:
        call()
    except PenstockError as error:
        return [error.exit_code, str(error), isinstance(error, ValueError)]
    return [0, "", False]


def what_bad_input_gets() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "notes.txt").write_text("no checkpoint here")
        empty = estimator.Estimator(digits_model_fn.with_layers, folder, estimator.RunConfig(devices="cpu"))

        def raises(features: Any, mode: str) -> Any:
            raise KeyError("pixels")

        def without(features: Any, mode: str) -> Any:
            return tf.estimator.EstimatorSpec(mode, predictions=None)

        def summed(features: Any, mode: str) -> Any:
            found = digits_model_fn.with_layers(features, None, mode).predictions
            return tf.estimator.EstimatorSpec(mode, predictions={**found, "sum": tf.reduce_sum(features["image"])})

        nothing = ["nothing"]
        return {
            "empty": told(lambda: next(empty.predict(images))),
            "raises": told(lambda: next(digits(raises).predict(images))),
            "without": told(lambda: next(digits(without).predict(images))),
            "keys": told(lambda: next(digits(digits_model_fn.with_layers).predict(images, predict_keys=nothing))),
            "summed": told(lambda: next(digits(summed).predict(images))),
            "batches": sorted(next(digits(summed).predict(images, yield_single_examples=False))),
            "chosen": sorted(next(digits(digits_model_fn.with_layers).predict(images, predict_keys=["classes"]))),
        }


def hooks_and_scaffolds() -> Any:
    seen: list[str] = []

    class Hook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.name = name

        def after_create_session(self, session: Any, coord: Any) -> None:
            seen.append(f"{self.name} created")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(f"{self.name} ran")
            assert tf.compat.v1.get_default_graph() is run_context.session.graph

        def end(self, session: Any) -> None:
            seen.append(f"{self.name} ended")
            assert tf.compat.v1.get_default_graph() is session.graph

    def model_fn(features: Any, mode: str) -> Any:
        spec = digits_model_fn.with_layers(features, None, mode)
        scaffold = tf.compat.v1.train.Scaffold(saver=tf.compat.v1.train.Saver())
        return spec._replace(prediction_hooks=[Hook("own")], scaffold=scaffold)

    rows = list(digits(model_fn, "cpu:2").predict(lambda: images(1000), hooks=[Hook("given")]))
    return [distance([row["probabilities"] for row in rows]), seen]


def old_inputs() -> Any:
    """Queues of TensorFlow 1, and columns that the model_fn makes of features."""
    columns = tf.feature_column

    def model_fn(features: Any, mode: str) -> Any:
        kind = columns.categorical_column_with_vocabulary_list("kind", ["a", "b"])
        wanted = [columns.numeric_column("x"), columns.indicator_column(kind)]
        return tf.estimator.EstimatorSpec(mode, predictions=tf.compat.v1.feature_column.input_layer(features, wanted))

    def input_fn() -> Any:
        v1 = tf.compat.v1
        x, kind = v1.train.slice_input_producer(
            [tf.constant([1.0, 2.0, 3.0]), tf.constant(["a", "b", "c"])], num_epochs=1, shuffle=False
        )
        x, kind = v1.train.batch([x, kind], 2, allow_smaller_final_batch=True)
        return {"x": x, "kind": kind}, None

    return [row.tolist() for row in digits(model_fn).predict(input_fn)]


def lazily() -> Any:
    made = itertools.count()

    def endless() -> Any:
        for number in made:
            yield {"image": IMAGES[number % 1000 : number % 1000 + 5]}

    def input_fn() -> Any:
        return tf.data.Dataset.from_generator(
            endless, output_signature={"image": tf.TensorSpec((None, 8, 8), tf.float32)}
        )

    predictions: Any = digits(digits_model_fn.with_layers, "cpu:3").predict(input_fn)
    before = next(made)
    taken = [row["classes"] for row in itertools.islice(predictions, 3)]
    predictions.close()
    return [before, taken == EXPECTED["classes"][1:4].tolist(), next(made)]


def columns_as_in_the_shell() -> Any:
    cpu = Device("cpu", 0)
    location = "tests.support.digits_model_fn:"
    whole: Any = graph_session.load(open_estimator(location + "with_layers", CHECKPOINT), cpu, 1)
    made: Any = graph_session.load(open_estimator(location + "estimator_of_checkpoint"), cpu, 1)
    single: Any = graph_session.load(open_estimator(location + "with_variables", CHECKPOINT), cpu, 1)
    file = open_estimator(location + "with_layers", CHECKPOINT)
    object.__setattr__(file, "answers", Answers(("probabilities",), top_k=2))
    ranked = graph_session.load(file, cpu, 1).predict({"image": IMAGES[:20]})
    pixels = np.rint(IMAGES[:50] * 16)
    as_bytes, as_floats = (whole.predict({"image": pixels.astype(kind)}) for kind in (np.uint8, np.float32))
    return {
        "bytes": (as_bytes["probabilities"] == as_floats["probabilities"]).all().item(),
        "other size": whole.predict({"image": IMAGES[:3].reshape(3, 64)})["classes"].tolist(),
        "made": [distance(made.predict({"image": IMAGES})["probabilities"]), made.signature.weights is not None],
        "single": distance(single.predict({"x0": IMAGES})["output"]),
        "ranked": [ranked["classes:probabilities"][:, 0].tolist() == EXPECTED["classes"][:20].tolist(), sorted(ranked)],
    }


def another_model() -> Any:
    """The other processes import the module of the model_fn, and do not have what was set in it since."""
    handing_over.PATIENCE_S, handing_over.WORTH_IT = 0.0, 1e9
    scaled_model_fn.SCALE = 2.0
    warnings = Warnings()
    logging.getLogger("penstock.estimator").addHandler(warnings)
    made = digits(scaled_model_fn.model_fn, "cpu:2")
    predictions: Any = made.predict(
        lambda: tf.data.Dataset.range(1, 10**9).map(lambda number: tf.fill([2], tf.cast(number, tf.float32))),
        yield_single_examples=False,
    )
    until, ratios, last = time.monotonic() + 60, set(), None
    for count, found in enumerate(predictions):
        ratios.add(float(found["scaled"][0] / found["number"][0]))
        if last is None:
            time.sleep(0.01)  # leaves the cores to the processes that load
            if warnings.told or is_handed_over() or time.monotonic() > until:
                last = count + 2000
        if count == last:
            break
    predictions.close()
    logging.getLogger("penstock.estimator").removeHandler(warnings)
    return {"ratios": sorted(ratios), "warnings": warnings.told}


def replicas() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "penstock.pool.processes.replica" in child.cmdline()]


def one_replica_fails() -> Any:
    """The first attempt to start three replicas fails in the last one of them, the second does not."""
    handing_over.PATIENCE_S, handing_over.WORTH_IT = 0.0, 1e9
    own = os.getpid()
    warnings = Warnings()
    logging.getLogger("penstock.estimator").addHandler(warnings)
    with tempfile.TemporaryDirectory() as folder:

        def model_fn(features: Any, mode: str) -> Any:
            if os.getpid() != own:
                Path(folder, str(os.getpid())).touch()
                if len(os.listdir(folder)) == 3:
                    Path(folder, "failed").touch()
                    raise ValueError("no such luck")
            return tf.estimator.EstimatorSpec(mode, predictions={"twice": 2.0 * features})

        predictions: Any = digits(model_fn, "cpu:3").predict(
            lambda: tf.data.Dataset.range(1, 10**9).map(lambda number: tf.fill([2], tf.cast(number, tf.float32))),
            yield_single_examples=False,
        )
        until, is_right = time.monotonic() + 120, True
        for count, found in enumerate(predictions, 1):
            is_right &= bool((found["twice"] == 2 * count).all())
            if warnings.told or is_handed_over() or time.monotonic() > until:
                break
            time.sleep(0.01)  # leaves the cores to the processes that load
        processes = len(replicas())
        predictions.close()
        has_failed = os.path.exists(os.path.join(folder, "failed"))
    logging.getLogger("penstock.estimator").removeHandler(warnings)
    return {"processes": processes, "has_failed": has_failed, "is_right": is_right, "warnings": warnings.told}


def handed_over() -> Any:
    """Features of every kind and size, through this process and then through three others, one of which is killed;
    requests one by one then, and one that the model rejects."""
    handing_over.PATIENCE_S, handing_over.WORTH_IT = 0.0, 1e9
    flags.FLAGS(["scenarios", "--factor=2"])
    wrong: list[str] = []

    def model_fn(features: Any, mode: str) -> Any:
        spec = digits_model_fn.with_layers(features["nested"], None, mode)
        with tf.control_dependencies([tf.debugging.assert_non_negative(features["number"])]):
            sparse = tf.compat.v1.sparse_reduce_sum(features["sparse"], axis=1)
        ragged = tf.reduce_sum(features["ragged"], axis=1)
        flagged = tf.cast(features["number"], tf.float64) * FLAGS.factor * features["times"]
        sums = {"sparse": sparse, "ragged": ragged, "text": features["text"], "flagged": flagged}
        return tf.estimator.EstimatorSpec(mode, predictions={**spec.predictions, **sums})

    def check(number: int, row: Any) -> None:
        right = EXPECTED["probabilities"][number % len(IMAGES)]
        sums = [row["text"].decode(), float(row["sparse"]), int(row["ragged"]), float(row["flagged"])]
        expected = [str(number), float(number), number % 3, number * 6.0]
        if sums != expected or np.abs(row["probabilities"] - right).max() > 2e-6:
            wrong.append(f"{number}: {sums}")

    warnings = Warnings()
    logging.getLogger("penstock.estimator").addHandler(warnings)
    requests = Requests(IMAGES)
    predictions: Any = digits(model_fn, "cpu:3").predict(requests.input_fn)
    taker = Taker(predictions, check)
    taker.start()
    until = time.monotonic() + 120
    while not (is_handed_over() or taker.ended) and time.monotonic() < until:
        time.sleep(0.05)
    processes = len(replicas())
    taker.reaches(taker.count + 3_000, 60.0)
    replicas()[0].kill()
    has_gone_on = taker.reaches(taker.count + 3_000, 60.0)
    requests.is_gated = True
    answered = 0
    for _ in range(10):
        before = taker.rests() if not answered else taker.count
        requests.tokens.put("")
        answered += taker.reaches(before + 1)
        if not answered:
            break
    taker.rests()
    for token in ("", "bad", ""):
        requests.tokens.put(token)
    taker.join(60.0)
    left = len(psutil.Process().children())
    requests.tokens.put("")  # whoever reads still waits for it
    ended = [taker.ended, taker.count == requests.rows_before_bad]
    return {
        "wrong": wrong[:3],
        "processes": processes,
        "has_gone_on": has_gone_on,
        "answered": answered,
        "ended": ended,
        "left": left,
        "warnings": warnings.told,
    }


SCENARIOS = (
    the_three_spellings,
    a_plain_session,
    words,
    what_bad_input_gets,
    hooks_and_scaffolds,
    old_inputs,
    lazily,
    columns_as_in_the_shell,
    handed_over,
)
SLOW_SCENARIOS = (one_replica_fails, another_model)


def main(path: str, kind: str = "") -> None:
    os.environ["DIGITS_MODEL_DIR"] = CHECKPOINT
    assert tf.keras.__version__.startswith("3.")
    found = {scenario.__name__: scenario() for scenario in (SLOW_SCENARIOS if kind == "slow" else SCENARIOS)}
    found["keras"] = tf.keras.__version__
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
