"""What the tests of training on files share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ENVIRONMENT, Penstock, summary_of
from tests.support.fit_runs import EPOCHS, fit

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model.keras` (compiled), `plain.keras` (not compiled) and `rows.parquet`."""
    folder = tmp_path_factory.mktemp("fit")
    subprocess.run(
        [sys.executable, "-m", "tests.support.fit_models", str(folder)], check=True, cwd=REPOSITORY, env=ENVIRONMENT
    )
    return folder


@pytest.fixture(scope="session")
def undisturbed(made: Path, penstock_run: Penstock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    ran = penstock_run(*fit(made, output, "--json", "--validation-split", 0.2))
    found = summary_of(ran)
    assert (found["epochs"], found["rows"], found["failed"]) == (EPOCHS, 162, 0)
    assert found["steps"] == EPOCHS * 11
    listed = output / "validation_rows.csv"
    assert f"41 of 203 rows are held back for validation: {listed} has their numbers" in ran.stderr
    assert len(set(listed.read_text(encoding="utf-8").split())) == 1 + 41
    assert "shuffle: all rows, anew in every epoch" in ran.stderr
    return output
