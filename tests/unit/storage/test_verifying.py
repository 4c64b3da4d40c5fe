"""What is wrong with an output is found, and predicting it again gives the bytes that were there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.protocols import Merges
from penstock.errors import OutputError
from penstock.storage.disk import internal
from penstock.storage.ledger import planned_records
from penstock.storage.places import place_of
from penstock.storage.retried import stage_retried
from penstock.storage.verifying import altered_files, find_problems
from tests.unit.storage.test_ledger import (
    SINKS,
    Run,
    assert_complete,
    everything_in,
    manifest_of,
    new_folder,
    run,
)


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def output(tmp_path: Path, sink: str) -> str:
    folder = new_folder(tmp_path / "out")
    run(folder, sink)
    return folder


def problems_of(output: str, sink: str) -> dict[str, str]:
    return {each.name: each.problem for each in find_problems(place_of(output), manifest_of(sink=sink))[0]}


def repair(output: str, sink: str) -> None:
    """What `resume --verify` does."""
    place, manifest = place_of(output), manifest_of(sink=sink)
    records = planned_records(place.read_journal()[0], manifest)
    altered = {each.name for each in altered_files(place, manifest, records)}
    with closing(Run(place, sink, manifest, altered)) as running:
        running.accept(*running.ledger.pending)
        running.finish()


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def test_undisturbed_output_has_no_problems(output: str, sink: str) -> None:
    assert problems_of(output, sink) == {}


def test_unfinished_output_has_no_problems(tmp_path: Path, sink: str) -> None:
    folder = new_folder(tmp_path / "other")
    run(folder, sink, stop=3)
    assert problems_of(folder, sink) == {}


def test_flipped_bit_in_any_file_is_found_and_repaired(output: str, sink: str) -> None:
    place, before = place_of(output), parts_of(output)
    files = [name for record in place.read_journal()[0] for name in record.all_files]
    assert len(files) >= 6
    for name in files:
        path = Path(output, name)
        flip(path, path.stat().st_size // 2)
        assert name in problems_of(output, sink)
        repair(output, sink)
        assert problems_of(output, sink) == {}
        assert parts_of(output) == before


def test_altered_part_is_not_copied_into_one_that_takes_its_place(output: str, sink: str) -> None:
    place, manifest, writer = place_of(output), manifest_of(sink=sink), SINKS[sink]
    assert isinstance(writer, Merges)
    with closing(Run(place, sink, manifest)) as running:
        path = Path(output, next(iter(running.ledger.records[0].files)))
        flip(path, path.stat().st_size // 2)
        with pytest.raises(OutputError, match="a part is not as it was written"):
            stage_retried(place, manifest, running.ledger, writer, 0, [])


def parts_of(output: str) -> dict[str, bytes]:
    return {name: content for name, content in everything_in(output).items() if not name.endswith("journal")}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "shorter": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_part_of_another_size_is_named_and_only_it_is_written_again(output: str, sink: str, damage: str) -> None:
    before = parts_of(output)
    times = {name: os.stat(os.path.join(output, name)).st_mtime_ns for name in before}
    hit = next(name for name in before if "part-00000001" in name)
    DAMAGES[damage](Path(output, hit))
    assert list(problems_of(output, sink)) == [hit]
    repair(output, sink)
    assert parts_of(output) == before
    changed = {name for name, at in times.items() if os.stat(os.path.join(output, name)).st_mtime_ns != at}
    assert all("00000001" in name or name.endswith("failures.jsonl") for name in changed), changed
    assert_complete(output, sink)


def test_unknown_file_is_named(output: str, sink: str) -> None:
    folder = manifest_of(sink=sink).part_folders[0]
    name = os.path.join(folder, f"part-00000099{SINKS[sink].suffix}")
    Path(output, name).write_bytes(b"x")
    Path(internal(output, "failures"), "00000099.jsonl").write_bytes(b"x")
    Path(output, "notes.txt").write_bytes(b"mine")
    assert set(problems_of(output, sink)) == {name, "_penstock/failures/00000099.jsonl"}
    repair(output, sink)
    assert problems_of(output, sink) == {}


def test_torn_and_altered_journals_are_told_and_mended(output: str, sink: str) -> None:
    before = parts_of(output)
    journal = Path(internal(output, "journal"))
    raw = journal.read_bytes()
    position = 0
    while position < len(raw):  # the times in it may make it shorter or longer when it is mended
        altered = bytearray(raw)
        altered[position] ^= 1
        journal.write_bytes(altered)
        assert "_penstock/journal" in problems_of(output, sink)
        repair(output, sink)
        assert problems_of(output, sink) == {}
        assert parts_of(output) == before
        journal.write_bytes(raw[:position])
        assert (problems_of(output, sink) == {}) == (position == len(raw))
        repair(output, sink)
        assert parts_of(output) == before
        raw = journal.read_bytes()
        position += 97


def test_failures_that_are_not_those_of_the_parts_are_told(output: str, sink: str) -> None:
    Path(internal(output, "failures.jsonl")).write_bytes(b"{}\n")
    assert list(problems_of(output, sink)) == ["_penstock/failures.jsonl"]
    repair(output, sink)
    assert problems_of(output, sink) == {}
