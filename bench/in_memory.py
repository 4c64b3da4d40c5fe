"""B and C: arrays in memory, against `model.predict` in the same process."""

import sys
from functools import partial
from statistics import median
from typing import Any

from bench.measure import interleave, median_of
from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, Finished, run
from bench.table import Bar, Line, amount, faster

FIRST_CALL_SIDES = ("penstock", "keras")


def large(settings: BenchSettings) -> list[Line]:
    """Run B: a million rows through a small network, and images through ResNet50."""
    sizes, repeats = settings.sizes, settings.repeats
    return [*_mlp(sizes.mlp_rows, repeats), _resnet50(sizes.resnet_images, repeats)]


def small(settings: BenchSettings) -> list[Line]:
    """Run C: a hundred rows, warm and in a fresh process."""
    num_rows = settings.sizes.small_rows
    document = _child("small", num_rows, settings.repeats).document
    warm = [1000 * seconds for seconds in _medians(document, "penstock", "model.predict")]
    calls = {side: partial(_first_call, num_rows, side) for side in FIRST_CALL_SIDES}
    results = interleave(calls, settings.repeats)
    first = [1000 * median_of(results[side], _seconds) for side in FIRST_CALL_SIDES]
    bar = Bar(1.1, is_at_most=True)
    return [
        amount("C", f"{num_rows} rows, a call when warm", "ms", (warm[0], warm[1]), bar),
        amount("C", f"{num_rows} rows, first call of a process", "ms", (first[0], first[1]), None),
    ]


def _mlp(num_rows: int, repeats: int) -> list[Line]:
    document = _child("mlp", num_rows, repeats).document
    ours, default, best = _medians(document, "penstock", "model.predict", "model.predict, best batch")
    what = f"784-64-10, {num_rows:,} rows, model.predict"
    batch_size = document["best_batch_size"]
    return [
        faster("B", f"{what}(x)", (ours, default), Bar(8.0), samples=document),
        faster("B", f"{what}(x, batch_size={batch_size})", (ours, best), Bar(1.5)),
    ]


def _resnet50(num_images: int, repeats: int) -> Line:
    document = _child("resnet50", num_images, repeats).document
    ours, best = _medians(document, "penstock", "model.predict, best batch")
    what = f"ResNet50, {num_images} images, model.predict(x, batch_size={document['best_batch_size']})"
    return faster("B", what, (ours, best), Bar(1.0), samples=document)


def _first_call(num_rows: int, side: str) -> Finished:
    return _child("first-call", num_rows, 1, "--side", side)


def _child(what: str, num_rows: int, repeats: int, *options: str) -> Finished:
    command = [sys.executable, "-m", "bench.in_memory_child", what]
    return run([*command, "--rows", str(num_rows), "--repeats", str(repeats), *options], QUIET_KERAS)


def _medians(document: dict[str, Any], *sides: str) -> list[float]:
    return [median(document["seconds"][side]) for side in sides]


def _seconds(finished: Finished) -> float:
    return float(finished.document["seconds"])
