"""`python -m bench`: run the workloads, print the table, write the figures.

Slow figures are only reported. The exit code is 1 when a side crashed or answered something wrong.
"""

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import (
    best_classes,
    estimator,
    from_files,
    from_photos,
    from_records,
    hand_over,
    in_memory,
    many_files,
    memory,
    on_ray,
    planned,
    simulated_cluster,
    start_to_finish,
    to_slots,
    tracing,
    training,
    training_from_files,
    training_memory,
)
from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, BenchError, run
from bench.sizes import Sizes
from bench.table import Line, PartlyFailed, render

WORKLOADS: dict[str, Callable[[BenchSettings], list[Line]]] = {
    "A1": from_files.images,
    "A2": from_files.features,
    "B": in_memory.large,
    "C": in_memory.small,
    "D": memory.bounded,
    "F": to_slots.decoded,
    "G": from_photos.predicted,
    "H": from_records.predicted,
    "I": hand_over.batches,
    "J": many_files.listed,
    "K": best_classes.kept,
    "L": estimator.predicted,
    "M": planned.chosen,
    "N": start_to_finish.predicted,
    "O": tracing.cost,
    "P": training.small_steps,
    "R": training_from_files.trained,
    "S": training_memory.bounded,
    "T": simulated_cluster.bounded,
    "U": on_ray.compared,
}
MODELS = (
    *("a1", "a2", "mobilenet", "thousand", "resnet50", "lstm", "encoder", "wide-and-deep"),
    *("noisy-mobilenet", "noisy-resnet50"),
    *("train-pixels", "train-features", "train-photos"),
)
PACKAGES = ("penstock", "keras", "tensorflow", "jax", "onnxruntime", "openvino", "tf2onnx", "numpy", "pyarrow")

LEGEND = """\
Medians of {repeats} runs, the sides in turn. The ratio says how many times faster penstock is; where the bar
is ≤, how much penstock takes of what the peer takes (D: the long job of what the short one takes).
A  peer: Ray Data, at the best settings of a sweep on this machine ({ray}).
   Start to finish: from starting the process to its end, on both sides.
   Without start, penstock: from its first replica ready to its last commit. Ray: from its last actor ready
   to its last file, in runs of their own in which Ray is up, has read and written a file, and every actor
   holds the loaded and traced model before the first row is read.
B, C  peer: model.predict of the same model in the same process, without its progress bar.
D  anonymous and shared memory (PSS without file-backed pages) of all processes together, every 50 ms.
F  images a second in the steady state, penstock and peer; the ratio is of these.
G  peer: Ray Data, as in A; penstock goes by a plan that was made before. H  peers as named. Start to finish as in A;
   without start, on every side, from its model loaded: what Ray has read until then is not on this clock.
I  from a batch decoded in its slot to an array in another process. J  peak resident memory of a fresh process.
K  the same network and files; what is written differs: the five best of 1,000, one number, or all of them.
L  Estimator.predict: on cpu:2 beside cpu:1, a thread each; and a tiny model beside a plain session loop.
M  penstock: what `penstock plan` chose; peer: the best point of a sweep over every runtime with the same answers and
   every power of two as batch size. Both measured once more, medians of {rounds} rounds in turn.
N  peer: a script that calls model.predict at its best batch size; both from the shell, on two cores.
O  the same job with and without --trace, without start.
P  an epoch of penstock.fit beside one of model.fit, fed from memory, without progress bars; the median of pairs.
R  penstock fit, and model.fit on tf.data: rows a second in the epochs after the first, and from the shell to its end.
S  peak memory of penstock fit, as in D, of as many steps on ten times the rows.
T  the driver of a simulated cluster, with a real journal; peer: the same of a tenth of the rows.
U  --engine ray; steady: between the first fifth and the last tenth of the parts, by the times they were written.
   A bar with a unit is held against penstock's own figure."""


def main(arguments: list[str]) -> int:
    """Run the chosen workloads and return the exit code."""
    options = _parse(arguments)
    settings = BenchSettings(
        Sizes(options.scale),
        options.repeats,
        options.data.resolve(),
        tuple(shlex.split(options.penstock)),
        options.photos.resolve() if options.photos else None,
        tuple(options.planned),
    )
    settings.scratch.mkdir(parents=True, exist_ok=True)
    # Plans and converted models of the benchmark are its own: it neither finds the user's nor leaves any there.
    os.environ["PENSTOCK_CACHE"] = str(settings.root / "cache" / "all")
    _make_models(settings)
    lines, errors = _run_all(options.only, settings)
    print(render(lines), _legend(lines, settings), sep="\n\n")
    for name, error in errors.items():
        print(f"\n{name} failed: {error}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(_document(lines, errors, settings), indent=1))
    return 1 if errors else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Penstock against its peers.")
    parser.add_argument("--scale", type=float, default=1.0, help="1.0: the issue's sizes")
    parser.add_argument("--only", type=_workload_names, default=list(WORKLOADS), help="such as A1,A2,B,C,D,F")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side")
    parser.add_argument("--data", type=Path, default=Path(".bench"), help="data and the peers' environment")
    parser.add_argument("--photos", type=Path, help="JPEG files for F and G; without it, pictures are drawn")
    planned_names = [model.name for model in planned.MODELS]
    parser.add_argument("--planned", nargs="+", choices=planned_names, default=planned_names, help="models of M")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--penstock", default="", help="more options for `penstock predict`, as one string")
    return parser.parse_args(arguments)


def _workload_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such workload: {unknown}; there are {', '.join(WORKLOADS)}")
    return names


def _make_models(settings: BenchSettings) -> None:
    """Save the models in a process of their own: this one must stay small and import no framework."""
    if not all((settings.models / f"{name}.keras").exists() for name in MODELS):
        run([sys.executable, "-m", "bench.models", str(settings.models)], QUIET_KERAS)


def _run_all(names: Iterable[str], settings: BenchSettings) -> tuple[list[Line], dict[str, str]]:
    """Run the workloads; one that fails does not take the others down."""
    lines: list[Line] = []
    errors: dict[str, str] = {}
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            found = WORKLOADS[name](settings)
        except BenchError as error:
            errors[name] = str(error)
            found = error.lines if isinstance(error, PartlyFailed) else []
        lines += found
        if found:
            print(render(found), file=sys.stderr, flush=True)
    return lines, errors


def _legend(lines: Iterable[Line], settings: BenchSettings) -> str:
    swept = {line.workload: line.details["ray"] for line in lines if "ray" in line.details}
    chosen = (f"{workload}: {_words(ray['settings'])}" for workload, ray in swept.items())
    return LEGEND.format(repeats=settings.repeats, rounds=planned.ROUNDS, ray="; ".join(chosen) or "not run")


def _words(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _document(lines: Iterable[Line], errors: dict[str, str], settings: BenchSettings) -> dict[str, Any]:
    return {
        "scale": settings.sizes.scale,
        "repeats": settings.repeats,
        "machine": {"system": platform.platform(), "cores": len(os.sched_getaffinity(0))},
        "versions": {name: _version(name) for name in PACKAGES},
        "penstock_options": settings.penstock_options,
        "lines": [line.as_json() for line in lines],
        "errors": errors,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
