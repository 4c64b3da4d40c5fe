"""The Parquet folders that the workloads read; generated once and reused by every later run."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.sizes import A1_FILES, A2_FILES, LABELLED_FILES, Sizes
from bench.training_sizes import LABEL

PIXELS = 784
FEATURES = 30
IMAGE_COLUMN = "image"

TableMaker = Callable[[np.random.Generator, int], pa.Table]


def images_folder(root: Path, sizes: Sizes) -> Path:
    """Return A1's folder: one nested column of 784 uint8, as a fixed-size list."""
    rows = sizes.a1_rows_per_file
    return make_once(root / f"a1-{A1_FILES}x{rows}", A1_FILES, rows, _image_table)


def features_folder(root: Path, sizes: Sizes) -> Path:
    """Return A2's folder: 30 flat float32 columns, f00 to f29."""
    rows = sizes.a2_rows_per_file
    return make_once(root / f"a2-{A2_FILES}x{rows}", A2_FILES, rows, _feature_table)


def labelled_pixels_folder(root: Path, sizes: Sizes) -> Path:
    """Return a folder of R: A1's rows with the label of one of ten classes."""
    rows = sizes.labelled_pixels_per_file
    return make_once(root / f"labelled-pixels-{LABELLED_FILES}x{rows}", LABELLED_FILES, rows, _labelled_images)


def labelled_features_folder(root: Path, sizes: Sizes) -> Path:
    """Return a folder of R: A2's rows with a label that is a number."""
    rows = sizes.labelled_features // LABELLED_FILES
    return make_once(root / f"labelled-features-{LABELLED_FILES}x{rows}", LABELLED_FILES, rows, _labelled_features)


def pixel_folder(root: Path, rows: int) -> Path:
    """Return M's folder: one file such as A1 has many of."""
    return make_once(root / f"pixels-{rows}", 1, rows, _image_table)


def linked_folder(folder: Path, num_files: int) -> Path:
    """Return a folder of that many hard links to the files of `folder`, in turn: more rows, the same disk."""
    linked = folder.with_name(f"{folder.name}-as-{num_files}")
    if linked.exists():
        return linked
    sources = sorted(folder.iterdir())
    staging = fresh_staging(linked)
    for index in range(num_files):
        source = sources[index % len(sources)]
        os.link(source, (staging / _file_name(index)).with_suffix(source.suffix))
    return staging.rename(linked)


def warm(folder: Path) -> None:
    """Read every file once, so that no side pays for a cold page cache."""
    buffer = bytearray(1 << 22)
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def make_once(folder: Path, num_files: int, rows_per_file: int, make_table: TableMaker) -> Path:
    """Return a folder of Parquet files; one under its final name is whole, as it is renamed at the end."""
    if folder.exists():
        return folder
    staging = fresh_staging(folder)
    for index in range(num_files):
        table = make_table(np.random.default_rng(index), rows_per_file)
        pq.write_table(table, staging / _file_name(index))
    return staging.rename(folder)


def fresh_staging(folder: Path) -> Path:
    """Return an empty folder beside `folder`, to be renamed to it when it is whole."""
    staging = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    return staging


def _file_name(index: int) -> str:
    return f"part-{index:03d}.parquet"


def _image_table(rng: np.random.Generator, rows: int) -> pa.Table:
    pixels = rng.integers(0, 256, size=rows * PIXELS, dtype=np.uint8)
    return pa.table({IMAGE_COLUMN: pa.FixedSizeListArray.from_arrays(pa.array(pixels), PIXELS)})


def _labelled_images(rng: np.random.Generator, rows: int) -> pa.Table:
    return _image_table(rng, rows).append_column(LABEL, pa.array(rng.integers(0, 10, rows)))


def _labelled_features(rng: np.random.Generator, rows: int) -> pa.Table:
    return _feature_table(rng, rows).append_column(LABEL, pa.array(rng.standard_normal(rows, dtype=np.float32)))


def _feature_table(rng: np.random.Generator, rows: int) -> pa.Table:
    columns = {f"f{index:02d}": rng.standard_normal(rows, dtype=np.float32) for index in range(FEATURES)}
    return pa.table(columns)
