"""F: a folder of JPEG files to 224×224×3 uint8 in shared memory, against decoders alone and the loaders of others.

Each side decodes in full. Penstock runs once for every interpolation, and is held against those that make the same
pixels: TensorFlow's (the default), Pillow's, OpenCV's.
"""

import os
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import photos
from bench.decoders import OF_INTERPOLATION
from bench.measure import interleave
from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, Finished, run
from bench.sides import peers_python
from bench.table import Bar, Line, amount

BATCH = 64
# What people decode with in a Dataset. Somebody may use a faster decoder there; that is shown, without a bar.
USUAL_DECODERS = {"pillow-bilinear": "Pillow", "opencv-linear": "OpenCV"}
FASTEST_DECODER = "simplejpeg + cv2.resize"
# One thread is timed on a part of the photos: six decoders take their turns.
DECODER_FRACTION = 4
# A small folder is read several times over: in less than a second, nothing is steady.
LEAST_TIMED = 2000

Documents = dict[str, list[dict[str, Any]]]


def decoded(settings: BenchSettings) -> list[Line]:
    """Run F on the photos that were given, or on drawn pictures."""
    count, cores = settings.sizes.photos, len(os.sched_getaffinity(0))
    folder = photos.photo_folder(settings.data, count, settings.photos)
    photos.warm(folder)
    timed = max(LEAST_TIMED, count)
    sides = {
        **{name: partial(_ours, folder, cores, timed, name) for name in OF_INTERPOLATION},
        "decoders": partial(_here, "bench.decoders", str(folder), str(max(100, count // DECODER_FRACTION))),
        "DataLoader": partial(_data_loader, settings, folder, cores, timed),
        "tf.data": partial(_peer, settings, "tf_photos", str(folder), "--photos", str(timed)),
        "Ray Data": partial(_peer, settings, "ray_photos", str(folder)),
    }
    results = interleave(sides, settings.repeats)
    documents = {side: [finished.document for finished in runs] for side, runs in results.items()}
    return _lines(documents, cores)


def _ours(folder: Path, cores: int, timed: int, interpolation: str) -> Finished:
    options = ["--loaders", str(cores), "--photos", str(timed), "--interpolation", interpolation]
    return _here("bench.to_slots_child", str(folder), *options)


def _here(module: str, *arguments: str) -> Finished:
    return run([sys.executable, "-m", module, *arguments])


def _data_loader(settings: BenchSettings, folder: Path, cores: int, timed: int) -> Finished:
    decoders = ",".join([*USUAL_DECODERS.values(), FASTEST_DECODER])
    options = ["--photos", str(timed), "--workers", str(cores), "--decoders", decoders]
    return _peer(settings, "torch_photos", str(folder), *options)


def _peer(settings: BenchSettings, script: str, *arguments: str) -> Finished:
    python = peers_python(settings.peers_python)
    return run([str(python), "-m", f"bench.peers.{script}", *arguments, "--batch", str(BATCH)], QUIET_KERAS)


def _lines(documents: Documents, cores: int) -> list[Line]:
    """Each peer is held against Penstock with the peer's own pixels."""
    faster = Bar(1.0)

    def line(interpolation: str, what: str, rate: float, bar: Bar | None, **details: Any) -> Line:
        ours = _median(documents, interpolation, "rate")
        return amount(
            "F", f"JPEG → slots, {interpolation}, {cores} loaders; {what}", "/s", (ours, rate), bar, **details
        )

    lines: list[Line] = []
    for interpolation, decoders in OF_INTERPOLATION.items():
        best = max(decoders, key=partial(_median, documents, "decoders"))
        single = _median(documents, "decoders", best)
        details = {} if lines else {"samples": documents}
        lines.append(line(interpolation, f"{cores} × one thread of {best}", cores * single, Bar(0.9), **details))
    for interpolation, usual in USUAL_DECODERS.items():
        rate = _median(documents, "DataLoader", usual)
        lines.append(line(interpolation, f"DataLoader, {cores} workers, {usual}", rate, faster))
    fastest = _median(documents, "DataLoader", FASTEST_DECODER)
    lines.append(line("opencv-linear", "DataLoader, simplejpeg", fastest, None))
    lines.append(line("keras", "tf.data", _median(documents, "tf.data", "rate"), faster))
    lines.append(line("pillow-bilinear", "Ray Data read_images", _median(documents, "Ray Data", "rate"), faster))
    return lines


def _median(documents: Documents, side: str, figure: str) -> float:
    return median(float(document[figure]) for document in documents[side])
