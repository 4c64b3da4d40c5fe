"""Training on files with every option that keeps something between steps: interrupted, it ends with the same bits."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ENVIRONMENT, Penstock, penstock_command, summary_of
from tests.support import fit_models
from tests.support.fit_runs import assert_same_job, fit
from tests.support.processes import MARK, marked, new_mark, wait_until

REPOSITORY = Path(__file__).parents[2]
HELD = ("--validation-split", 0.2)


@pytest.mark.parametrize(
    "options",
    [
        ("--early-stopping", 1, "--learning-rate", 0.5, "--epochs", 6, *HELD),
        ("--scale-lr", "linear", "--devices", "cpu:2"),
        ("--cache", "memory", *HELD),
        ("--cache", "disk", *HELD),
        ("--class-weights", "balanced", "--clip-norm", 0.5, "--accumulate", 2, "--log-every", 2),
        ("--runtime", "torch", "--accumulate", 2, *HELD),
    ],
    ids=["early-stopping", "scale-lr", "cache-memory", "cache-disk", "class-weights", "torch"],
)
@pytest.mark.slow
def test_a_trainer_that_is_killed_changes_no_bit(
    made: Path, tmp_path: Path, penstock_run: Penstock, options: tuple[object, ...]
) -> None:
    if "torch" in options:
        pytest.importorskip("torch")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert penstock_run(*fit(made, whole, *options)).returncode == 0
    crash = {"PENSTOCK_CRASH_AT": "checkpoint_written:5"}
    ran = penstock_run(*fit(made, killed, *options, "--checkpoint-every", 4), environment=crash)
    assert ran.returncode == 0, ran.stderr
    assert "was killed by SIGKILL" in ran.stderr
    assert_same_job(killed, whole)
    if "--log-every" in options:
        assert (killed / "steps.csv").read_bytes() == (whole / "steps.csv").read_bytes()


@pytest.mark.slow
def test_rows_to_measure_with_may_be_another_input(made: Path, tmp_path: Path, penstock_run: Penstock) -> None:
    """The loss of rows that are also trained on is that of an epoch's end: as it is said to be."""
    held = tmp_path / "held.parquet"
    fit_models.write_rows(held)
    output = tmp_path / "out"
    asked = ("--validation", held, "--epochs", 2, "--checkpoint-every", 3)
    ran = penstock_run(*fit(made, output, *asked, "--json"), environment={"PENSTOCK_CRASH_AT": "checkpoint_written:4"})
    history = summary_of(ran)["history"]
    assert "was killed by SIGKILL" in ran.stderr
    measured = penstock_run("evaluate", output / "model.keras", held, "--label", "y", "--json")
    metrics = summary_of(measured)["metrics"]
    assert metrics["loss"] == pytest.approx(history[-1]["val_loss"], abs=1e-5)
    assert metrics["accuracy"] == pytest.approx(history[-1]["val_accuracy"], abs=1e-5)


PYTHON = """
import sys
import penstock
made, output, trace = sys.argv[1:]
trained = penstock.fit(f"{made}/model.keras", f"{made}/rows.parquet", label="y", epochs=3, batch_size=16,
                       validation_split=0.2, output=output, verbose=0, trace=trace)
print(trained.epochs, trained.steps, trained.rows, len(trained.history), trained.model)
"""


def test_python_trains_on_files_and_two_runs_with_one_seed_are_equal_bit_for_bit(
    made: Path, undisturbed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-c", PYTHON, str(made), str(output), str(tmp_path / "trace.json")]
    ran = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, check=True)
    assert ran.stdout.split() == ["3", "33", "162", "3", str(output / "model.keras")]
    assert_same_job(output, undisturbed)
    slices = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event["ph"] == "X"]
    assert sum(event["name"] == "step" for event in slices) == 33
    assert sum(event["args"].get("rows", 0) for event in slices if event["name"] == "step") == 3 * 162
    assert {"start", "wait for rows", "validation", "checkpoint", "save the model"} <= {each["name"] for each in slices}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_any_process_that_is_killed_at_a_random_moment_changes_no_bit(
    made: Path, penstock_run: Penstock, tmp_path: Path, number: int
) -> None:
    """The coordinator, the trainer or a loader: whoever is left goes on, or `resume` does."""
    options = (*HELD, "--preprocess", "tests.support.fit_models:shift", "--loaders", 2)
    whole, output, mark = tmp_path / "whole", tmp_path / "out", new_mark()
    assert penstock_run(*fit(made, whole, *options)).returncode == 0
    moments = random.Random(number)
    whose = ("-m penstock fit", "trainer_process", "processes.loader")[number % 3]
    process = subprocess.Popen(
        penstock_command(*fit(made, output, *options, "--checkpoint-every", 1)),
        env=ENVIRONMENT | {MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    name = f"step-{moments.randrange(1, 30):010}.safetensors"
    folder = output / "checkpoints"
    wait_until(lambda: process.poll() is not None or any(path.name >= name for path in folder.glob("step-*")))
    for each in marked(mark):
        try:
            if whose in " ".join(each.cmdline()):
                each.kill()
                break
        except psutil.Error:
            continue
    code = process.wait(timeout=300)
    assert code in (0, -signal.SIGKILL)
    wait_until(lambda: marked(mark) == [])
    if code:
        resumed = penstock_run("resume", output)
        assert resumed.returncode == 0, resumed.stderr
    assert_same_job(output, whole)
