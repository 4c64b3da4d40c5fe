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

ROOT = Path(__file__).parents[2]

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


def test_an_estimator_on_the_gpu_agrees_with_what_it_predicted_in_its_time(
    penstock_run: Penstock, tmp_path: Path
) -> None:
    fixture = ROOT / "tests" / "data" / "estimator"
    expected = np.load(fixture / "digits_expected.npz")
    np.savez(tmp_path / "digits.npz", image=expected["image"])
    ran = penstock_run(
        "predict", "--estimator", "tests.support.digits_model_fn:with_layers",
        "--checkpoint", fixture / "model_fn_ckpt", tmp_path / "digits.npz",
        "--output", tmp_path / "out", "--devices", "gpu", cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    table = read_rows(tmp_path / "out")
    np.testing.assert_allclose(np.stack(table["probabilities"].to_numpy()), expected["probabilities"], atol=2e-3)


@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_the_best_classes_are_ranked_on_the_gpu(
    models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path, runtime: str
) -> None:
    for name, options in (("whole", ()), ("best", ("--top-k", "3"))):
        ran = penstock_run(
            "predict", models / "digits.keras", digits, "--output", tmp_path / name, "--devices", "gpu",
            "--runtime", runtime, "--batch-size", 512, *options,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    best = np.sort(predictions(tmp_path / "whole"), axis=1)[:, ::-1][:, :3]
    scores = np.stack(read_rows(tmp_path / "best")["digit_score"].to_numpy())
    np.testing.assert_allclose(scores, best, atol=1e-6)
