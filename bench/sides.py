"""The sides of A1, A2, G and H: the same folder and the same model, to Penstock, to Ray Data, to bare TensorFlow."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.shell import QUIET_KERAS, BenchError, Finished, run


@dataclass(frozen=True)
class TableJob:
    """A folder of files, the model that predicts them, and where the predictions go."""

    kind: str
    """What Ray's script calls the input: images, features, photos or records."""
    model: Path
    folder: Path
    num_rows: int
    penstock_options: tuple[str, ...]
    scratch: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """More variables for Penstock."""

    @property
    def penstock_output(self) -> Path:
        return self.scratch / "penstock"

    @property
    def ray_output(self) -> Path:
        return self.scratch / "ray"

    @property
    def bare_output(self) -> Path:
        return self.scratch / "bare"


def penstock_command(model: Path, folder: Path, output: Path, options: Sequence[str]) -> list[str]:
    """Return the command line of `penstock predict`, with this environment's Python."""
    command = [sys.executable, "-m", "penstock", "predict", str(model), str(folder)]
    return [*command, "--output", str(output), "--json", "--quiet", *options]


def run_penstock(job: TableJob) -> Finished:
    """Predict with Penstock into an empty folder; removing the old one is not timed."""
    shutil.rmtree(job.penstock_output, ignore_errors=True)
    finished = run(penstock_command(job.model, job.folder, job.penstock_output, job.penstock_options), job.env)
    check_counts(finished.document, job.num_rows)
    return finished


def run_plan(
    model: Path,
    rows: Path,
    options: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    is_fresh: bool = True,
) -> Finished:
    """Have `penstock plan` search, whatever is known already, or only where nothing is; the plan stays in the cache."""
    command = [sys.executable, "-m", "penstock", "plan", str(model), str(rows), "--json", "--quiet"]
    return run([*command, *(["--fresh"] if is_fresh else []), *options], env)


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


def run_bare(python: Path, job: TableJob, batch_size: int) -> Finished:
    """Predict TFRecords with tf.data and one compiled step into an empty folder."""
    shutil.rmtree(job.bare_output, ignore_errors=True)
    return _bare(python, "run", job, job.folder, ["--batch", str(batch_size)])


def sweep_bare(python: Path, job: TableJob, piece: Path) -> dict[str, Any]:
    """Let tf.data's script find its best batch size on a piece of the input."""
    return _bare(peers_python(python), "sweep", job, piece, []).document


def _bare(python: Path, action: str, job: TableJob, folder: Path, options: Sequence[str]) -> Finished:
    command = [str(python), "-m", "bench.peers.tf_records", action]
    paths = ["--model", str(job.model), "--input", str(folder), "--output", str(job.bare_output)]
    return run([*command, *paths, *options], QUIET_KERAS)


def whole_seconds(finished: Finished) -> float:
    """From starting the process to its end."""
    return finished.seconds


def run_seconds(finished: Finished) -> float:
    """From everything up and loaded to the last file, as the side itself says."""
    return float(finished.document["run_seconds"])


def sample_of(finished: Finished) -> dict[str, object]:
    """Everything one run told, for the JSON file."""
    return {"wall_seconds": finished.seconds, **finished.document}
