"""P: training from memory with small steps, against `model.fit` in the same process, on every backend."""

import sys
from importlib.util import find_spec
from statistics import median

from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, run
from bench.table import Bar, Line, amount

PAIRS = 7
BACKENDS = ("tensorflow", "jax", "torch")


def small_steps(settings: BenchSettings) -> list[Line]:
    """Epochs of `penstock.fit` and `model.fit` in turn; the median of the ratios of neighbours counts."""
    return [_line(backend, settings) for backend in BACKENDS]


def _line(backend: str, settings: BenchSettings) -> Line:
    num_rows = settings.sizes.training_rows
    command = [sys.executable, "-m", "bench.training_child", "--rows", str(num_rows), "--pairs", str(PAIRS)]
    if backend == "torch" and find_spec("torch") is None:
        # The peers' environment has it; whatever is in both is taken from this one.
        command += ["--more-packages", *map(str, settings.root.glob("peers-venv/lib/python*/site-packages"))]
    document = run(command, {**QUIET_KERAS, "KERAS_BACKEND": backend}).document
    ours, theirs = document["seconds"]["penstock"], document["seconds"]["model.fit"]
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    what = f"784-64-10 on {backend}, {num_rows:,} rows in batches of 32, an epoch"
    peer = median(theirs)
    return amount("P", what, "s", (ratio * peer, peer), Bar(1.03, is_at_most=True), samples=document)
