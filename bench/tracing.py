"""O: what `--trace` costs, on a part of G's photos."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import photos
from bench.from_photos import CORES, job_of
from bench.measure import interleave, median_of, only_cores
from bench.settings import BenchSettings
from bench.shell import BenchError, Finished
from bench.sides import TableJob, run_penstock, run_plan, run_seconds, sample_of
from bench.table import Bar, Line, amount

BAR = Bar(1.02, is_at_most=True)
PART = 4
# Two percent are little beside what one run differs from the next.
MORE_REPEATS = 2


def cost(settings: BenchSettings) -> list[Line]:
    """Run O: the same job with and without a trace, in turn."""
    count = max(200, settings.sizes.photos // PART)
    job = job_of(settings, count)
    trace = settings.scratch / "trace.json"
    with only_cores(CORES):
        photos.warm(job.folder)
        run_plan(job.model, job.folder, job.penstock_options, is_fresh=False)
        sides = {"traced": partial(_traced, job, trace), "plain": partial(run_penstock, job)}
        results = interleave(sides, settings.repeats + MORE_REPEATS)
    pair = median_of(results["traced"], run_seconds), median_of(results["plain"], run_seconds)
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}
    what = f"{count:,} photos → MobileNetV2 with --trace ({trace.stat().st_size / 1e6:.1f} MB); without"
    return [amount("O", what, "s", pair, BAR, samples=samples)]


def _traced(job: TableJob, trace: Path) -> Finished:
    trace.unlink(missing_ok=True)
    finished = run_penstock(replace(job, penstock_options=(*job.penstock_options, "--trace", str(trace))))
    if not trace.exists():
        raise BenchError(f"no trace was written to {trace}")
    return finished
