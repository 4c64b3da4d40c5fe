"""M: what `penstock plan` chooses for six models, against the best point of a sweep over runtimes and batch sizes."""

import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import data, planned_data
from bench.settings import BenchSettings
from bench.shell import BenchError, Finished, run
from bench.sides import check_counts, penstock_command, run_plan
from bench.table import Bar, Line, PartlyFailed, amount

BAR = Bar(0.95)
SEARCH_BAR = Bar(120.0, is_at_most=True, unit="s")
# A search must not cost more than it saves; what the job would have taken is known to a few per cent only.
SHARE_BAR = Bar(1.05, is_at_most=True)
ROUNDS = 5
CALL_LIMIT_S = 2.0
TABLE_ROWS = 1 << 16
SEQUENCES = 1 << 14
UNPLANNED_S = 60.0
SEARCHES = re.compile(r"searching for at most .* would take about ([\d.]+) s")
TOO_SHORT = re.compile(r"about ([\d.]+) s of work are too short")


@dataclass(frozen=True)
class Planned:
    """One of the six models, and the rows that it is planned for."""

    title: str
    name: str
    rows: Callable[[BenchSettings], Path]


MODELS = (
    Planned("MLP 784-64-10", "a1", lambda settings: data.pixel_folder(settings.data, TABLE_ROWS)),
    Planned("ResNet50", "resnet50", lambda s: planned_data.photo_array(s.data, s.sizes.resnet_photos)),
    Planned("MobileNetV2", "mobilenet", lambda s: planned_data.photo_array(s.data, s.sizes.mobilenet_photos)),
    Planned("LSTM", "lstm", lambda settings: planned_data.sequence_array(settings.data, SEQUENCES)),
    Planned("transformer encoder", "encoder", lambda s: planned_data.token_folder(s.data, TABLE_ROWS)),
    Planned("wide and deep, strings", "wide-and-deep", lambda s: planned_data.mixed_folder(s.data, TABLE_ROWS)),
)
SEARCHED = "encoder"


def chosen(settings: BenchSettings) -> list[Line]:
    """Run M; a model that fails does not take the others down."""
    lines: list[Line] = []
    plans: dict[str, Any] = {}
    errors: list[str] = []
    for model in (model for model in MODELS if model.name in settings.planned):
        try:
            plan, swept = _plan_and_sweep(model, settings)
            lines.append(_line(model, plan, swept))
        except BenchError as error:
            errors.append(f"{model.title}: {error}")
            print(f"  {errors[-1]}", file=sys.stderr, flush=True)
            continue
        plans[model.name] = plan
        print(f"  {model.title}: {_told(lines[-1], plan, swept)}", file=sys.stderr, flush=True)
    if plans:
        lines.append(_longest_search(plans))
    if SEARCHED in plans:
        try:
            lines.append(_search_of_a_job(settings, plans[SEARCHED]))
        except BenchError as error:
            errors.append(f"a job without a plan: {error}")
    if errors:
        raise PartlyFailed("\n".join(errors), lines)
    return lines


def _longest_search(plans: dict[str, Any]) -> Line:
    name = max(plans, key=lambda each: float(plans[each]["search_s"]))
    what = f"the longest search of {len(plans)} ({name}); the most that one may take"
    return amount("M", what, "s", (float(plans[name]["search_s"]), SEARCH_BAR.limit), SEARCH_BAR)


def _plan_and_sweep(model: Planned, settings: BenchSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    file, rows = settings.models / f"{model.name}.keras", model.rows(settings)
    cache = settings.root / "cache" / f"sweep-{model.name}"
    shutil.rmtree(cache, ignore_errors=True)  # converting the model is part of the search
    env = {"PENSTOCK_CACHE": str(cache)}
    plan = run_plan(file, rows, settings.penstock_options, env).document
    return plan, run_sweep(file, rows, plan, settings, env).document


def run_sweep(model: Path, rows: Path, plan: dict[str, Any], settings: BenchSettings, env: dict[str, str]) -> Finished:
    """Sweep every runtime in a process of its own, and measure the best points beside the plan's choice."""
    path = settings.scratch / "plan.json"
    path.write_text(json.dumps(plan))
    limit = str(max(0.5, min(1.0, settings.sizes.scale) * CALL_LIMIT_S))
    return run([*sweep_command(model, rows, path, ROUNDS), "--call-limit", limit], env)


def sweep_command(model: Path, rows: Path, plan: Path, rounds: int) -> list[str]:
    command = [sys.executable, "-m", "bench.sweep_child", "--model", str(model), "--input", str(rows)]
    return [*command, "--plan", str(plan), "--rounds", str(rounds)]


def best_of(swept: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan's choice, and the best point of the sweep, each with the median of its rounds.

    Where the choice is one of the sweep's best points, it is measured once and is both.
    """
    sides = [{**side, "rows_per_s": median(side["rates"])} for side in swept["final"]]
    choice, *others = sides
    if choice["replicas"] == 1:
        others.append(choice)
    best = max(others, key=lambda side: float(side["rows_per_s"]))
    if not (choice["rows_per_s"] and best["rows_per_s"]):
        raise BenchError(f"a point that ran before did not run again: {swept['final']}")
    return choice, best


def words_of(side: dict[str, Any]) -> str:
    """A point in few words: the runtime, the batch size, and the replicas, threads and lanes it runs with."""
    split = f"{side['replicas']} replicas, " if side["replicas"] > 1 else ""
    lanes = f", {side['lanes']} lanes" if side["lanes"] > 1 else ""
    threads = f"{side['threads']} thread{'s' if side['threads'] > 1 else ''}"
    return f"{side['runtime']} {side['batch_size']:,} ({split}{threads}{lanes})"


def _line(model: Planned, plan: dict[str, Any], swept: dict[str, Any]) -> Line:
    choice, best = best_of(swept)
    what = f"{model.title}: {words_of(choice)}; best of the sweep: {words_of(best)}"
    pair = float(choice["rows_per_s"]), float(best["rows_per_s"])
    return amount("M", what, "rows/s", pair, BAR, plan=plan, sweep=swept)


def _told(line: Line, plan: dict[str, Any], swept: dict[str, Any]) -> str:
    ended = "; ".join(f"{runtime}: {why}" for runtime, why in (swept["ended"] | swept["left_out"]).items())
    took = f"searched {plan['search_s']:.0f} s, swept {len(swept['points'])} points in {swept['seconds']:.0f} s"
    return f"{line.ratio:.2f}, {took}\n    sweep ended at: {ended}"


def _search_of_a_job(settings: BenchSettings, plan: dict[str, Any]) -> Line:
    """A job without a plan, of about a minute by the rules of thumb: what it took of that, with its search."""
    # Only the model's own framework is compared with nobody.
    own = [trial["rows_per_s"] for trial in plan["trials"] if trial["difference"] is None]
    num_rows = round(UNPLANNED_S * (max(own, default=0.0) or plan["rows_per_s"]))
    finished, found = _run_unplanned(settings, num_rows)
    too_short = TOO_SHORT.search(finished.errors)
    if too_short is not None:  # the machine is faster now than when it was measured: a longer job
        num_rows = round(num_rows * UNPLANNED_S / float(too_short[1]))
        finished, found = _run_unplanned(settings, num_rows)
    told = SEARCHES.search(finished.errors)
    if told is None or found is None:
        raise BenchError(f"a job of {num_rows:,} rows was predicted without a search\n{finished.errors[-2000:]}")
    searched_s = float(finished.document["search_seconds"])
    what = f"{SEARCHED}, {num_rows:,} rows without a plan: search ({searched_s:.0f} s) and job, of what was predicted"
    pair = searched_s + float(finished.document["run_seconds"]), float(told[1])
    return amount("M", what, "s", pair, SHARE_BAR, plan=found, run=finished.document)


def _run_unplanned(settings: BenchSettings, num_rows: int) -> tuple[Finished, dict[str, Any] | None]:
    """Predict so many rows with an empty cache; returns the plan that is in it afterwards, too."""
    folder = planned_data.token_folder(settings.data, TABLE_ROWS)
    rows = data.linked_folder(folder, math.ceil(num_rows / TABLE_ROWS))
    cache, output = settings.root / "cache" / "unplanned", settings.scratch / "unplanned"
    for place in (cache, output):
        shutil.rmtree(place, ignore_errors=True)
    command = penstock_command(settings.models / f"{SEARCHED}.keras", rows, output, ("--limit", str(num_rows)))
    finished = run([part for part in command if part != "--quiet"], {"PENSTOCK_CACHE": str(cache)})
    check_counts(finished.document, num_rows)
    plans = sorted((cache / "plans").glob("*.json"))
    return finished, json.loads(plans[0].read_text()) if plans else None
