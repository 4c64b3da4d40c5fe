"""D: whether the peak memory of `penstock predict`, over all its processes, grows with the input."""

import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO

from bench import data
from bench.measure import interleave
from bench.process_tree import peak_bytes
from bench.settings import BenchSettings
from bench.shell import failure, parse_document
from bench.sides import check_counts, penstock_command
from bench.table import Bar, Line, amount

# The same files under more names: a job of the same kind, ten times as long.
SHORT_FILES = 10
LONG_FILES = 100


def bounded(settings: BenchSettings) -> list[Line]:
    """Run D on A1's files: 500,000 rows and 5,000,000 rows at scale 1.0."""
    folder = data.images_folder(settings.data, settings.sizes)
    jobs = {f: partial(_peak_of_job, settings, folder, f) for f in (SHORT_FILES, LONG_FILES)}
    peaks = interleave({str(num_files): job for num_files, job in jobs.items()}, settings.repeats)
    long, short = (median(peaks[str(num_files)]) / 1e6 for num_files in (LONG_FILES, SHORT_FILES))
    long_rows, short_rows = (f * settings.sizes.a1_rows_per_file for f in (LONG_FILES, SHORT_FILES))
    what = f"peak memory of {long_rows:,} rows, beside that of {short_rows:,}"
    return [amount("D", what, "MB", (long, short), Bar(1.1, is_at_most=True), samples=peaks)]


def _peak_of_job(settings: BenchSettings, folder: Path, num_files: int) -> int:
    num_rows = num_files * settings.sizes.a1_rows_per_file
    linked = data.linked_folder(folder, num_files)
    with tempfile.TemporaryDirectory(dir=settings.scratch) as scratch:
        output = Path(scratch, "penstock")
        # Only the long job would search for a plan, and a search has processes of its own for a while.
        options = ("--plan", "off", *settings.penstock_options)
        command = penstock_command(settings.models / "a1.keras", linked, output, options)
        return peak_of_command(command, num_rows)


def peak_of_command(command: Sequence[str], num_rows: int) -> int:
    """Run a command of Penstock's, check what it counts, and return the peak of its processes."""
    # Files, not pipes: nobody reads a pipe while this process is busy sampling.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=output, stderr=errors, text=True) as process:
            peak = peak_bytes(process)
        if process.returncode != 0:
            raise failure(command, process.returncode, _text(errors))
        check_counts(parse_document(_text(output), command), num_rows)
    return peak


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
