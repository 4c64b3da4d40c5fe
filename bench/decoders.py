"""F's yardstick: the decoders of Python, each from a file to 224×224×3 uint8 in one thread of one process.

`python -m bench.decoders FOLDER` prints images per second of each. The functions also serve the peers, in their
environment: nothing here needs Penstock.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.photos import files_of

Pixels = npt.NDArray[np.uint8]
Decoder = Callable[[Path], Pixels]

SIDE = 224
# Scales at which libjpeg-turbo has fast code; at 3/8, 5/8, 6/8 and 7/8 it takes longer than at the next larger one.
FAST_EIGHTHS = (1, 2, 4)


def with_pillow(path: Path) -> Pixels:
    """As most people do it."""
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def with_pillow_draft(path: Path) -> Pixels:
    """Decoded at 1/2, 1/4 or 1/8 where the photo is that much too large."""
    from PIL import Image

    with Image.open(path) as image:
        image.draft("RGB", (SIDE, SIDE))
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def with_opencv(path: Path) -> Pixels:
    import cv2

    pixels = cv2.imdecode(np.frombuffer(_bytes_of(path), np.uint8), cv2.IMREAD_COLOR_RGB)
    made: Pixels = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return made


def with_opencv_reduced(path: Path) -> Pixels:
    """OpenCV takes the scale from the caller, who has to know the size: the header tells it."""
    import cv2
    import simplejpeg

    data = _bytes_of(path)
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    flags = {
        1: cv2.IMREAD_REDUCED_COLOR_8,
        2: cv2.IMREAD_REDUCED_COLOR_4,
        4: cv2.IMREAD_REDUCED_COLOR_2,
        8: cv2.IMREAD_COLOR,
    }
    bgr = cv2.imdecode(np.frombuffer(data, np.uint8), flags[_eighths(height, width)])
    made: Pixels = cv2.cvtColor(cv2.resize(bgr, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), cv2.COLOR_BGR2RGB)
    return made


def with_simplejpeg(path: Path) -> Pixels:
    """libjpeg-turbo without detours, at the smallest scale that is fast and large enough."""
    import cv2
    import simplejpeg

    data = _bytes_of(path)
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    eighths = _eighths(height, width)
    least = {"min_height": -(-height * eighths // 8), "min_width": -(-width * eighths // 8)}
    pixels = simplejpeg.decode_jpeg(data, "RGB", **least)
    made: Pixels = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return made


DECODERS: dict[str, Decoder] = {
    "Pillow": with_pillow,
    "Pillow draft": with_pillow_draft,
    "OpenCV": with_opencv,
    "OpenCV reduced": with_opencv_reduced,
    "simplejpeg + cv2.resize": with_simplejpeg,
}


def _bytes_of(path: Path) -> bytes:
    """A file without Python's file objects, which cost a tenth of a millisecond where caches are full of pixels."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _eighths(height: int, width: int) -> int:
    shorter = min(height, width)
    return next((eighths for eighths in FAST_EIGHTHS if -(-shorter * eighths // 8) >= SIDE), 8)


def stay_in_one_thread() -> None:
    """OpenCV would resize on every core."""
    import cv2

    cv2.setNumThreads(1)


def images_per_second(decode: Decoder, paths: list[Path]) -> float:
    """Decode every file once; the first ones twice, so that imports and tables are not timed."""
    for path in paths[:8]:
        decode(path)
    began = time.perf_counter()
    for path in paths:
        if decode(path).shape != (SIDE, SIDE, 3):
            raise ValueError(f"{path} was not decoded to {SIDE}×{SIDE}×3")
    return len(paths) / (time.perf_counter() - began)


def main(folder: Path, num_photos: int) -> None:
    stay_in_one_thread()
    paths = files_of(folder)[:num_photos]
    print(json.dumps({name: images_per_second(decode, paths) for name, decode in DECODERS.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
