"""J: the memory that it takes to list and divide a folder of a million files."""

import sys
from functools import partial
from pathlib import Path

from bench.data import fresh_staging
from bench.measure import interleave, median_of
from bench.settings import BenchSettings
from bench.shell import BenchError, Finished, run
from bench.table import Bar, Line, amount

FILES_PER_FOLDER = 1000
BAR = Bar(300.0, is_at_most=True, unit="MB")
WAYS = ("penstock", "list")


def listed(settings: BenchSettings) -> list[Line]:
    """Run J: each side in a fresh process, of which the system tells the peak."""
    count = settings.sizes.tiny_files
    folder = tiny_files_folder(settings.data, count)
    sides = {way: partial(_peak, way, folder, count) for way in WAYS}
    results = interleave(sides, settings.repeats)
    ours, theirs = (median_of(results[way], _megabytes) for way in WAYS)
    samples = {way: [finished.document for finished in runs] for way, runs in results.items()}
    what = f"peak memory, {count:,} files listed and divided; as a Python list of paths and sizes"
    return [amount("J", what, "MB", (ours, theirs), BAR, samples=samples)]


def tiny_files_folder(root: Path, count: int) -> Path:
    """Return a folder of so many files of a few bytes, a thousand in each subfolder; made once."""
    folder = root / f"tiny-{count}"
    if folder.exists():
        return folder
    staging = fresh_staging(folder)
    for first in range(0, count, FILES_PER_FOLDER):
        place = staging / f"folder-{first // FILES_PER_FOLDER:05d}"
        place.mkdir()
        for index in range(first, min(first + FILES_PER_FOLDER, count)):
            # Named as images are: nothing is decoded here, so what is in them does not matter.
            (place / f"photo-{index:08d}.jpg").write_bytes(b"tiny")
    return staging.rename(folder)


def _peak(way: str, folder: Path, count: int) -> Finished:
    finished = run([sys.executable, "-m", "bench.many_files_child", way, str(folder)])
    if finished.document["files"] != count:
        raise BenchError(f"{way} finds {finished.document['files']} files, expected {count}")
    return finished


def _megabytes(finished: Finished) -> float:
    return float(finished.document["peak_megabytes"])
