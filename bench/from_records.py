"""H: TFRecord files through A1's network to Parquet, against tf.data with the bare compiled step, and Ray Data."""

from functools import partial

from bench import data, outputs, records
from bench.from_files import piece_of
from bench.measure import interleave, median_of
from bench.settings import BenchSettings
from bench.sides import (
    RayData,
    TableJob,
    run_bare,
    run_penstock,
    run_seconds,
    sample_of,
    sweep_bare,
    sweep_ray,
    whole_seconds,
)
from bench.table import Bar, Line, faster

BARE_BAR = Bar(1.0)
RAY_BAR = Bar(3.0)


def predicted(settings: BenchSettings) -> list[Line]:
    """Run H: 784 floats and a label in every record."""
    job = TableJob(
        kind="records",
        model=settings.models / "a1.keras",
        folder=records.records_folder(settings.data, settings.sizes),
        num_rows=settings.sizes.records,
        penstock_options=settings.penstock_options,
        scratch=settings.scratch,
    )
    data.warm(job.folder)
    python, piece = settings.peers_python, piece_of(job.folder)
    swept = {"bare": sweep_bare(python, job, piece), "ray": sweep_ray(python, job, piece)}
    ray = RayData(python, swept["ray"]["settings"])
    sides = {
        "penstock": partial(run_penstock, job),
        "bare": partial(run_bare, python, job, swept["bare"]["settings"]["batch_size"]),
        "ray": partial(ray.run, job, is_warm=False),
    }
    results = interleave(sides, settings.repeats)
    _check_outputs(job)
    whole = {side: median_of(runs, whole_seconds) for side, runs in results.items()}
    running = {side: median_of(runs, run_seconds) for side, runs in results.items()}
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}

    def line(what: str, seconds: dict[str, float], peer: str, bar: Bar | None, **details: object) -> Line:
        what = f"{job.num_rows:,} TFRecords, {what}"
        return faster("H", what, (seconds["penstock"], seconds[peer]), bar, **details)

    bare = "tf.data + bare step"
    return [
        line(f"start to finish; {bare}", whole, "bare", BARE_BAR, samples=samples, bare=swept["bare"]),
        line(f"without start; {bare}", running, "bare", BARE_BAR),
        line("start to finish; Ray Data", whole, "ray", RAY_BAR, ray=swept["ray"]),
        line("without start; Ray Data", running, "ray", None),
    ]


def _check_outputs(job: TableJob) -> None:
    outputs.check_rows_in_order(job.penstock_output, job.num_rows)
    ours = outputs.read_predictions(job.penstock_output)
    for folder in (job.bare_output, job.ray_output):
        outputs.check_agreement(ours, outputs.read_predictions(folder), job.num_rows)
