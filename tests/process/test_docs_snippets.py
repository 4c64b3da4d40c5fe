"""What the pages for people who come from elsewhere say to write runs as it is written there."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ENVIRONMENT, Penstock
from tests.support.snippets import blocks_of

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["from-tf-distribute.md", pytest.param("from-estimator.md", marks=pytest.mark.slow)])
def test_every_snippet_of_the_page_runs(name: str, penstock_run: Penstock, tmp_path: Path) -> None:
    """The Python blocks as one program on two virtual devices, then the commands, in one folder."""
    page = REPOSITORY / "docs" / name
    path = f"{REPOSITORY}:{ENVIRONMENT['PYTHONPATH']}"
    environment = {**ENVIRONMENT, "PYTHONPATH": path, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.run_snippets", str(page)],
        cwd=tmp_path, capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    lines = [line for _, block in blocks_of(page, "console") for line in block.splitlines()]
    assert lines
    for line in lines:
        command, *arguments = shlex.split(line)
        assert command == "penstock"
        done = penstock_run(*arguments, cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
