"""G: a folder of JPEG files through MobileNetV2 to Parquet from the shell, against Ray Data, both on two cores.

Both decode in full and resize as Pillow does, so that their answers are compared photo by photo. Penstock goes by a
plan that was made before; a part of what it answers is compared with what TensorFlow answers.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import outputs, photos
from bench.from_files import SWEEP_FRACTION
from bench.measure import interleave, median_of, only_cores
from bench.settings import BenchSettings
from bench.sides import (
    RayData,
    TableJob,
    run_penstock,
    run_plan,
    run_seconds,
    sample_of,
    sweep_ray,
    whole_seconds,
)
from bench.table import Bar, Line, faster

CORES = 2
BAR = Bar(3.0)
COMPARED = 200
TOLERANCE = 1e-4


def predicted(settings: BenchSettings) -> list[Line]:
    """Run G: both sides write the path of every photo and its 1,280 features."""
    with only_cores(CORES):
        return _compare(job_of(settings, settings.sizes.photos), settings)


def job_of(settings: BenchSettings, count: int) -> TableJob:
    """So many photos to Parquet, with the path of each."""
    return TableJob(
        kind="photos",
        model=settings.models / "mobilenet.keras",
        folder=photos.photo_folder(settings.data, count, settings.photos),
        num_rows=count,
        # Ray resizes as Pillow does, bilinear: Penstock makes the same pixels.
        penstock_options=("--keep", "path", "--interpolation", "pillow-bilinear", *settings.penstock_options),
        scratch=settings.scratch,
    )


def _compare(job: TableJob, settings: BenchSettings) -> list[Line]:
    photos.warm(job.folder)
    planned = run_plan(job.model, job.folder, job.penstock_options)
    piece = swept_piece(job, settings)
    swept = sweep_ray(settings.peers_python, job, piece)
    ray = RayData(settings.peers_python, swept["settings"])
    sides = {"penstock": partial(run_penstock, job), "ray": partial(ray.run, job, is_warm=False)}
    results = interleave(sides, settings.repeats)
    agreement = {
        "difference to Ray": check_outputs(job),
        "difference to TensorFlow": _check_runtime(job),
    }
    whole, running = (
        (median_of(results["penstock"], seconds), median_of(results["ray"], seconds))
        for seconds in (whole_seconds, run_seconds)
    )
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}
    what = f"{job.num_rows:,} photos → MobileNetV2, {CORES} cores"
    details = {"samples": samples, "ray": swept, "agreement": agreement, "plan": planned.document}
    chosen = f"planned ({planned.document['choice']['runtime']}) in {planned.seconds:.0f} s before"
    return [
        faster("G", f"{what}, {chosen}, start to finish", whole, BAR, **details),
        faster("G", f"{what}, from the first replica or actor ready", running, None),
    ]


def swept_piece(job: TableJob, settings: BenchSettings) -> Path:
    """The photos on which Ray's settings are swept."""
    return photos.photo_folder(settings.data, max(100, job.num_rows // SWEEP_FRACTION), settings.photos)


def check_outputs(job: TableJob) -> float:
    """Hold the predictions of both sides against each other, photo by photo; returns the largest difference."""
    outputs.check_rows_in_order(job.penstock_output, job.num_rows)
    return outputs.check_by_path(job.penstock_output, job.ray_output, job.num_rows)


def _check_runtime(job: TableJob) -> float:
    """The first photos once more, without a plan: the same pixels to the model's own framework."""
    count = min(COMPARED, job.num_rows)
    options = (*job.penstock_options, "--plan", "off", "--limit", str(count))
    plain = replace(job, num_rows=count, scratch=job.scratch / "unplanned", penstock_options=options)
    run_penstock(plain)
    ours = outputs.read_predictions(job.penstock_output)[:count]
    return outputs.check_same(ours, outputs.read_predictions(plain.penstock_output), TOLERANCE)
