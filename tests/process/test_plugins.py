"""Another package with a source, a sink, a model format and a runtime, installed and used from the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import ENVIRONMENT, penstock_command

TOY = Path(__file__).parents[1] / "support" / "toy_plugin"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run_with_toy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The command, where the package is installed."""
    folder = tmp_path_factory.mktemp("toy")
    source = shutil.copytree(TOY, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    made = subprocess.run(
        [sys.executable, *install, "--disable-pip-version-check", "--target", str(folder / "site"), str(source)],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(folder / "site"), *([known] if known else [])])

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            penstock_command(*arguments), capture_output=True, text=True, timeout=240, check=False,
            env=ENVIRONMENT | {"PYTHONPATH": path},
        )  # fmt: skip
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran

    return run


@pytest.fixture
def job(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "model.factor").write_text("3")
    (tmp_path / "rows").mkdir()
    for name, numbers in (("a.toy", range(5)), ("b.toy", range(5, 12))):
        (tmp_path / "rows" / name).write_text("\n".join(map(str, numbers)))
    return tmp_path / "model.factor", tmp_path / "rows"


def written(output: Path) -> dict[int, float]:
    lines = [line.split() for path in sorted((output / "toys").iterdir()) for line in path.read_text().splitlines()]
    return {int(row): float(value) for row, value in lines}


def test_plugins_of_another_package_run_a_job(run_with_toy: Run, job: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "out"
    ran = run_with_toy("predict", *job, "--output", output, "--format", "toy", "--runtime", "toy")
    assert ran.returncode == 0, ran.stderr
    assert written(output) == {row: 3.0 * row for row in range(12)}


def test_error_of_a_plugin_names_it_with_the_file_and_the_row(
    run_with_toy: Run, job: tuple[Path, Path], tmp_path: Path
) -> None:
    (job[1] / "b.toy").write_text("5 six 7")
    ran = run_with_toy("predict", *job, "--output", tmp_path / "out", "--format", "toy")
    assert ran.returncode == 5
    assert "the plugin 'toy', which reads the input, failed" in ran.stderr
    assert "b.toy, row 0 (row 5 or one of the next 2): ValueError" in ran.stderr
    (job[1] / "b.toy").write_bytes(b"\xff")
    ran = run_with_toy("inspect", job[1])
    assert ran.returncode == 5
    assert "b.toy: UnicodeDecodeError" in ran.stderr


def test_overwriting_removes_the_parts_of_a_plugin(run_with_toy: Run, job: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "out"
    _, rows = job
    assert run_with_toy("predict", *job, "--output", output, "--format", "toy").returncode == 0
    stale = output / "toys" / "part-00000009.toy"
    stale.write_text("99 99\n")
    (rows / "b.toy").unlink()
    ran = run_with_toy("predict", *job, "--output", output, "--format", "toy", "--overwrite")
    assert ran.returncode == 0, ran.stderr
    assert written(output) == {row: 3.0 * row for row in range(5)}


def test_devices_list_the_runtime_and_leave_out_a_broken_one_with_its_package(run_with_toy: Run) -> None:
    ran = run_with_toy("devices", "--json")
    assert ran.returncode == 0, ran.stderr
    runtimes = json.loads(ran.stdout)[-1]["runtimes"]
    assert runtimes["toy"] == "yes, 0.1"
    assert "broken" not in runtimes
    assert "penstock-toy 0.1" in ran.stderr


def test_help_names_plugins_and_a_broken_one_is_told_with_its_package(
    run_with_toy: Run, job: tuple[Path, Path], tmp_path: Path
) -> None:
    assert "toy" in run_with_toy("predict", "--help").stdout
    ran = run_with_toy("predict", *job, "--output", tmp_path / "out", "--format", "broken")
    assert ran.returncode == 8, ran.stderr
    assert "the plugin broken of the package penstock-toy 0.1 cannot be loaded" in ran.stderr
    assert "no_such_module" in ran.stderr


def test_arrow_files_go_in_and_come_out_as_pandas_reads_them(
    run_with_toy: Run, job: tuple[Path, Path], tmp_path: Path
) -> None:
    rows, output = tmp_path / "rows.feather", tmp_path / "out"
    pd.DataFrame({"x": np.arange(100, dtype=np.float32), "id": [f"r{row}" for row in range(100)]}).to_feather(rows)
    for _ in range(2):
        ran = run_with_toy(
            "predict", job[0], rows, "--output", output, "--format", "arrow", "--keep", "id", "--overwrite"
        )
        assert ran.returncode == 0, ran.stderr
    frame = pd.concat([pd.read_feather(path) for path in sorted(output.glob("part-*.arrow"))])
    assert frame["row"].tolist() == list(range(100))
    assert frame["y"].tolist() == [3.0 * row for row in range(100)]
    assert frame["id"].tolist() == [f"r{row}" for row in range(100)]
