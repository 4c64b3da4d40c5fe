"""A seeded part of the fault harness (`make chaos` is the whole): nothing lost, doubled or changed, whatever dies."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.process.chaos import Harness, Setup, run_until, write_inputs

SEED, KILLS = 20, 10


def test_killed_jobs_end_as_undisturbed_ones_byte_for_byte(tmp_path: Path) -> None:
    write_inputs(tmp_path / "inputs", tensorflow=False)
    setups = [Setup(tmp_path / "inputs", "parquet", True), Setup(tmp_path / "inputs", "npy", False)]
    with contextlib.closing(Harness(SEED, tmp_path)) as harness:
        run_until(harness, setups, KILLS, jobs=1)
    figures = harness.figures
    assert figures.broken == [], "\n".join(figures.lines())
    assert figures.num_kills >= KILLS
    assert figures.rows_lost == figures.rows_doubled == figures.files_differing == 0
