"""A job on a real Ray cluster of several nodes, with faults: the bytes are those of one machine without any."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import penstock
from tests.support import light_models
from tests.support.ray_raylets import WITH_TOKEN, RayCluster, actors_of

pytest.importorskip("ray", reason="Ray is not installed: pip install penstock[ray]")
pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"devices": "cpu:1", "threads": 1, "batch_size": 64, "part_rows": 512, "plan": "off"}
FLAGS = [text for name, value in OPTIONS.items() for text in (f"--{name.replace('_', '-')}", str(value))]
ROWS = 50_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    light_models.write(folder)
    pixels = np.random.default_rng(1).integers(0, 17, (ROWS, 64)).astype(np.float32)
    np.save(folder / "pixels.npy", pixels)
    model, data = str(folder / "slow_digits.onnx"), str(folder / "pixels.npy")
    penstock.predict(model, data, output=str(folder / "out"), **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    made = RayCluster()
    try:
        yield made
    finally:
        made.close()


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def started(cluster: RayCluster, inputs: Path, output: Path) -> subprocess.Popen[str]:
    files = [str(inputs / "slow_digits.onnx"), str(inputs / "pixels.npy")]
    called = [sys.executable, "-m", "penstock", "predict", *files, "-o", str(output), *FLAGS, "--json"]
    called += ["--engine", "ray", "--address", cluster.address, "--hang-timeout", "5"]
    return subprocess.Popen(called, env=WITH_TOKEN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(run: subprocess.Popen[str], output: Path, parts: int) -> None:
    """Until so many parts are committed."""
    while len(list(output.glob("part-*"))) < parts:
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)


def summary_of(run: subprocess.Popen[str]) -> dict[str, Any]:
    printed, said = run.communicate(timeout=200)
    assert run.returncode == 0, said
    found: dict[str, Any] = json.loads(printed)
    return found


def test_nodes_that_die_leave_and_join_and_a_driver_that_is_killed_change_no_byte(
    cluster: RayCluster, inputs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    first, second = cluster.add_node(), cluster.add_node()
    run = started(cluster, inputs, output)
    wait_for(run, output, 6)
    actors_of(first)[0].kill()
    wait_for(run, output, 15)
    cluster.kill(second)
    third = cluster.add_node()
    wait_for(run, output, 30)
    run.kill()
    run.communicate()
    resumed = started(cluster, inputs, output)
    wait_for(resumed, output, 50)
    frozen = cluster.freeze(third)
    wait_for(resumed, output, 60)
    time.sleep(5)  # past the limit of Ray's health checks
    for process in frozen:
        if process.is_running():
            process.resume()
    summary = summary_of(resumed)
    assert (summary["rows"], summary["failed"]) == (ROWS, 0)
    assert summary["rows_before"] >= 30 * 512
    assert parts_of(output) == parts_of(inputs / "out")
    psutil.wait_procs(actors_of(first), timeout=20)
    assert parts_of(output) == parts_of(inputs / "out"), "nothing is written after the end"
