"""R: `penstock fit` from files, on models so small that reading is the bound, against `model.fit` on tf.data."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import data, photos
from bench.measure import interleave, median_of, only_cores
from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, BenchError, Finished, run
from bench.sides import peers_python, sample_of, whole_seconds
from bench.table import Bar, Line, faster, rates
from bench.training_sizes import LABEL

CORES = 2


@dataclass(frozen=True)
class Training:
    """A folder, a compiled model and how it is trained on it."""

    what: str
    model: Path
    folder: Path
    label: str
    rows: int
    batch_size: int
    epochs: int = 1
    peers: tuple[tuple[str, str, Bar], ...] = ()
    """The kind of the peer's pipeline, what it is called, and the bar."""

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.rows // self.batch_size)


def trained(settings: BenchSettings) -> list[Line]:
    """Run R: rows of Parquet files and photos in one folder a class."""
    with only_cores(CORES):
        return [line for job in _jobs(settings) for line in _compare(job, settings)]


def _jobs(settings: BenchSettings) -> Iterator[Training]:
    sizes, models = settings.sizes, settings.models
    by_hand = "a hand-written tf.data"
    rows = (("rows", by_hand, Bar(1.0)),)
    folder = data.labelled_pixels_folder(settings.data, sizes)
    what = f"{sizes.labelled_pixels:,} × 784 uint8 in Parquet"
    yield Training(what, models / "train-pixels.keras", folder, LABEL, sizes.labelled_pixels, 512, 5, rows)
    folder = data.labelled_features_folder(settings.data, sizes)
    what = f"{sizes.labelled_features:,} × 30 columns in Parquet"
    yield Training(what, models / "train-features.keras", folder, LABEL, sizes.labelled_features, 2048, 5, rows)
    count = sizes.training_photos
    folder = photos.photo_folder(settings.data, count, settings.photos)
    ready = (("photos", by_hand, Bar(1.0)), ("keras-photos", "image_dataset_from_directory", Bar(1.3)))
    yield Training(f"{count:,} photos", models / "train-photos.keras", folder, "@folder", count, 32, 4, ready)


def _compare(job: Training, settings: BenchSettings) -> list[Line]:
    (photos if job.label == "@folder" else data).warm(job.folder)
    python = peers_python(settings.peers_python)
    sides = {"penstock": partial(_penstock, job, settings.scratch / "fit", settings.penstock_options)}
    sides |= {kind: partial(_peer, python, job, kind) for kind, _, _ in job.peers}
    results = interleave(sides, settings.repeats)
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}
    whole = {side: median_of(runs, whole_seconds) for side, runs in results.items()}
    rate = {side: median_of(runs, partial(_steady_rate, job)) for side, runs in results.items()}
    lines: list[Line] = []
    for kind, peer, bar in job.peers:
        what = f"{job.what}, batches of {job.batch_size}"
        steady = rate["penstock"], rate[kind]
        lines.append(rates("R", f"{what}, epochs after the first; {peer}", steady, bar, samples=samples))
        start_to_finish = f"the same, {job.epochs} epochs, start to finish"
        lines.append(faster("R", start_to_finish, (whole["penstock"], whole[kind]), None))
    return lines


def _steady_rate(job: Training, finished: Finished) -> float:
    """Rows a second in all epochs but the first, in which models are traced and pipelines find their settings."""
    later = finished.document["epoch_s"][1:]
    return float(job.rows * len(later) / sum(later))


def fit_command(job: Training, output: Path, options: Sequence[str]) -> list[str]:
    """The command line of `penstock fit`, with this environment's Python."""
    command = [sys.executable, "-m", "penstock", "fit", str(job.model), str(job.folder), "--label", job.label]
    numbers = ["--batch-size", str(job.batch_size), "--epochs", str(job.epochs)]
    return [*command, *numbers, "--output", str(output), "--runtime", "tensorflow", "--json", "--quiet", *options]


def _penstock(job: Training, output: Path, options: Sequence[str]) -> Finished:
    shutil.rmtree(output, ignore_errors=True)
    return _checked(job, run(fit_command(job, output, options), QUIET_KERAS))


def _peer(python: Path, job: Training, kind: str) -> Finished:
    command = [str(python), "-m", "bench.peers.tf_training", kind, str(job.folder), "--model", str(job.model)]
    return _checked(job, run([*command, "--batch", str(job.batch_size), "--epochs", str(job.epochs)], QUIET_KERAS))


def _checked(job: Training, finished: Finished) -> Finished:
    found = finished.document["steps"], len(finished.document["epoch_s"]), finished.document.get("failed", 0)
    if found != (job.steps, job.epochs, 0):
        raise BenchError(f"(steps, epochs, failed rows) are {found}, expected {(job.steps, job.epochs, 0)}: {job.what}")
    return finished
