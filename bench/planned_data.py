"""What M and N read: arrays and Parquet files, generated once, with as many rows as their largest batches need."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.data import fresh_staging, make_once

SEQUENCE = (64, 32)
TOKENS = 64
VOCABULARY = 10_000
CITIES = tuple(f"city-{index:04d}" for index in range(2000))
DEVICES = ("phone", "tablet", "laptop", "desktop", "watch", "television")
HOURS = tuple(range(24))
NUMBERS = 13
PHOTO_SHAPE = (224, 224, 3)

_COARSE = 8
_AT_ONCE = 256

Pixels = npt.NDArray[np.uint8]


def photo_array(root: Path, count: int) -> Path:
    """Return a folder with one .npy of so many smooth uint8 images."""
    return _array_once(root / f"photo-array-{count}", (count, *PHOTO_SHAPE), np.uint8, _smooth_images)


def sequence_array(root: Path, rows: int) -> Path:
    """Return a folder with one .npy of float32 sequences."""
    return _array_once(root / f"sequences-{rows}", (rows, *SEQUENCE), np.float32, _walks)


def token_folder(root: Path, rows: int) -> Path:
    """Return a folder with one Parquet file of token ids."""
    return make_once(root / f"tokens-{rows}", 1, rows, _token_table)


def mixed_folder(root: Path, rows: int) -> Path:
    """Return a folder with one Parquet file of strings, whole numbers and floats."""
    return make_once(root / f"mixed-{rows}", 1, rows, _mixed_table)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def _array_once(
    folder: Path, shape: tuple[int, ...], dtype: type[np.generic], make: Callable[[np.random.Generator, int], object]
) -> Path:
    """Write under a temporary name and rename, a piece at a time: a folder under its final name is whole."""
    if folder.exists():
        return folder
    staging = fresh_staging(folder)
    rng = np.random.default_rng(0)
    array = np.lib.format.open_memmap(staging / "rows.npy", "w+", dtype, shape)
    for begin in range(0, shape[0], _AT_ONCE):
        array[begin : begin + _AT_ONCE] = make(rng, min(_AT_ONCE, shape[0] - begin))
    array.flush()
    os.sync()
    return staging.rename(folder)


def _smooth_images(rng: np.random.Generator, count: int) -> Pixels:
    """Coarse colours, drawn smoothly over the image, with some grain: no two are alike, and none is noise."""
    height, width, _ = PHOTO_SHAPE
    down, across = _interpolation(height), _interpolation(width)
    coarse = rng.uniform(0, 255, (count, _COARSE, _COARSE, 3)).astype(np.float32)
    smooth = np.einsum("hi,nijc->nhjc", down, coarse, optimize=True)
    smooth = np.einsum("wj,nhjc->nhwc", across, smooth, optimize=True)
    grain = rng.normal(0, 5, (height, width, 1)).astype(np.float32)
    pixels: Pixels = (smooth + grain).clip(0, 255).astype(np.uint8)
    return pixels


def _interpolation(size: int) -> npt.NDArray[np.float32]:
    """Weights that draw `_COARSE` values out to `size`, straight from one to the next."""
    places = np.linspace(0, _COARSE - 1, size)
    weights = 1 - np.abs(places[:, None] - np.arange(_COARSE)[None, :])
    return weights.clip(0).astype(np.float32)


def _walks(rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    return rng.standard_normal((count, *SEQUENCE), dtype=np.float32)


def _token_table(rng: np.random.Generator, rows: int) -> pa.Table:
    tokens = rng.integers(0, VOCABULARY, size=rows * TOKENS, dtype=np.int32)
    return pa.table({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens), TOKENS)})


def _mixed_table(rng: np.random.Generator, rows: int) -> pa.Table:
    def drawn(values: tuple[str, ...]) -> pa.Array:
        return pa.array(values).take(pa.array(rng.integers(0, len(values), rows)))

    numbers = rng.standard_normal(rows * NUMBERS, dtype=np.float32)
    return pa.table(
        {
            "city": drawn((*CITIES, "elsewhere")),
            "device": drawn(DEVICES),
            "hour": pa.array(rng.integers(0, len(HOURS), rows)),
            "numbers": pa.FixedSizeListArray.from_arrays(pa.array(numbers), NUMBERS),
        }
    )
