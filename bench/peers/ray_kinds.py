"""What Ray Data is given: how each kind of input is read, and how its batches become what the model takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.local_ray import ray

PIXELS = 784
FEATURES = 30
PHOTO = (224, 224, 3)

Reader = Callable[[str, int | None], Any]
"""From a folder or a file, and how many blocks to make of it (None: as Ray sees fit), to a dataset."""


@dataclass(frozen=True)
class Kind:
    """One kind of input, and the settings that are worth trying with it."""

    read: Reader
    stack: Callable[[Any], Any]
    shape: tuple[int, ...]
    dtype: str
    batch_sizes: Sequence[int] = (1024, 4096, 16384)
    batch_formats: Sequence[str] = ("pyarrow", "numpy")
    block_counts: Sequence[int | None] = (None,)
    keep: Sequence[str] = ()


def stack_images(batch: Any) -> Any:
    """As numpy, Ray gives an object array of rows, to be stacked; as Arrow, the values need no copy."""
    if isinstance(batch, dict):
        return np.stack(batch["image"])
    return batch.column("image").combine_chunks().flatten().to_numpy().reshape(-1, PIXELS)


def stack_features(batch: Any) -> Any:
    columns = batch.values() if isinstance(batch, dict) else (column.to_numpy() for column in batch.columns)
    return np.stack(list(columns), axis=1)


def stack_photos(batch: Any) -> Any:
    """Photos of one size come as one array."""
    return batch["image"]


def read_tables(path: str, num_blocks: int | None) -> Any:
    # The folder, not a list of its files: Ray 2.60 resolves a list in threads that race to import fsspec.
    return ray.data.read_parquet(path, override_num_blocks=num_blocks)


def read_photos(path: str, num_blocks: int | None) -> Any:
    return ray.data.read_images(path, size=PHOTO[:2], mode="RGB", include_paths=True, override_num_blocks=num_blocks)


def read_records(path: str, num_blocks: int | None) -> Any:
    return ray.data.read_tfrecords(path, override_num_blocks=num_blocks)


KINDS: dict[str, Kind] = {
    "images": Kind(read_tables, stack_images, (PIXELS,), "uint8"),
    "features": Kind(read_tables, stack_features, (FEATURES,), "float32"),
    # Ray guesses the blocks from the bytes of the files, which are small beside their pixels.
    "photos": Kind(read_photos, stack_photos, PHOTO, "uint8", (32, 64, 128), ("numpy",), (None, 16, 64), ("path",)),
    "records": Kind(read_records, stack_images, (PIXELS,), "float32"),
}


def first_file(folder: str) -> str:
    return str(min(path for path in Path(folder).rglob("*") if path.is_file()))
