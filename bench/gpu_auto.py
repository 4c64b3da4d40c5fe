"""E with `--auto`: the batch size that `penstock plan` chooses on a GPU, against a sweep over batch sizes."""

import json
from pathlib import Path
from typing import Any

from bench.planned import best_of, sweep_command, words_of
from bench.shell import run
from bench.sides import run_plan
from bench.table import Bar, Line, amount

BAR = Bar(0.97)
SEARCH_BAR = Bar(120.0, is_at_most=True, unit="s")
ROUNDS = 5
# Compiling takes longer than measuring, and below this size a large GPU is never at its best.
SMALLEST_BATCH = 32


def measure_auto(model: Path, images: Path, runtime: str, devices: str) -> tuple[list[Line], dict[str, Any]]:
    """Plan with the runtime pinned and everything else open; sweep; hold the choice against the sweep's best."""
    root = model.parent
    env = {"PENSTOCK_CACHE": str(root / "cache"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    pinned = ("--runtime", runtime, "--devices", devices)
    plan = run_plan(model, images, pinned, env).document
    path = root / "plan.json"
    path.write_text(json.dumps(plan))
    command = sweep_command(model, images, path, ROUNDS)
    swept = run([*command, *pinned, "--smallest", str(SMALLEST_BATCH)], env).document
    choice, best = best_of(swept)
    what = f"{model.stem}, {runtime}: {words_of(choice)}; best of the sweep: {words_of(best)}"
    pair = float(choice["rows_per_s"]), float(best["rows_per_s"])
    lines = [
        amount("E", what, "images/s", pair, BAR),
        amount("E", "the search; all that one may take", "s", (float(plan["search_s"]), 120.0), SEARCH_BAR),
    ]
    return lines, {"plan": plan, "sweep": swept}
