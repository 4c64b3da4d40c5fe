"""What every source promises of files that change, go away or are damaged. Each has files of its own to spoil."""

from __future__ import annotations

import itertools
import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import cast

import cloudpickle
import pytest

from penstock.core.source import FileGone
from penstock.errors import InputError
from penstock.pool.loading import read_blocks
from penstock.sources.files import unchanged
from penstock.sources.files.paths import expand

from .case import Case
from .promises import Paths, Promise, opened
from .reading import read_all, read_with_failures, touch


def _changes_are_seen(case: Case, paths: Paths, change: Callable[[str], None]) -> None:
    """Files change one after the other; each time the fragment of that file, and no other, becomes another one."""
    with opened(case, paths) as source:
        for number, path in enumerate(paths if all(map(os.path.isfile, paths)) else []):
            before = list(source.fragments())
            change(path)
            wanted = [True] if case.is_row_a_file else [place == number for place in range(len(paths))]
            assert [old != new for old, new in zip(before, source.fragments(), strict=True)] == wanted
        after = list(source.fragments())
        for path in case.unseen(paths) if case.unseen is not None else []:
            change(path)
        assert list(source.fragments()) == after


def fingerprint_changes_with_the_time_of_any_file(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        sizes = [fragment.size for fragment in source.fragments()]
        _changes_are_seen(case, paths, touch)
        assert [fragment.size for fragment in source.fragments()] == sizes
    with opened(case, paths) as source, opened(case, paths) as again:
        before = list(source.fragments())
        assert list(again.fragments()) == before
    if case.unseen is None:
        touch(paths[-1])
        with opened(case, paths) as later:
            assert list(later.fragments()) != before


def fingerprint_changes_with_the_size_of_any_file(case: Case, paths: Paths) -> None:
    def grow(path: str) -> None:
        status = os.stat(path)
        with open(path, "ab") as file:
            file.write(b"\n")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    _changes_are_seen(case, paths, grow)


def fingerprint_changes_with_the_content_of_any_file(case: Case, paths: Paths) -> None:
    """Also where the size stays; a file system tells times apart by some milliseconds, people by more."""

    def rewrite(path: str) -> None:
        status = os.stat(path)
        Path(path).write_bytes(Path(path).read_bytes()[::-1])
        if os.stat(path).st_mtime_ns == status.st_mtime_ns:
            touch(path)

    _changes_are_seen(case, paths, rewrite)


def touched_files_are_told_from_changed_ones(case: Case, paths: Paths) -> None:
    """What was read is digested; the same bytes with another time are the same, and any other bytes are not."""
    if not all(map(os.path.isfile, paths)):
        return
    with opened(case, paths) as source:
        spans = list(source.divide(3))
        digester = unchanged.Digester(source, case.columns)
        digests = {str(span.index): digester.digest(span) for span in spans}
        assert all(digests.values())
        own = {extent.file.path for span in spans for extent in source.extents(span, case.columns)}
        for path in own:
            touch(path)
        unchanged.compare(source, spans, digests, case.columns, own)
        for path in own:
            before = Path(path).read_bytes()
            Path(path).write_bytes(before[::-1])
            with pytest.raises(InputError, match="the input changed since the job began") as caught:
                unchanged.compare(source, spans, digests, case.columns, own)
            assert path in str(caught.value)
            Path(path).write_bytes(before)
        unchanged.compare(source, spans, digests, case.columns, own)


def damaged_row_is_named_and_takes_no_other_down(case: Case, paths: Paths) -> None:
    assert case.spoil is not None
    bad = case.spoil(paths)
    expected = case.rows_at(paths)
    for name, value in bad.left.items():
        expected = {**expected, name: [*expected[name][: bad.row], value, *expected[name][bad.row + 1 :]]}
    for rows_per_span in (1, 7, 64, 10_000):
        source = (case.open_spoiled or case.open)(paths)
        spans = list(source.divide(rows_per_span))
        assert spans[-1].stop == case.num_rows
        for reader in (source, cloudpickle.loads(cloudpickle.dumps(source))) if rows_per_span == 7 else (source,):
            rows, (failure,) = read_with_failures(reader, spans, case.columns)
            assert rows == expected
            assert (failure.row, failure.stage) == (bad.row, bad.stage)
            assert failure.origin == bad.origin or failure.origin.startswith(f"{bad.origin},")
            assert bad.says in failure.reason
            assert failure.reason
            assert failure.error
        source.close()


def file_that_is_gone_is_named(case: Case, paths: Paths) -> None:
    """As a failed row, where a file is a row; as an error of the input otherwise."""
    source = case.open(paths)
    source.schema()
    spans = list(source.divide(64))
    os.remove(paths[-1])
    if case.is_row_a_file:
        _, (failure,) = read_with_failures(source, spans, case.columns)
        assert (failure.row, failure.origin) == (case.num_rows - 1, paths[-1])
        assert "No such file" in failure.reason
        return
    with pytest.raises(FileGone) as caught:
        deque(itertools.chain.from_iterable(read_blocks(source, span, case.columns) for span in spans), maxlen=0)
    assert caught.value.exit_code == 5
    assert caught.value.problem == f"the input changed since the job began: {paths[-1]} is gone"


def file_that_lost_rows_since_it_was_divided_is_noticed(case: Case, paths: Paths) -> None:
    """By an error or a failure: never by rows that are fewer, or another file's."""
    source = case.open(paths)
    spans = list(source.divide(64))
    by_size = sorted(paths, key=os.path.getsize)
    shutil.copyfile(by_size[0], by_size[-1])
    fresh = cloudpickle.loads(cloudpickle.dumps(source))
    with pytest.raises((InputError, AssertionError)):
        read_all(fresh, spans, case.columns)


def change_while_a_job_runs_is_named(case: Case, paths: Paths) -> None:
    """Whatever happens to a file: the results of its spans are not taken, and the message has its name."""

    def grow(path: str) -> None:
        with open(path, "ab") as file:
            file.write(b"\n")

    def rewrite(path: str) -> None:
        Path(path).write_bytes(Path(path).read_bytes()[::-1])
        touch(path)

    for change in (touch, grow, rewrite, lambda path: os.truncate(path, os.path.getsize(path) // 2), os.remove):
        for path in paths:
            content = Path(path).read_bytes()
            source = case.open(cast(Paths, expand(paths, ())))
            spans = list(source.divide(7))
            for span in spans:
                unchanged.check(source, span, case.columns)
            own = [span for span in spans if path in {e.file.path for e in source.extents(span, case.columns)}]
            kept = cloudpickle.loads(cloudpickle.dumps(source))
            change(path)
            for span in own:
                for reader in (source, kept):
                    with pytest.raises(InputError, match="the input changed since the job began") as caught:
                        unchanged.check(reader, span, case.columns)
                    assert path in str(caught.value)
            for span in spans:
                if span not in own:
                    unchanged.check(source, span, case.columns)
            Path(path).write_bytes(content)


def use(case: Case, paths: Paths) -> None:
    """All that a job does: a damaged file may be refused as soon as it is opened."""
    source = case.open(paths)
    read_all(source, source.divide(64), case.columns)


def damage_is_refused_or_cannot_be(case: Case, paths: Paths) -> None:
    """Where no single row can be bad, the case says why; a file of something else is then refused by its name."""
    assert case.unspoilable
    if not case.has_files or not os.path.isfile(paths[0]):
        return
    Path(paths[0]).write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(InputError) as caught:
        use(case, paths)
    assert caught.value.exit_code == 5
    assert paths[0] in str(caught.value)


def _is_table(case: Case) -> bool:
    """All rows of several files, many in each."""
    return case.has_files and case.numbers is None and case.unseen is None and not case.is_row_a_file


FILE_PROMISES: dict[Promise, Callable[[Case], bool]] = {
    fingerprint_changes_with_the_time_of_any_file: lambda case: case.has_files,
    fingerprint_changes_with_the_size_of_any_file: lambda case: case.has_files,
    fingerprint_changes_with_the_content_of_any_file: lambda case: case.has_files,
    touched_files_are_told_from_changed_ones: lambda case: case.has_files,
    damaged_row_is_named_and_takes_no_other_down: lambda case: case.spoil is not None,
    damage_is_refused_or_cannot_be: lambda case: case.spoil is None,
    file_that_is_gone_is_named: lambda case: _is_table(case) or (case.is_row_a_file and case.numbers is None),
    file_that_lost_rows_since_it_was_divided_is_noticed: _is_table,
    change_while_a_job_runs_is_named: _is_table,
}
"""Promises, and the cases that can make them. What has no files is held by `fingerprint_changes_with_any_value`."""
