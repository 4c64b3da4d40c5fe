"""Nothing is lost: replicas killed, coordinators killed, interrupts at any moment."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows, run_penstock

ROWS = 20_000


def predict_arguments(light_models: Path, digits: Path, output: Path) -> list[object]:
    """A run of many small parts, slow enough to be hit in the middle."""
    return [
        "predict", light_models / "slow_digits.onnx", digits, "--output", output, "--threads", 1, "--batch-size", 32,
        "--part-rows", 1000,
    ]  # fmt: skip


def start_predict(light_models: Path, digits: Path, output: Path, *more: object) -> subprocess.Popen[str]:
    command = penstock_command(*predict_arguments(light_models, digits, output), *more)
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def replicas_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return list(psutil.Process(process.pid).children(recursive=True))


def assert_all_rows(output: Path) -> None:
    assert read_rows(output).column("row").to_pylist() == list(range(ROWS))


def test_killed_replica_loses_no_row(light_models: Path, digits: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start_predict(light_models, digits, output, "--devices", "cpu:2")
    wait_for(lambda: journal_length(output) >= 2, process)
    replicas_of(process)[0].kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert_all_rows(output)
    assert "was killed by SIGKILL" in (output / "_penstock" / "log.txt").read_text()


def test_killed_coordinator_leaves_no_process_and_no_shared_memory(
    light_models: Path, digits: Path, tmp_path: Path
) -> None:
    before = set(os.listdir("/dev/shm"))
    process = start_predict(light_models, digits, tmp_path / "out", "--devices", "cpu:2")
    wait_for(lambda: journal_length(tmp_path / "out") >= 1, process)
    children = replicas_of(process)
    assert children
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    assert set(os.listdir("/dev/shm")) <= before


def test_interrupt_commits_what_is_in_flight_and_can_be_resumed(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start_predict(light_models, digits, output, "--devices", "cpu:1")
    wait_for(lambda: journal_length(output) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"penstock resume {output}" in errors
    rows = read_rows(output).column("row").to_pylist()
    assert rows == list(range(len(rows)))
    assert 2000 <= len(rows) < ROWS

    ran = penstock_run("resume", output)
    assert ran.returncode == 0, ran.stderr
    assert_all_rows(output)


@pytest.mark.slow
def test_interrupted_evaluation_goes_on_with_its_own_line_which_has_the_metrics(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    pixels = pa.concat_tables([pq.read_table(path) for path in sorted(digits.glob("*.parquet"))])
    output, rows = tmp_path / "out", tmp_path / "rows.parquet"
    pq.write_table(pixels.append_column("y", pa.array([row % 10 for row in range(ROWS)])), rows, row_group_size=1000)
    _, model, _, *options = predict_arguments(light_models, digits, output)
    line = ["evaluate", model, rows, *options, "--devices", "cpu:1", "--label", "y", "--metrics", "accuracy"]
    process = subprocess.Popen(
        penstock_command(*line), env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(lambda: journal_length(output) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "go on with: the same line, which then has the metrics, too" in errors
    ran = penstock_run(*line)
    assert ran.returncode == 0, ran.stderr
    assert "accuracy: " in ran.stdout


def test_terminal_that_closes_stops_the_run_as_sigterm_does(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    """Whatever it writes to the terminal from then on fails."""
    output = tmp_path / "out"
    ours, theirs = pty.openpty()
    command = penstock_command(*predict_arguments(light_models, digits, output), "--devices", "cpu:1")
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], env=ENVIRONMENT, text=True, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    deadline = time.monotonic() + 120
    while journal_length(output) < 2:
        assert time.monotonic() < deadline
        os.read(ours, 65536)
    children = psutil.Process(process.pid).children(recursive=True)
    os.close(ours)
    process.send_signal(signal.SIGHUP)  # the shell sends one, and the kernel another
    assert process.wait(timeout=60) == 129
    assert psutil.wait_procs(children, timeout=20)[1] == []
    rows = read_rows(output).column("row").to_pylist()
    assert rows == list(range(len(rows)))
    assert 2000 <= len(rows) < ROWS
    ran = penstock_run("resume", output)
    assert ran.returncode == 0, ran.stderr
    assert_all_rows(output)


@pytest.mark.slow
def test_nohup_goes_on_when_the_terminal_closes(light_models: Path, digits: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = ["nohup", *penstock_command(*predict_arguments(light_models, digits, output), "--devices", "cpu:1")]
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: journal_length(output) >= 2, process)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert_all_rows(output)


def test_run_that_ignores_sighup_outlives_its_terminal(light_models: Path, digits: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    ours, theirs = pty.openpty()
    command = penstock_command(*predict_arguments(light_models, digits, output), "--devices", "cpu:1")
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command]
    process = subprocess.Popen(ignoring, env=ENVIRONMENT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    while journal_length(output) < 2:
        os.read(ours, 65536)
    os.close(ours)
    assert process.wait(timeout=120) == 0
    assert_all_rows(output)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_stops_at_once(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    output = tmp_path / "out"
    process = start_predict(light_models, digits, output, "--devices", "cpu:1")
    wait_for(lambda: journal_length(output) >= 1, process)
    process.send_signal(number)
    time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    # The first may have been enough, if nothing was in flight.
    assert process.returncode == code, errors
    assert f"go on with: penstock resume {output}" in errors
    ran = penstock_run(*predict_arguments(light_models, digits, output))
    assert ran.returncode == 0, ran.stderr
    assert_all_rows(output)


def test_stop_while_the_model_loads_leaves_the_job_that_was_to_be_replaced_and_does_not_resume_it(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    ran = penstock_run("predict", light_models / "digits.onnx", digits, "--output", output)
    assert ran.returncode == 0, ran.stderr
    (tmp_path / "endless.py").write_text(
        "def build():\n    import pathlib, time\n    pathlib.Path('loading').touch()\n    time.sleep(600)\n",
        encoding="utf-8",
    )
    command = penstock_command(
        "predict", "endless:build", digits, "--output", output, "--runtime", "jax", "--overwrite"
    )
    process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, text=True, stderr=subprocess.PIPE)
    wait_for((tmp_path / "loading").exists, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped before the first row\nhint: run the same command again" in errors
    assert "resume" not in errors
    assert_all_rows(output)


def test_replicas_that_keep_dying_end_the_run_with_their_own_code(tmp_path: Path, digits: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "def build():\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n", encoding="utf-8"
    )
    ran = run_penstock("predict", "deadly:build", digits, "--output", "out", "--runtime", "jax", cwd=tmp_path)
    assert ran.returncode == 9, ran.stderr
    assert "was killed by SIGKILL" in ran.stderr
    assert not (tmp_path / "out").exists()
