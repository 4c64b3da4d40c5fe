"""U: `penstock predict --engine ray`: one node against the local engine, two nodes against one, and against Ray Data.

A rate is that of the steady part: of the parts between the first fifth, in which nodes may still be starting, and the
last tenth, by the times at which they were written. Start to finish, both sides start a Ray of their own here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import data, from_files, from_photos, photos
from bench.measure import interleave, median_of, only_cores
from bench.ray_nodes import RayNodes, ray_nodes
from bench.settings import BenchSettings
from bench.shell import BenchError, Finished
from bench.sides import RayData, TableJob, run_penstock, run_plan, sample_of, sweep_ray, whole_seconds
from bench.table import Bar, Line, PartlyFailed, faster, rates

ON_RAY = ("--engine", "ray")
CORES = 2
NUM_PARTS = 100
PHOTOS_A_PART = 16
LEAST_PHOTOS = 20 * PHOTOS_A_PART


@dataclass(frozen=True)
class Whole:
    """A job that both Rays run from start to finish."""

    title: str
    job: TableJob
    piece: Path
    """What Ray Data's settings are swept on."""
    check: Callable[[TableJob], object]
    bar: Bar


def compared(settings: BenchSettings) -> list[Line]:
    """Run U."""
    lines: list[Line] = []
    try:
        with only_cores(CORES):
            lines += [_one_node(settings)]
            lines += [_two_nodes(settings)]
            lines.extend(_against_ray_data(whole, settings) for whole in _wholes(settings))
    except BenchError as error:
        raise PartlyFailed(str(error), lines) from error
    return lines


def _one_node(settings: BenchSettings) -> Line:
    """The images of A1 without a search for a plan, in parts that are small enough for a rate."""
    job = from_files.images_job(settings)
    data.warm(job.folder)
    small = ("--plan", "off", "--part-rows", str(max(1, job.num_rows // NUM_PARTS)))
    sides = {"ray": _with(job, *small, *ON_RAY), "local": _with(job, *small)}
    return _rates(f"one node, A1, {job.num_rows:,} rows, steady; the local engine", sides, settings, Bar(0.9))


def _two_nodes(settings: BenchSettings) -> Line:
    """Photos on two nodes, each of which has one core."""
    job = from_photos.job_of(settings, max(LEAST_PHOTOS, settings.sizes.photos // 2))
    photos.warm(job.folder)
    with ray_nodes(CORES) as nodes:
        sides = {"two nodes": _on(nodes, job, CORES), "one node": _on(nodes, job, 1)}
        what = f"two nodes of one core, {job.num_rows:,} photos → MobileNetV2, steady; one of them"
        return _rates(what, sides, settings, Bar(1.7))


def _with(job: TableJob, *options: str) -> TableJob:
    return replace(job, penstock_options=(*job.penstock_options, *options))


def _on(nodes: RayNodes, job: TableJob, count: int) -> TableJob:
    small = ("--plan", "off", "--part-rows", str(PHOTOS_A_PART), "--batch-size", str(PHOTOS_A_PART))
    where = ("--address", nodes.address, "--max-nodes", str(count))
    return replace(_with(job, *small, *ON_RAY, *where), env=nodes.environment)


def _rates(what: str, sides: Mapping[str, TableJob], settings: BenchSettings, bar: Bar) -> Line:
    """Hold the rate of the first side against that of the second."""
    measured = interleave({name: partial(_steady_rate, job) for name, job in sides.items()}, settings.repeats)
    ours, theirs = (median_of(results, lambda result: result[0]) for results in measured.values())
    samples = {
        side: [{"steady": rate, **sample_of(finished)} for rate, finished in results]
        for side, results in measured.items()
    }
    return rates("U", what, (ours, theirs), bar, samples=samples)


def _steady_rate(job: TableJob) -> tuple[float, Finished]:
    finished = run_penstock(job)
    written = sorted(path.stat().st_mtime for path in job.penstock_output.glob("part-*"))
    first, last = len(written) // 5, len(written) * 9 // 10
    share = (last - first) / len(written)
    return job.num_rows * share / (written[last] - written[first]), finished


def _wholes(settings: BenchSettings) -> list[Whole]:
    images, features = from_files.images_job(settings), from_files.features_job(settings)
    pictures = from_photos.job_of(settings, settings.sizes.photos)
    return [
        Whole("A1", images, from_files.piece_of(images.folder), from_files.check_outputs, Bar(1.0)),
        Whole("A2", features, from_files.piece_of(features.folder), from_files.check_outputs, Bar(1.0)),
        Whole("G", pictures, from_photos.swept_piece(pictures, settings), from_photos.check_outputs, Bar(2.0)),
    ]


def _against_ray_data(whole: Whole, settings: BenchSettings) -> Line:
    job = whole.job
    if job.kind == "photos":
        photos.warm(job.folder)
        run_plan(job.model, job.folder, job.penstock_options)
    else:
        data.warm(job.folder)
    swept = sweep_ray(settings.peers_python, job, whole.piece)
    ray_data = RayData(settings.peers_python, swept["settings"])
    sides = {
        "penstock": partial(run_penstock, _with(job, *ON_RAY)),
        "ray data": partial(ray_data.run, job, is_warm=False),
    }
    results = interleave(sides, settings.repeats)
    whole.check(job)
    seconds = median_of(results["penstock"], whole_seconds), median_of(results["ray data"], whole_seconds)
    samples = {side: [sample_of(finished) for finished in runs] for side, runs in results.items()}
    what = f"{whole.title}, {job.num_rows:,} rows, start to finish with Ray's start; Ray Data"
    return faster("U", what, seconds, whole.bar, samples=samples, ray=swept)
