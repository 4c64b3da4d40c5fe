"""What is said of the job in a folder: how far it is, who runs it, whether it is whole; and what is not retried."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.commands import appending, folder_state, retrying
from penstock.commands.folder_job import FolderJob
from penstock.core.records import ModelFile, Recipe
from penstock.errors import OutputError
from penstock.options.records import PredictOptions
from penstock.storage import journal, local_folder
from penstock.storage.journal import PartRecord
from penstock.storage.ledger import committed_records, tidy
from penstock.storage.manifest import Manifest
from penstock.storage.places import Place, place_of
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
        os.utime(Path(output, "_penstock", "lock"), (2e9, 2e9))  # long after the parts were written
        told = folder_state.status(output)
    assert told["state"] == "running"
    assert told["rows_per_s"] is None, "it has committed nothing yet: the parts are those of the run before"
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
    assert folder_state.rows_per_s([part(0, 1.0), *later]) == 100.0, "only the last parts count"


def test_rate_of_a_resumed_run_leaves_out_the_pause_before_it() -> None:
    parts = [part(0, 10.0), part(1, 20.0), part(2, 520.0), part(3, 530.0)]
    assert folder_state.rows_per_s(parts, since=500.0) == 10.0
    assert folder_state.rows_per_s(parts, since=525.0) is None


def test_job_goes_on_where_its_newest_part_was_built() -> None:
    assert folder_state.resume_line("my out", []) == "penstock resume 'my out'"
    here, there = part(0, 50.0), replace(part(1, 60.0), node="10.0.0.3")
    assert folder_state.resume_line("out", [there, here]) == "penstock resume out --engine ray"
    assert folder_state.resume_line("out", [there, part(2, 70.0)]) == "penstock resume out"


def test_job_that_is_being_written_is_not_verified(output: str) -> None:
    written(output, manifest_of())
    assert folder_state.verify(output)["is_whole"]
    with place_of(output).lock(), pytest.raises(OutputError, match="a run is writing to the output") as caught:
        folder_state.verify(output)
    assert f"held by process {os.getpid()} on " in (caught.value.received or "")
    with place_of(output).lock(), pytest.raises(OutputError, match="locked by a run that is alive"):
        retry(output)
    with place_of(output).lock():
        assert folder_state.status(output)["state"] == "finished"


def test_verify_reads_the_journal_and_every_file_once(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written(output, manifest_of())
    opened: Counter[str] = Counter()

    def counting(path: Any, *arguments: Any, **keywords: Any) -> Any:
        opened[os.path.relpath(path, output)] += 1
        return open(path, *arguments, **keywords)

    for module in (journal, local_folder):
        monkeypatch.setattr(module, "open", counting, raising=False)
    assert folder_state.verify(output)["is_whole"]
    assert {name: times for name, times in opened.items() if times != 1} == {}
    assert "_penstock/journal" in opened
    assert any(name.startswith("_penstock/failures/") for name in opened)


def test_altered_part_counts_as_absent(output: str) -> None:
    written(output, manifest_of())
    whole = folder_state.verify(output)
    path = Path(output, "part-00000000.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    told = folder_state.verify(output)
    assert told["state"] == "unfinished"
    assert told["committed"] < whole["committed"]
    assert told["parts"] == whole["parts"] - 1


def socket_at(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


KINDS: dict[str, Callable[[Path], object]] = {"a FIFO": os.mkfifo, "a folder": Path.mkdir, "a socket": socket_at}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["manifest.json", "journal", "lock"])
def test_what_is_no_file_is_told_and_not_waited_for(output: str, name: str, kind: str) -> None:
    written(output, manifest_of())
    path = Path(output, "_penstock", name)
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    for command in (penstock.status, folder_state.verify, retry):
        with pytest.raises(OutputError) as caught:
            command(output)
        assert caught.value.as_json()["error"] == "OutputError"
        assert f"{path}: " in str(caught.value)
        assert f"it is {kind}" in str(caught.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_part_that_is_no_file_is_a_problem_among_others(output: str, kind: str) -> None:
    written(output, manifest_of())
    names = ["part-00000000.parquet", "_penstock/failures/00000001.jsonl", "_penstock/failures.jsonl"]
    for name in names:
        Path(output, name).unlink()
        KINDS[kind](Path(output, name))
    told = folder_state.verify(output)
    assert {each["name"]: each["problem"] for each in told["problems"]} == dict.fromkeys(names, f"it is {kind}")
    assert folder_state.status(output)["state"] == "unfinished"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["journal", "lock", "log.txt", "manifest.json.tmp"])
def test_what_is_no_file_is_not_written_to(output: str, name: str) -> None:
    os.mkfifo(os.path.join(output, "_penstock", name))
    with pytest.raises(OutputError, match="it is a FIFO"):
        begin(place_of(output))


def begin(place: Place) -> None:
    with place.lock(), place.log():
        manifest_of().save(place)
        place.journal()


def test_failures_of_the_same_length_with_another_content_are_told_and_mended(output: str) -> None:
    written(output, manifest_of())
    path = Path(output, "_penstock", "failures.jsonl")
    before = path.read_bytes()
    path.write_bytes(before[:-20] + before[-20:].replace(b"bad", b"mad"))
    (problem,) = folder_state.verify(output)["problems"]
    assert problem["name"] == "_penstock/failures.jsonl"
    assert "other failures of part" in problem["problem"]
    place = place_of(output)
    tidy(place, manifest_of(), committed_records(place, manifest_of()), is_thorough=True)
    assert path.read_bytes() == before


def retry(output: str) -> Any:
    model = ModelFile("onnx", "m.onnx", "d", ())
    return retrying.run(FolderJob(model, "d", None, output, PredictOptions(), {}), Silent(), 0.0)


def test_job_of_a_model_that_keeps_state_is_not_retried(output: str) -> None:
    written(output, replace(manifest_of(), recipe=Recipe("jax", "cpu", 5, 1, state="variables")))
    with pytest.raises(OutputError, match="the model keeps state"):
        retry(output)


def test_failures_that_were_altered_are_not_retried(output: str) -> None:
    written(output, manifest_of())
    path = next(Path(output, "_penstock", "failures").iterdir())
    path.write_bytes(path.read_bytes().replace(b'"', b"'", 1))
    with pytest.raises(OutputError, match="a part is not as it was written") as caught:
        retry(output)
    assert caught.value.hint == f"mend it first: penstock resume {output} --verify"


def test_files_whose_names_begin_alike_are_told_apart() -> None:
    assert retrying._is_in("/in/1.csv", "/in/1.csv, bytes 9 to 30")
    assert retrying._is_in("/in/1.tar", "/in/1.tar/0.jpg")
    assert retrying._is_in("/in/1.jpg", "/in/1.jpg")
    assert not retrying._is_in("/in/1.csv", "/in/1.csv.csv, bytes 9 to 30")


def test_nothing_is_appended_to_a_job_of_a_model_that_keeps_state(output: str) -> None:
    manifest = replace(manifest_of(), recipe=Recipe("jax", "cpu", 5, 1, state="variables"))
    model = ModelFile("onnx", "m.onnx", "d", ())
    with pytest.raises(OutputError, match="nothing can be appended") as caught:
        appending.check_job(FolderJob(model, "d", None, output, PredictOptions(), {}), manifest)
    assert "its model keeps state" in (caught.value.received or "")


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
