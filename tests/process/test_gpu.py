"""On a GPU: the same answers as on the CPU, the same bits twice, nothing lost when the replica is killed or runs out of
memory, and no more taken than the share it was given."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from penstock.core import kinds
from penstock.pool.devices import nvml
from penstock.pool.devices.inventory import gpu_devices, supported_precisions
from penstock.pool.transfer.slots import Slots
from penstock.runtimes.registered_memory import is_registered, register
from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows

ROOT = Path(__file__).parents[2]
DIM = "tests.support.chaos_functions:dim"

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


@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_compiled_steps_are_kept_and_change_no_bit(
    models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path, runtime: str
) -> None:
    def run(name: str) -> Any:
        ran = penstock_run(
            "predict", models / "digits.keras", digits, "--output", tmp_path / name, "--devices", "gpu:0",
            "--runtime", runtime, "--batch-size", 512, environment={"PENSTOCK_CACHE": str(tmp_path / "cache")},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert "cannot keep" not in ran.stderr
        return read_rows(tmp_path / name)

    def kept() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "cache" / "compiled").glob("*/*")}

    first = run("first")
    files = kept()
    assert len(files) >= 2, files.keys()
    assert run("again").equals(first)
    assert kept() == files  # nothing was compiled
    for path in (tmp_path / "cache" / "compiled").glob("*/*"):
        if path.suffix != ".sha256":
            path.write_bytes(b"damaged" + path.read_bytes()[7:])
    assert run("damaged").equals(first)
    assert kept().keys() == files.keys()


GIB = 2**30
WIDE = """
import sys, keras
keras.utils.set_random_seed(3)
layers = keras.layers
keras.Sequential([
    keras.Input((64,), name="pixels"), layers.Rescaling(1 / 16),
    layers.Dense(65_536, activation="relu"), layers.Dense(10, activation="softmax", name="digit"),
]).save(sys.argv[1])
"""
"""Every row takes 256 KiB between its layers: 16,384 of them 4 GiB, 512 of them 128 MiB."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "wide.keras"
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": frameworks()[0]}
    subprocess.run([sys.executable, "-c", WIDE, str(path)], check=True, capture_output=True, env=ENVIRONMENT | hidden)
    return path


def frameworks() -> list[str]:
    return [name for name in ("tensorflow", "jax", "torch") if kinds.runtime(name).package.is_installed]


@cache
def sees_gpu(framework: str) -> bool:
    """Torch may be a build without CUDA."""
    question = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return framework != "torch" or subprocess.run([sys.executable, "-c", question], check=False).returncode == 0


@pytest.fixture(params=["tensorflow", "jax", "torch"])
def framework(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name not in frameworks() or not sees_gpu(name):
        pytest.skip(f"{name} is not installed, or does not see the GPU")
    return name


def fraction_of(num_bytes: int) -> str:
    return f"{num_bytes / gpu_devices()[0].free_bytes:.6f}"


def test_a_batch_that_cannot_fit_loses_no_row(
    wide: Path, digits: Path, penstock_run: Penstock, tmp_path: Path, framework: str
) -> None:
    for name, options in (
        ("fits", ("--batch-size", 512)),
        ("too_large", ("--batch-size", 16_384, "--memory-fraction", fraction_of(2 * GIB))),
    ):
        ran = penstock_run(
            "predict", wide, digits, "--output", tmp_path / name, "--devices", "gpu:0", "--runtime", framework, *options
        )
        assert ran.returncode == 0, ran.stderr
    assert "out of memory" in ran.stderr
    assert read_rows(tmp_path / "too_large").column("row").to_pylist() == list(range(20_000))
    np.testing.assert_allclose(predictions(tmp_path / "too_large"), predictions(tmp_path / "fits"), atol=2e-3)


def test_a_replica_takes_no_more_than_its_share(wide: Path, framework: str) -> None:
    limit = 2 * GIB
    script = ROOT / "tests" / "support" / "gpu_share.py"
    ran = subprocess.run(
        [sys.executable, str(script), framework, str(wide), str(limit)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert told["is_gauged"]
    assert told["too_large"].startswith("a batch of 16384 rows: ")
    assert np.isfinite(told["answers"]).all()
    assert 128 * 2**20 <= told["peak"] <= limit
    if framework == "jax":
        small, large = told["predicted"]
        assert 128 * 2**20 <= small < limit < large


def test_two_replicas_share_a_gpu(models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    for replicas in ("1", "2"):
        ran = penstock_run(
            "predict", models / "digits.keras", digits, "--output", tmp_path / replicas, "--devices", "gpu:0",
            "--runtime", "jax", "--batch-size", 512, "--replicas-per-device", replicas,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    assert read_rows(tmp_path / "2").equals(read_rows(tmp_path / "1"))


def test_two_runs_at_once_share_a_gpu(models: Path, digits: Path, tmp_path: Path) -> None:
    def begin(name: str) -> subprocess.Popen[str]:
        command = penstock_command(
            "predict", models / "digits.keras", digits, "--output", tmp_path / name, "--runtime", "jax",
            "--batch-size", 64, "--devices", "gpu:0", "--memory-fraction", "0.4",
        )  # fmt: skip
        environment = ENVIRONMENT | {"XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    first = begin("first")
    while not list(tmp_path.glob("penstock/*.json")) and first.poll() is None:
        time.sleep(0.01)
    second = begin("second")
    told = second.communicate(timeout=200)[1]
    assert (first.wait(timeout=200), second.returncode) == (0, 0), told
    first.communicate()
    assert f"gpu:0 is shared with process {first.pid}, which has reserved" in told
    assert read_rows(tmp_path / "first").equals(read_rows(tmp_path / "second"))


def test_the_driver_says_what_this_gpu_has_and_can() -> None:
    device = gpu_devices()[0]
    assert device.uuid is not None
    assert nvml.compute_capability(device.uuid) is not None
    total, free = nvml.memory_of(device.uuid) or (0, 0)
    assert 0 < free <= total == device.memory_bytes
    assert "float16" in supported_precisions(device)


def test_memory_is_registered_until_that_is_undone() -> None:
    slots = Slots.create(2, 1 << 20)
    array = np.frombuffer(slots.view(1, 1024), np.uint8)
    undo = register(slots.memory)
    assert undo is not None
    assert is_registered(array)
    assert not is_registered(array[::2])
    assert not is_registered(np.empty(16, np.uint8))
    assert register(slots.memory) is None, "the driver knows it already"
    undo()
    assert not is_registered(array)
    again = register(slots.memory)
    assert again is not None
    again()


@pytest.mark.parametrize("function", [(), ("--preprocess-row", DIM)], ids=["threads", "processes"])
@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_every_row_of_many_batches_is_answered_from_its_own_memory(
    models: Path, penstock_run: Penstock, tmp_path: Path, runtime: str, function: tuple[str, ...]
) -> None:
    """Slots are written again as soon as they were copied: rows of another batch would show."""
    rows = np.random.default_rng(0).integers(0, 17, (20_007, 64), np.uint8)
    np.savez(tmp_path / "rows.npz", pixels=rows[rows.sum(axis=1) % 61 > 0])  # it refuses the others
    for device in ("cpu", "gpu"):
        ran = penstock_run(
            "predict", models / "digits.keras", tmp_path / "rows.npz", "--output", tmp_path / device,
            "--devices", device, "--runtime", runtime, "--batch-size", 64, *function,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    np.testing.assert_allclose(predictions(tmp_path / "gpu"), predictions(tmp_path / "cpu"), atol=2e-3)
