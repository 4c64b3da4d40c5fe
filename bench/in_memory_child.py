"""The process that B and C measure in: `penstock.predict(model, x)` beside `model.predict(x)`, in turn.

Run as `python -m bench.in_memory_child mlp|resnet50|small|first-call …`; prints one JSON document.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from bench.data import PIXELS
from bench.models import unit_mlp
from bench.outputs import check_close

Floats = npt.NDArray[np.float32]
Call = Callable[[], Floats]

MLP_BATCH_SIZES = (256, 1024, 2048, 4096, 8192, 16384)
RESNET_BATCH_SIZES = (8, 16, 32, 64)
SMALL_CALLS = 100


def compare_mlp(num_rows: int, repeats: int) -> dict[str, Any]:
    """B: 784-64-10 on rows in memory."""
    model, x = unit_mlp(), random_floats((num_rows, PIXELS))
    # Sixteen of the largest batches: enough to leave each call's start behind.
    best = _best_batch_size(model, x[: 16 * MLP_BATCH_SIZES[-1]], MLP_BATCH_SIZES)
    sides = {
        "penstock": _penstock_call(model, x),
        "model.predict": _keras_call(model, x),
        "model.predict, best batch": _keras_call(model, x, batch_size=best),
    }
    return {"best_batch_size": best, "seconds": _in_turn(sides, repeats)}


def compare_resnet50(num_images: int, repeats: int) -> dict[str, Any]:
    """B: ResNet50 on images in memory; random weights take as long as trained ones."""
    model = keras.applications.ResNet50(weights=None)
    images = random_floats((num_images, 224, 224, 3))
    best = _best_batch_size(model, images[:64], RESNET_BATCH_SIZES)
    sides = {
        "penstock": _penstock_call(model, images),
        "model.predict, best batch": _keras_call(model, images, batch_size=best),
    }
    return {"best_batch_size": best, "seconds": _in_turn(sides, repeats, is_compared=False)}


def compare_small(num_rows: int, repeats: int) -> dict[str, Any]:
    """C: many short calls; the first round, which warms both sides, does not count."""
    model, x = unit_mlp(), random_floats((num_rows, PIXELS))
    sides = {"penstock": _penstock_call(model, x), "model.predict": _keras_call(model, x)}
    seconds = _in_turn(sides, 1 + SMALL_CALLS * repeats)
    return {"seconds": {name: elapsed[1:] for name, elapsed in seconds.items()}}


def first_call(num_rows: int, side: str) -> dict[str, Any]:
    """C: the first call of one side, with Keras imported and the model built; importing Penstock counts."""
    model, x = unit_mlp(), random_floats((num_rows, PIXELS))
    began = time.perf_counter()
    call = _penstock_call(model, x) if side == "penstock" else _keras_call(model, x)
    call()
    return {"seconds": time.perf_counter() - began}


def random_floats(shape: tuple[int, ...]) -> Floats:
    """Return random numbers between 0 and 1, made in float32: float64 would need twice the memory."""
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def _penstock_call(model: Any, x: Floats) -> Call:
    import penstock

    return partial(penstock.predict, model, x)


def _keras_call(model: Any, x: Floats, batch_size: int | None = None) -> Call:
    # Without its progress bar, which costs model.predict time.
    return partial(model.predict, x, batch_size=batch_size, verbose=0)


def _best_batch_size(model: Any, piece: Floats, batch_sizes: Iterable[int]) -> int:
    calls = {size: _keras_call(model, piece, batch_size=size) for size in batch_sizes if size <= len(piece)}
    seconds = {size: min(_timed(call)[0] for _ in range(2)) for size, call in calls.items()}
    return min(seconds, key=seconds.__getitem__)


def _in_turn(sides: Mapping[str, Call], rounds: int, is_compared: bool = True) -> dict[str, list[float]]:
    """Time the sides in turn; the answers of the first round are compared."""
    first = {name: _timed(call) for name, call in sides.items()}
    for _, answer in first.values():
        _check(first["penstock"][1], answer, is_compared)
    seconds = {name: [elapsed] for name, (elapsed, _) in first.items()}
    for _ in range(rounds - 1):
        for name, call in sides.items():
            seconds[name].append(_timed(call)[0])
    return seconds


def _check(ours: Floats, theirs: Floats, is_compared: bool) -> None:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        sys.exit(f"penstock answers {ours.dtype}{ours.shape}, model.predict {theirs.dtype}{theirs.shape}")
    if is_compared:
        check_close(ours, theirs)


def _timed(call: Call) -> tuple[float, Floats]:
    began = time.perf_counter()
    answer = call()
    return time.perf_counter() - began, answer


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("mlp", "resnet50", "small", "first-call"))
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--side", choices=("penstock", "keras"), default="penstock")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    keras.utils.set_random_seed(0)
    if options.what == "first-call":
        document = first_call(options.rows, options.side)
    else:
        compare = {"mlp": compare_mlp, "resnet50": compare_resnet50, "small": compare_small}[options.what]
        document = compare(options.rows, options.repeats)
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1:])
