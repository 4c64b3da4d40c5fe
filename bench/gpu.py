"""E: ResNet50 on uint8 arrays, `penstock predict` against the bare compiled step on data already on the GPU.

`python -m bench.gpu --runtime jax --images 60000,240000 --batch 512`. With `--auto`, the batch size that a plan chooses
is held against a sweep over batch sizes instead; with `--start`, the start is timed by its steps, cold and warm; with
`--photos FOLDER`, JPEG files are predicted and held against `tf.data`. It needs a GPU, penstock, numpy, Keras and the
runtime's framework, and nothing of the other workloads' environment.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.gpu_auto import measure_auto
from bench.gpu_photos import PhotoJob, link_photos, measure_photos
from bench.gpu_start import measure_start
from bench.measure import interleave
from bench.shell import BenchError, Finished, run
from bench.sides import check_counts, penstock_command
from bench.table import Bar, Line, show

IMAGE_SHAPE = (224, 224, 3)
IMAGES_PER_FILE = 10_000
# Enough for the largest batch of a sweep.
AUTO_IMAGES = 8192
START_BATCHES = 4
SHORT_RUN = 100_000
"""With fewer images, the beginning and the end of a run count."""
BARS = {
    ("float32", True): Bar(0.93),
    ("float32", False): Bar(0.97),
    ("mixed_bfloat16", True): Bar(0.90),
    ("mixed_bfloat16", False): Bar(0.95),
}


@dataclass(frozen=True)
class GpuJob:
    """One runtime, one model and the images it predicts."""

    runtime: str
    dtype_policy: str
    num_images: int
    batch_size: int
    devices: str
    seconds: float
    root: Path

    @property
    def model(self) -> Path:
        return self.root / "resnet50.keras"

    @property
    def images(self) -> Path:
        return self.root / f"images-{self.num_images}"

    def save_model(self, action: str = "save", *more: str) -> None:
        """Save the model in a process without a GPU, which leaves no trace on the card."""
        hidden = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        self._child(action, hidden, "--dtype-policy", self.dtype_policy, *more)

    def bare_step(self) -> float:
        """Return images per second of the compiled step alone."""
        return self._rate("bare", "--batch", str(self.batch_size), "--seconds", str(self.seconds))

    def model_predict(self) -> float:
        """Return images per second of `model.predict`, on few images: it is slow, and holds them all."""
        return self._rate("predict", "--batch", "256", "--images", str(min(self.num_images, 4096)))

    def penstock(self) -> float:
        """Return images per second of `penstock predict`, from its first replica ready to its last commit."""
        with tempfile.TemporaryDirectory(dir=self.root) as scratch:
            finished = run(self._penstock_command(Path(scratch, "predictions")))
        check_counts(finished.document, self.num_images)
        print(json.dumps({"penstock": finished.document}), file=sys.stderr, flush=True)
        return float(finished.document["rows_per_s"])

    @property
    def options(self) -> list[str]:
        """What `penstock predict` is given."""
        options = ["--format", "npy", "--devices", self.devices, "--runtime", self.runtime]
        return [*options, "--batch-size", str(self.batch_size)]

    def _penstock_command(self, output: Path) -> list[str]:
        return penstock_command(self.model, self.images, output, self.options)

    def _rate(self, action: str, *options: str) -> float:
        return float(self._child(action, {}, *options).document["rows_per_s"])

    def _child(self, action: str, extra_env: dict[str, str], *options: str) -> Finished:
        command = [sys.executable, "-m", "bench.gpu_child", action, "--model", str(self.model), *options]
        env = {"KERAS_BACKEND": self.runtime, "TF_CPP_MIN_LOG_LEVEL": "3", **extra_env}
        return run(command, env)


def write_images(folder: Path, num_images: int, like: Path | None = None) -> None:
    """Write one file of random images, or take that of a folder, and list it under more names up to the count."""
    folder.mkdir()
    per_file = min(IMAGES_PER_FILE, num_images)
    num_files, rest = divmod(num_images, per_file)
    if rest:
        raise BenchError(f"--images must be a multiple of {per_file}, received {num_images}")
    first = folder / "images-000.npy"
    if like is not None:
        os.link(like / first.name, first)
    else:
        _draw(first, per_file)
    for index in range(1, num_files):
        os.link(first, folder / f"images-{index:03d}.npy")


def _draw(path: Path, num_images: int) -> None:
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (num_images, *IMAGE_SHAPE))
    rng = np.random.default_rng(0)
    for begin in range(0, num_images, 1000):
        piece = array[begin : begin + 1000]
        piece[:] = rng.integers(0, 256, piece.shape, dtype=np.uint8)
    array.flush()


def measure(jobs: list[GpuJob], repeats: int, is_predict_measured: bool) -> tuple[list[Line], dict[str, Any]]:
    """Measure the sides in turn, jobs of several sizes beside one bare step, which Penstock is held against."""
    first, *others = jobs
    first.save_model()
    write_images(first.images, first.num_images)
    for job in others:
        write_images(job.images, job.num_images, like=first.images)
    sides = {"bare step": first.bare_step} | {f"penstock, {job.num_images:,} images": job.penstock for job in jobs}
    rates = interleave(sides, repeats)
    if is_predict_measured:
        rates["model.predict"] = [first.model_predict()]
    medians = {name: median(values) for name, values in rates.items()}
    lines = []
    for job in jobs:
        line = partial(_line, job, medians[f"penstock, {job.num_images:,} images"])
        bars = {"bare step": BARS.get((job.dtype_policy, job.num_images < SHORT_RUN)), "model.predict": None}
        lines += [line(name, medians[name], bar) for name, bar in bars.items() if name in medians]
    return lines, rates


def measure_choice(job: GpuJob) -> tuple[list[Line], dict[str, Any]]:
    """Hold the batch size that a plan chooses against the best of a sweep."""
    job.save_model("save-varied")
    write_images(job.images, AUTO_IMAGES)
    return measure_auto(job.model, job.images, job.runtime, job.devices)


def measure_ready(job: GpuJob) -> tuple[list[Line], dict[str, Any]]:
    """Time the start of a short job: with an empty cache, and with what that left there."""
    job.save_model()
    num_images = START_BATCHES * job.batch_size
    write_images(job.images, num_images)
    return measure_start(job.model, job.images, num_images, job.runtime, job.options)


def measure_job_of_photos(job: GpuJob, options: argparse.Namespace) -> tuple[list[Line], dict[str, Any]]:
    """Hold whole jobs of photos, with each decoder, against `tf.data` and `model.predict`."""
    job.save_model("save-ranking", "--photos", str(options.photos))
    link_photos(options.photos, job.images, job.num_images, options.distinct)
    given = ["--devices", job.devices, "--runtime", job.runtime, "--batch-size", str(job.batch_size), "--plan", "off"]
    photos = PhotoJob(job.model, job.images, job.num_images, [*given, *options.penstock.split()], options.peer_batch)
    return measure_photos(photos, options.decoders.split(","), options.repeats, has_peer=not options.no_peer)


def _line(job: GpuJob, ours: float, peer_name: str, peer: float, bar: Bar | None) -> Line:
    what = f"ResNet50 {job.dtype_policy}, {job.num_images:,} images, {job.runtime}, batch {job.batch_size}"
    what += f", against {peer_name}"
    return Line("E", what, "images/s", ours, peer, ours / peer, bar)


def _sizes(text: str) -> list[int]:
    """The sizes of jobs, each once; of several, each has whole files."""
    sizes = [int(each) for each in text.split(",")]
    if min(sizes) < 1 or len(set(sizes)) < len(sizes) or (len(sizes) > 1 and any(s % IMAGES_PER_FILE for s in sizes)):
        raise argparse.ArgumentTypeError(f"sizes differ, and several are multiples of {IMAGES_PER_FILE:,}")
    return sizes


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--runtime", choices=("jax", "tensorflow"), required=True)
    parser.add_argument("--images", type=_sizes, default=[60_000], help="how many; several in turn, as 60000,240000")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--dtype-policy", default="float32", help="such as mixed_bfloat16")
    parser.add_argument("--devices", default="gpu", help="as `penstock predict` takes it")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the bare step runs")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--model-predict", action="store_true", help="measure model.predict too, once")
    parser.add_argument("--auto", action="store_true", help="a plan's batch size against a sweep over batch sizes")
    parser.add_argument("--start", action="store_true", help="the start by its steps, cold and warm")
    parser.add_argument("--photos", type=Path, help="a folder of JPEG files, which are repeated under other names")
    parser.add_argument("--decoders", default="gpu", help="with --photos: as in cpu,gpu,gpu:0.4")
    parser.add_argument("--distinct", type=int, default=0, help="with --photos: so many different cuts of them")
    parser.add_argument("--peer-batch", type=int, default=256, help="with --photos: the batch size of model.predict")
    parser.add_argument("--no-peer", action="store_true", help="with --photos: without tf.data")
    parser.add_argument("--penstock", default="", help="with --photos: more options for `penstock predict`")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run E for one runtime and return the exit code."""
    options = _parse(arguments)
    if len(options.images) > 1 and (options.start or options.auto or options.photos is not None):
        print("E failed: only plain jobs have several --images", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as root:
        jobs = [
            GpuJob(
                runtime=options.runtime,
                dtype_policy=options.dtype_policy,
                num_images=num_images,
                batch_size=options.batch,
                devices=options.devices,
                seconds=options.seconds,
                root=Path(root),
            )
            for num_images in options.images
        ]
        job = jobs[0]
        try:
            if options.start:
                lines, rates = measure_ready(job)
            elif options.photos is not None:
                lines, rates = measure_job_of_photos(job, options)
            elif options.auto:
                lines, rates = measure_choice(job)
            else:
                lines, rates = measure(jobs, options.repeats, options.model_predict)
        except BenchError as error:
            print(f"E failed: {error}", file=sys.stderr)
            return 1
    show(lines, rates, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
