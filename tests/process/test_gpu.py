"""On a GPU: the same answers as on the CPU, the same bits twice, and nothing lost when the replica is killed."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from penstock.pool.devices import gpu_devices
from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpu_devices(), reason="there is no GPU here"),
]


def predictions(folder: Path) -> np.ndarray:  # type: ignore[type-arg]
    return np.stack(read_rows(folder).column("digit").to_numpy())


@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_gpu_agrees_with_cpu_and_with_itself(
    models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path, runtime: str
) -> None:
    for name, devices in (("cpu", "cpu"), ("gpu", "gpu"), ("again", "gpu:0")):
        ran = penstock_run(
            "predict", models / "digits.keras", digits, "--output", tmp_path / name, "--devices", devices,
            "--runtime", runtime, "--batch-size", 512,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    on_gpu = predictions(tmp_path / "gpu")
    assert on_gpu.shape == (20_000, 10)
    np.testing.assert_allclose(on_gpu, predictions(tmp_path / "cpu"), atol=2e-3)
    assert read_rows(tmp_path / "gpu").equals(read_rows(tmp_path / "again"))


def test_strings_run_without_xla(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text\nabc\nxyz\n", encoding="utf-8")
    ran = penstock_run(
        "predict", models / "fixed_batch", tmp_path / "rows.csv", "--signature", "shout", "--output", tmp_path / "out",
        "--devices", "gpu",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert read_rows(tmp_path / "out").column("shouted").to_pylist() == ["ABC", "XYZ"]


def test_killed_gpu_replica_loses_no_row(models: Path, digits: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = penstock_command(
        "predict", models / "digits.keras", digits, "--output", output, "--runtime", "jax", "--batch-size", 32,
        "--part-rows", 1000, "--devices", "gpu",
    )  # fmt: skip
    process = subprocess.Popen(command, env=ENVIRONMENT)
    while journal_length(output) < 2 and process.poll() is None:
        time.sleep(0.002)
    psutil.Process(process.pid).children()[0].kill()
    assert process.wait(timeout=200) == 0
    assert read_rows(output).column("row").to_pylist() == list(range(20_000))
