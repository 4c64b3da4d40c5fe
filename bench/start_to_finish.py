"""N: an array of images through `penstock predict`, everything on auto, against a script that calls `model.predict`.

Both from the shell, start to finish, on two cores: import, load the model, load the images, predict, write a .npy.
Penstock runs twice: first with an empty cache, then with what the first run left in it.
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
from bench.sides import check_counts, penstock_command, run_seconds, sample_of, whole_seconds
from bench.table import Bar, Line, faster

CORES = 2
FIRST_BAR, SECOND_BAR = Bar(1.5), Bar(2.2)
TOLERANCE, NOISY_TOLERANCE = 1e-4, 1e-3


@dataclass(frozen=True)
class ArrayJob:
    """One model, its images, and where each side writes."""

    title: str
    model: Path
    images: Path
    num_images: int
    piece: int
    """How many images the sweep of batch sizes predicts with each."""
    tolerance: float
    """The share of the spread by which both sides' predictions may differ."""
    options: tuple[str, ...]
    scratch: Path
    cache: Path

    @property
    def ours(self) -> Path:
        return self.scratch / "penstock"

    @property
    def theirs(self) -> Path:
        return self.scratch / "keras.npy"


def predicted(settings: BenchSettings) -> list[Line]:
    """Run N."""
    photos = {"MobileNetV2": (settings.sizes.mobilenet_photos, 256), "ResNet50": (settings.sizes.resnet_photos, 128)}
    models = {
        "mobilenet": ("MobileNetV2", "", TOLERANCE),
        "resnet50": ("ResNet50", "", TOLERANCE),
        "noisy-mobilenet": ("MobileNetV2", " with random statistics", NOISY_TOLERANCE),
        "noisy-resnet50": ("ResNet50", " with random statistics", NOISY_TOLERANCE),
    }
    jobs = [
        ArrayJob(
            title=f"{network}{statistics}",
            model=settings.models / f"{name}.keras",
            images=planned_data.only_file(planned_data.photo_array(settings.data, count)),
            num_images=count,
            piece=min(count, piece),
            tolerance=tolerance,
            options=("--format", "npy", *settings.penstock_options),
            scratch=settings.scratch,
            cache=settings.root / "cache" / "whole",
        )
        for name, (network, statistics, tolerance) in models.items()
        for count, piece in (photos[network],)
    ]
    with only_cores(CORES):
        return [line for job in jobs for line in _compare(job, settings.repeats)]


def _compare(job: ArrayJob, repeats: int) -> list[Line]:
    swept = _keras(job, "sweep", "--rows", str(job.piece)).document
    batch_size = int(swept["best_batch_size"])
    job.images.read_bytes()  # no side pays for a cold page cache
    sides = {
        "first": partial(_first, job),
        "second": partial(_penstock, job),
        "keras": partial(_predict, job, batch_size),
    }
    results = interleave(sides, repeats)
    difference = outputs.check_same(
        outputs.read_arrays(job.ours / "features"), outputs.read_array(job.theirs), job.tolerance
    )
    keras = median_of(results["keras"], whole_seconds)
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}
    details = {"samples": samples, "keras": swept, "difference": difference}
    lines = []
    for side, bar in (("first", FIRST_BAR), ("second", SECOND_BAR)):
        last = results[side][-1].document
        how = f"{last['recipe']['runtime']} {last['recipe']['batch_size']}, searched {last['search_seconds']:.0f} s"
        what = f"{job.title}, {job.num_images:,} images, {side} run ({how}); model.predict(x, batch_size={batch_size})"
        lines.append(faster("N", what, (median_of(results[side], whole_seconds), keras), bar, **details))
    running = median_of(results["second"], run_seconds), median_of(results["keras"], run_seconds)
    return [*lines, faster("N", f"{job.title}, second run, from the model loaded; the same", running, None)]


def _first(job: ArrayJob) -> Finished:
    shutil.rmtree(job.cache, ignore_errors=True)
    return _penstock(job)


def _penstock(job: ArrayJob) -> Finished:
    shutil.rmtree(job.ours, ignore_errors=True)
    finished = run(penstock_command(job.model, job.images, job.ours, job.options), {"PENSTOCK_CACHE": str(job.cache)})
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
