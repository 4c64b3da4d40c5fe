"""K: a thousand outputs, of which the five best are kept, beside all of them, and beside a single number."""

from functools import partial

from bench import data
from bench.measure import interleave, median_of
from bench.settings import BenchSettings
from bench.sides import TableJob, run_penstock, run_seconds, sample_of
from bench.table import Bar, Line, amount

# Both read the same files through the same layers; what they write differs, and nothing else.
FLOOR_BAR = Bar(1.05, is_at_most=True)


def kept(settings: BenchSettings) -> list[Line]:
    """Run K on a part of A1's files."""
    rows = settings.sizes.ranked_rows

    def job(side: str, *options: str) -> TableJob:
        return TableJob(
            kind="images",
            model=settings.models / "thousand.keras",
            folder=data.images_folder(settings.data, settings.sizes),
            num_rows=rows,
            penstock_options=("--limit", str(rows), *options, *settings.penstock_options),
            scratch=settings.scratch / side,
        )

    jobs = {
        "all": job("all", "--outputs", "classes"),
        "best": job("best", "--outputs", "classes", "--top-k", "5"),
        "one": job("one", "--outputs", "largest"),
    }
    data.warm(jobs["all"].folder)
    results = interleave({side: partial(run_penstock, each) for side, each in jobs.items()}, settings.repeats)
    seconds = {side: median_of(runs, run_seconds) for side, runs in results.items()}
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}
    what = f"{rows:,} rows → 1,000 classes, --top-k 5, without start"
    pair_of_one, pair_of_all = (seconds["best"], seconds["one"]), (seconds["best"], seconds["all"])
    return [
        amount("K", f"{what}; one number a row", "s", pair_of_one, FLOOR_BAR, samples=samples),
        amount("K", f"{what}; all 1,000 a row", "s", pair_of_all, None),
    ]
