"""I: how long a batch of 19 MB takes from one process to another, through a slot and through a queue."""

import sys

from bench.settings import BenchSettings
from bench.shell import run
from bench.table import Bar, Line, amount

BAR = Bar(0.3, is_at_most=True, unit="ms")


def batches(settings: BenchSettings) -> list[Line]:
    """Run I; medians are over all hand-overs, and the three ways take turns."""
    count = settings.sizes.hand_overs
    command = [sys.executable, "-m", "bench.hand_over_child", str(count), str(settings.repeats)]
    document = run(command).document
    queue, direct, relayed = (document[way]["p50_ms"] for way in ("queue", "direct", "relayed"))
    what = f"hand-over of {document['megabytes']:.1f} MB, p50 of {count * settings.repeats:,}"
    return [
        amount("I", f"{what}; multiprocessing.Queue", "ms", (direct, queue), BAR, samples=document),
        amount("I", f"{what}, by way of the coordinator; the same", "ms", (relayed, queue), BAR),
    ]
