"""Ray Data's side of A1, A2, G and H: a folder is read, predicted by a pool of actors, and written as Parquet.

Runs in the peers' environment, as `python -m bench.peers.ray_data run|sweep …`, and prints one JSON document.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

PROCESS_BEGAN = time.time()

from bench.peers.local_ray import local_ray, ray  # noqa: E402
from bench.peers.ray_kinds import KINDS, first_file  # noqa: E402

WAIT_FOR_POOL_S = 600
# (actors, logical CPUs each holds): fewer CPUs for the actors leave more for Ray's reading tasks.
POOLS = ((1, 1.0), (1, 0.1), (2, 0.5), (2, 0.1))
# A single try on a busy machine may pick a bad setting, and Ray would pay for it in every run that follows.
SWEEP_ROUNDS = 2


@dataclass(frozen=True)
class Settings:
    """What a Ray user may choose; the sweep finds the best."""

    batch_size: int = 4096
    batch_format: str = "pyarrow"
    actors: int = 1
    actor_cpus: float = 1.0
    num_blocks: int | None = None


@dataclass(frozen=True)
class Work:
    """What to predict, and whether all of Ray is up before the first file is read."""

    kind: str
    model: str
    folder: str
    output: str
    is_warm: bool


@dataclass(frozen=True)
class Times:
    """Wall-clock moments, comparable between the driver and its actors: they share the machine's clock."""

    ready: float
    """The first actor's; or the last one's, when all of Ray is up before the first file is read."""
    written: float

    @property
    def run_seconds(self) -> float:
        return self.written - self.ready


class Predictor:
    """What map_batches runs: the model is loaded once, and one traced function answers the batches."""

    def __init__(self, kind: str, model: str, ready_folder: str) -> None:
        import keras
        import tensorflow as tf

        self._kind = KINDS[kind]
        loaded = keras.models.load_model(model)
        self._step = tf.function(
            lambda batch: loaded(tf.cast(batch, tf.float32), training=False),
            input_signature=[tf.TensorSpec((None, *self._kind.shape), self._kind.dtype)],
            autograph=False,
        )
        # Tracing belongs to the start, as compiling does on Penstock's side.
        self._step(tf.zeros((8, *self._kind.shape), self._kind.dtype))
        Path(ready_folder, str(os.getpid())).write_text(repr(time.time()))

    def __call__(self, batch: Any) -> dict[str, Any]:
        kept = {name: batch[name] for name in self._kind.keep}
        return {"prediction": self._step(self._kind.stack(batch)).numpy(), **kept}


def run(work: Work, settings: Settings) -> dict[str, float]:
    """Run the job once and return its times."""
    ray_up = time.time()
    if work.is_warm:
        warm_up(work)
    times = predict(work, settings)
    return {
        "ray_up_seconds": ray_up - PROCESS_BEGAN,
        "start_seconds": times.ready - PROCESS_BEGAN,
        "run_seconds": times.run_seconds,
    }


def predict(work: Work, settings: Settings) -> Times:
    """Run Ray Data's own pipeline from the files to the files."""
    context = ray.data.DataContext.get_current()
    # By default Ray reads while the actors are starting; waiting for them takes that start out of the run.
    context.wait_for_min_actors_s = WAIT_FOR_POOL_S if work.is_warm else -1
    with tempfile.TemporaryDirectory() as ready_folder:
        KINDS[work.kind].read(work.folder, settings.num_blocks).map_batches(
            Predictor,
            fn_constructor_args=(work.kind, work.model, ready_folder),
            batch_size=settings.batch_size,
            batch_format=settings.batch_format,
            compute=ray.data.ActorPoolStrategy(size=settings.actors),
            num_cpus=settings.actor_cpus,
        ).write_parquet(work.output)
        written = time.time()
        actors_ready = [float(path.read_text()) for path in Path(ready_folder).iterdir()]
    return Times(max(actors_ready) if work.is_warm else min(actors_ready), written)


def warm_up(work: Work) -> None:
    """Read and write one file, so that Ray's processes are up and have imported what they need for it."""
    with tempfile.TemporaryDirectory() as scratch:
        KINDS[work.kind].read(first_file(work.folder), None).write_parquet(scratch)


def sweep(work: Work) -> dict[str, Any]:
    """Try the settings on a piece of the input, one after the other, each with the best of those before it."""
    warm_up(work)
    kind = KINDS[work.kind]
    tried: dict[Settings, float] = {}
    middle = kind.batch_sizes[len(kind.batch_sizes) // 2]
    best = _fastest(work, [Settings(middle, batch_format=name) for name in kind.batch_formats], tried)
    best = _fastest(work, [replace(best, batch_size=size) for size in kind.batch_sizes], tried)
    best = _fastest(work, [replace(best, num_blocks=count) for count in kind.block_counts], tried)
    pools = [replace(best, actors=actors, actor_cpus=cpus) for actors, cpus in POOLS]
    best = _fastest(work, pools, tried)
    return {
        "settings": asdict(best),
        "tried": [{**asdict(settings), "run_seconds": seconds} for settings, seconds in tried.items()],
    }


def _fastest(work: Work, candidates: Iterable[Settings], tried: dict[Settings, float]) -> Settings:
    untried = [settings for settings in candidates if settings not in tried]
    for settings in untried * SWEEP_ROUNDS:
        seconds = _run_seconds_in_scratch(work, settings)
        tried[settings] = min(seconds, tried.get(settings, seconds))
    return min(tried, key=tried.__getitem__)


def _run_seconds_in_scratch(work: Work, settings: Settings) -> float:
    with tempfile.TemporaryDirectory(dir=Path(work.output).parent) as scratch:
        return predict(replace(work, output=scratch, is_warm=True), settings).run_seconds


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "sweep"))
    parser.add_argument("--kind", choices=tuple(KINDS), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--settings", type=json.loads, default={}, help="a JSON object, as sweep prints it")
    parser.add_argument("--warm", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    model, folder, output = (str(path.resolve()) for path in (options.model, options.input, options.output))
    work = Work(options.kind, model, folder, output, options.warm)
    with local_ray():
        document = sweep(work) if options.action == "sweep" else run(work, Settings(**options.settings))
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1:])
