"""The process that L measures in; prints one JSON document.

Run as `python -m bench.estimator_child make|heavy|tiny|first --folder …`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from penstock import estimator

HEAVY_WIDTH, HEAVY_DEPTH = 1024, 12
HEAVY_ROWS, TINY_ROWS = 256, 32
FEATURES = 16


def heavy_fn(features: Any, mode: str) -> Any:
    """Mostly matrix products."""
    net = features["x"]
    for layer in range(HEAVY_DEPTH):
        net = tf.compat.v1.layers.dense(net, HEAVY_WIDTH, tf.nn.relu, name=f"layer{layer}")
    scores = tf.compat.v1.layers.dense(net, 10, name="scores")
    return tf.estimator.EstimatorSpec(mode, predictions={"number": features["number"], "scores": scores})


def tiny_fn(features: Any, mode: str) -> Any:
    """Hardly anything to compute."""
    net = tf.compat.v1.layers.dense(features["x"], 32, tf.nn.relu, name="hidden")
    scores = tf.compat.v1.layers.dense(net, 3, name="scores")
    predictions = {"class": tf.argmax(scores, 1), "scores": tf.nn.softmax(scores)}
    return tf.estimator.EstimatorSpec(mode, predictions=predictions)


def heavy_input(elements: int) -> Any:
    """The same random rows in every batch: reading must not be what is measured."""
    x = np.random.default_rng(0).random((HEAVY_ROWS, HEAVY_WIDTH), np.float32)

    def numbered(number: Any) -> Any:
        return {"x": tf.constant(x), "number": tf.fill([HEAVY_ROWS], number)}

    return tf.data.Dataset.range(elements).map(numbered)


def tiny_input(elements: int) -> Any:
    x = np.random.default_rng(0).random((elements * TINY_ROWS, FEATURES), np.float32)
    return tf.data.Dataset.from_tensor_slices({"x": x}).batch(TINY_ROWS)


def make(folder: Path) -> dict[str, Any]:
    """Write a checkpoint of each model, with random weights."""
    v1 = tf.compat.v1
    for name, model_fn, width in (("heavy", heavy_fn, HEAVY_WIDTH), ("tiny", tiny_fn, FEATURES)):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(0)
            v1.train.create_global_step()
            model_fn({"x": v1.placeholder(tf.float32, [None, width]), "number": tf.zeros([1], tf.int64)}, "infer")
            session.run(v1.global_variables_initializer())
            (folder / name).mkdir(parents=True)
            v1.train.Saver().save(session, str(folder / name / "model.ckpt"), global_step=1)
    return {"made": str(folder)}


def heavy(folder: Path, devices: str, elements: int) -> dict[str, Any]:
    """The whole call, and what an element takes in its second half, when every process predicts."""
    config = estimator.RunConfig(devices=devices, threads=1)
    model = estimator.Estimator(heavy_fn, str(folder / "heavy"), config)
    half = elements // 2
    began = time.perf_counter()
    times: list[float] = []
    cpu_at_half = 0.0
    predictions = model.predict(lambda: heavy_input(elements), yield_single_examples=False)
    for number, batch in enumerate(predictions):
        if batch["number"].tolist() != [number] * HEAVY_ROWS:
            sys.exit(f"batch {number} is not in its place")
        times.append(time.perf_counter() - began)
        if number == half:
            cpu_at_half = _cpu_seconds()
        if number == elements - 1:
            break  # before the processes are ended: what they took is still to be seen
    left = elements - 1 - half
    return {
        "seconds": times[-1],
        "steady_ms": 1000 * (times[-1] - times[half]) / left,
        "steady_cpu_ms": 1000 * (_cpu_seconds() - cpu_at_half) / left,
    }


def _cpu_seconds() -> float:
    """What this process and those that it started took of the cores: also on a busy machine it says what work costs."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children())]
    return float(sum(each.user + each.system for each in times))


def penstock_side(folder: Path, elements: int, *, as_rows: bool) -> Iterator[Any]:
    model = estimator.Estimator(tiny_fn, str(folder / "tiny"), estimator.RunConfig(devices="cpu"))
    return model.predict(lambda: tiny_input(elements), yield_single_examples=as_rows)


def plain_side(folder: Path, elements: int, *, as_rows: bool) -> Iterator[Any]:
    """What people write without an Estimator."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        features = v1.data.make_one_shot_iterator(tiny_input(elements)).get_next()
        predictions = tiny_fn(features, "infer").predictions
        v1.train.Saver().restore(session, tf.train.latest_checkpoint(str(folder / "tiny")))
        try:
            while True:
                found = session.run(predictions)
                if as_rows:
                    for row in range(len(found["class"])):
                        yield {name: values[row] for name, values in found.items()}
                else:
                    yield found
        except tf.errors.OutOfRangeError:
            pass


SIDES: dict[str, Callable[..., Iterator[Any]]] = {"penstock": penstock_side, "plain": plain_side}


def tiny(folder: Path, elements: int, repeats: int) -> dict[str, Any]:
    """Both sides in turn, in one process; the first round warms both and does not count."""
    found: dict[str, Any] = {}
    cases = {"batches": (elements, False), "rows": (elements, True), "ten batches": (10, False)}
    for what, (count, as_rows) in cases.items():
        found[what] = {side: [] for side in SIDES}
        rounds = repeats if count > 10 else 5 * repeats
        for number in range(1 + rounds):
            # Whoever comes second finds the caches warm: they take turns at that, too.
            for side in sorted(SIDES, reverse=bool(number % 2)):
                seconds, total = _timed(SIDES[side], folder, count, as_rows)
                if total != count * (TINY_ROWS if as_rows else 1):
                    sys.exit(f"{side} gave {total} answers")
                if number:
                    found[what][side].append(seconds)
    return found


def _timed(side: Callable[..., Iterator[Any]], folder: Path, elements: int, as_rows: bool) -> tuple[float, int]:
    began = time.perf_counter()
    total = sum(1 for _ in side(folder, elements, as_rows=as_rows))
    return time.perf_counter() - began, total


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "heavy", "tiny", "first"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--elements", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--devices", default="cpu:1")
    parser.add_argument("--side", choices=tuple(SIDES), default="penstock")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    estimator.install()
    if options.what == "make":
        document = make(options.folder)
    elif options.what == "heavy":
        document = heavy(options.folder, options.devices, options.elements)
    elif options.what == "tiny":
        document = tiny(options.folder, options.elements, options.repeats)
    else:
        seconds, _ = _timed(SIDES[options.side], options.folder, options.elements, False)
        document = {"seconds": seconds}
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1:])
