"""Resizing of images as in the library that the model was trained with.

Libraries differ in more than the filter: where a crop begins, how a size is rounded, on which side a spare pixel lies.
Pixels are within 1 of 255 of what the chosen library gives.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.records import Array
from penstock.errors import DeviceError
from penstock.options.records import ReadOptions
from penstock.sources.images.headers import BadImage

KEEP = "keep"
"""Besides those in `options.RESIZES`: an image keeps its size, at the top left of a place filled with zeros."""

Size = tuple[int, int]


@dataclass(frozen=True)
class Rendition:
    """How an encoded image becomes pixels of a size: see `ReadOptions`."""

    resize: str = "stretch"
    interpolation: str = "keras"
    fast_decode: bool = False
    engine_share: float = 0.0
    """The share of JPEGs that the engine of a GPU decodes, of those that it takes."""

    @classmethod
    def of(cls, reading: ReadOptions) -> Rendition:
        return cls(reading.resize, reading.interpolation, reading.fast_decode)

    @property
    def library(self) -> str:
        return self.interpolation.partition("-")[0]

    @property
    def has_fast_transform(self) -> bool:
        """Whether JPEGs are decoded with the fast transform, as in TensorFlow.

        An engine has only the exact transform. Loaders beside an engine use that, too, so that pixels do not depend on
        which of them decodes an image.
        """
        return self.library == "keras" and not self.engine_share

    @property
    def is_turned(self) -> bool:
        """Whether EXIF's orientation counts. Of these libraries, only OpenCV looks at it by itself."""
        return self.library == "opencv"


@dataclass(frozen=True)
class Fit:
    """The box taken from an image, the size that it is resized to, and the offset of its first pixel in the batch.

    Args:
        box: Top, left, height and width of what is taken; Pillow takes parts of pixels.
        size: What it is resized to.
        at: Row and column in the place; negative or 0 where the place shows only the middle of it.
    """

    box: tuple[float, float, float, float]
    size: Size
    at: Size = (0, 0)


def place(pixels: Array, out: Array, rendition: Rendition) -> None:
    """Bring pixels to the size of `out`, uint8 of (height, width, channels) both.

    Raises:
        BadImage: The image keeps its size, and is larger than its place.
    """
    size: Size = (pixels.shape[0], pixels.shape[1])
    room: Size = (out.shape[0], out.shape[1])
    if size == room:
        out[:] = pixels
        return
    if rendition.resize == KEEP:
        if size[0] > room[0] or size[1] > room[1]:
            raise BadImage(f"{size[0]}×{size[1]} pixels are more than the {room[0]}×{room[1]} there is room for")
        out[:] = 0
        out[: size[0], : size[1]] = pixels
        return
    fit = fit_of(size, room, rendition)
    resample = _RESAMPLERS[rendition.interpolation]
    (top, left), (height, width) = fit.at, fit.size
    if height > room[0] or width > room[1]:
        whole = np.empty((height, width, out.shape[2]), np.uint8)
        resample(pixels, fit.box, whole)
        out[:] = whole[-top : room[0] - top, -left : room[1] - left]
        return
    if fit.size != room:
        out[:] = 0
        out = out[top : top + height, left : left + width]
    resample(pixels, fit.box, out)


def fit_of(size: Size, room: Size, rendition: Rendition) -> Fit:
    """Where an image of `size` goes in a place of another size."""
    if rendition.resize == "stretch":
        return Fit((0, 0, *size), room)
    return _FITS[rendition.library, rendition.resize](size, room)


def _keras_crop(size: Size, room: Size) -> Fit:
    """As `crop_to_aspect_ratio` does; in 32-bit floats, whose rounding sometimes decides between two sizes."""
    height = _cut(size[1] * room[0], room[1], size[0])
    width = _cut(size[0] * room[1], room[0], size[1])
    return Fit(((size[0] - height) // 2, (size[1] - width) // 2, height, width), room)


def _cut(product: int, side: int, most: int) -> int:
    return max(1, min(most, int(np.float32(product) / np.float32(side))))


def _keras_pad(size: Size, room: Size) -> Fit:
    """As `pad_to_aspect_ratio` does, through `tf.image.resize_with_pad`; in 32-bit floats, too."""
    have, want = np.array(size, np.float32), np.array(room, np.float32)
    exact = have / (have / want).max()
    height, width = (max(1, int(side)) for side in exact)
    top, left = (max(0, int(side)) for side in np.floor((want - exact) / np.float32(2)))
    return Fit((0, 0, *size), (height, width), (min(top, room[0] - height), min(left, room[1] - width)))


def _pillow_crop(size: Size, room: Size) -> Fit:
    """As `ImageOps.fit` does."""
    ratio, wanted = size[1] / size[0], room[1] / room[0]
    height, width = float(size[0]), float(size[1])
    if ratio > wanted:
        width = wanted * size[0]
    elif ratio < wanted:
        height = size[1] / wanted
    return Fit(((size[0] - height) * 0.5, (size[1] - width) * 0.5, height, width), room)


def _pillow_pad(size: Size, room: Size) -> Fit:
    """As `ImageOps.pad` does."""
    ratio, wanted = size[1] / size[0], room[1] / room[0]
    height, width = room
    if ratio > wanted:
        height = max(1, round(size[0] / size[1] * width))
    elif ratio < wanted:
        width = max(1, round(size[1] / size[0] * height))
    return Fit((0, 0, *size), (height, width), (round((room[0] - height) * 0.5), round((room[1] - width) * 0.5)))


def _torchvision_crop(size: Size, room: Size) -> Fit:
    """As `Resize(side)` and `CenterCrop` do; for a place that is not square, with the smallest size that covers it."""
    if size[0] * room[1] <= size[1] * room[0]:
        height, width = room[0], max(room[1], int(room[0] * size[1] / size[0]))
    else:
        height, width = max(room[0], int(room[1] * size[0] / size[1])), room[1]
    at = (-round((height - room[0]) / 2), -round((width - room[1]) / 2))
    return Fit((0, 0, *size), (height, width), at)


def _torchvision_pad(size: Size, room: Size) -> Fit:
    """As `Resize(None, max_size=side)` and `CenterCrop`, which adds zeros, do."""
    if size[0] * room[1] <= size[1] * room[0]:
        height, width = max(1, int(room[1] * size[0] / size[1])), room[1]
    else:
        height, width = room[0], max(1, int(room[0] * size[1] / size[0]))
    return Fit((0, 0, *size), (height, width), ((room[0] - height) // 2, (room[1] - width) // 2))


def _opencv_crop(size: Size, room: Size) -> Fit:
    """OpenCV has no crop of its own: the middle, in whole pixels."""
    shrink = min(size[0] / room[0], size[1] / room[1])
    height, width = (max(1, min(have, round(want * shrink))) for have, want in zip(size, room, strict=True))
    return Fit(((size[0] - height) // 2, (size[1] - width) // 2, height, width), room)


def _opencv_pad(size: Size, room: Size) -> Fit:
    """OpenCV has none of its own: zeros around what fits in."""
    height, width = fitted(size, room)
    return Fit((0, 0, *size), (height, width), ((room[0] - height) // 2, (room[1] - width) // 2))


def fitted(size: Size, room: Size) -> Size:
    """The largest size of the same proportions that fits into `room`.

    >>> fitted((100, 200), (50, 50))
    (25, 50)
    """
    (height, width), (most_height, most_width) = size, room
    shrink = max(height / most_height, width / most_width)
    return (
        max(1, min(most_height, round(height / shrink))),
        max(1, min(most_width, round(width / shrink))),
    )


_FITS: dict[tuple[str, str], Callable[[Size, Size], Fit]] = {
    ("keras", "crop"): _keras_crop,
    ("keras", "pad"): _keras_pad,
    ("pillow", "crop"): _pillow_crop,
    ("pillow", "pad"): _pillow_pad,
    ("torchvision", "crop"): _torchvision_crop,
    ("torchvision", "pad"): _torchvision_pad,
    ("opencv", "crop"): _opencv_crop,
    ("opencv", "pad"): _opencv_pad,
}


@functools.cache
def cv2() -> Any:
    module = needed("cv2", "OpenCV")
    # One thread for each loader: its own pool would fight with the other loaders for the same cores.
    module.setNumThreads(1)
    return module


@functools.cache
def pillow() -> Any:
    return needed("PIL.Image", "Pillow")


@functools.cache
def simplejpeg() -> Any:
    return needed("simplejpeg", "simplejpeg")


def needed(name: str, known_as: str) -> ModuleType:
    """Import a package that decides pixels. Without it the job ends: another package would give other pixels.

    Raises:
        DeviceError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise DeviceError(f"{known_as} is not installed", hint="pip install 'penstock[images]'") from None


Box = tuple[float, float, float, float]
Resampler = Callable[[Array, Box, Array], None]


def _taken(pixels: Array, box: Box) -> Array:
    top, left, height, width = map(int, box)
    return pixels[top : top + height, left : left + width]


def _like_tensorflow(pixels: Array, box: Box, out: Array) -> None:
    """Bilinear from the centres of pixels, without antialiasing, as `tf.image.resize` does, rounded to the nearest.

    OpenCV does the same, but weights bytes by short integers, with which one value in eight is wrong by 1 or a little
    more; it weights wider values by floats. An OpenCV that comes with Intel's library is exact enough with bytes.
    """
    taken = _taken(pixels, box)
    if min(taken.shape[:2]) > 1 and _weighs_bytes_well():
        _with_intel(taken, out)
    else:
        _in_floats(taken, out)


def _in_floats(pixels: Array, out: Array) -> None:
    wide = np.ascontiguousarray(pixels, np.uint16)
    made = cv2().resize(wide, (out.shape[1], out.shape[0]), interpolation=cv2().INTER_LINEAR)
    np.copyto(out, made.reshape(out.shape), casting="unsafe")


def _with_intel(pixels: Array, out: Array) -> None:
    """Resize with Intel's library, which OpenCV uses only if pixels may differ, and never for a side of one pixel."""
    library = cv2()
    is_allowed = library.ipp.useIPP_NotExact()
    library.ipp.setUseIPP_NotExact(True)
    try:
        _opencv_linear(pixels, (0, 0, *pixels.shape[:2]), out)
    finally:
        library.ipp.setUseIPP_NotExact(is_allowed)


@functools.cache
def _weighs_bytes_well() -> bool:
    """Whether this OpenCV has Intel's library, found by a trial: one value in 400 differs then, else one in ten."""
    if not hasattr(cv2(), "ipp"):
        return False
    pixels = np.random.default_rng(0).integers(0, 256, (97, 89, 3), np.uint8)
    exact, quick = np.empty((2, 41, 37, 3), np.uint8)
    _in_floats(pixels, exact)
    _with_intel(pixels, quick)
    return float((exact != quick).mean()) < 0.01


def _with_opencv(name: str) -> Resampler:
    def resample(pixels: Array, box: Box, out: Array) -> None:
        target = out[:, :, 0] if out.shape[2] == 1 else out
        taken = _taken(pixels, box)
        taken = taken[:, :, 0] if taken.shape[2] == 1 else taken
        size, how = (out.shape[1], out.shape[0]), getattr(cv2(), name)
        made = cv2().resize(taken, size, dst=target, interpolation=how)
        if not np.may_share_memory(made, target):
            target[:] = made

    return resample


_opencv_linear = _with_opencv("INTER_LINEAR")


def _with_pillow(name: str, rgba: str = "RGBA") -> Resampler:
    """`rgba` says how four channels are resized: as RGBA, Pillow weighs colours by their alpha."""

    def resample(pixels: Array, box: Box, out: Array) -> None:
        top, left, height, width = box
        size = (pixels.shape[1], pixels.shape[0])
        if pixels.shape[2] > out.shape[2]:
            image = _without_copy(pixels, size)
        else:
            mode = {1: "L", 3: "RGB", 4: rgba}[pixels.shape[2]]
            image = pillow().frombuffer(mode, size, np.ascontiguousarray(pixels), "raw", mode, 0, 1)
        how = getattr(pillow().Resampling, name)
        made = image.resize((out.shape[1], out.shape[0]), how, box=(left, top, left + width, top + height))
        out[:] = np.asarray(made).reshape(out.shape)

    return resample


def takes_fourth_byte(rendition: Rendition) -> bool:
    """Whether an RGB image may be resized with a fourth byte behind each pixel, as Pillow stores it: it saves a copy.

    Pillow takes such memory without a copy since version 11.3.
    """
    return rendition.library == "pillow" and rendition.resize != KEEP and hasattr(pillow(), "fromarrow")


def _without_copy(pixels: Array, size: Size) -> Any:
    """An RGB image of Pillow on pixels that have a fourth byte."""
    values = pa.Array.from_buffers(pa.uint8(), pixels.size, [None, pa.py_buffer(pixels)])
    return pillow().fromarrow(pa.FixedSizeListArray.from_arrays(values, 4), "RGB", size)


_pillow_bilinear = _with_pillow("BILINEAR", rgba="RGBX")


def _like_torch(pixels: Array, box: Box, out: Array) -> None:
    """Bilinear with antialiasing, as torch resizes uint8 tensors: rounded to bytes between the two directions.

    Pillow does the same with finer weights: where a sum is half way between two values, torch's may round down, which
    makes a difference of 1 in each direction. With torch's weights in the second direction, the difference stays within
    1.
    """
    across = pixels
    if pixels.shape[1] != out.shape[1]:
        across = np.empty((pixels.shape[0], out.shape[1], out.shape[2]), np.uint8)
        _pillow_bilinear(pixels, box, across)
    first, weights, bits = torch_weights(across.shape[0], out.shape[0])
    lines = across.reshape(across.shape[0], -1)
    total = np.full((out.shape[0], lines.shape[1]), 1 << (bits - 1), np.int32)
    for nth, weight in enumerate(weights):
        part = lines[np.minimum(first + nth, len(lines) - 1)].astype(np.int32)
        part *= weight[:, np.newaxis]
        total += part
    total >>= bits
    np.copyto(out, np.minimum(total, 255).reshape(out.shape), casting="unsafe")


@functools.lru_cache(1024)
def torch_weights(size: int, wanted: int) -> tuple[Array, Array, int]:
    """For each output row: its first input row, the weights as (nth input row, output row), and their fractional bits.

    Weights are 16-bit integers, with as many bits behind the point as the largest of them allows.
    """
    scale = size / wanted
    reach = max(scale, 1.0)
    centres = scale * (np.arange(wanted) + 0.5)
    first = np.maximum(np.trunc(centres - reach + 0.5), 0).astype(np.intp)
    stop = np.minimum(np.trunc(centres + reach + 0.5), size).astype(np.intp)
    rows = first + np.arange((stop - first).max())[:, np.newaxis]
    weights = np.maximum(0.0, 1 - np.abs(rows - centres + 0.5) / reach) * (rows < stop)
    weights /= weights.sum(axis=0)
    largest = float(weights.max())
    bits = next((bits for bits in range(22) if int(0.5 + largest * (1 << (bits + 1))) >= 1 << 15), 22)
    return first, (weights * (1 << bits) + 0.5).astype(np.int32), bits


_RESAMPLERS: dict[str, Resampler] = {
    "keras": _like_tensorflow,
    "pillow-bilinear": _with_pillow("BILINEAR"),
    "pillow-bicubic": _with_pillow("BICUBIC"),
    "pillow-lanczos": _with_pillow("LANCZOS"),
    "torchvision": _like_torch,
    "opencv-linear": _opencv_linear,
    "opencv-area": _with_opencv("INTER_AREA"),
}
