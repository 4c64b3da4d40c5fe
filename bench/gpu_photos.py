"""E with `--photos`: a folder of JPEG files through ResNet50 to the best five classes in Parquet, on one GPU.

Penstock, with each `--decoder` that is asked for, against `tf.data` and `model.predict` on the same photos. Answers of
all decoders are compared with those of the first.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.measure import interleave
from bench.photos import FILES_PER_FOLDER, files_of
from bench.shell import BenchError, run
from bench.sides import check_counts, penstock_command
from bench.table import Bar, Line

PEER = "tf.data + model.predict"
MOST_OF_THE_PEER = 60_000
"""It holds all answers in memory, and its rate does not grow with the number of photos."""
BAR, RATE_BAR = Bar(2.0), Bar(12_000, unit="images/s")
LONG_RUN = 100_000
QUALITY = 90


@dataclass(frozen=True)
class PhotoJob:
    """So many photos, under the names of links to a few, and the model that ranks classes of them."""

    model: Path
    folder: Path
    num_images: int
    options: Sequence[str]
    """What `penstock predict` is given besides."""
    peer_batch: int

    def penstock(self, decoder: str) -> dict[str, Any]:
        output = self.folder.parent / f"predictions-{decoder.replace(':', '-')}"
        shutil.rmtree(output, ignore_errors=True)
        options = [*self.options, "--top-k", "5", "--decoder", decoder]
        finished = run(penstock_command(self.model, self.folder, output, options))
        check_counts(finished.document, self.num_images)
        names = ("rows_per_s", "start_seconds", "loaders", "bottleneck", "where")
        told = {"decoder": decoder, "wall_s": round(finished.seconds, 1)}
        told |= {name: finished.document.get(name) for name in names}
        print(json.dumps(told), file=sys.stderr, flush=True)
        return finished.document | {"output": str(output)}

    def peer(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "bench.gpu_child", "photos", "--model", str(self.model)]
        count = min(self.num_images, MOST_OF_THE_PEER)
        more = ["--photos", str(self.folder), "--images", str(count), "--batch", str(self.peer_batch)]
        finished = run([*command, *more], {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"})
        print(json.dumps({PEER: finished.document}), file=sys.stderr, flush=True)
        return finished.document


def measure_photos(
    job: PhotoJob, decoders: Sequence[str], repeats: int, *, has_peer: bool
) -> tuple[list[Line], dict[str, Any]]:
    """Measure the decoders and the peer in turn."""
    sides: dict[str, Callable[[], dict[str, Any]]] = {each: partial(job.penstock, each) for each in decoders}
    if has_peer:
        sides[PEER] = job.peer
    found = interleave(sides, repeats)
    rates = {name: median(float(each["rows_per_s"]) for each in runs) for name, runs in found.items()}
    for decoder in decoders[1:]:
        compare(Path(found[decoders[0]][-1]["output"]), Path(found[decoder][-1]["output"]), decoders[0], decoder)
    is_long = job.num_images >= LONG_RUN
    lines = []
    for decoder in decoders:
        what = f"{job.num_images:,} photos, --decoder {decoder}, against"
        for other in (PEER, *decoders[:1]):
            if other in rates and other != decoder:
                bar = (BAR if other == PEER else RATE_BAR) if is_long else None
                ours = rates[decoder]
                lines.append(Line("E", f"{what} {other}", "images/s", ours, rates[other], ours / rates[other], bar))
    return lines, {name: [each["rows_per_s"] for each in runs] for name, runs in found.items()}


def compare(one: Path, other: Path, *names: str) -> None:
    """Tell in how many rows the best class is another one, and how many of these are ties."""
    classes, scores = zip(*(_best(folder) for folder in (one, other)), strict=True)
    differs = classes[0][:, 0] != classes[1][:, 0]
    # The class of the one is the second of the other, with a score that is as good as equal.
    spread = float(scores[0].max() - scores[0].min())
    is_tie = differs & (np.abs(scores[1][:, 0] - scores[1][:, 1]) < 1e-3 * spread)
    far = float(np.abs(scores[0] - scores[1]).max()) / spread
    print(
        f"top-1 of {len(differs):,} photos, {len(np.unique(classes[0][:, 0]))} classes, {' against '.join(names)}: "
        f"{np.count_nonzero(differs)} differ, {np.count_nonzero(is_tie)} of these are ties; "
        f"scores differ by at most {far:.1e} of their spread",
        file=sys.stderr,
        flush=True,
    )


def _best(folder: Path) -> tuple[Any, Any]:
    table = pq.read_table(sorted(folder.glob("*.parquet")))
    name = next(each for each in table.column_names if each.endswith("_class")).removesuffix("_class")
    return tuple(np.stack(table[f"{name}_{what}"].to_numpy()) for what in ("class", "score"))  # type: ignore[return-value]


def link_photos(given: Path, folder: Path, num_images: int, distinct: int) -> None:
    """Fill a folder with so many names for the given photos, or for so many different cuts of them."""
    originals = files_of(given)
    if not originals:
        raise BenchError(f"no JPEG file in {given}")
    for index in range(0, num_images, FILES_PER_FOLDER):
        (folder / f"{index // FILES_PER_FOLDER:03d}").mkdir(parents=True)
    places = [folder / f"{index // FILES_PER_FOLDER:03d}" / f"{index:06d}.jpg" for index in range(num_images)]
    made = min(distinct or len(originals), num_images)
    if distinct:
        orders = [(originals[index % len(originals)], places[index], index) for index in range(made)]
        with get_context("spawn").Pool() as pool:
            pool.starmap(_cut, orders, chunksize=64)
    else:
        for original, place in zip(originals, places, strict=False):
            shutil.copyfile(original, place)
    for index in range(made, num_images):
        os.link(places[index % made], places[index])


def _cut(original: Path, place: Path, number: int) -> None:
    """Most of a photo, encoded anew."""
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(original.read_bytes())
    height, width = pixels.shape[:2]
    top, left = np.random.default_rng(number).integers(0, (height // 8 + 1, width // 8 + 1))
    piece = np.ascontiguousarray(pixels[top : top + height * 7 // 8, left : left + width * 7 // 8])
    place.write_bytes(simplejpeg.encode_jpeg(piece, quality=QUALITY, colorsubsampling="420"))
