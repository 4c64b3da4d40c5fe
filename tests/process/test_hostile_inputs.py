"""Inputs that are damaged, endless or made to do harm, given to the real command: each has its one clear answer."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import numpy as np

from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows

from .test_kills import wait_for


def test_compressed_arrays_are_read_in_order_stopped_and_gone_on_with(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    """Spans that come a little out of order once began again at the front of the file, each time."""
    rows = np.random.default_rng(7).integers(0, 9, (150_000, 4)).astype(np.float32)
    np.savez_compressed(tmp_path / "rows.npz", x=rows)
    output = tmp_path / "out"
    arguments = [
        "predict", light_models / "double.onnx", tmp_path / "rows.npz", "--output", output, "--devices", "cpu:1",
        "--threads", 1, "--batch-size", 32, "--part-rows", 5_000,
    ]  # fmt: skip
    command = penstock_command(*arguments)
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: journal_length(output) >= 2, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    ran = penstock_run("resume", output)
    assert ran.returncode == 0, ran.stderr
    table = read_rows(output)
    assert table.column("row").to_pylist() == list(range(len(rows)))
    found = np.stack(table.column("doubled").to_numpy())
    np.testing.assert_array_equal(found, 2 * rows)
