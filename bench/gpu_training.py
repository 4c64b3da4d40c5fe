"""Q: ResNet50 trained on a GPU: `penstock.fit` on uint8 arrays and `penstock fit` on photos, against the bare step.

`python -m bench.gpu_training --backend jax --photos FOLDER`. The bare step is the model's own, compiled, on data that
lies on the GPU. Rates are those of epochs after the first, which compiles. It needs a GPU, penstock, numpy, Keras and
the framework, and nothing of the other workloads' environment.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import interleave
from bench.photos import photo_folder, warm
from bench.shell import BenchError, run
from bench.table import Bar, Line, show

# The least share of the bare step, by backend; and how many times as fast as Keras's own `fit`.
OF_BARE = {"jax": Bar(0.97), "tensorflow": Bar(0.90)}
OF_KERAS = {"jax": None, "tensorflow": Bar(2.0)}
PHOTOS_PER_S = 4500.0


@dataclass(frozen=True)
class TrainingJob:
    """One backend, and what its model learns from."""

    backend: str
    policy: str
    batch_size: int
    images: int
    photos: int
    root: Path

    def side(self, name: str) -> float:
        """Images per second of one side, in a process of its own."""
        options = ["--batch", str(self.batch_size), "--images", str(self.images), "--policy", self.policy]
        command = [sys.executable, "-m", "bench.gpu_training_child", name, *options]
        env = {"KERAS_BACKEND": self.backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        document = run(command, env).document
        print(json.dumps({name: document}), file=sys.stderr, flush=True)
        return float(document["rows_per_s"])

    def from_photos(self, given: Path | None) -> float:
        """Images per second of `penstock fit` on JPEG files, by the epochs after the first."""
        folder = photo_folder(self.root, self.photos, given)
        warm(folder)
        with tempfile.TemporaryDirectory(dir=self.root) as scratch:
            options = ["--label", "@folder", "--epochs", "3", "--batch-size", str(self.batch_size), "--json"]
            command = [
                *(sys.executable, "-m", "penstock", "fit", f"bench.gpu_training_child:{self.policy}", str(folder)),
                *("--output", str(Path(scratch, "trained")), "--runtime", self.backend, *options),
            ]
            document = run(command).document
        print(json.dumps({"photos": document}), file=sys.stderr, flush=True)
        later = document["epoch_s"][1:]
        return float(document["rows"] * len(later) / sum(later))


def measure(job: TrainingJob, repeats: int, given: Path | None) -> tuple[list[Line], dict[str, Any]]:
    """Measure the sides in turn."""
    sides = {name: (lambda name=name: job.side(name)) for name in ("bare", "keras", "penstock")}
    rates = interleave(sides, repeats)
    of = {name: median(values) for name, values in rates.items()}

    def line(what: str, ours: float, peer: float, bar: Bar | None) -> Line:
        what = f"ResNet50 {job.policy} on {job.backend}, batch {job.batch_size}, {what}"
        return Line("Q", what, "images/s", ours, peer, ours / peer, bar)

    lines = [
        line("against the bare step", of["penstock"], of["bare"], OF_BARE[job.backend]),
        line("against model.fit", of["penstock"], of["keras"], OF_KERAS[job.backend]),
    ]
    if job.photos:
        rates["photos"] = [job.from_photos(given) for _ in range(repeats)]
        bar = Bar(PHOTOS_PER_S / of["bare"])
        lines.append(line(f"from {job.photos:,} JPEG files", median(rates["photos"]), of["bare"], bar))
    return lines, rates


def main(arguments: list[str]) -> int:
    """Run Q for one backend and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_training", description=__doc__)
    parser.add_argument("--backend", choices=("jax", "tensorflow"), required=True)
    parser.add_argument("--policy", default="mixed_bfloat16", choices=("mixed_bfloat16", "float32"))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=20_480, help="arrays in memory, 150 KB each")
    parser.add_argument("--num-photos", type=int, default=60_000, help="0: none")
    parser.add_argument("--photos", type=Path, help="photographs to repeat; drawn pictures without it")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as root:
        job = TrainingJob(
            options.backend, options.policy, options.batch, options.images, options.num_photos, Path(root)
        )
        try:
            lines, rates = measure(job, options.repeats, options.photos)
        except BenchError as error:
            print(f"Q failed: {error}", file=sys.stderr)
            return 1
    show(lines, rates, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
