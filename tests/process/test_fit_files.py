"""`penstock fit` on files: the model, its history and its checkpoints; killed, interrupted and resumed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from penstock.core.shuffling import split_rows
from tests.conftest import ENVIRONMENT, Penstock, penstock_command, summary_of
from tests.support import fit_models
from tests.support.fit_runs import assert_same_job, fit, weights_of
from tests.support.processes import wait_until

REPOSITORY = Path(__file__).parents[2]


def history_of(output: Path) -> list[dict[str, str]]:
    with open(output / "history.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_compiled_file_becomes_a_trained_one_with_its_history(undisturbed: Path) -> None:
    history = history_of(undisturbed)
    assert [int(row["epoch"]) for row in history] == [1, 2, 3]
    assert list(history[0]) == ["epoch", "step", "accuracy", "loss", "val_accuracy", "val_loss"]
    assert float(history[2]["loss"]) < float(history[0]["loss"])
    assert (undisturbed / "model.keras").stat().st_size > 0
    result = json.loads((undisturbed / "_penstock" / "result.json").read_text(encoding="utf-8"))
    assert list(result["inputs"].values()) == [["x"]]
    assert len(list((undisturbed / "checkpoints").iterdir())) <= 2


def test_the_same_line_again_redoes_nothing_and_another_one_is_refused(
    made: Path, undisturbed: Path, penstock_run: Penstock
) -> None:
    before = weights_of(undisturbed / "model.keras")
    ran = penstock_run(*fit(made, undisturbed, "--validation-split", 0.2))
    assert ran.returncode == 0, ran.stderr
    assert "the job was finished already; nothing was redone" in ran.stdout
    status = penstock_run("status", undisturbed)
    assert status.stdout.startswith("finished: 3 of 3 epochs done")
    other = penstock_run(*fit(made, undisturbed, "--validation-split", 0.2, "--seed", 5))
    assert other.returncode == 7
    assert "seed=5 (there: 0)" in other.stderr
    refused = penstock_run("predict", made / "model.keras", made / "rows.parquet", "-o", undisturbed)
    assert refused.returncode == 7
    assert "the folder holds a training job" in refused.stderr
    assert weights_of(undisturbed / "model.keras") == before


def test_a_trainer_that_is_killed_in_mid_epoch_goes_on_and_ends_with_the_same_bits(
    made: Path, undisturbed: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    # While the checkpoint of step 24 is written, after the end of the second epoch: it goes on from step 20, before it.
    crash = {"PENSTOCK_CRASH_AT": "checkpoint_written:6"}
    output = tmp_path / "out"
    ran = penstock_run(*fit(made, output, "--validation-split", 0.2, "--checkpoint-every", 4), environment=crash)
    assert ran.returncode == 0, ran.stderr
    assert "the process that trains was killed by SIGKILL" in ran.stderr
    assert "11 steps an epoch, 20 made before" in ran.stderr
    assert_same_job(output, undisturbed)


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        penstock_command(*arguments), env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_sigterm_writes_a_checkpoint_and_resume_ends_with_the_same_bits(
    made: Path, undisturbed: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(*fit(made, output, "--validation-split", 0.2, "--checkpoint-every", 3))
    wait_until(lambda: process.poll() is not None or list(output.glob("checkpoints/*.safetensors")))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    # Where it was faster than the signal, nothing is left to prove.
    assert process.returncode in (143, 0), errors
    if process.returncode == 143:
        assert f"go on with: penstock resume {output}" in errors
        status = penstock_run("status", output)
        assert status.stdout.startswith("unfinished: "), status.stdout
        resumed = penstock_run("resume", output)
        assert resumed.returncode == 0, resumed.stderr
    assert_same_job(output, undisturbed)


def has_trainer(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # a child may end meanwhile
        children = psutil.Process(pid).children()
        return any("penstock.training.trainer_process" in child.cmdline() for child in children)
    return False


@pytest.mark.slow
def test_a_stop_before_the_first_step_says_so_and_leaves_a_job_that_goes_on(
    made: Path, undisturbed: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(*fit(made, output, "--validation-split", 0.2))
    # The process that trains is there, and imports a framework first.
    wait_until(lambda: process.poll() is not None or has_trainer(process.pid))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "stopping: training has not begun, and ends after its first step at the latest" in errors
    assert "stopping after the step that is under way" not in errors
    resumed = penstock_run("resume", output)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_job(output, undisturbed)


@pytest.mark.slow
def test_an_input_that_changes_while_it_is_trained_on_ends_the_job_before_the_next_checkpoint(
    made: Path, undisturbed: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    rows, output = tmp_path / "rows.parquet", tmp_path / "out"
    shutil.copyfile(made / "rows.parquet", rows)
    files = ["fit", made / "model.keras", rows, "--label", "y", "--epochs", 3, "--batch-size", 16, "-o", output]
    options = ("--validation-split", 0.2, "--preprocess", "tests.support.fit_models:touch_input_once")
    ran = penstock_run(*files, *options, "--checkpoint-every", 3, environment={"TOUCHED": str(rows)})
    assert ran.returncode == 5, ran.stderr
    assert f"the input changed since the job began: {rows}" in ran.stderr
    assert not list(output.glob("checkpoints/*"))
    resumed = penstock_run("resume", output, environment={"TOUCHED": str(rows)})
    assert resumed.returncode == 0, resumed.stderr
    assert "it has the same bytes: going on" in resumed.stderr
    assert_same_job(output, undisturbed)


@pytest.mark.slow
def test_balanced_classes_weigh_training_rows_only_as_class_weight_of_keras_does(
    made: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    x, y = fit_models.rows()
    rows, held = split_rows(len(x), 0.2, seed=0)
    # Without shuffling, rows of a table are read in their order.
    taken, held_back = np.sort(rows.numbers(np.arange(rows.count))), held.numbers(np.arange(held.count))
    weights = [len(taken) / (3 * np.count_nonzero(y[taken] == each)) for each in range(3)]
    held_rows = {"held_x": x[held_back], "held_y": y[held_back]}
    np.savez(tmp_path / "a.npz", x=x[taken], y=y[taken], weights=np.array(weights), **held_rows)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "tests.support.fit_as_keras", str(made / "sure.keras"), str(tmp_path / "a.npz")]
    quiet = ENVIRONMENT | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(command, check=True, cwd=REPOSITORY, env=quiet, capture_output=True, text=True)
    expected = json.loads(ran.stdout.splitlines()[-1])
    files = ("--class-weights", "balanced", "--no-shuffle", "--validation-split", 0.2, "--epochs", 2)
    arguments = ["fit", made / "sure.keras", made / "rows.parquet", "--label", "y", "--batch-size", 16, *files]
    found = summary_of(penstock_run(*arguments, "-o", tmp_path / "out", "--json"))["history"]
    for name, values in expected.items():
        assert [epoch[name] for epoch in found] == pytest.approx(values, abs=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_killed_at_a_random_moment_and_resumed_it_ends_with_the_same_bits(
    made: Path, undisturbed: Path, penstock_run: Penstock, tmp_path: Path, number: int
) -> None:
    """Coordinator and trainer are killed together, as by a power cut, some steps after the first checkpoint."""
    output = tmp_path / "out"
    process = start(*fit(made, output, "--validation-split", 0.2, "--checkpoint-every", 1))
    kept = random.Random(number).randrange(1, 3 * 11)
    folder = output / "checkpoints"
    name = f"step-{kept:010}.safetensors"
    wait_until(lambda: process.poll() is not None or any(path.name >= name for path in folder.glob("step-*")))
    for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
        child.kill()
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    resumed = penstock_run("resume", output)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_job(output, undisturbed)
