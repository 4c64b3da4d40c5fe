"""A seeded part of the fault harness (`make chaos` is the whole): nothing lost, doubled or changed, whatever dies."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.process.chaos import Harness, run_until
from tests.support.chaos_jobs import Setup, write_inputs

SEED = 20


def kill_and_compare(tmp_path: Path, setups: list[Setup], kills: int) -> None:
    write_inputs(tmp_path / "inputs", tensorflow=False)
    with contextlib.closing(Harness(SEED, tmp_path, setups, most_faults=3)) as harness:
        run_until(harness, setups, kills, jobs=1)
    figures = harness.figures
    assert figures.broken == [], "\n".join(figures.lines())
    assert figures.num_kills >= kills
    assert figures.rows_lost == figures.rows_doubled == figures.files_differing == figures.parts_damaged == 0


def test_killed_jobs_end_as_undisturbed_ones_byte_for_byte(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    kill_and_compare(tmp_path, [Setup(inputs, "parquet", has_functions=True), Setup(inputs, "npy")], kills=4)


@pytest.mark.slow
def test_killed_retries_end_as_undisturbed_ones_byte_for_byte(tmp_path: Path) -> None:
    kill_and_compare(tmp_path, [Setup(tmp_path / "inputs", "jsonl", has_functions=True, command="retry")], kills=2)


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["parquet", "npy"])
def test_killed_appends_end_as_undisturbed_ones_byte_for_byte(tmp_path: Path, sink: str) -> None:
    kill_and_compare(tmp_path, [Setup(tmp_path / "inputs", sink, command="append")], kills=8)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "retry", "append"])
def test_killed_jobs_on_object_storage_end_as_undisturbed_ones_byte_for_byte(tmp_path: Path, command: str) -> None:
    setup = Setup(tmp_path / "inputs", "parquet", has_functions=command == "retry", command=command, is_remote=True)
    kill_and_compare(tmp_path, [setup], kills=8)
