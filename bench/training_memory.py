"""S: whether the peak memory of `penstock fit`, over all its processes, grows with the input."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from bench import data, photos
from bench.measure import interleave
from bench.memory import peak_of_command
from bench.settings import BenchSettings
from bench.table import Bar, Line, amount
from bench.training_from_files import Training, fit_command
from bench.training_sizes import LABEL

TIMES = 10
BAR = Bar(1.1, is_at_most=True)
SHORT_FILES = 4


def bounded(settings: BenchSettings) -> list[Line]:
    """Run S on rows of Parquet files, and on photos."""
    return [_compare(short, long, settings) for short, long in _jobs(settings)]


def _jobs(settings: BenchSettings) -> Iterator[tuple[Training, Training]]:
    """A short job and a long one, with as many steps: allocators keep more, the longer a process works."""
    sizes = settings.sizes
    folder = data.labelled_pixels_folder(settings.data, sizes)
    short, long = (data.linked_folder(folder, files) for files in (SHORT_FILES, TIMES * SHORT_FILES))
    rows = SHORT_FILES * sizes.labelled_pixels_per_file
    yield _pair(Training("rows of Parquet", settings.models / "train-pixels.keras", short, LABEL, rows, 512), long)
    count = sizes.few_photos
    short, long = (photos.photo_folder(settings.data, many, settings.photos) for many in (count, TIMES * count))
    yield _pair(Training("photos", settings.models / "train-photos.keras", short, "@folder", count, 32), long)


def _pair(short: Training, folder: Path) -> tuple[Training, Training]:
    return replace(short, epochs=TIMES), replace(short, folder=folder, rows=TIMES * short.rows)


def _compare(short: Training, long: Training, settings: BenchSettings) -> Line:
    jobs = {"long": partial(_peak, long, settings), "short": partial(_peak, short, settings)}
    peaks = interleave(jobs, settings.repeats)
    pair = median(peaks["long"]) / 1e6, median(peaks["short"]) / 1e6
    what = f"peak memory of training on {long.rows:,} {long.what}, beside {short.rows:,} in {TIMES} epochs"
    return amount("S", what, "MB", pair, BAR, samples=peaks)


def _peak(job: Training, settings: BenchSettings) -> int:
    with tempfile.TemporaryDirectory(dir=settings.scratch) as scratch:
        return peak_of_command(fit_command(job, Path(scratch, "fit"), settings.penstock_options), job.rows)
