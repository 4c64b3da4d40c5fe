"""Training that goes on from a checkpoint ends with the same bits as training that was never interrupted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from penstock.crash_points import VARIABLE, Point
from penstock.storage.turns import end_turns, take_turn
from penstock.training.checkpoints import CheckpointFolder
from tests.conftest import ENVIRONMENT
from tests.support import late_writer, write_checkpoints

QUIET = {**ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "3"}
POINTS = [point for point in get_args(Point) if point.startswith("checkpoint_")]


@pytest.mark.parametrize(
    ("backend", "cases"),
    [
        ("tensorflow", ""),
        pytest.param("tensorflow", "all", marks=pytest.mark.slow),
        pytest.param("jax", "all", marks=pytest.mark.slow),
        pytest.param("torch", "all", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_ends_in_the_same_bits(backend: str, cases: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    ran = _python("tests.support.fit_checkpoints", tmp_path, *cases.split(), KERAS_BACKEND=backend)
    assert ran.returncode == 0, ran.stderr[-4000:]
    document = json.loads(ran.stdout.splitlines()[-1])
    for name, case in document["cases"].items():
        for step, resumed in case["resumed"].items():
            assert resumed == case["whole"], f"{name}, from step {step}"
    assert len(document["refused"]) == 3
    assert all(answer.startswith("the checkpoint is of another model") for answer in document["refused"])
    if backend == "tensorflow":
        assert [2, "batch_loss"] in document["events"]
        assert [5, "epoch_mae"] in document["events"]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_while_a_checkpoint_is_written_leaves_a_good_one(point: str, tmp_path: Path) -> None:
    ran = _python("tests.support.write_checkpoints", tmp_path, **{VARIABLE: f"{point}:4"})
    assert ran.returncode == -signal.SIGKILL
    step = _step_of_newest(tmp_path)
    assert step in (3, 4, 6)
    ran = _python("tests.support.write_checkpoints", tmp_path)
    assert ran.stdout.split() == [str(step)]
    assert _step_of_newest(tmp_path) == step + write_checkpoints.COUNT
    assert len(list(tmp_path.iterdir())) == write_checkpoints.KEEP


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -m tests.support.write_checkpoints "
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", script + f"{tmp_path} full"],
        capture_output=True,
        text=True,
        env=QUIET,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    warned, error, newest = ran.stdout.strip().splitlines()[-3:]
    assert "No space left on device" in warned
    assert "the last good one stays (step-0000000001" in warned
    assert error == "3 checkpoints in a row could not be written"
    assert newest == "1 in 1 file"


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_no_bit(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert _python("tests.support.fit_killed", whole).returncode == 0
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    for _ in range(10):
        command = [sys.executable, "-m", "tests.support.fit_killed", str(killed)]
        with subprocess.Popen(command, env=QUIET, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(moments.randint(1, 18)):
                assert process.stdout.readline(), "the run ended before it was killed"
            time.sleep(moments.uniform(0, 0.03))  # at any moment of a step
            process.kill()
    assert _python("tests.support.fit_killed", killed).returncode == 0
    for name in ("weights.txt", "history.csv", "steps.csv"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), f"{name}, with seed {seed}"


@pytest.mark.parametrize("point", [*POINTS, "manifest_begun", "manifest_synced"])
def test_a_worker_that_was_cut_off_and_comes_back_changes_nothing(point: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    staging = take_turn(str(output))
    command = [sys.executable, "-m", "tests.support.late_writer", str(output), staging, point]
    with subprocess.Popen(command, env=QUIET, text=True, stderr=subprocess.PIPE) as late:
        try:
            os.waitid(os.P_PID, late.pid, os.WSTOPPED)
            following = late_writer.Writer(str(output), take_turn(str(output)), mark=2.0)
            first = following.begin() + 1
            for step in range(first, 7):
                following.step(step)
            written = _contents(output)
        finally:
            os.kill(late.pid, signal.SIGCONT)
        assert late.communicate()[1] == ""
    assert late.returncode == 0
    assert _contents(output) == written
    following.step(7)
    following.close()
    end_turns(str(output))
    assert _step_of_newest(output / "checkpoints") == 7
    lines = ["epoch,step,loss", *(f"{step},{step},{1.0 if step < first else 2.0}" for step in range(1, 8))]
    assert (output / "history.csv").read_text().splitlines() == lines
    assert (output / "steps.csv").read_text().splitlines() == lines
    kept = [f"checkpoints/step-{step:010}.safetensors" for step in (6, 7)]
    assert sorted(_contents(output)) == [*kept, "history.csv", "steps.csv"]


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _python(module: str, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=QUIET | environment, check=False)


def _step_of_newest(folder: Path) -> Any:
    found = CheckpointFolder(str(folder)).newest()
    assert found is not None
    assert found.damaged == ()
    return found.checkpoint.progress.position.step
