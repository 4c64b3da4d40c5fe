"""One recipe gives one set of bits: from 1, 2 and 4 replicas, and from a run that was killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows

OPTIONS = ["--threads", 1, "--batch-size", 128, "--part-rows", 1000, "--keep", "name", "--quiet"]


def predict_arguments(models: Path, digits: Path, output: Path, *more: object) -> list[object]:
    return ["predict", models / "digits.keras", digits, "--output", output, *OPTIONS, *more]


@pytest.fixture(scope="module")
def from_one_replica(models: Path, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    from tests.conftest import run_penstock

    output = tmp_path_factory.mktemp("one") / "out"
    ran = run_penstock(*predict_arguments(models, digits, output, "--devices", "cpu:1"))
    assert ran.returncode == 0, ran.stderr
    return read_rows(output)


def test_one_replica_predicts_every_row_once_and_in_order(from_one_replica: pa.Table) -> None:
    assert from_one_replica.column("row").to_pylist() == list(range(20_000))
    assert from_one_replica.column("name")[7_345].as_py() == "1-2345"


@pytest.mark.parametrize("replicas", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_several_replicas_give_the_same_bytes(
    models: Path, digits: Path, from_one_replica: pa.Table, penstock_run: Penstock, tmp_path: Path, replicas: int
) -> None:
    ran = penstock_run(*predict_arguments(models, digits, tmp_path / "out", "--devices", f"cpu:{replicas}"))
    assert ran.returncode == 0, ran.stderr
    assert read_rows(tmp_path / "out").equals(from_one_replica)


def test_killed_and_resumed_run_gives_the_same_bytes(
    models: Path, digits: Path, from_one_replica: pa.Table, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = predict_arguments(models, digits, output, "--devices", "cpu:2")
    process = subprocess.Popen(penstock_command(*arguments), env=ENVIRONMENT)
    while journal_length(output) < 3 and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    committed = journal_length(output)
    assert 3 <= committed < 20, "the kill came too late to mean anything"

    ran = penstock_run("resume", output, "--json", "--devices", "cpu:1")
    assert ran.returncode == 0, ran.stderr
    assert "resuming" in ran.stderr
    assert read_rows(output).equals(from_one_replica)
    assert journal_length(output) == 20
