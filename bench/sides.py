"""The two sides of A1 and A2: the same folder and the same model, once to Penstock and once to Ray Data."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.shell import QUIET_KERAS, BenchError, Finished, run


@dataclass(frozen=True)
class TableJob:
    """A folder of Parquet files, the model that predicts them, and where the predictions go."""

    kind: str
    """What Ray's script calls the input: images or features."""
    model: Path
    folder: Path
    num_rows: int
    penstock_options: tuple[str, ...]
    scratch: Path

    @property
    def penstock_output(self) -> Path:
        return self.scratch / "penstock"

    @property
    def ray_output(self) -> Path:
        return self.scratch / "ray"


def penstock_command(model: Path, folder: Path, output: Path, options: Sequence[str]) -> list[str]:
    """Return the command line of `penstock predict`, with this environment's Python."""
    command = [sys.executable, "-m", "penstock", "predict", str(model), str(folder)]
    return [*command, "--output", str(output), "--json", "--quiet", *options]


def run_penstock(job: TableJob) -> Finished:
    """Predict with Penstock into an empty folder; removing the old one is not timed."""
    shutil.rmtree(job.penstock_output, ignore_errors=True)
    finished = run(penstock_command(job.model, job.folder, job.penstock_output, job.penstock_options))
    check_counts(finished.document, job.num_rows)
    return finished


def check_counts(document: dict[str, Any], num_rows: int) -> None:
    """Hold Penstock's own count against the rows that went in."""
    counts = (document.get("rows"), document.get("failed"))
    if counts != (num_rows, 0):
        raise BenchError(f"penstock counts (rows, failed) = {counts}, expected ({num_rows}, 0)")


@dataclass(frozen=True)
class RayData:
    """Ray Data with the settings that were fastest in its sweep on this machine."""

    python: Path
    settings: dict[str, Any]

    def run(self, job: TableJob, is_warm: bool) -> Finished:
        """Predict with Ray Data into an empty folder; removing the old one is not timed."""
        shutil.rmtree(job.ray_output, ignore_errors=True)
        options = ["--settings", json.dumps(self.settings), *(["--warm"] if is_warm else [])]
        return _ray(self.python, "run", job, job.folder, options)


def sweep_ray(python: Path, job: TableJob, piece: Path) -> dict[str, Any]:
    """Let Ray's script find its best settings on a piece of the input."""
    return _ray(peers_python(python), "sweep", job, piece, []).document


def peers_python(python: Path) -> Path:
    """Return the peers' Python, which must be there."""
    if not python.exists():
        raise BenchError(f"no environment for the peers at {python}\nhint: `make bench` makes it")
    return python


def _ray(python: Path, action: str, job: TableJob, folder: Path, options: Sequence[str]) -> Finished:
    command = [str(python), "-m", "bench.peers.ray_data", action, "--kind", job.kind]
    paths = ["--model", str(job.model), "--input", str(folder), "--output", str(job.ray_output)]
    return run([*command, *paths, *options], QUIET_KERAS)
