"""What is said of the job in a folder: how far it is, who runs it, whether it is whole; and what is not retried."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.commands import folder_state, retrying
from penstock.commands.folder_job import FolderJob
from penstock.core.records import ModelFile, Recipe
from penstock.errors import OutputError
from penstock.options.records import PredictOptions
from penstock.storage.journal import PartRecord
from penstock.storage.manifest import Manifest
from penstock.storage.places import place_of
from penstock.telemetry.progress import Silent
from tests.unit.storage.test_ledger import manifest_of, new_folder, run


@pytest.fixture
def output(tmp_path: Path) -> str:
    return new_folder(tmp_path / "out")


def written(output: str, manifest: Manifest, stop: int | None = None) -> str:
    manifest.save(place_of(output))
    run(output, "parquet", stop)
    return output


def test_status_of_a_dead_run_says_what_is_left(output: str) -> None:
    told = folder_state.status(written(output, manifest_of(), stop=3))
    assert (told["state"], told["run"], told["rows"]) == ("unfinished", None, 35)
    assert told["committed"] + told["failed"] == 15
    assert told["left"] == 20


def test_status_of_a_living_run_says_who_it_is(output: str) -> None:
    written(output, manifest_of(), stop=3)
    with place_of(output).lock():
        told = folder_state.status(output)
    assert told["state"] == "running"
    assert told["run"].startswith(f"process {os.getpid()} on ")


def test_status_of_a_finished_job(output: str) -> None:
    told = folder_state.status(written(output, manifest_of()))
    assert (told["state"], told["left"], told["parts"]) == ("finished", 0, 3)


def part(number: int, at: float) -> PartRecord:
    return PartRecord(number, 0, number, number + 1, 90, 10, {}, 0, written_at=at)


def test_rate_is_that_of_the_last_parts() -> None:
    assert folder_state.rows_per_s([]) is None
    assert folder_state.rows_per_s([part(0, 50.0)]) is None
    assert folder_state.rows_per_s([part(0, 50.0), part(1, 50.0)]) is None
    assert folder_state.rows_per_s([part(0, 0.0), part(1, 50.0)]) is None, "an older penstock wrote the first"
    assert folder_state.rows_per_s([part(1, 60.0), part(0, 50.0), part(2, 70.0)]) == 10.0
    later = [part(1 + number, 1e6 + number) for number in range(20)]
    assert folder_state.rows_per_s([part(0, 1.0), *later]) == 100.0, "the pause before the last run does not count"


def test_job_that_is_being_written_is_not_verified(output: str) -> None:
    written(output, manifest_of())
    assert folder_state.verify(output)["is_whole"]
    with place_of(output).lock(), pytest.raises(OutputError, match="a run is writing to the output"):
        folder_state.verify(output)


def retry(output: str) -> Any:
    model = ModelFile("onnx", "m.onnx", "d", ())
    return retrying.run(FolderJob(model, "d", None, output, PredictOptions(), {}), Silent(), 0.0)


def test_job_of_a_model_that_keeps_state_is_not_retried(output: str) -> None:
    written(output, replace(manifest_of(), recipe=Recipe("jax", "cpu", 5, 1, state="variables")))
    with pytest.raises(OutputError, match="the model keeps state"):
        retry(output)


def test_stream_and_unfinished_and_damaged_jobs_are_not_retried(output: str, tmp_path: Path) -> None:
    written(output, manifest_of(), stop=3)
    with pytest.raises(OutputError, match="not finished"):
        retry(output)
    run(output, "parquet")
    (Path(output) / "part-00000001.parquet").unlink()
    with pytest.raises(OutputError, match="damaged"):
        retry(output)
    other = new_folder(tmp_path / "stream")
    replace(manifest_of(parts=()), spans=(), part_rows=10, streamed=(7, 35)).save(place_of(other))
    with pytest.raises(OutputError, match="stream"):
        retry(other)
    with pytest.raises(OutputError, match="no job"):
        retry(new_folder(tmp_path / "empty"))
