"""What pages of the documentation say to write runs as it is written there."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ENVIRONMENT, Penstock, penstock_command
from tests.support.processes import wait_until
from tests.support.snippets import blocks_of

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["from-tf-distribute.md", "from-estimator.md"])
def test_every_snippet_of_the_page_runs(name: str, penstock_run: Penstock, tmp_path: Path) -> None:
    """The Python blocks as one program on two virtual devices, then the commands, in one folder."""
    page = REPOSITORY / "docs" / name
    run_python(page, tmp_path)
    lines = commands_of(page)
    assert lines
    for arguments in lines:
        done = penstock_run(*arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)


@pytest.mark.slow
def test_whole_path_of_training_runs_with_a_kill_in_the_middle(penstock_run: Penstock, tmp_path: Path) -> None:
    page, section = REPOSITORY / "docs/training.md", "A whole path"
    run_python(page, tmp_path, section)
    fit, *others = commands_of(page, section)
    process = subprocess.Popen(
        penstock_command(*fit), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: process.poll() is not None or list((tmp_path / "trained/checkpoints").glob("step-*")))
    process.kill()
    # Where it was faster than the kill, there is nothing to go on with, and the commands say so.
    assert process.wait() in (-signal.SIGKILL, 0)
    for arguments in others:
        done = penstock_run(*arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)
    held_back = (tmp_path / "trained/validation_rows.csv").read_text(encoding="utf-8").split()
    assert len(held_back) == 1 + 160


def run_python(page: Path, folder: Path, section: str | None = None) -> None:
    """Run the Python blocks of a page, or of one section, as one program."""
    path = f"{REPOSITORY}:{ENVIRONMENT['PYTHONPATH']}"
    environment = {**ENVIRONMENT, "PYTHONPATH": path, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    program = [sys.executable, "-W", "ignore", "-m", "tests.support.run_snippets", str(page)]
    ran = subprocess.run(
        [*program, *([section] if section is not None else [])],
        cwd=folder, capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]


def commands_of(page: Path, section: str | None = None) -> list[list[str]]:
    """The arguments of every command of a page, or of one section."""
    lines = [shlex.split(line) for _, block in blocks_of(page, "console", section) for line in block.splitlines()]
    assert all(command == "penstock" for command, *_ in lines)
    return [arguments for _, *arguments in lines]
