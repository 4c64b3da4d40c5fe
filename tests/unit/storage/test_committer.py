"""The committer: whatever happens between two steps, rows in = rows out + recorded failures."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.core.protocols import Sink
from penstock.core.records import OutputSchema, Recipe, Result, RowFailure, Span, TensorSpec
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.npy import NpySink
from penstock.sinks.parquet import ParquetSink
from penstock.storage.committer import Committer, part_files, remove_job
from penstock.storage.disk import internal
from penstock.storage.journal import PartRecord, read_records
from penstock.storage.manifest import Manifest
from penstock.storage.places import place_of

ROWS = 5
FAILED = {3, 11, 12, 15, 16, 17, 18, 19, 34}  # span 3, which is a part of its own, fails as a whole
SPANS = tuple(Span(index, index * ROWS, ROWS, ()) for index in range(7))
SURVIVORS = [row for row in range(7 * ROWS) if row not in FAILED]
SINKS: dict[str, Sink] = {"parquet": ParquetSink(), "npy": NpySink(), "jsonl": JsonLinesSink()}


def manifest_of(
    parts: tuple[int, ...] = (0, 2, 3, 4), names: Sequence[str] = ("y", "image"), sink: str = "parquet"
) -> Manifest:
    columns = (TensorSpec(names[0], "float32", ()), TensorSpec(names[1], "float32", (2, 3)))
    request = {"format": sink}
    return Manifest(request, "d", "f", (), Recipe("jax", "cpu", 5, 1), (), OutputSchema(columns, 2), SPANS, parts)


def result_of(span: Span) -> Result:
    rows = np.array([row for row in range(span.start, span.stop) if row not in FAILED], dtype=np.float32)
    failures = [RowFailure(row, "a.csv", "read", "ValueError", f"bad {row}") for row in range(span.start, span.stop)]
    columns = {"y": rows * 2, "image": np.repeat(rows, 6).reshape(-1, 2, 3)}
    return Result(span, columns, tuple(failure for failure in failures if failure.row in FAILED))


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def output(tmp_path: Path) -> str:
    return new_folder(tmp_path / "out")


def new_folder(path: Path) -> str:
    (path / "_penstock").mkdir(parents=True)
    return str(path)


@contextmanager
def opened(output: str, sink: str, manifest: Manifest | None = None) -> Iterator[Committer]:
    manifest = Manifest(**{**vars(manifest or manifest_of()), "request": {"format": sink}})
    committer = Committer(place_of(output), manifest, SINKS[sink], lambda record: None)
    try:
        yield committer
    finally:
        committer.close()


def run(output: str, sink: str, stop: int | None = None, *, interrupt: bool = False) -> None:
    """Commit what is pending, up to span `stop`; an interrupt commits the part that is open."""
    with opened(output, sink) as committer:
        for span in committer.pending:
            if stop is not None and span.index >= stop:
                break
            committer.accept(result_of(span))
        if interrupt:
            committer.commit()


def rows_in(output: str, sink: str) -> list[tuple[int, float]]:
    """(row, y) of every row in the order of the part files; the third column is checked on the way."""
    if sink == "npy":
        names = sorted(os.listdir(os.path.join(output, "row"))) if os.path.isdir(os.path.join(output, "row")) else []
        parts = [[np.load(os.path.join(output, column, name)) for column in ("row", "y", "image")] for name in names]
        assert all(sorted(os.listdir(os.path.join(output, column))) == names for column in ("y", "image") if names)
        read = [(row.tolist(), y.tolist(), image.tolist()) for row, y, image in parts]
    elif sink == "parquet":
        tables = [pq.read_table(os.path.join(output, name)) for name in part_names(output, ".parquet")]
        images = [table["image"].combine_chunks().to_numpy_ndarray().tolist() for table in tables]
        read = [(t["row"].to_pylist(), t["y"].to_pylist(), image) for t, image in zip(tables, images, strict=True)]
    else:
        files = [Path(output, name).read_text(encoding="utf-8") for name in part_names(output, ".jsonl")]
        records = [[json.loads(line) for line in text.splitlines()] for text in files]
        read = [tuple([r[key] for r in part] for key in ("row", "y", "image")) for part in records]  # type: ignore[misc]
    for rows, _, cubes in read:
        assert cubes == [[[float(row)] * 3] * 2 for row in rows]
    return [pair for rows, values, _ in read for pair in zip(rows, values, strict=True)]


def part_names(output: str, suffix: str) -> list[str]:
    return sorted(name for name in os.listdir(output) if name.endswith(suffix))


def failures_in(output: str) -> list[int]:
    lines = Path(internal(output, "failures.jsonl")).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["row"] for line in lines]


def assert_complete(output: str, sink: str) -> None:
    assert rows_in(output, sink) == [(row, 2.0 * row) for row in SURVIVORS]
    assert failures_in(output) == sorted(FAILED)
    assert_consistent(output)
    assert read_records(internal(output, "journal"))[-1].stop_span == len(SPANS)


def assert_consistent(output: str) -> None:
    """The folder holds what the journal says, and nothing of penstock's beyond it."""
    records = read_records(internal(output, "journal"))
    spans = [span for record in records for span in range(record.first_span, record.stop_span)]
    assert spans == list(range(len(spans)))
    known = {name: size for record in records for name, size in record.files.items()}
    place = place_of(output)
    assert sorted(name for sink in SINKS for name in part_files(place, manifest_of(sink=sink))) == sorted(known)
    assert all(os.path.getsize(os.path.join(output, name)) == size for name, size in known.items())
    assert sum(record.failed for record in records) == len(failures_in(output))
    assert not os.path.exists(internal(output, "staging"))


@pytest.fixture
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that crash hundreds of times: a fsync is counted but the disk is not waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Crash(BaseException):
    """The process is gone."""


class CrashingDisk:
    """Lets the first `calls` renames and fsyncs through, copies the folder as it is then, and fails."""

    def __init__(self, patch: pytest.MonkeyPatch, output: str, copy: str, calls: int, *, after: bool) -> None:
        self._left = calls
        self._output, self._copy, self._is_after = output, copy, after
        for name in ("fsync", "replace"):
            patch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if self._left == 0:
                if self._is_after:
                    real(*arguments)
                if not os.path.exists(self._copy):
                    shutil.copytree(self._output, self._copy)
                raise Crash
            self._left -= 1
            real(*arguments)

        return call


def crash_at(calls: int, folder: Path, sink: str, *, after: bool, begin_from: str | None = None) -> str | None:
    """Run until the disk fails after so many calls; returns the folder as the crash left it, None if there was none."""
    output, copy = str(folder / "run"), str(folder / "crashed")
    if begin_from is None:
        new_folder(Path(output))
    else:
        shutil.copytree(begin_from, output)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a process that is gone closes nothing
        CrashingDisk(patch, output, copy, calls, after=after)
        try:
            run(output, sink)
        except Crash:
            assert os.path.isdir(copy)
            return copy
    return None


@pytest.mark.usefixtures("no_waiting_for_the_disk")
@pytest.mark.parametrize("after", [False, True], ids=["before the step", "after the step"])
def test_crash_at_any_step_loses_and_doubles_no_row(tmp_path: Path, sink: str, after: bool) -> None:
    for calls in range(1000):
        crashed = crash_at(calls, tmp_path / str(calls), sink, after=after)
        if crashed is None:
            break
        before = read_records(internal(crashed, "journal"))
        with opened(crashed, sink) as committer:
            assert committer.records == before
        assert_consistent(crashed)
        run(crashed, sink)
        assert_complete(crashed, sink)
    assert calls > 20, "there are more steps than that between beginning and end"


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_crash_while_recovering_from_a_crash_loses_and_doubles_no_row(tmp_path: Path) -> None:
    for first in range(0, 1000, 3):
        once = crash_at(first, tmp_path / str(first), "jsonl", after=True)
        if once is None:
            break
        for second in range(1000):
            twice = crash_at(second, tmp_path / f"{first}-{second}", "jsonl", after=second % 2 == 0, begin_from=once)
            if twice is None:
                break
            run(twice, "jsonl")
            assert_complete(twice, "jsonl")
    assert first > 12


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_journal_torn_at_any_byte_is_mended_and_the_rest_redone(output: str, tmp_path: Path) -> None:
    run(output, "jsonl")
    length = os.path.getsize(internal(output, "journal"))
    for cut in range(0, length, 7):
        torn = str(tmp_path / f"torn-{cut}")
        shutil.copytree(output, torn)
        os.truncate(internal(torn, "journal"), cut)
        with opened(torn, "jsonl"):
            pass
        assert_consistent(torn)
        run(torn, "jsonl")
        assert_complete(torn, "jsonl")


def test_whole_job_is_written_in_order(output: str, sink: str) -> None:
    run(output, sink)
    assert_complete(output, sink)


def test_parts_hold_the_spans_that_the_manifest_planned(output: str) -> None:
    run(output, "parquet")
    records = read_records(internal(output, "journal"))
    assert [(record.first_span, record.stop_span) for record in records] == [(0, 2), (2, 3), (3, 4), (4, 7)]
    assert [record.rows for record in records] == [9, 3, 0, 14]
    assert [record.failed for record in records] == [1, 2, 5, 1]


def test_rows_whose_answers_are_no_numbers_are_counted_by_part_and_survive_a_restart(output: str, sink: str) -> None:
    broken = {1: ("y", np.nan), 7: ("image", np.inf), 8: ("image", np.nan)}
    with opened(output, sink) as committer:
        for span in committer.pending:
            result = result_of(span)
            for place, row in enumerate(result.row_numbers().tolist()):
                if row in broken:
                    name, value = broken[row]
                    np.asarray(result.columns[name])[place] = value
            committer.accept(result)
    with opened(output, sink) as committer:
        assert [record.not_finite for record in committer.records] == [3, 0, 0, 0]


def test_part_in_which_every_row_failed_has_no_file_and_is_recorded(output: str, sink: str) -> None:
    run(output, sink)
    third = read_records(internal(output, "journal"))[2]
    assert (third.rows, third.failed, dict(third.files)) == (0, 5, {})


def test_finished_job_has_nothing_pending_and_is_not_touched_by_opening_it(output: str, sink: str) -> None:
    run(output, sink)
    before = {path: path.stat().st_mtime_ns for path in Path(output).rglob("part-*")}
    with opened(output, sink) as committer:
        assert committer.pending == ()
    assert {path: path.stat().st_mtime_ns for path in Path(output).rglob("part-*")} == before
    assert_complete(output, sink)


@pytest.mark.parametrize("stop", range(1, 7))
def test_interrupted_part_is_committed_and_goes_on_under_the_next_name(output: str, sink: str, stop: int) -> None:
    run(output, sink, stop, interrupt=True)
    assert rows_in(output, sink) == [(row, 2.0 * row) for row in SURVIVORS if row < stop * ROWS]
    run(output, sink)
    assert_complete(output, sink)


def test_pieces_of_a_cut_part_sort_in_row_order(output: str) -> None:
    for stop in (1, 5, 6):
        run(output, "parquet", stop, interrupt=True)
    run(output, "parquet")
    assert part_names(output, ".parquet") == [
        "part-00000000.parquet",
        "part-00000000_0001.parquet",
        "part-00000001.parquet",
        "part-00000003.parquet",
        "part-00000003_0001.parquet",
        "part-00000003_0002.parquet",
    ]
    assert_complete(output, "parquet")


def test_part_cut_more_than_ten_times_still_sorts_in_row_order(output: str) -> None:
    manifest = manifest_of(parts=(0,))
    spans = tuple(Span(index, index, 1, ()) for index in range(14))
    manifest = Manifest(**{**vars(manifest), "spans": spans})
    for _ in spans:
        with opened(output, "parquet", manifest) as committer:
            span = committer.pending[0]
            columns = {"y": np.zeros(1, "float32"), "image": np.zeros((1, 2, 3), "float32")}
            committer.accept(Result(span, columns))
            committer.commit()
    tables = [pq.read_table(os.path.join(output, name)) for name in part_names(output, ".parquet")]
    assert [row for table in tables for row in table["row"].to_pylist()] == list(range(14))


def test_commit_without_an_open_part_does_nothing(output: str, sink: str) -> None:
    with opened(output, sink) as committer:
        committer.commit()
        assert committer.records == []


def test_close_drops_the_part_that_is_open(output: str, sink: str) -> None:
    run(output, sink, 3)
    run(output, sink, 5)
    assert rows_in(output, sink) == [(row, 2.0 * row) for row in SURVIVORS if row < 4 * ROWS]
    assert_consistent(output)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_part_whose_file_is_gone_is_redone_with_all_after_it(output: str, sink: str, lost: int) -> None:
    run(output, sink)
    record = read_records(internal(output, "journal"))[lost]
    os.remove(os.path.join(output, sorted(record.files)[-1]))
    with opened(output, sink) as committer:
        assert committer.pending == SPANS[record.first_span :]
    assert_consistent(output)
    run(output, sink)
    assert_complete(output, sink)


def test_part_whose_file_is_shorter_than_recorded_is_redone(output: str, sink: str) -> None:
    run(output, sink)
    name = sorted(read_records(internal(output, "journal"))[1].files)[0]
    os.truncate(os.path.join(output, name), os.path.getsize(os.path.join(output, name)) - 1)
    run(output, sink)
    assert_complete(output, sink)


def test_part_that_the_journal_does_not_know_is_removed(output: str, sink: str) -> None:
    run(output, sink, 3)
    suffix = {"parquet": ".parquet", "npy": ".npy", "jsonl": ".jsonl"}[sink]
    folders = ("row", "y", "image") if sink == "npy" else ("",)
    strays = [os.path.join(output, folder, "part-00000009" + suffix) for folder in folders]
    for stray in strays:
        Path(stray).write_bytes(b"stray")
    with opened(output, sink):
        pass
    assert not any(os.path.exists(stray) for stray in strays)
    assert_consistent(output)


def test_what_a_crash_left_in_staging_is_swept_away_at_the_next_start(output: str, sink: str) -> None:
    left = Path(internal(output, "staging", "part-00000000.parquet"))
    left.parent.mkdir()
    left.write_bytes(b"half a part")
    with opened(output, sink):
        assert os.listdir(left.parent) == []


def test_foreign_files_are_left_alone(output: str, sink: str) -> None:
    foreign = ["notes.txt", "part-1.parquet", "part-00000000.parquet.bak", "y.npy", "mine/part-00000000.parquet"]
    for name in foreign:
        path = Path(output, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    run(output, sink)
    with opened(output, sink):
        pass
    remove_job(place_of(output), manifest_of(sink=sink))
    assert all(Path(output, name).read_bytes() == b"mine" for name in foreign)


def test_folder_of_a_users_own_that_is_called_like_a_column_is_left_alone(output: str) -> None:
    own = Path(output, "y", "part-00000000.npy")
    own.parent.mkdir()
    own.write_bytes(b"mine")
    run(output, "parquet")
    with opened(output, "parquet"):
        pass
    assert own.read_bytes() == b"mine"


@pytest.mark.parametrize("form", ["../elsewhere", "{absolute}"], ids=["relative", "absolute"])
def test_column_whose_name_leads_out_of_the_folder_removes_nothing_there(
    output: str, tmp_path: Path, form: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "part-00000000.parquet").write_bytes(b"another job")
    manifest = manifest_of(names=(form.format(absolute=elsewhere), "image"))
    with opened(output, "parquet", manifest):
        pass
    remove_job(place_of(output), manifest)
    assert (elsewhere / "part-00000000.parquet").read_bytes() == b"another job"


def test_failures_beyond_the_journals_mark_are_cut(output: str) -> None:
    run(output, "jsonl", 3)
    with open(internal(output, "failures.jsonl"), "ab") as file:
        file.write(b'{"row": 99}\n{"ro')
    run(output, "jsonl")
    assert_complete(output, "jsonl")


@pytest.mark.parametrize("length", [None, 0, 40], ids=["gone", "empty", "short"])
def test_failures_that_are_gone_are_found_again_and_not_filled_with_zeros(output: str, length: int | None) -> None:
    run(output, "jsonl")
    path = internal(output, "failures.jsonl")
    if length is None:
        os.remove(path)
    else:
        os.truncate(path, length)
    run(output, "jsonl")
    assert b"\0" not in Path(path).read_bytes()
    assert_complete(output, "jsonl")


def test_failures_file_says_where_and_why(output: str) -> None:
    run(output, "jsonl")
    first = json.loads(Path(internal(output, "failures.jsonl")).read_text(encoding="utf-8").splitlines()[0])
    assert first == {"row": 3, "origin": "a.csv", "stage": "read", "error": "ValueError", "reason": "bad 3"}


def test_failure_in_a_file_whose_name_is_not_text_is_recorded(output: str) -> None:
    origin = os.fsdecode(b"/data/\xff.csv")
    spans = (Span(0, 0, 1, ()),)
    manifest = Manifest(**{**vars(manifest_of(parts=(0,))), "spans": spans})
    with opened(output, "jsonl", manifest) as committer:
        committer.accept(Result(spans[0], {}, (RowFailure(0, origin, "read", "ValueError", "bad \udcff"),)))
    assert failures_in(output) == [0]


def test_every_commit_is_told_once_with_its_record(output: str) -> None:
    told: list[PartRecord] = []
    committer = Committer(place_of(output), manifest_of(sink="jsonl"), SINKS["jsonl"], told.append)
    for span in committer.pending:
        committer.accept(result_of(span))
    committer.close()
    assert told == read_records(internal(output, "journal"))
    assert len(told) == 4


def test_part_is_on_the_disk_before_its_record_is_written(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of a commit: file, name, folder, failures, journal."""
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        steps.append("fsync " + os.path.relpath(path, output))
        real_fsync(descriptor)

    def replace(source: str, target: str) -> None:
        steps.append("rename to " + os.path.relpath(target, output))
        real_replace(source, target)

    with opened(output, "jsonl") as committer:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)
        for span in SPANS[:2]:
            committer.accept(result_of(span))
    assert steps == [
        "fsync _penstock/staging/part-00000000.jsonl",
        "rename to part-00000000.jsonl",
        "fsync .",
        "fsync _penstock/failures.jsonl",
        "fsync _penstock/journal",
    ]


def test_removing_a_job_leaves_an_empty_folder(output: str, sink: str) -> None:
    run(output, sink)
    manifest_of(sink=sink).save(place_of(output))
    remove_job(place_of(output), manifest_of(sink=sink))
    assert [str(path.relative_to(output)) for path in Path(output).rglob("*")] == ["_penstock"]


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_removing_a_job_can_be_repeated_after_a_crash_at_any_step(tmp_path: Path) -> None:
    for calls in range(100):
        output = new_folder(tmp_path / str(calls))
        run(output, "parquet")
        manifest_of().save(place_of(output))
        left = calls
        real = os.remove

        def remove(path: str, real: Callable[[str], None] = real) -> None:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            real(path)

        with pytest.MonkeyPatch.context() as patch, suppress(Crash):
            patch.setattr(os, "remove", remove)
            remove_job(place_of(output), manifest_of())
            break
        with opened(output, "parquet") as committer:
            rows = rows_in(output, "parquet")
            assert len(rows) == sum(record.rows for record in committer.records)
        remove_job(place_of(output), manifest_of())
        assert part_names(output, ".parquet") == []
    assert calls > 5
