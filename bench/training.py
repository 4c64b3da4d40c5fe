"""P: training from memory with small steps, against `model.fit` in the same process, on both backends."""

import sys
from statistics import median

from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, run
from bench.table import Bar, Line, amount

PAIRS = 7
BACKENDS = ("tensorflow", "jax")


def small_steps(settings: BenchSettings) -> list[Line]:
    """Epochs of `penstock.fit` and `model.fit` in turn; the median of the ratios of neighbours counts."""
    return [_line(backend, settings.sizes.training_rows) for backend in BACKENDS]


def _line(backend: str, num_rows: int) -> Line:
    command = [sys.executable, "-m", "bench.training_child", "--rows", str(num_rows), "--pairs", str(PAIRS)]
    document = run(command, {**QUIET_KERAS, "KERAS_BACKEND": backend}).document
    ours, theirs = document["seconds"]["penstock"], document["seconds"]["model.fit"]
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    what = f"784-64-10 on {backend}, {num_rows:,} rows in batches of 32, an epoch"
    peer = median(theirs)
    return amount("P", what, "s", (ratio * peer, peer), Bar(1.03, is_at_most=True), samples=document)
