"""N: an array of images through `penstock predict` with a cached plan, against a script that calls `model.predict`.

Both from the shell, start to finish, on two cores: import, load the model, load the images, predict, write a .npy.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import outputs, planned_data
from bench.measure import interleave, median_of, only_cores
from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, BenchError, Finished, run
from bench.sides import check_counts, penstock_command, run_plan, run_seconds, sample_of, whole_seconds
from bench.table import Bar, Line, faster

CORES = 2
BAR = Bar(2.2)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class ArrayJob:
    """One model, its images, and where each side writes."""

    title: str
    model: Path
    images: Path
    num_images: int
    piece: int
    """How many images the sweep of batch sizes predicts with each."""
    options: tuple[str, ...]
    scratch: Path
    env: dict[str, str]

    @property
    def ours(self) -> Path:
        return self.scratch / "penstock"

    @property
    def theirs(self) -> Path:
        return self.scratch / "keras.npy"


def predicted(settings: BenchSettings) -> list[Line]:
    """Run N."""
    models = {
        "mobilenet": ("MobileNetV2", settings.sizes.mobilenet_photos, 256),
        "resnet50": ("ResNet50", settings.sizes.resnet_photos, 128),
    }
    jobs = [
        ArrayJob(
            title=title,
            model=settings.models / f"{name}.keras",
            images=planned_data.only_file(planned_data.photo_array(settings.data, count)),
            num_images=count,
            piece=min(count, piece),
            options=("--format", "npy", *settings.penstock_options),
            scratch=settings.scratch,
            env={"PENSTOCK_CACHE": str(settings.root / "cache" / "whole")},
        )
        for name, (title, count, piece) in models.items()
    ]
    with only_cores(CORES):
        return [line for job in jobs for line in _compare(job, settings.repeats)]


def _compare(job: ArrayJob, repeats: int) -> list[Line]:
    planned = run_plan(job.model, job.images, job.options, job.env)
    swept = _keras(job, "sweep", "--rows", str(job.piece)).document
    batch_size = int(swept["best_batch_size"])
    job.images.read_bytes()  # no side pays for a cold page cache
    sides = {"penstock": partial(_penstock, job), "keras": partial(_predict, job, batch_size)}
    results = interleave(sides, repeats)
    difference = outputs.check_same(
        outputs.read_arrays(job.ours / "features"), outputs.read_array(job.theirs), TOLERANCE
    )
    whole, running = (
        (median_of(results["penstock"], seconds), median_of(results["keras"], seconds))
        for seconds in (whole_seconds, run_seconds)
    )
    plan = planned.document
    choice = f"{plan['choice']['runtime']} {plan['choice']['batch_size']}"
    what = f"{job.title}, {job.num_images:,} images, planned ({choice}) in {planned.seconds:.0f} s before"
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}
    details = {"samples": samples, "plan": plan, "keras": swept, "difference": difference}
    return [
        faster("N", f"{what}; model.predict(x, batch_size={batch_size})", whole, BAR, **details),
        faster("N", f"{job.title}, from the model loaded; the same", running, None),
    ]


def _penstock(job: ArrayJob) -> Finished:
    shutil.rmtree(job.ours, ignore_errors=True)
    finished = run(penstock_command(job.model, job.images, job.ours, job.options), job.env)
    check_counts(finished.document, job.num_images)
    return finished


def _predict(job: ArrayJob, batch_size: int) -> Finished:
    job.theirs.unlink(missing_ok=True)
    finished = _keras(job, "predict", "--batch", str(batch_size), "--output", str(job.theirs))
    if not job.theirs.exists():
        raise BenchError(f"model.predict left no {os.fspath(job.theirs)}")
    return finished


def _keras(job: ArrayJob, action: str, *options: str) -> Finished:
    command = [sys.executable, "-m", "bench.start_to_finish_child", action]
    return run([*command, "--model", str(job.model), "--images", str(job.images), *options], QUIET_KERAS)
