"""Training on a GPU: a batch that does not fit is worked on in pieces, and several devices learn what one learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.pool.devices.inventory import gpu_devices
from tests.conftest import ENVIRONMENT, Penstock
from tests.support.fit_models import write_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpu_devices(), reason="there is no GPU here"),
]


def on_gpu(what: str, backend: str) -> Any:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.fit_on_gpu", what],
        capture_output=True,
        text=True,
        check=False,
        env={
            **ENVIRONMENT,
            "KERAS_BACKEND": backend,
            # 3 GiB, as for TensorFlow; and float32 in every convolution.
            "XLA_PYTHON_CLIENT_MEM_FRACTION": str(3 * 2**30 / (gpu_devices()[0].memory_bytes or 1)),
            "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        },
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def assert_learned_the_same(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one["losses"], other["losses"], rtol=1e-4)
    for mine, theirs in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_batch_that_does_not_fit_is_worked_on_in_pieces(backend: str) -> None:
    results = on_gpu("memory", backend)
    assert "does not fit into memory: it is worked on in" in results["too large"]["said"]
    assert "does not fit" not in results["in pieces"]["said"]
    assert_learned_the_same(results["too large"], results["in pieces"])


def test_two_devices_of_tensorflow_learn_what_one_learns() -> None:
    results = on_gpu("mirrored", "tensorflow")
    assert_learned_the_same(results["one"], results["two"])


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_fit_on_files_uses_the_gpu(backend: str, penstock_run: Penstock, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet")
    ran = penstock_run(
        "fit", "tests.support.fit_models:build_plain", tmp_path / "rows.parquet", "--label", "name", "--epochs", 3,
        "--runtime", backend, "--output", tmp_path / "trained", "--json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    done = json.loads(ran.stdout)
    assert done["devices"] == ["gpu:0"]
    losses = [epoch["loss"] for epoch in done["history"]]
    assert losses == sorted(losses, reverse=True)
    assert (tmp_path / "trained" / "model.keras").is_file()
