"""Training and evaluation on a real Ray cluster of this machine: what one process gives, also after a killed worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fit_runs import fit, read_weights

pytest.importorskip("ray", reason="Ray is not installed: pip install penstock[ray]")
pytestmark = pytest.mark.slow

ON_JAX = ("--validation-split", 0.2, "--runtime", "jax", "--devices", "cpu", "--threads", 1, "--checkpoint-every", 3)
KILLING = ("--preprocess", "tests.support.fit_models:kill_once")


def run(*arguments: object, **environment: str) -> tuple[dict[str, Any], str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments), "--json"],
        env=kept | environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), ran.stderr


def test_two_workers_of_ray_learn_what_one_process_learns_also_after_a_killed_one(made: Path, tmp_path: Path) -> None:
    """162 rows to learn from, in batches of 16, and 41 to measure with."""
    output = tmp_path / "two"
    on_ray = ("--engine", "ray", "--workers", 2)
    two, said = run(*fit(made, output, *ON_JAX, *KILLING, *on_ray), KILLED_IN=str(output))
    assert output.with_suffix(".killed").exists()
    assert "the gang of workers lost the one on 127.0.0.1" in said
    one, _ = run(*fit(made, tmp_path / "one", *ON_JAX, *KILLING))
    assert (two["steps"], two["rows"], two["epochs"]) == (one["steps"], one["rows"], one["epochs"])
    assert two["metrics"] == pytest.approx(one["metrics"], abs=1e-5)
    assert two["devices"] == ["127.0.0.1/cpu:0", "127.0.0.1#2/cpu:0"]
    weights = read_weights(output / "model.keras")
    for name, value in read_weights(tmp_path / "one" / "model.keras").items():
        np.testing.assert_allclose(weights[name], value, atol=1e-5, err_msg=name)


def test_evaluation_on_ray_gives_what_one_machine_gives(made: Path, tmp_path: Path) -> None:
    asked = ("evaluate", made / "model.keras", made / "rows.parquet", "--label", "y", "--devices", "cpu")
    there, _ = run(*asked, "-o", tmp_path / "out", "--engine", "ray")
    here, _ = run(*asked)
    assert (there["rows"], there["failed"]) == (here["rows"], here["failed"]) == (203, 0)
    assert there["metrics"] == pytest.approx(here["metrics"], abs=1e-6)
