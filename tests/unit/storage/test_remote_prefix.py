"""A remote prefix: whatever happens between two requests, rows in = rows out + recorded failures."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from penstock.errors import OutputError
from penstock.storage import journal
from penstock.storage.journal import valid_records
from penstock.storage.lease import LOCK
from penstock.storage.ledger import committed_records, is_finished, part_files, put_failures_together, remove_job
from penstock.storage.manifest import is_fresh, load_manifest
from penstock.storage.places import place_of
from penstock.storage.remote_prefix import RemotePrefix
from tests.unit.storage.test_ledger import FAILED, SINKS, SPANS, SURVIVORS, UNORDERED, Run, manifest_of

URL = "memory://bucket/out"
STORE = MemoryFileSystem()


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    MemoryFileSystem.store.clear()
    assert os.listdir(tmp_path) == [], "nothing may be left in the temporary folder"


@contextmanager
def opened(sink: str = "jsonl") -> Iterator[Run]:
    running = Run(RemotePrefix(URL), sink)
    try:
        yield running
    finally:
        running.close()


def run(sink: str = "jsonl") -> None:
    with opened(sink) as running:
        pending = {span.index: span for span in running.ledger.pending}
        running.accept(*(pending[index] for index in UNORDERED if index in pending))
        running.finish()


def content(name: str) -> bytes:
    found: bytes = STORE.cat_file(f"{URL}/{name}")
    return found


def names() -> list[str]:
    return sorted(path.removeprefix("/bucket/out/") for path in STORE.find(URL))


def rows_written() -> list[int]:
    parts = [content(name) for name in names() if name.startswith("part-")]
    return [json.loads(line)["row"] for part in parts for line in part.splitlines()]


def failures_written() -> list[int]:
    return [json.loads(line)["row"] for line in content("_penstock/failures.jsonl").splitlines()]


def assert_complete() -> None:
    assert rows_written() == SURVIVORS
    assert failures_written() == sorted(FAILED)
    assert_consistent()
    assert is_finished(manifest_of(), committed_records(place_of(URL), manifest_of()))


def assert_consistent() -> None:
    place = place_of(URL)
    records = committed_records(place, manifest_of())
    assert records == valid_records(place.read_journal()[0])
    spans = [span for record in records for span in range(record.first_span, record.stop_span)]
    assert spans == sorted(set(spans))
    known = sorted(name for record in records for name in record.files)
    assert part_files(place, manifest_of(sink="jsonl")) == known


class Crash(BaseException):
    """The process is gone."""


def crash_at(calls: int, patch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Let so many changes through, then fail before or after the next, and at every later one."""
    left = calls

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < -1 or (left == -1 and not after):
                raise Crash
            done = real(*arguments, **options)
            if left == -1:
                raise Crash
            return done

        return call

    for name in ("pipe_file", "put_file", "rm_file"):
        patch.setattr(MemoryFileSystem, name, wrapped(getattr(MemoryFileSystem, name)))


def crashed(calls: int, *, after: bool) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        crash_at(calls, patch, after=after)
        try:
            run()
        except Crash:
            return True
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before the step", "after the step"])
def test_crash_at_any_step_loses_and_doubles_no_row(after: bool) -> None:
    for calls in range(100):
        MemoryFileSystem.store.clear()
        if not crashed(calls, after=after):
            break
        before = committed_records(place_of(URL), manifest_of())
        with opened() as running:
            assert running.ledger.records == before
        assert_consistent()
        run()
        assert_complete()
    assert calls > 10, "there are more steps than that between beginning and end"


def test_crash_while_recovering_from_a_crash_loses_and_doubles_no_row() -> None:
    for first in range(0, 100, 2):
        for second in range(100):
            MemoryFileSystem.store.clear()
            if not crashed(first, after=True):
                assert first > 10
                return
            if not crashed(second, after=second % 2 == 0):
                break
            run()
            assert_complete()


@pytest.mark.parametrize("sink", SINKS)
def test_whole_job_is_written_with_nothing_beside_the_parts(sink: str) -> None:
    run(sink)
    inside = {name for name in names() if name.startswith("_penstock/")}
    records = place_of(URL).read_journal()[0]
    assert {name for name in names() if name not in inside} == {name for record in records for name in record.files}
    assert inside == {
        "_penstock/failures.jsonl",
        *(f"_penstock/journal/{number:08d}" for number in range(4)),
        *(f"_penstock/failures/{number:08d}.jsonl" for number in range(4)),
    }
    assert failures_written() == sorted(FAILED)


def test_parquet_parts_are_read_back() -> None:
    run("parquet")
    tables = [pq.read_table(io.BytesIO(content(name))) for name in names() if name.startswith("part-")]
    assert [row for table in tables for row in table["row"].to_pylist()] == SURVIVORS


@pytest.mark.parametrize("damage", [b"", b"00000000 {}\n", b"half"], ids=["empty", "false checksum", "torn"])
def test_record_that_is_damaged_ends_the_journal_and_the_rest_is_redone(damage: bytes) -> None:
    run()
    STORE.pipe_file(f"{URL}/_penstock/journal/00000001", damage)
    with opened() as running:
        assert [record.part for record in running.ledger.records] == [3], "it was committed first"
        assert running.ledger.pending == SPANS[:4]
    assert_consistent()
    run()
    assert_complete()


@pytest.fixture
def segments_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_OBJECTS", 2)


def journal_names() -> list[str]:
    return [name.removeprefix("_penstock/journal/") for name in names() if "/journal/" in name]


@pytest.mark.usefixtures("segments_of_two")
def test_records_are_put_together_into_segments_and_read_back() -> None:
    run()
    assert journal_names() == ["segment-00000000", "segment-00000001"]
    assert_complete()
    before = content("_penstock/journal/segment-00000001")
    run()
    assert content("_penstock/journal/segment-00000001") == before


@pytest.mark.usefixtures("segments_of_two")
@pytest.mark.parametrize("after", [False, True], ids=["before the step", "after the step"])
def test_crash_at_any_step_of_a_journal_in_segments_loses_and_doubles_no_row(after: bool) -> None:
    test_crash_at_any_step_loses_and_doubles_no_row(after)
    assert journal_names()[0] == "segment-00000000"


@pytest.mark.usefixtures("segments_of_two")
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "altered"])
@pytest.mark.parametrize("segment", [0, 1])
def test_segment_that_is_damaged_ends_the_journal_and_the_rest_is_redone(segment: int, is_gone: bool) -> None:
    run()
    name = f"{URL}/_penstock/journal/segment-{segment:08d}"
    STORE.rm_file(name) if is_gone else STORE.pipe_file(name, STORE.cat_file(name)[:-9])
    problems = RemotePrefix(URL).read_journal()[1]
    assert bool(problems) == (segment == 0 or not is_gone)
    with opened() as running:
        assert len(running.ledger.records) == 2 * segment
    run()
    assert_complete()


def test_journal_that_was_not_put_together_in_time_is_when_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    assert journal_names() == [f"{number:08d}" for number in range(4)]
    STORE.rm_file(f"{URL}/part-00000000.jsonl")
    monkeypatch.setattr(journal, "SEGMENT_OBJECTS", 2)
    run()
    assert journal_names() == [f"segment-{number:08d}" for number in range(3)]
    assert_complete()


@pytest.mark.parametrize("gap", [0, 1, 2])
def test_record_that_is_gone_ends_the_journal(gap: int) -> None:
    run()
    STORE.rm_file(f"{URL}/_penstock/journal/{gap:08d}")
    with opened() as running:
        assert len(running.ledger.records) == gap
    assert [name for name in names() if "journal" in name] == [f"_penstock/journal/{n:08d}" for n in range(gap)]
    run()
    assert_complete()


@pytest.mark.parametrize("name", ["part-00000001.jsonl", "_penstock/failures/00000001.jsonl"])
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "short"])
def test_part_that_is_not_whole_is_redone_and_no_other(name: str, is_gone: bool) -> None:
    run()
    STORE.rm_file(f"{URL}/{name}") if is_gone else STORE.pipe_file(f"{URL}/{name}", b"{")
    with opened() as running:
        assert running.ledger.pending == SPANS[2:3]
    run()
    assert_complete()


def test_foreign_objects_are_left_alone() -> None:
    foreign = ["notes.txt", "part-1.jsonl", "mine/part-00000000.jsonl", "_penstock/journal/notes", "part-00000000"]
    for name in foreign:
        STORE.pipe_file(f"{URL}/{name}", b"mine")
    run()
    assert [content(name) for name in foreign] == [b"mine"] * len(foreign)
    STORE.rm_file(f"{URL}/_penstock/journal/notes")
    remove_job(place_of(URL), manifest_of(sink="jsonl"))
    assert names() == ["mine/part-00000000.jsonl", "notes.txt", "part-00000000", "part-1.jsonl"]


def test_removing_a_job_can_be_repeated_after_a_crash_at_any_step() -> None:
    manifest = manifest_of(sink="jsonl")
    for calls in range(100):
        MemoryFileSystem.store.clear()
        run()
        manifest.save(place_of(URL))
        with pytest.MonkeyPatch.context() as patch:
            crash_at(calls, patch, after=True)
            try:
                remove_job(place_of(URL), manifest)
                break
            except Crash:
                pass
        with opened() as running:
            assert len(rows_written()) == sum(record.rows for record in running.ledger.records)
        remove_job(place_of(URL), manifest)
        assert names() == []
    assert calls > 10


def test_manifest_is_read_back_and_the_prefix_is_no_longer_fresh() -> None:
    place = place_of(URL)
    assert is_fresh(place)
    assert load_manifest(place) is None
    manifest_of().save(place)
    assert load_manifest(place) == manifest_of()
    assert not is_fresh(place)
    assert place.children() == ["_penstock"]


def test_object_in_the_place_of_the_prefix_is_refused() -> None:
    STORE.pipe_file(URL, b"a file")
    with pytest.raises(OutputError, match="the output is not a folder"):
        is_fresh(place_of(URL))


def test_failures_are_put_together_by_the_next_run_where_a_crash_came_first() -> None:
    run()
    STORE.rm_file(f"{URL}/_penstock/failures.jsonl")
    place = place_of(URL)
    put_failures_together(place, committed_records(place, manifest_of()))
    assert failures_written() == sorted(FAILED)


def test_run_that_lost_its_lock_commits_nothing_more() -> None:
    place = RemotePrefix(URL)
    with place.lock():
        running = Run(place, "jsonl")
        running.accept(*SPANS[:2])
        STORE.rm_file(f"{URL}/{LOCK}")
        with pytest.raises(OutputError, match="lost the lock"):
            running.accept(SPANS[2])
        running.close()
    assert len(place_of(URL).read_journal()[0]) == 1


def test_part_of_another_run_is_not_overwritten_by_one_that_lost_its_lock(tmp_path: Path) -> None:
    place, other = RemotePrefix(URL), RemotePrefix(URL)
    with place.lock():
        STORE.rm_file(f"{URL}/{LOCK}")
        with other.lock():
            STORE.pipe_file(f"{URL}/part-00000000.jsonl", b"theirs")
            late = Path(tempfile.mkdtemp()) / "late"
            late.write_bytes(b"ours")
            with pytest.raises(OutputError, match="lost the lock"):
                place.publish({str(late): "part-00000000.jsonl"})
            assert content("part-00000000.jsonl") == b"theirs"
            late.unlink()
            late.parent.rmdir()


def test_record_of_another_run_is_never_overwritten() -> None:
    with opened() as one, opened() as other:
        one.accept(*SPANS[:2])
        other.accept(SPANS[0])
        with pytest.raises(OutputError, match="another run writes to this output"):
            other.accept(SPANS[1])
    run()
    assert_complete()


def test_log_is_uploaded_after_an_error_and_goes_on_in_the_next_run() -> None:
    for number in range(2):
        with suppress(RuntimeError), place_of(URL).log() as log:
            os.write(log.fileno(), b"run %d\n" % number)
            raise RuntimeError("inside")
    assert content("_penstock/log.txt") == b"run 0\nrun 1\n"


def test_job_that_never_began_leaves_no_object() -> None:
    place = place_of(URL)
    with place.lock():
        with place.log() as log:
            log.write(b"hello")
        place.leave_no_trace(existed=False)
    assert names() == []
