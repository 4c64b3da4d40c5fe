"""The ledger: whatever happens between two steps, rows in = rows out + recorded failures."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.core.protocols import Sink
from penstock.core.records import OutputSchema, Recipe, Result, RowFailure, Span, TensorSpec
from penstock.errors import OutputError
from penstock.sinks.jsonl import JsonLinesSink
from penstock.sinks.npy import NpySink
from penstock.sinks.parquet import ParquetSink
from penstock.storage.disk import internal
from penstock.storage.journal import PartRecord, read_journal, valid_records
from penstock.storage.ledger import MOST_OPEN_PARTS, Ledger, OpenParts, part_files, remove_job, remove_written
from penstock.storage.manifest import MANIFEST, Manifest
from penstock.storage.part_builder import PartBuilder, StagedPart
from penstock.storage.places import Place, place_of

ROWS = 5
FAILED = {3, 11, 12, 15, 16, 17, 18, 19, 34}  # span 3, which is a part of its own, fails as a whole
SPANS = tuple(Span(index, index * ROWS, ROWS, ()) for index in range(7))
UNORDERED = (6, 4, 1, 5, 3, 0, 2)
"""The spans as several replicas might finish them: the last part is whole first, and no part is whole in order."""
SURVIVORS = [row for row in range(7 * ROWS) if row not in FAILED]
SINKS: dict[str, Sink] = {"parquet": ParquetSink(), "npy": NpySink(), "jsonl": JsonLinesSink()}


def manifest_of(
    parts: tuple[int, ...] = (0, 2, 3, 4), names: Sequence[str] = ("y", "image"), sink: str = "parquet"
) -> Manifest:
    columns = (TensorSpec(names[0], "float32", ()), TensorSpec(names[1], "float32", (2, 3)))
    schema = OutputSchema(columns, 2)
    return Manifest(
        request={"format": sink},
        model_digest="d",
        fingerprint="f",
        fragments=(),
        recipe=Recipe("jax", "cpu", 5, 1),
        bindings=(),
        schema=schema,
        spans=SPANS,
        parts=parts,
        part_suffix=SINKS[sink].suffix,
        part_folders=SINKS[sink].folders(schema),
    )


def result_of(span: Span, failed: Collection[int] = frozenset(FAILED)) -> Result:
    rows = np.array([row for row in range(span.start, span.stop) if row not in failed], dtype=np.float32)
    failures = [RowFailure(row, "a.csv", "read", "ValueError", f"bad {row}") for row in range(span.start, span.stop)]
    columns = {"y": rows * 2, "image": np.repeat(rows, 6).reshape(-1, 2, 3)}
    return Result(span, columns, tuple(failure for failure in failures if failure.row in failed))


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def output(tmp_path: Path) -> str:
    return new_folder(tmp_path / "out")


def new_folder(path: Path) -> str:
    (path / "_penstock").mkdir(parents=True)
    return str(path)


class Run:
    """A run that writes to a place: its ledger, and the parts that it builds."""

    def __init__(
        self, place: Place, sink: str, manifest: Manifest | None = None, altered: Collection[str] = ()
    ) -> None:
        self.committed: list[PartRecord] = []
        self.ledger = Ledger(place, manifest or manifest_of(sink=sink), altered)
        self.parts = OpenParts(self.ledger, SINKS[sink], self.committed.append)

    def accept(self, *spans: Span) -> None:
        for span in spans:
            self.parts.accept(result_of(span))

    def finish(self) -> None:
        """The end of a run, also of one that was interrupted."""
        self.parts.commit_all()
        self.ledger.finish()

    def close(self) -> None:
        self.parts.close()
        self.ledger.close()


@contextmanager
def opened(output: str, sink: str, manifest: Manifest | None = None) -> Iterator[Run]:
    running = Run(place_of(output), sink, manifest)
    try:
        yield running
    finally:
        running.close()


def run(
    output: str, sink: str, stop: int | None = None, *, interrupt: bool = False, order: Sequence[int] = range(7)
) -> None:
    """Commit what is pending, up to span `stop`, in some order; an interrupt commits the parts that are open."""
    with opened(output, sink) as running:
        pending = {span.index: span for span in running.ledger.pending if stop is None or span.index < stop}
        running.accept(*(pending[index] for index in order if index in pending))
        if interrupt or stop is None:
            running.finish()


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


def records_in(output: str) -> list[PartRecord]:
    """The committed parts, by number."""
    return valid_records(read_journal(internal(output, "journal"))[0])


def failures_in(output: str) -> list[int]:
    lines = Path(internal(output, "failures.jsonl")).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["row"] for line in lines]


def everything_in(output: str) -> dict[str, bytes]:
    """Every file of a folder but the journal, whose records are in the order of the commits."""
    paths = [path for path in Path(output).rglob("*") if path.is_file() and path.name != "journal"]
    return {str(path.relative_to(output)): path.read_bytes() for path in paths}


def assert_complete(output: str, sink: str) -> None:
    assert rows_in(output, sink) == [(row, 2.0 * row) for row in SURVIVORS]
    assert failures_in(output) == sorted(FAILED)
    assert_consistent(output)
    spans = [span for record in records_in(output) for span in range(record.first_span, record.stop_span)]
    assert spans == list(range(len(SPANS)))


def assert_consistent(output: str) -> None:
    """The folder holds what the journal says, and nothing of penstock's beyond it."""
    records = records_in(output)
    spans = [span for record in records for span in range(record.first_span, record.stop_span)]
    assert spans == sorted(set(spans)), "no row is there twice, and parts are in the order of the rows"
    known = {name: size for record in records for name, size in record.all_files.items()}
    place = place_of(output)
    there = {name for sink in SINKS for name in part_files(place, manifest_of(sink=sink))}
    assert there | set(place.sizes("_penstock/failures")) == set(known)
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


Work = Callable[[str, str], None]
"""What is done to a folder, with a sink."""


def out_of_order(output: str, sink: str) -> None:
    run(output, sink, order=UNORDERED)


def crash_at(
    calls: int, folder: Path, sink: str, *, after: bool, begin_from: str | None = None, work: Work = run
) -> str | None:
    """Work until the disk fails after so many calls; returns the folder as the crash left it, None without a crash."""
    output, copy = str(folder / "run"), str(folder / "crashed")
    if begin_from is None:
        new_folder(Path(output))
    else:
        shutil.copytree(begin_from, output)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a process that is gone closes nothing
        CrashingDisk(patch, output, copy, calls, after=after)
        try:
            work(output, sink)
        except Crash:
            assert os.path.isdir(copy)
            return copy
    return None


@pytest.mark.usefixtures("no_waiting_for_the_disk")
@pytest.mark.parametrize("after", [False, True], ids=["before the step", "after the step"])
@pytest.mark.parametrize("work", [run, out_of_order])
def test_crash_at_any_step_loses_and_doubles_no_row(tmp_path: Path, sink: str, after: bool, work: Work) -> None:
    for calls in range(1000):
        crashed = crash_at(calls, tmp_path / str(calls), sink, after=after, work=work)
        if crashed is None:
            break
        before = records_in(crashed)
        with opened(crashed, sink) as running:
            assert running.ledger.records == before
        assert_consistent(crashed)
        work(crashed, sink)
        assert_complete(crashed, sink)
    assert calls > 20, "there are more steps than that between beginning and end"


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_crash_while_recovering_from_a_crash_loses_and_doubles_no_row(tmp_path: Path) -> None:
    for first in range(0, 1000, 3):
        once = crash_at(first, tmp_path / str(first), "jsonl", after=True, work=out_of_order)
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
    records = records_in(output)
    assert [(record.first_span, record.stop_span) for record in records] == [(0, 2), (2, 3), (3, 4), (4, 7)]
    assert [record.rows for record in records] == [9, 3, 0, 14]
    assert [record.failed for record in records] == [1, 2, 5, 1]


def test_rows_whose_answers_are_no_numbers_are_counted_by_part_and_survive_a_restart(output: str, sink: str) -> None:
    broken = {1: ("y", np.nan), 7: ("image", np.inf), 8: ("image", np.nan)}
    with opened(output, sink) as running:
        for span in running.ledger.pending:
            result = result_of(span)
            for place, row in enumerate(result.row_numbers().tolist()):
                if row in broken:
                    name, value = broken[row]
                    np.asarray(result.columns[name])[place] = value
            running.parts.accept(result)
    with opened(output, sink) as running:
        assert [record.not_finite for record in running.ledger.records] == [3, 0, 0, 0]


def test_part_in_which_every_row_failed_has_no_file_and_is_recorded(output: str, sink: str) -> None:
    run(output, sink)
    third = records_in(output)[2]
    assert (third.rows, third.failed, dict(third.files)) == (0, 5, {})


def test_finished_job_has_nothing_pending_and_is_not_touched_by_opening_it(output: str, sink: str) -> None:
    run(output, sink)
    before = {path: path.stat().st_mtime_ns for path in Path(output).rglob("part-*")}
    with opened(output, sink) as running:
        assert running.ledger.pending == ()
        assert running.ledger.pending_pieces() == []
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
        with opened(output, "parquet", manifest) as running:
            span = running.ledger.pending[0]
            columns = {"y": np.zeros(1, "float32"), "image": np.zeros((1, 2, 3), "float32")}
            running.parts.accept(Result(span, columns))
            running.parts.commit_all()
    tables = [pq.read_table(os.path.join(output, name)) for name in part_names(output, ".parquet")]
    assert [row for table in tables for row in table["row"].to_pylist()] == list(range(14))


def test_commit_without_an_open_part_does_nothing(output: str, sink: str) -> None:
    with opened(output, sink) as running:
        running.parts.commit_all()
        assert running.ledger.records == []


def test_close_drops_the_part_that_is_open(output: str, sink: str) -> None:
    run(output, sink, 3)
    run(output, sink, 5)
    assert rows_in(output, sink) == [(row, 2.0 * row) for row in SURVIVORS if row < 4 * ROWS]
    with opened(output, sink) as running:
        assert running.ledger.pending == SPANS[4:]
    assert_consistent(output)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_part_whose_file_is_gone_is_redone_and_no_other(output: str, sink: str, lost: int) -> None:
    run(output, sink)
    record = records_in(output)[lost]
    before = everything_in(output)
    os.remove(os.path.join(output, sorted(record.files)[-1]))
    others = modified({name for each in records_in(output) for name in each.files} - set(record.files), output)
    with opened(output, sink) as running:
        assert running.ledger.pending == SPANS[record.first_span : record.stop_span]
    assert_consistent(output)
    run(output, sink)
    assert_complete(output, sink)
    assert everything_in(output) == before
    assert modified(others, output) == others


def modified(names: Iterable[str], output: str) -> dict[str, int]:
    """When files were written."""
    return {name: os.stat(os.path.join(output, name)).st_mtime_ns for name in names}


def test_piece_that_is_gone_is_redone_with_those_after_it_in_its_part(output: str) -> None:
    for stop in (5, 6):
        run(output, "jsonl", stop, interrupt=True)
    run(output, "jsonl")
    pieces = [record for record in records_in(output) if record.part == 3]
    assert [(record.first_span, record.stop_span) for record in pieces] == [(4, 5), (5, 6), (6, 7)]
    os.remove(os.path.join(output, *pieces[1].files))
    with opened(output, "jsonl") as running:
        (piece,) = running.ledger.pending_pieces()
        assert (piece.name, piece.first_span, piece.stop_span) == ("part-00000003_0001", 5, 7)
    run(output, "jsonl")
    assert_complete(output, "jsonl")


def test_part_whose_file_is_shorter_than_recorded_is_redone(output: str, sink: str) -> None:
    run(output, sink)
    name = sorted(records_in(output)[1].files)[0]
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
    manifest = replace(manifest_of(), part_folders=("", form.format(absolute=elsewhere)))
    with opened(output, "parquet", manifest):
        pass
    remove_job(place_of(output), manifest)
    assert (elsewhere / "part-00000000.parquet").read_bytes() == b"another job"


def test_failures_that_the_journal_does_not_know_are_removed(output: str) -> None:
    run(output, "jsonl", 3)
    for name in ("failures/00000003.jsonl", "failures/00000002_0001.jsonl"):
        Path(internal(output, name)).write_bytes(b'{"row": 99}\n{"ro')
    with opened(output, "jsonl"):
        assert sorted(os.listdir(internal(output, "failures"))) == ["00000000.jsonl", "00000001.jsonl"]
    run(output, "jsonl")
    assert_complete(output, "jsonl")


@pytest.mark.parametrize("name", ["failures.jsonl", "failures/00000001.jsonl"])
@pytest.mark.parametrize("length", [None, 0, 40], ids=["gone", "empty", "short"])
def test_failures_that_are_gone_are_found_again_and_not_filled_with_zeros(
    output: str, name: str, length: int | None
) -> None:
    run(output, "jsonl")
    path = internal(output, name)
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
    with opened(output, "jsonl", manifest) as running:
        running.parts.accept(Result(spans[0], {}, (RowFailure(0, origin, "read", "ValueError", "bad \udcff"),)))
        running.finish()
    assert failures_in(output) == [0]


def test_every_commit_is_told_once_with_its_record(output: str) -> None:
    with opened(output, "jsonl") as running:
        running.accept(*(SPANS[index] for index in UNORDERED))
    assert running.committed == read_journal(internal(output, "journal"))[0]
    assert len(running.committed) == 4


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

    with opened(output, "jsonl") as running:
        running.accept(SPANS[2])  # makes the folder of the failures
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)
        running.accept(*SPANS[:2])
    assert steps == [
        "fsync _penstock/staging/part-00000000.jsonl",
        "fsync _penstock/staging/part-00000000.failures",
        "rename to part-00000000.jsonl",
        "rename to _penstock/failures/00000000.jsonl",
        "fsync .",
        "fsync _penstock/failures",
        "fsync _penstock/journal",
    ]


def test_removing_a_job_leaves_an_empty_folder(output: str, sink: str) -> None:
    run(output, sink)
    manifest_of(sink=sink).save(place_of(output))
    remove_job(place_of(output), manifest_of(sink=sink))
    assert [str(path.relative_to(output)) for path in Path(output).rglob("*")] == ["_penstock"]


def test_a_job_that_begins_again_stays_a_job(output: str, sink: str) -> None:
    run(output, sink)
    manifest = manifest_of(sink=sink)
    manifest.save(place_of(output))
    remove_written(place_of(output), manifest)
    assert [str(path.relative_to(output)) for path in Path(output).rglob("*")] == ["_penstock", MANIFEST]
    run(output, sink)
    assert_complete(output, sink)


def test_a_file_that_vanishes_while_a_folder_is_listed_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "gone", "z"):
        (tmp_path / name).write_bytes(name.encode())
    listed = os.scandir

    def scandir(path: str) -> Any:
        entries = list(listed(path))
        (tmp_path / "gone").unlink()
        return nullcontext(iter(entries))

    monkeypatch.setattr(os, "scandir", scandir)
    assert place_of(str(tmp_path)).sizes() == {"a": 1, "z": 1}


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
        with opened(output, "parquet") as running:
            rows = rows_in(output, "parquet")
            assert len(rows) == sum(record.rows for record in running.ledger.records)
        remove_job(place_of(output), manifest_of())
        assert part_names(output, ".parquet") == []
    assert calls > 5


def test_results_in_any_order_give_the_same_bytes(tmp_path: Path, sink: str) -> None:
    run(new_folder(tmp_path / "expected"), sink)
    for seed in range(20):
        output = new_folder(tmp_path / str(seed))
        run(output, sink, order=random.Random(seed).sample(range(7), 7))
        assert everything_in(output) == everything_in(str(tmp_path / "expected"))
        assert_complete(output, sink)


def test_part_is_committed_as_soon_as_it_is_whole_also_before_an_earlier_one(output: str) -> None:
    with opened(output, "jsonl") as running:
        running.accept(SPANS[6], SPANS[1], SPANS[4])
        assert running.committed == []
        running.accept(SPANS[5])
        assert [record.part for record in running.committed] == [3]
        assert running.ledger.pending == SPANS[:4]
        assert [piece.part for piece in running.ledger.pending_pieces()] == [0, 1, 2]
    with opened(output, "jsonl") as running:
        assert running.ledger.pending == SPANS[:4], "what a run left open is dropped"
    assert_consistent(output)


@pytest.mark.parametrize("stop", range(1, 8))
def test_interrupt_keeps_of_every_open_part_what_is_there_from_its_beginning_on(output: str, stop: int) -> None:
    kept = {1: set(), 2: {4}, 3: {4}, 4: {4, 5, 6}, 5: {3, 4, 5, 6}, 6: {0, 1, 3, 4, 5, 6}, 7: set(range(7))}[stop]
    run(output, "jsonl", order=UNORDERED[:stop], interrupt=True)
    assert rows_in(output, "jsonl") == [(row, 2.0 * row) for row in SURVIVORS if row // ROWS in kept]
    assert failures_in(output) == [row for row in sorted(FAILED) if row // ROWS in kept]
    assert_consistent(output)
    run(output, "jsonl")
    assert_complete(output, "jsonl")


def test_no_more_parts_than_allowed_have_open_files(output: str) -> None:
    spans = tuple(Span(index, index, 1, ()) for index in range(6 * MOST_OPEN_PARTS))
    manifest = replace(manifest_of(tuple(range(0, len(spans), 3)), sink="npy"), spans=spans)
    with opened(output, "npy", manifest) as running:
        for place in (0, 2, 1):
            for span in reversed(spans[place::3]):
                columns = {"y": np.ones(1, "float32"), "image": np.zeros((1, 2, 3), "float32")}
                running.parts.accept(Result(span, columns))
                assert len(running.parts) <= MOST_OPEN_PARTS
        assert len(running.committed) == len(spans) // 3
        assert running.ledger.pending == ()
    rows = [np.load(os.path.join(output, name)).tolist() for name in sorted(place_of(output).sizes("row"))]
    assert list(itertools.chain(*rows)) == list(range(len(spans)))


def test_part_that_another_process_built_is_committed_from_its_description(output: str, sink: str) -> None:
    with opened(output, sink) as running:
        for piece in reversed(running.ledger.pending_pieces()):
            builder = running.ledger.builder(pickle.loads(pickle.dumps(piece)), pickle.loads(pickle.dumps(SINKS[sink])))
            for span in reversed(SPANS[piece.first_span : piece.stop_span]):
                builder.add(result_of(span))
            staged = builder.finish()
            assert staged is not None
            assert running.ledger.commit(StagedPart.from_json(json.loads(json.dumps(staged.as_json()))))
        running.finish()
    assert_complete(output, sink)


def test_part_that_two_built_is_committed_once(output: str, tmp_path: Path) -> None:
    with opened(output, "jsonl") as running:
        late = built(running.ledger, part=1, folder=tmp_path)
        running.accept(*SPANS)
        assert not running.ledger.commit(late)
        assert os.listdir(tmp_path / "late") == []
        running.finish()
    assert_complete(output, "jsonl")


def test_part_that_was_torn_on_its_way_is_not_recorded(output: str, tmp_path: Path) -> None:
    with opened(output, "jsonl") as running:
        staged = built(running.ledger, part=1, folder=tmp_path)
        os.truncate(next(iter(staged.paths)), 3)
        with pytest.raises(OutputError, match="a part is not as it was written"):
            running.ledger.commit(staged)
    assert records_in(output) == []


def built(ledger: Ledger, part: int, folder: Path, failed: frozenset[int] = frozenset(FAILED)) -> StagedPart:
    """A part that was built in a folder of its own, to be committed, or to take the place of what is committed."""
    piece = ledger.piece_in_place_of(part)
    (folder / "late").mkdir(exist_ok=True)
    builder = PartBuilder(piece, SINKS["jsonl"], manifest_of().schema, str(folder / "late"))
    for span in SPANS[piece.first_span : piece.stop_span]:
        builder.add(result_of(span, failed))
    staged = builder.finish()
    assert staged is not None
    return staged


def retry(output: str, sink: str) -> None:
    """Predict part 0 again: row 3, which had failed, has an answer now, and row 4 has none."""
    with opened(output, sink) as running:
        staging = Path(internal(output, "staging"))
        running.ledger.replace(built(running.ledger, 0, staging, frozenset({4})))
        running.finish()


def assert_retried(output: str) -> None:
    rows = sorted([*SURVIVORS, 3])
    rows.remove(4)
    assert rows_in(output, "jsonl") == [(row, 2.0 * row) for row in rows]
    assert failures_in(output) == sorted({4, *FAILED} - {3})
    assert_consistent(output)


def test_part_is_replaced_and_no_other_is_touched(output: str) -> None:
    for stop in (1, 3):
        run(output, "jsonl", stop, interrupt=True)
    run(output, "jsonl")
    others = modified([name for record in records_in(output) if record.part for name in record.all_files], output)
    for name in ("part-00000000_0002", "part-00000000", "part-00000000_0001"):
        retry(output, "jsonl")
        assert_retried(output)
        assert part_names(output, ".jsonl")[0] == f"{name}.jsonl"
        assert modified(others, output) == others
    with opened(output, "jsonl") as running:
        assert running.ledger.pending == ()


@pytest.mark.usefixtures("no_waiting_for_the_disk")
@pytest.mark.parametrize("after", [False, True], ids=["before the step", "after the step"])
def test_crash_while_a_part_is_replaced_leaves_the_old_part_or_the_new_one(tmp_path: Path, after: bool) -> None:
    run(new_folder(tmp_path / "whole"), "jsonl")
    for calls in range(100):
        whole = str(tmp_path / "whole")
        crashed = crash_at(calls, tmp_path / str(calls), "jsonl", after=after, begin_from=whole, work=retry)
        if crashed is None:
            break
        with opened(crashed, "jsonl") as running:
            assert running.ledger.pending == ()
        if part_names(crashed, ".jsonl")[0] == "part-00000000.jsonl":
            assert_complete(crashed, "jsonl")
        else:
            assert_retried(crashed)
    assert calls > 8


def test_only_a_whole_part_takes_the_place_of_another(output: str, tmp_path: Path) -> None:
    run(output, "jsonl")
    with opened(output, "jsonl") as running:
        staged = built(running.ledger, part=0, folder=tmp_path)
        half = StagedPart(replace(staged.record, stop_span=1), staged.paths)
        with pytest.raises(ValueError, match="part 0 can only be replaced as a whole"):
            running.ledger.replace(half)
    assert_complete(output, "jsonl")


def test_part_whose_name_was_taken_since_does_not_take_the_place_of_another(output: str, tmp_path: Path) -> None:
    run(output, "jsonl", 1, interrupt=True)
    with opened(output, "jsonl") as running:
        early = built(running.ledger, part=0, folder=tmp_path)
        running.accept(*running.ledger.pending)
        with pytest.raises(ValueError, match="part 0 has a piece of the name 1 already"):
            running.ledger.replace(early)
        running.finish()
    assert_complete(output, "jsonl")


def test_steps_of_writing_are_noted_with_their_rows(output: str) -> None:
    steps: list[tuple[str, int, int]] = []

    def step(what: str, span: int, rows: int) -> nullcontext[None]:
        steps.append((what, span, rows))
        return nullcontext()

    with opened(output, "jsonl") as running:
        parts = OpenParts(running.ledger, SINKS["jsonl"], running.committed.append, step)
        for span in SPANS[:4]:
            parts.accept(result_of(span))
    assert steps == [
        ("write", 0, 4), ("write", 1, 5), ("close and fsync", -1, -1), ("checksum", -1, -1), ("publish", -1, 9),
        ("write", 2, 3), ("close and fsync", -1, -1), ("checksum", -1, -1), ("publish", -1, 3),
        ("checksum", -1, -1), ("publish", -1, 0),
    ]  # fmt: skip
