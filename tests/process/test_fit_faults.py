"""Faults of `penstock fit` on files: hanging and dying processes, kills between any two writes, full disks."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ENVIRONMENT, Penstock, penstock_command, summary_of
from tests.support.fit_runs import assert_same_job, fit
from tests.support.processes import MARK, marked, new_mark, wait_until

SHIM = Path(__file__).parents[1] / "support" / "disk_faults.c"
TRAINER = "penstock.training.trainer_process"


def start(mark: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        penstock_command(*arguments),
        env=ENVIRONMENT | {MARK: mark},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def trainer_of(mark: str) -> psutil.Process | None:
    return next(iter(marked(mark, TRAINER)), None)


@pytest.mark.slow
def test_a_stopped_trainer_is_noticed_and_started_again_from_the_last_checkpoint(
    made: Path, undisturbed: Path, tmp_path: Path
) -> None:
    mark, output = new_mark(), tmp_path / "out"
    process = start(mark, *fit(made, output, "--validation-split", 0.2, "--checkpoint-every", 1, "--hang-timeout", 3))
    wait_until(lambda: process.poll() is not None or list(output.glob("checkpoints/*.safetensors")))
    trainer = trainer_of(mark)
    if trainer is not None:
        trainer.suspend()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    if trainer is not None:  # where it was faster than the signal, nothing is left to prove
        assert "the process that trains was stopped for" in errors
    assert_same_job(output, undisturbed)
    assert marked(mark) == []


def test_a_second_signal_ends_at_once_and_says_how_to_go_on(made: Path, tmp_path: Path) -> None:
    """The trainer is stopped, so that only the second signal can end the run."""
    mark, output = new_mark(), tmp_path / "out"
    process = start(mark, *fit(made, output, "--checkpoint-every", 1))
    wait_until(lambda: process.poll() is not None or list(output.glob("checkpoints/*.safetensors")))
    trainer = trainer_of(mark)
    if trainer is not None:
        trainer.suspend()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    errors = ""
    for line in process.stderr:
        errors += line
        if "again to stop at once" in line:
            process.send_signal(signal.SIGINT)
    process.communicate()
    # Where it was faster than the signal, nothing is left to prove.
    assert process.returncode in (130, 0), errors
    if process.returncode == 130:
        assert f"stopped at once\nhint: go on with: penstock resume {output}" in errors
    assert marked(mark) == []


def test_a_trainer_that_never_starts_ends_the_job_after_three_tries_and_its_log_stays(
    made: Path, tmp_path: Path
) -> None:
    """Each of them is stopped as soon as it is there."""
    mark, output = new_mark(), tmp_path / "out"
    process = start(mark, *fit(made, output, "--hang-timeout", 1))
    seen: set[int] = set()
    while process.poll() is None:
        trainer = trainer_of(mark)
        if trainer is not None and trainer.pid not in seen:
            seen.add(trainer.pid)
            trainer.suspend()
    _, errors = process.communicate()
    assert process.returncode == 9, errors
    assert "the process that trains died 3 times without getting further" in errors
    assert "--hang-timeout" in errors
    assert len(seen) == 3
    assert sorted(path.name for path in output.rglob("*") if path.is_file()) == ["lock", "log.txt"]
    assert "the process that trains was stopped" in (output / "_penstock" / "log.txt").read_text()


@pytest.mark.slow
def test_three_deaths_of_the_trainer_without_a_checkpoint_end_the_job(
    made: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    crash = {"PENSTOCK_CRASH_AT": "checkpoint_begun:1"}
    output = tmp_path / "out"
    ran = penstock_run(*fit(made, output, "--checkpoint-every", 4), environment=crash)
    assert ran.returncode == 9, ran.stderr
    assert "was killed by SIGKILL" in ran.stderr
    status = penstock_run("status", output)
    assert status.stdout.startswith("unfinished: 0 of 3 epochs done"), status.stdout


def files_of(output: Path) -> list[str]:
    return sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def by_name(made: Path, penstock_run: Penstock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose labels are text."""
    output = tmp_path_factory.mktemp("by_name") / "out"
    summary_of(penstock_run(*fit_by_name(made, output), "--json"))
    return output


def fit_by_name(made: Path, output: Path) -> list[object]:
    files = (made / "model.keras", made / "rows.parquet", "--label", "name")
    return ["fit", *files, "--epochs", 2, "--batch-size", 64, "--checkpoint-every", 3, "-o", output]


@pytest.mark.parametrize(
    "point",
    [
        "manifest_settled:1",  # the manifest is there, labels.json is not
        "manifest_written:3",  # the model is there, the result is not
        pytest.param("manifest_begun:1", marks=pytest.mark.slow),
        pytest.param("manifest_synced:2", marks=pytest.mark.slow),
        pytest.param("manifest_settled:2", marks=pytest.mark.slow),
        pytest.param("manifest_synced:3", marks=pytest.mark.slow),
    ],
)
def test_a_job_that_is_killed_between_two_writes_goes_on_and_leaves_the_same_files(
    made: Path, by_name: Path, tmp_path: Path, penstock_run: Penstock, point: str
) -> None:
    output = tmp_path / "out"
    command = penstock_command(*fit_by_name(made, output))
    ran = subprocess.run(command, env=ENVIRONMENT | {"PENSTOCK_CRASH_AT": point}, capture_output=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    again = penstock_run(*fit_by_name(made, output))
    assert again.returncode == 0, again.stderr
    assert_same_job(output, by_name)
    assert (output / "labels.json").read_bytes() == (by_name / "labels.json").read_bytes()
    assert files_of(output) == files_of(by_name)


@pytest.mark.parametrize("point", ["publish_begun", pytest.param("publish_renamed", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_trainer_that_dies_over_the_model_ends_the_job_and_resume_writes_it(
    made: Path, by_name: Path, tmp_path: Path, penstock_run: Penstock, point: str
) -> None:
    """Checkpoints that it writes again are no progress."""
    output = tmp_path / "out"
    ran = penstock_run(*fit_by_name(made, output), environment={"PENSTOCK_CRASH_AT": point})
    assert ran.returncode == 9, ran.stderr
    again = penstock_run("resume", output)
    assert again.returncode == 0, again.stderr
    assert_same_job(output, by_name)
    assert files_of(output) == files_of(by_name)


@pytest.mark.parametrize("visit", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_overwrite_that_is_killed_midway_leaves_the_job_that_it_was_to_replace(
    made: Path, by_name: Path, tmp_path: Path, penstock_run: Penstock, visit: int
) -> None:
    output = tmp_path / "out"
    shutil.copytree(by_name, output)
    command = penstock_command(*fit_by_name(made, output), "--overwrite")
    crash = {"PENSTOCK_CRASH_AT": f"recovery_removed:{visit}"}
    ran = subprocess.run(command, env=ENVIRONMENT | crash, capture_output=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    again = penstock_run(*fit_by_name(made, output))
    assert again.returncode == 0, again.stderr
    assert "finished already" in again.stdout
    assert_same_job(output, by_name)
    assert files_of(output) == files_of(by_name)


def test_overwrite_removes_the_other_job_and_nothing_else(
    made: Path, by_name: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    output = tmp_path / "out"
    shutil.copytree(by_name, output)
    (output / "notes.txt").write_text("mine")
    files = (made / "model.keras", made / "rows.parquet", "--label", "y", "--batch-size", 64, "-o", output)
    refused = penstock_run("fit", *files)
    assert refused.returncode == 7
    assert "label={'': 'y'} (there: {'': 'name'})" in refused.stderr
    own = penstock_run("fit", output / "model.keras", *files[1:], "--overwrite")
    assert own.returncode == 2
    assert "the model that is trained is the one that training writes" in own.stderr
    before = files_of(output)
    for wrong, code in ((("--label", "lable"), 5), (("--label", "y", "--loss", "sqared_error"), 2)):
        misspelt = penstock_run("fit", *files[:2], *wrong, "-o", output, "--overwrite")
        assert misspelt.returncode == code, misspelt.stderr
        assert files_of(output) == before, "a job stays until training begins that replaces it"
        assert_same_job(output, by_name)
    found = summary_of(penstock_run("fit", *files, "--overwrite", "--json"))
    assert found["epochs"] == 1
    assert (output / "notes.txt").read_text() == "mine"
    assert not (output / "labels.json").exists()


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes calls of libc fail as a bad disk does."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no C compiler here to build the faulty library with")
    library = tmp_path_factory.mktemp("faulty") / "faulty.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("call", "path", "after", "said"),
    [
        ("fsync", "/step-", 1, "3 checkpoints in a row could not be written"),
        pytest.param("fsync", "model.keras", 0, "the output cannot be written", marks=pytest.mark.slow),
        pytest.param("rename", "result.json", 0, "the output cannot be written", marks=pytest.mark.slow),
        pytest.param("write", "labels.json", 0, "the output cannot be written", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_disk_that_fails_ends_the_job_with_one_message_and_it_goes_on_later(
    made: Path,
    by_name: Path,
    faulty: Path,
    tmp_path: Path,
    penstock_run: Penstock,
    call: str,
    path: str,
    after: int,
    said: str,
) -> None:
    output = tmp_path / "out"
    fault = {"FAULT_CALL": call, "FAULT_PATH": path, "FAULT_ERRNO": str(errno.EIO), "FAULT_AFTER": str(after)}
    arguments = [*fit_by_name(made, output), "--checkpoint-every", 1]
    environment = ENVIRONMENT | fault | {"LD_PRELOAD": str(faulty)}
    command = penstock_command(*arguments)
    ran = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert ran.returncode == 7, ran.stderr
    assert said in ran.stderr
    assert os.strerror(errno.EIO) in ran.stderr
    assert "hint: " in ran.stderr
    assert "Traceback" not in ran.stderr
    again = penstock_run(*arguments)
    assert again.returncode == 0, again.stderr
    assert_same_job(output, by_name)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
@pytest.mark.slow
def test_a_disk_that_becomes_full_keeps_the_last_good_checkpoint_and_training_goes_on_when_there_is_room(
    made: Path, undisturbed: Path, tmp_path: Path
) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    asked = ("--validation-split", 0.2, "--checkpoint-every", 1, "--keep-checkpoints", 99)
    run = shlex.join(penstock_command(*fit(made, disk / "out", *asked)))
    resume = shlex.join(penstock_command("resume", disk / "out"))
    script = f"""
        mount -t tmpfs -o size=160k none {disk}
        {run} 2>&1; echo code $?
        ls {disk}/out/checkpoints
        mount -o remount,size=50m {disk}
        {resume} 2>&1; echo code $?
        cp -r {disk}/out {kept}
    """
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], env=ENVIRONMENT, text=True, capture_output=True, check=False
    )
    before, _, behind = ran.stdout.partition("code 7\n")
    assert behind, ran.stdout
    assert "the last good one stays (step-" in before
    assert "3 checkpoints in a row could not be written" in before
    assert "No space left on device" in before
    assert behind.splitlines()[0] == "step-0000000001.safetensors"
    assert "code 0\n" in behind
    assert_same_job(kept, undisturbed)
