"""F: a folder of JPEG files to 224×224×3 uint8 in shared memory, against decoders alone and the loaders of others."""

import os
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import photos
from bench.decoders import DECODERS
from bench.measure import interleave
from bench.settings import BenchSettings
from bench.shell import QUIET_KERAS, Finished, run
from bench.sides import peers_python
from bench.table import Bar, Line, amount

BATCH = 64
# What people decode with in a Dataset. Somebody may use a faster decoder there; that is shown, without a bar.
USUAL_DECODERS = ("Pillow", "Pillow draft", "OpenCV")
FASTEST_DECODER = "simplejpeg + cv2.resize"
# One thread is timed on a part of the photos: five decoders take their turns.
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
        "penstock": partial(_ours, folder, cores, timed),
        "decoders": partial(_here, "bench.decoders", str(folder), str(max(100, count // DECODER_FRACTION))),
        "DataLoader": partial(_data_loader, settings, folder, cores, timed),
        "tf.data": partial(_peer, settings, "tf_photos", str(folder), "--photos", str(timed)),
        "Ray Data": partial(_peer, settings, "ray_photos", str(folder)),
    }
    results = interleave(sides, settings.repeats)
    documents = {side: [finished.document for finished in runs] for side, runs in results.items()}
    return _lines(documents, cores)


def _ours(folder: Path, cores: int, timed: int) -> Finished:
    return _here("bench.to_slots_child", str(folder), "--loaders", str(cores), "--photos", str(timed))


def _here(module: str, *arguments: str) -> Finished:
    return run([sys.executable, "-m", module, *arguments])


def _data_loader(settings: BenchSettings, folder: Path, cores: int, timed: int) -> Finished:
    decoders = ",".join([*USUAL_DECODERS, FASTEST_DECODER])
    options = ["--photos", str(timed), "--workers", str(cores), "--decoders", decoders]
    return _peer(settings, "torch_photos", str(folder), *options)


def _peer(settings: BenchSettings, script: str, *arguments: str) -> Finished:
    python = peers_python(settings.peers_python)
    return run([str(python), "-m", f"bench.peers.{script}", *arguments, "--batch", str(BATCH)], QUIET_KERAS)


def _lines(documents: Documents, cores: int) -> list[Line]:
    ours = _median(documents, "penstock", "rate")
    decoder = max(DECODERS, key=partial(_median, documents, "decoders"))
    usual = max(USUAL_DECODERS, key=partial(_median, documents, "DataLoader"))
    single = _median(documents, "decoders", decoder)
    faster = Bar(1.0)

    def line(what: str, rate: float, bar: Bar | None, **details: Any) -> Line:
        return amount("F", f"JPEG → slots, {cores} loaders; {what}", "/s", (ours, rate), bar, **details)

    return [
        line(f"{cores} × one thread of {decoder}", cores * single, Bar(0.9), samples=documents),
        line(f"DataLoader, {cores} workers, {usual}", _median(documents, "DataLoader", usual), faster),
        line("DataLoader, simplejpeg", _median(documents, "DataLoader", FASTEST_DECODER), None),
        line("tf.data", _median(documents, "tf.data", "rate"), faster),
        line("Ray Data read_images", _median(documents, "Ray Data", "rate"), faster),
    ]


def _median(documents: Documents, side: str, figure: str) -> float:
    return median(float(document[figure]) for document in documents[side])
