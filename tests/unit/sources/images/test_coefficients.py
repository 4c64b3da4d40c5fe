"""Resizing as sums gives what each library gives: the very bytes, but for Keras's, and OpenCV's of images that grow."""

from itertools import product

import numpy as np
import pytest

from penstock.options.records import INTERPOLATIONS, RESIZES
from penstock.sources.images.coefficients import NOT_AS_SUMS, resized, sums_of
from penstock.sources.images.resizing import Rendition, Size, fit_of, place
from tests.support.image_libraries import EXACT

SIZES = [
    (300, 500),
    (500, 300),
    (64, 64),
    (128, 128),
    (64, 90),
    (40, 30),
    (30, 200),
    (37, 201),
    (1, 1),
    (3, 300),
    (1, 9),
]
ROOMS = [(64, 64), (48, 80)]


def noise(size: Size) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), dtype=np.uint8)


def checks(size: Size) -> np.ndarray:  # type: ignore[type-arg]
    fields = np.add.outer(np.arange(size[0]) // 7, np.arange(size[1]) // 5) % 2
    return np.repeat(fields[:, :, np.newaxis] * 255, 3, axis=2).astype(np.uint8)


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("interpolation", [each for each in INTERPOLATIONS if each not in NOT_AS_SUMS])
def test_sums_are_what_the_library_gives(resize: str, interpolation: str) -> None:
    rendition = Rendition(resize, interpolation)
    for size, room, draw in product(SIZES, ROOMS, (noise, checks)):
        fit = fit_of(size, room, rendition)
        grows = fit.size[0] > fit.box[2] or fit.size[1] > fit.box[3]
        most = 1 if rendition.library not in EXACT or (interpolation == "opencv-linear" and grows) else 0
        pixels, expected = draw(size), np.empty((*room, 3), np.uint8)
        place(pixels, expected, rendition)
        found = resized(pixels, sums_of(size, room, rendition))
        assert np.abs(found.astype(int) - expected).max() <= most, (size, room, draw)


def test_weights_never_reach_beyond_the_image() -> None:
    for size, room, resize, interpolation in product(SIZES, ROOMS, RESIZES, INTERPOLATIONS):
        sums = sums_of(size, room, Rendition(resize, interpolation))
        for axis, side in ((sums.down, size[0]), (sums.across, size[1])):
            assert axis.first.min() >= 0
            assert axis.first.max() + axis.weights.shape[1] <= side
            assert axis.first.dtype == np.int32
            assert axis.weights.dtype.itemsize == 4
