"""`penstock.fit` on 1, 2 and 4 virtual devices learns what `model.fit` learns, and goes on where it was interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ENVIRONMENT

ON_VIRTUAL_DEVICES = {
    **ENVIRONMENT,
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Compiling takes most of the time on JAX: little is optimised, and nothing is compiled twice.
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}


@pytest.mark.parametrize("cases", ["", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow), "torch"])
def test_training_on_virtual_devices_is_that_of_model_fit(backend: str, cases: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.fit_curves", *cases.split()],
        capture_output=True,
        text=True,
        env={**ON_VIRTUAL_DEVICES, "KERAS_BACKEND": backend, "JAX_COMPILATION_CACHE_DIR": str(tmp_path)},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    document = json.loads(ran.stdout.splitlines()[-1])
    for result in document["curves"]:
        _check_curves(result)
    for resume in document["resumes"]:
        for what in ("states", "weights", "losses"):
            assert resume[what][0] == resume[what][1], resume
    assert document["differences"] == []
    assert document["on all devices"]["steps"] == [*range(7), *range(7)]
    losses = document["on all devices"]["losses"]
    assert losses == sorted(losses, reverse=True)
    if "statistics" in document:
        assert document["statistics"]["apart"] < 1e-5
        in_training, afterwards = document["statistics"]["validation"]
        assert in_training == pytest.approx(afterwards, rel=1e-4)
    if "dice" in document:
        assert document["dice"][0] == pytest.approx(document["dice"][1], rel=0.05)


def _check_curves(result: dict[str, Any]) -> None:
    """The same sums in another order: float tolerance, over 72 steps."""
    assert result["steps"][0] == result["steps"][1], result
    assert result["curve"] < 1e-4, result
    assert result["weights"] < 1e-3, result


@pytest.mark.parametrize("backend", [pytest.param("tensorflow", marks=pytest.mark.slow), "torch"])
def test_a_batch_that_does_not_fit_into_memory_is_worked_on_in_pieces(backend: str) -> None:
    """The error is a real one: a layer asks for more memory than the machine has, for more than 10 heavy rows of a
    device. The pieces that were added up before one failed count for nothing."""
    pytest.importorskip(backend)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.fit_out_of_memory"],
        capture_output=True,
        text=True,
        env={**ON_VIRTUAL_DEVICES, "KERAS_BACKEND": backend},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    for result in json.loads(ran.stdout.splitlines()[-1]):
        assert "a batch of 50 rows does not fit into memory: it is worked on in 2 pieces" in result["said"]
        assert result["losses"][0] == result["losses"][1], result
        assert result["is same"], result
