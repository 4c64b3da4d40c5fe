"""A1 and A2: Parquet to Parquet from the shell, against Ray Data."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import data, outputs
from bench.measure import interleave, median_of
from bench.settings import BenchSettings
from bench.shell import Finished
from bench.sides import RayData, TableJob, run_penstock, run_seconds, sample_of, sweep_ray, whole_seconds
from bench.table import Bar, Line, faster

SWEEP_FRACTION = 6

Results = dict[str, list[Finished]]


@dataclass(frozen=True)
class TableWorkload:
    """One of the two workloads: its job and the ratios asked for."""

    name: str
    job: TableJob
    whole_bar: Bar
    run_bar: Bar


def images(settings: BenchSettings) -> list[Line]:
    """Run A1."""
    return _compare(TableWorkload("A1", images_job(settings), Bar(2.0), Bar(2.5)), settings)


def features(settings: BenchSettings) -> list[Line]:
    """Run A2."""
    return _compare(TableWorkload("A2", features_job(settings), Bar(2.5), Bar(4.0)), settings)


def images_job(settings: BenchSettings) -> TableJob:
    """784 uint8 in one nested column."""
    return TableJob(
        kind="images",
        model=settings.models / "a1.keras",
        folder=data.images_folder(settings.data, settings.sizes),
        num_rows=settings.sizes.a1_rows,
        penstock_options=settings.penstock_options,
        scratch=settings.scratch,
    )


def features_job(settings: BenchSettings) -> TableJob:
    """30 flat float32 columns."""
    return TableJob(
        kind="features",
        model=settings.models / "a2.keras",
        folder=data.features_folder(settings.data, settings.sizes),
        num_rows=settings.sizes.a2_rows,
        penstock_options=("--input", "features=f*", *settings.penstock_options),
        scratch=settings.scratch,
    )


def _compare(workload: TableWorkload, settings: BenchSettings) -> list[Line]:
    job = workload.job
    data.warm(job.folder)
    swept = sweep_ray(settings.peers_python, job, piece_of(job.folder))
    ray = RayData(settings.peers_python, swept["settings"])
    results = interleave(
        {
            "penstock": partial(run_penstock, job),
            "ray": partial(ray.run, job, is_warm=False),
            "ray, warm": partial(ray.run, job, is_warm=True),
        },
        settings.repeats,
    )
    check_outputs(job)
    return _lines(workload, results, swept)


def piece_of(folder: Path) -> Path:
    """Return a part of the folder: large enough that the sweep sees the steady state."""
    num_files = sum(1 for _ in folder.iterdir())
    return data.linked_folder(folder, max(2, num_files // SWEEP_FRACTION))


def check_outputs(job: TableJob) -> None:
    """Hold all predictions of both sides against each other, in whatever order Ray wrote its own."""
    outputs.check_rows_in_order(job.penstock_output, job.num_rows)
    ours = outputs.read_predictions(job.penstock_output)
    theirs = outputs.read_predictions(job.ray_output)
    outputs.check_agreement(ours, theirs, job.num_rows)


def _lines(workload: TableWorkload, results: Results, swept: dict[str, object]) -> list[Line]:
    penstock, ray, warm_ray = results["penstock"], results["ray"], results["ray, warm"]
    name, rows = workload.name, f"{workload.job.num_rows:,} rows"
    whole = median_of(penstock, whole_seconds), median_of(ray, whole_seconds)
    warm = median_of(penstock, run_seconds), median_of(warm_ray, run_seconds)
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}
    return [
        faster(name, f"{rows}, start to finish", whole, workload.whole_bar, samples=samples, ray=swept),
        faster(name, f"{rows}, without start", warm, workload.run_bar),
    ]
