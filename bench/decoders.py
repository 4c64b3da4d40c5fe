"""F's yardstick: the decoders of Python, each from a file to 224×224×3 uint8 in one thread of one process.

All decode in full. Those of one interpolation make the same pixels, within 1 of 255: that is checked before they are
timed. `python -m bench.decoders FOLDER 100` prints images per second of each. The functions also serve the peers, in
their environment: nothing here needs Penstock.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.photos import files_of

Pixels = npt.NDArray[np.uint8]
Decoder = Callable[[Path], Pixels]

SIDE = 224
CHECKED_PHOTOS = 8
MOST_DIFFERENCE = 1


def with_tensorflow(path: Path) -> Pixels:
    """As Keras's own loaders do it, rounded to bytes."""
    import tensorflow as tf

    pixels = tf.io.decode_jpeg(tf.io.read_file(str(path)), channels=3)
    made: Pixels = tf.cast(tf.round(tf.image.resize(pixels, (SIDE, SIDE))), tf.uint8).numpy()
    return made


def with_simplejpeg_like_tensorflow(path: Path) -> Pixels:
    """The fast transform of libjpeg-turbo, and bilinear weights in floats: of 16-bit values, OpenCV has them."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(bytes_of(path), "RGB", fastdct=True)
    wide = cv2.resize(pixels.astype(np.uint16), (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    made: Pixels = wide.astype(np.uint8)
    return made


def with_pillow(path: Path) -> Pixels:
    """As most people do it."""
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def with_simplejpeg_and_pillow(path: Path) -> Pixels:
    import simplejpeg
    from PIL import Image

    image = Image.fromarray(simplejpeg.decode_jpeg(bytes_of(path), "RGB"))
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def with_opencv(path: Path) -> Pixels:
    import cv2

    pixels = cv2.imdecode(np.frombuffer(bytes_of(path), np.uint8), cv2.IMREAD_COLOR_RGB)
    made: Pixels = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return made


def with_simplejpeg(path: Path) -> Pixels:
    """libjpeg-turbo without detours."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(bytes_of(path), "RGB")
    made: Pixels = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return made


DECODERS: dict[str, Decoder] = {
    "TensorFlow": with_tensorflow,
    "simplejpeg + cv2 in floats": with_simplejpeg_like_tensorflow,
    "Pillow": with_pillow,
    "simplejpeg + Pillow": with_simplejpeg_and_pillow,
    "OpenCV": with_opencv,
    "simplejpeg + cv2.resize": with_simplejpeg,
}
OF_INTERPOLATION = {
    "keras": ("TensorFlow", "simplejpeg + cv2 in floats"),
    "pillow-bilinear": ("Pillow", "simplejpeg + Pillow"),
    "opencv-linear": ("OpenCV", "simplejpeg + cv2.resize"),
}
"""The decoders that make the same pixels, by Penstock's name for these. The first one is the library's own."""


def bytes_of(path: Path) -> bytes:
    """A file without Python's file objects, which cost a tenth of a millisecond where caches are full of pixels."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def stay_in_one_thread() -> None:
    """OpenCV would resize on every core."""
    import cv2

    cv2.setNumThreads(1)


def _tensorflow_in_one_thread() -> None:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def largest_difference(paths: list[Path], found: Any, interpolation: str) -> int:
    """How far pixels are from what the library itself makes of these photos, of 255."""
    own = DECODERS[OF_INTERPOLATION[interpolation][0]]
    return max(
        int(np.abs(own(path).astype(np.int16) - pixels).max()) for path, pixels in zip(paths, found, strict=True)
    )


def check_same_work(paths: list[Path]) -> None:
    """See that decoders which are held against each other make the same pixels."""
    for interpolation, names in OF_INTERPOLATION.items():
        for name in names[1:]:
            difference = largest_difference(paths, [DECODERS[name](path) for path in paths], interpolation)
            if difference > MOST_DIFFERENCE:
                raise ValueError(f"{name} differs by {difference} of 255 from {names[0]}: that is not the same work")


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
    _tensorflow_in_one_thread()
    stay_in_one_thread()
    paths = files_of(folder)[:num_photos]
    check_same_work(paths[:CHECKED_PHOTOS])
    print(json.dumps({name: images_per_second(decode, paths) for name, decode in DECODERS.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
