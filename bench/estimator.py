"""L: `Estimator.predict`: on two replicas against one, and a tiny model against a plain session of TensorFlow 1."""

import sys
from functools import partial
from pathlib import Path
from statistics import median

from bench.measure import interleave, median_of
from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, Finished, run
from bench.table import Bar, Line, amount, faster

HEAVY_ELEMENTS = 1000
TINY_ELEMENTS = 2000
SIDES = ("penstock", "plain")


def predicted(settings: BenchSettings) -> list[Line]:
    """Run L."""
    folder = settings.root / "estimator"
    if not folder.exists():
        _child("make", folder)
    elements = max(100, round(HEAVY_ELEMENTS * settings.sizes.scale))
    return [*_on_two(folder, elements, settings.repeats), *_tiny(folder, settings)]


def _on_two(folder: Path, elements: int, repeats: int) -> list[Line]:
    """Compute-bound: threads are 1 for each replica, so that two of them have twice as much to compute with."""
    calls = {devices: partial(_heavy, folder, devices, elements) for devices in ("cpu:2", "cpu:1")}
    results = interleave(calls, repeats)
    whole = [median_of(results[devices], lambda ran: float(ran.document["seconds"])) for devices in calls]
    steady = [median_of(results[devices], lambda ran: float(ran.document["steady_ms"])) for devices in calls]
    what = f"dense layers, {elements} batches of 256, threads=1; cpu:1"
    samples = {devices: [ran.document for ran in results[devices]] for devices in calls}
    return [
        faster("L", f"{what}, in the second half", (steady[0] / 1000, steady[1] / 1000), Bar(1.7), samples=samples),
        faster("L", f"{what}, the whole call", (whole[0], whole[1]), None),
    ]


def _tiny(folder: Path, settings: BenchSettings) -> list[Line]:
    elements = max(200, round(TINY_ELEMENTS * settings.sizes.scale))
    document = _child("tiny", folder, "--elements", str(elements), "--repeats", str(settings.repeats)).document
    bar = Bar(1.0, is_at_most=True)
    lines = []
    for what in ("batches", "rows", "ten batches"):
        ours, plain = (1000 * median(document[what][side]) for side in SIDES)
        label = f"tiny model, {what}; a plain session loop"
        lines.append(amount("L", label, "ms", (ours, plain), bar, samples=document[what]))
    first = interleave({side: partial(_first, folder, side) for side in SIDES}, settings.repeats)
    ours, plain = (1000 * median_of(first[side], lambda ran: float(ran.document["seconds"])) for side in SIDES)
    lines.append(amount("L", "tiny model, ten batches, first call of a process; the same", "ms", (ours, plain), bar))
    return lines


def _heavy(folder: Path, devices: str, elements: int) -> Finished:
    return _child("heavy", folder, "--devices", devices, "--elements", str(elements))


def _first(folder: Path, side: str) -> Finished:
    return _child("first", folder, "--side", side, "--elements", "10")


def _child(what: str, folder: Path, *options: str) -> Finished:
    command = [sys.executable, "-m", "bench.estimator_child", what, "--folder", str(folder), *options]
    environment = {**QUIET_KERAS, "TF_USE_LEGACY_KERAS": "1"}
    if what == "heavy":
        # TensorFlow has one pool for all sessions of a process, as large as the first that needed it: with one of its
        # own, `threads=1` means one thread on cpu:1, too.
        environment["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"
    return run(command, environment)
