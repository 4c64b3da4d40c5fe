"""Resizing as weighted sums: the input pixels, and their weights, of each output pixel of a row or a column.

A GPU resizes by such sums, whichever library is imitated. Crops and borders are in the weights: those of a pixel that
stays black are all zero. Pillow and torch have whole numbers as weights, and bytes between the two directions; OpenCV
has short integers as weights of two pixels; the others have floats. Pixels are within 1 of what `resizing.place` gives.
"""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.core.records import Array
from penstock.sources.images.resizing import Rendition, Size, fit_of, pillow, torch_weights

_PILLOW_BITS = 22
SHORT_BITS = 11
"""The bits of OpenCV's weights. It does not round between the directions, but drops bits in the second one."""
NOT_AS_SUMS = ("opencv-linear",) if platform.machine() in ("aarch64", "arm64") else ()
"""Interpolations that differ from their sums: on Arm, by up to 2 of 255, because OpenCV runs Arm's own code there."""


@dataclass(frozen=True)
class Axis:
    """One direction: output pixel `i` is the sum of the pixels from `first[i]` on, weighted by `weights[i]`.

    `bits` is the number of fractional bits of weights that are whole numbers, whose sum is rounded to a byte; None if
    weights are floats.
    """

    first: Array
    weights: Array
    bits: int | None

    def placed(self, at: int, room: int) -> Axis:
        """The axis with its first pixel at `at` of `room` pixels: what lies outside is cut off, the rest is black."""
        start, stop = max(at, 0), min(at + len(self.first), room)
        first = np.zeros(room, np.int32)
        weights = np.zeros((room, self.weights.shape[1]), self.weights.dtype)
        first[start:stop] = self.first[start - at : stop - at]
        weights[start:stop] = self.weights[start - at : stop - at]
        return Axis(first, weights, self.bits)


@dataclass(frozen=True)
class Sums:
    """Both directions. `is_down_first` says which comes first: that matters where bytes are rounded between."""

    down: Axis
    across: Axis
    is_down_first: bool = False


@functools.lru_cache(1024)
def sums_of(size: Size, room: Size, rendition: Rendition) -> Sums:
    """The sums that resize an image of `size` into a place of `room`."""
    if size == room:
        return Sums(_whole(size[0]), _whole(size[1]))
    fit, how = fit_of(size, room, rendition), rendition.interpolation
    top, left, height, width = fit.box
    is_larger = fit.size[0] > height or fit.size[1] > width
    if how == "opencv-area" and (height, width) == (2 * fit.size[0], 2 * fit.size[1]):
        how = "opencv-linear"  # OpenCV computes this case in short integers
    down = _axis(size[0], top, height, fit.size[0], how, is_larger=is_larger, is_down=True)
    across = _axis(size[1], left, width, fit.size[1], how, is_larger=is_larger, is_down=False)
    is_down_first = rendition.library == "pillow" and _goes_down_first(size, fit.size)
    return Sums(down.placed(fit.at[0], room[0]), across.placed(fit.at[1], room[1]), is_down_first)


def _goes_down_first(size: Size, wanted: Size) -> bool:
    """Whether Pillow resizes columns before rows: since version 13 it does where that leaves less to do (measured)."""
    shrinks = size[0] - wanted[0]
    return shrinks > 0 and shrinks > 2 * (size[1] - wanted[1]) and _pillow_ever_goes_down_first()


@functools.cache
def _pillow_ever_goes_down_first() -> bool:
    """Whether this Pillow ever resizes columns first, found by a trial with a tall picture."""
    tall = np.random.default_rng(0).integers(0, 2, (64, 8, 3), dtype=np.uint8) * np.uint8(255)
    images = pillow()
    found = np.asarray(images.fromarray(tall).resize((9, 8), images.Resampling.LANCZOS))
    down, across = (_axis(n, 0, n, m, "pillow-lanczos", is_larger=False, is_down=False) for n, m in ((64, 8), (8, 9)))
    return bool((found == resized(tall, Sums(down, across, is_down_first=True))).all())


def resized(pixels: Array, sums: Sums) -> Array:
    """An image resized by sums as on a GPU, but slowly, in numpy: uint8 of (height, width, channels)."""
    if sums.down.bits == SHORT_BITS:
        return _resized_in_shorts(pixels, sums)
    order = [(sums.down, 0), (sums.across, 1)] if sums.is_down_first else [(sums.across, 1), (sums.down, 0)]
    made = pixels
    for axis, direction in order:
        made = np.moveaxis(_summed(np.moveaxis(made, direction, 0), axis), 0, direction)
    return np.clip(np.rint(made), 0, 255).astype(np.uint8)


def _resized_in_shorts(pixels: Array, sums: Sums) -> Array:
    across = np.zeros((len(pixels), len(sums.across.first), pixels.shape[2]), np.int32)
    for nth, weights in enumerate(sums.across.weights.T):
        across += weights[:, None] * pixels[:, sums.across.first + nth]
    down = np.full((len(sums.down.first), *across.shape[1:]), 2, np.int32)
    for nth, weights in enumerate(sums.down.weights.T):
        down += weights[:, None, None] * (across[sums.down.first + nth] >> 4) >> 16
    rounded: Array = np.clip(down >> 2, 0, 255).astype(np.uint8)
    return rounded


def _summed(lines: Array, axis: Axis) -> Array:
    kind = axis.weights.dtype
    total = np.full((len(axis.first), *lines.shape[1:]), 0 if axis.bits is None else 1 << (axis.bits - 1), kind)
    for nth, weights in enumerate(axis.weights.T):
        total += weights[:, np.newaxis, np.newaxis] * lines[axis.first + nth].astype(kind)
    return total if axis.bits is None else np.clip(total >> axis.bits, 0, 255)


def _axis(
    size: int, start: float, length: float, wanted: int, interpolation: str, *, is_larger: bool, is_down: bool
) -> Axis:
    if interpolation == "torchvision" and is_down:
        first, weights, bits = torch_weights(size, wanted)
        return _within(first, weights.T, size, bits)
    if interpolation == "keras":
        return _two_pixels(*_linear(int(length), wanted), int(start), int(length))
    if interpolation == "opencv-linear":
        return _in_shorts(_two_pixels(*_linear(int(length), wanted), int(start), int(length)))
    if interpolation == "opencv-area" and is_larger:
        return _in_shorts(_two_pixels(*_area_when_larger(int(length), wanted), int(start), int(length)))
    if interpolation == "opencv-area":
        return _area(int(start), int(length), wanted)
    reach, weigh = _FILTERS["pillow-bilinear" if interpolation == "torchvision" else interpolation]
    return _like_pillow(size, start, length, wanted, reach, weigh)


def _whole(size: int) -> Axis:
    return Axis(np.arange(size, dtype=np.int32), np.ones((size, 1), np.float32), None)


def _linear(length: int, wanted: int) -> tuple[Array, Array]:
    """The two pixels whose centres an output pixel lies between: the lower one, and the share of the next one."""
    centres = ((np.arange(wanted) + 0.5) * (length / wanted) - 0.5).astype(np.float32)
    lower = np.floor(centres)
    return lower, centres - lower


def _two_pixels(lower: Array, share: Array, start: int, length: int) -> Axis:
    """An axis that mixes a pixel with the next one by `share`; the first and last pixel stand for those beyond."""
    share = np.where(lower < 0, 0, np.where(lower >= length - 1, 1, share)).astype(np.float32)
    first = np.clip(lower, 0, max(length - 2, 0)).astype(np.int32)
    weights = np.stack([1 - share, share], axis=1)
    if length == 1:
        weights = np.ones((len(first), 1))
    return Axis(first + np.int32(start), weights.astype(np.float32), None)


def _in_shorts(axis: Axis) -> Axis:
    return Axis(axis.first, np.rint(axis.weights * np.float32(1 << SHORT_BITS)).astype(np.int32), SHORT_BITS)


def _area_when_larger(length: int, wanted: int) -> tuple[Array, Array]:
    """As OpenCV's INTER_AREA does in both directions where one of them grows."""
    growth = wanted / length
    places = np.arange(wanted)
    lower = np.floor(places * (1 / growth))
    # In 32 bits, as in OpenCV: a share just below 1 is rounded to 1, of which the next line takes the fraction, 0.
    share = ((places + 1) - (lower + 1) * growth).astype(np.float32)
    return lower, np.where(share <= 0, np.float32(0), share - np.floor(share))


def _area(start: int, length: int, wanted: int) -> Axis:
    """An axis that weights every pixel by how much of it an output pixel covers."""
    scale = length / wanted
    edges = np.arange(wanted) * scale
    first = np.floor(edges + 1e-3).astype(np.int32)
    pixels = first[:, None] + np.arange(math.ceil(scale) + 1)
    covered = np.minimum(pixels + 1, (edges + scale)[:, None]) - np.maximum(pixels, edges[:, None])
    covered = np.where((covered > 1e-3) & (pixels < length), covered, 0.0)
    return _within(first + np.int32(start), covered / covered.sum(axis=1, keepdims=True), start + length, None)


def _like_pillow(
    size: int, start: float, length: float, wanted: int, reach: float, weigh: Callable[[Array], Array]
) -> Axis:
    begin, end = np.float32(start), np.float32(start + length)  # Pillow stores its box in 32 bits
    scale = float(end - begin) / wanted
    stretch = max(scale, 1.0)
    support = reach * stretch
    centres = float(begin) + (np.arange(wanted) + 0.5) * scale
    first = np.maximum(np.trunc(centres - support + 0.5), 0).astype(np.int32)
    stop = np.minimum(np.trunc(centres + support + 0.5), size).astype(np.int32)
    pixels = first[:, None] + np.arange(max(1, int((stop - first).max())))
    weights = np.where(pixels < stop[:, None], weigh((pixels - centres[:, None] + 0.5) / stretch), 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    whole = np.trunc(weights * (1 << _PILLOW_BITS) + np.copysign(0.5, weights)).astype(np.int32)
    return _within(first, whole, size, _PILLOW_BITS)


def _within(first: Array, weights: Array, size: int, bits: int | None) -> Axis:
    """An axis that never reads beyond the last pixel, where all weights are zero: its windows are moved back."""
    taps = min(weights.shape[1], size)
    moved = np.minimum(first, size - taps).astype(np.int32)
    places = np.arange(taps) - (first - moved)[:, None]
    is_there = (places >= 0) & (places < weights.shape[1])
    taken = np.take_along_axis(weights, np.clip(places, 0, weights.shape[1] - 1), axis=1)
    kind = np.float32 if bits is None else np.int32
    return Axis(moved, np.ascontiguousarray(np.where(is_there, taken, 0), kind), bits)


def _triangle(x: Array) -> Array:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _cubic(x: Array) -> Array:
    a, x = -0.5, np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: Array) -> Array:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


_FILTERS: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "pillow-bilinear": (1.0, _triangle),
    "pillow-bicubic": (2.0, _cubic),
    "pillow-lanczos": (3.0, _lanczos),
}
