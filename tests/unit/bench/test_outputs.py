"""What two sides wrote about the same photos is compared photo by photo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.outputs import check_by_path
from bench.shell import BenchError

ROWS = 20


def write(folder: Path, features: npt.NDArray[np.float32], order: list[int]) -> Path:
    folder.mkdir()
    values = pa.array([features[row].tolist() for row in order], pa.list_(pa.float32()))
    pq.write_table(
        pa.table({"path": [f"/photos/{row}.jpg" for row in order], "features": values}), folder / "0.parquet"
    )
    return folder


@pytest.fixture
def features() -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)


def test_order_does_not_matter(tmp_path: Path, features: npt.NDArray[np.float32]) -> None:
    ours = write(tmp_path / "ours", features, list(range(ROWS)))
    theirs = write(tmp_path / "theirs", features + np.float32(1e-5), list(reversed(range(ROWS))))
    assert check_by_path(ours, theirs, ROWS) < 1e-4


def test_other_answers_and_other_photos_are_told(tmp_path: Path, features: npt.NDArray[np.float32]) -> None:
    ours = write(tmp_path / "ours", features, list(range(ROWS)))
    swapped = features.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    with pytest.raises(BenchError, match="differ"):
        check_by_path(ours, write(tmp_path / "swapped", swapped, list(range(ROWS))), ROWS)
    with pytest.raises(BenchError, match="photos"):
        check_by_path(ours, write(tmp_path / "fewer", features, list(range(ROWS - 1))), ROWS)
