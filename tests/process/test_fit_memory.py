"""Training from files takes memory for batches and windows, not for the data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.process_tree import peak_bytes

from tests.conftest import ENVIRONMENT

ROWS, WIDTH = 20_000, 200
MOST_GROWTH = 1.1


def write(path: Path, rows: int) -> None:
    values = np.random.default_rng(0).random((rows, WIDTH), np.float32)
    if path.suffix == ".npy":
        np.save(path, values)
        return
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), WIDTH)
    pq.write_table(pa.table({"x": column}), path, row_group_size=1000)


def peak_of_training(path: Path, rows: int) -> int:
    """The peak of anonymous and shared memory of the trainer and its loaders: mapped files are the kernel's cache."""
    write(path, rows)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fit_from_file", str(path), str(WIDTH)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | {"KERAS_BACKEND": "tensorflow"},
    )  # fmt: skip
    peak = peak_bytes(process)
    said, errors = process.communicate()
    assert process.returncode == 0, errors[-2000:]
    assert int(said) == rows
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_ten_times_the_rows_take_the_same_memory(tmp_path: Path, suffix: str) -> None:
    few = peak_of_training(tmp_path / f"few{suffix}", ROWS)
    many = peak_of_training(tmp_path / f"many{suffix}", 10 * ROWS)
    assert many <= MOST_GROWTH * few, f"{many / 2**20:.0f} MB beside {few / 2**20:.0f} MB"
    print(f"{suffix}: {many / 2**20:.0f} MB of {10 * ROWS:,} rows beside {few / 2**20:.0f} MB of {ROWS:,}")
