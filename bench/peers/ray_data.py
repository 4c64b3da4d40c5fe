"""Ray Data's side of A1 and A2: read_parquet, map_batches on an actor pool, write_parquet.

Runs in the peers' environment, as `python -m bench.peers.ray_data run|sweep …`, and prints one JSON document.
"""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

PROCESS_BEGAN = time.time()

# Ray reads these when it is imported: it stays on this machine and says nothing to anyone. On Linux it turns
# `_node_ip_address="127.0.0.1"` into the network card's address and would serve everyone there; only with
# clusters off, by a variable named after other systems, does it keep to the loopback address.
os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")
os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")

import numpy as np  # noqa: E402
import ray  # noqa: E402
import ray.data  # noqa: E402

LOOPBACK = "127.0.0.1"
WAIT_FOR_POOL_S = 600
BATCH_SIZES = (1024, 4096, 16384)
BATCH_FORMATS = ("pyarrow", "numpy")
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

        self._stack = STACKERS[kind]
        width, dtype = (784, tf.uint8) if kind == "images" else (30, tf.float32)
        loaded = keras.models.load_model(model)
        self._step = tf.function(
            lambda batch: loaded(tf.cast(batch, tf.float32), training=False),
            input_signature=[tf.TensorSpec((None, width), dtype)],
            autograph=False,
        )
        # Tracing belongs to the start, as compiling does on Penstock's side.
        self._step(tf.zeros((8, width), dtype))
        Path(ready_folder, str(os.getpid())).write_text(repr(time.time()))

    def __call__(self, batch: Any) -> dict[str, Any]:
        return {"prediction": self._step(self._stack(batch)).numpy()}


def stack_images(batch: Any) -> Any:
    """As numpy, Ray gives an object array of rows, to be stacked; as Arrow, the values need no copy."""
    if isinstance(batch, dict):
        return np.stack(batch["image"])
    return batch.column("image").combine_chunks().flatten().to_numpy().reshape(-1, 784)


def stack_features(batch: Any) -> Any:
    columns = batch.values() if isinstance(batch, dict) else (column.to_numpy() for column in batch.columns)
    return np.stack(list(columns), axis=1)


STACKERS: dict[str, Callable[[Any], Any]] = {"images": stack_images, "features": stack_features}


@contextmanager
def local_ray() -> Iterator[None]:
    """Start Ray on the loopback address alone; its processes and its temporary files end with the block."""
    # Unix sockets lie in here, and their paths may have 107 bytes only: hence /tmp, whatever TMPDIR says.
    session = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        ray.init(
            _node_ip_address=LOOPBACK,
            _temp_dir=session,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        _require_loopback()
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(session, ignore_errors=True)


def _require_loopback() -> None:
    """Another version of Ray may read other variables: then it must not run unnoticed on an open address."""
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    if addresses != {LOOPBACK}:
        sys.exit(f"ray serves {sorted(addresses)}, expected {LOOPBACK} alone")


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
        # The folder, not a list of its files: Ray 2.60 resolves a list in threads that race to import fsspec.
        ray.data.read_parquet(work.folder).map_batches(
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
    first = str(min(Path(work.folder).iterdir()))
    with tempfile.TemporaryDirectory() as scratch:
        ray.data.read_parquet(first).write_parquet(scratch)


def sweep(work: Work) -> dict[str, Any]:
    """Try the settings on a piece of the input: the batch format, then the batch size, then the pool."""
    warm_up(work)
    tried: dict[Settings, float] = {}
    best = _fastest(work, [Settings(batch_format=name) for name in BATCH_FORMATS], tried)
    best = _fastest(work, [replace(best, batch_size=size) for size in BATCH_SIZES], tried)
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
    parser.add_argument("--kind", choices=tuple(STACKERS), required=True)
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
