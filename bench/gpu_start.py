"""E with `--start`: how long `penstock predict` takes until its first rows are handed out, by steps, from its trace.

The first start finds an empty cache; the others find what the first one left there.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.shell import BenchError, run
from bench.sides import check_counts, penstock_command
from bench.table import Bar, Line, amount

AGAIN = 2
BARS = {"jax": (13.0, 8.0), "tensorflow": (20.0, 14.0)}
"""Seconds to be ready, for the first time and again, on one H200."""


def measure_start(
    model: Path, images: Path, num_images: int, runtime: str, options: list[str]
) -> tuple[list[Line], dict[str, Any]]:
    """Start cold once and warm a few times, and show both by their steps."""
    root = model.parent
    runs = [_start(root, number, model, images, num_images, options) for number in range(1 + AGAIN)]
    if len({each["digest"] for each in runs}) != 1:
        raise BenchError("starts from a full and from an empty cache gave other bytes")
    first, *again = runs
    for name, each in (("first", first), ("again", again[-1])):
        print(f"{runtime}, {name}: ready after {each['ready_s']:.2f} s; kept: {each['kept']}", file=sys.stderr)
        for step in each["steps"]:
            print("  {start:7.2f} s  {seconds:6.2f} s  {what} ({where})".format(**step), file=sys.stderr, flush=True)
    cold, warm = first["ready_s"], median(each["ready_s"] for each in again)
    what = f"{model.stem}, {runtime}: ready"
    bars = [Bar(limit, is_at_most=True, unit="s") for limit in BARS[runtime]]
    lines = [
        amount("E", f"{what} for the first time, against again", "s", (cold, warm), bars[0]),
        amount("E", f"{what} again, against the first time", "s", (warm, cold), bars[1]),
    ]
    return lines, {"first": first, "again": again}


def _start(root: Path, number: int, model: Path, images: Path, num_images: int, options: list[str]) -> dict[str, Any]:
    trace, output, cache = root / f"trace-{number}.json", root / f"predictions-{number}", root / "cache"
    command = penstock_command(model, images, output, [*options, "--trace", str(trace)])
    finished = run(command, {"PENSTOCK_CACHE": str(cache)})
    check_counts(finished.document, num_images)
    ready_s, steps = read_start(json.loads(trace.read_text()))
    kept = [path for path in (cache / "compiled").glob("*/*") if path.suffix != ".sha256"]
    return {
        "ready_s": ready_s,
        "wall_s": finished.seconds,
        "steps": steps,
        "kept": f"{len(kept)} files, {sum(path.stat().st_size for path in kept) / 1e6:.1f} MB"
        + "".join(f"; unusable: {path.read_text()}" for path in kept if path.name == "unusable"),
        "digest": _digest(output),
    }


def read_start(events: list[Mapping[str, Any]]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds to the end of the start, and its steps in the order of time, from the events of a trace."""
    slices = [event for event in events if event["ph"] == "X"]
    ready = next(event["ts"] + event["dur"] for event in slices if event["cat"] == "start")
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    steps = [
        {
            "start": event["ts"] / 1e6,
            "seconds": event["dur"] / 1e6,
            "what": event["cat"],
            "where": threads[event["pid"], event["tid"]],
        }
        for event in slices
        if event["ts"] + event["dur"] <= ready and event["cat"] not in ("start", "span", "load", "predict", "read")
    ]
    return ready / 1e6, sorted(steps, key=lambda step: step["start"])


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.npy")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
