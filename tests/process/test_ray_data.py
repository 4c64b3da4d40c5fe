"""Penstock in jobs of Ray Data, and datasets of Ray as inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import read_rows
from tests.support import onnx_models
from tests.support.onnx_models import node

pytest.importorskip("ray", reason="Ray is not installed: pip install penstock[ray]")

ROWS = 600


@pytest.mark.slow
def test_rows_of_ray_data_are_predicted_in_order_and_in_its_actors(tmp_path: Path) -> None:
    onnx_models.save(
        tmp_path / "double.onnx",
        [node("Add", ["x", "x"], ["doubled"])],
        {"x": ("FLOAT", ["rows", 2, 2])},
        {"doubled": ("FLOAT", ["rows", 2, 2])},
    )
    command = [sys.executable, "-m", "tests.support.ray_data_jobs", str(tmp_path / "double.onnx"), str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

    expected = 2 * (np.arange(ROWS, dtype=np.float32)[:, None, None] + np.arange(4, dtype=np.float32).reshape(2, 2))
    np.testing.assert_array_equal(np.load(tmp_path / "returned.npy"), expected)
    written = read_rows(tmp_path / "out")
    assert written["row"].to_pylist() == list(range(ROWS))
    assert written["name"].to_pylist() == [str(row) for row in range(ROWS)]
    np.testing.assert_array_equal(written["doubled"].combine_chunks().to_numpy_ndarray(), expected)

    mapped = np.load(tmp_path / "mapped.npz")
    assert set(mapped) == {"doubled", "name", "error"}
    order = np.argsort(mapped["name"].astype(int))
    assert mapped["name"][order].astype(int).tolist() == list(range(ROWS))
    np.testing.assert_array_equal(mapped["doubled"][order], expected)
    assert set(mapped["error"]) == {""}
