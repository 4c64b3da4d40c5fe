"""What every source promises of files that change, go away or are damaged. Each has files of its own to spoil."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from penstock.core.records import Fragment
from penstock.errors import InputError

from .case import Case
from .promises import Paths, Promise, close, opened
from .reading import read_all, read_with_failures, touch


def _fragments(case: Case, paths: Paths) -> list[Fragment]:
    with opened(case, paths) as source:
        return list(source.fragments())


def _changes_are_seen(case: Case, paths: Paths, change: Callable[[str], None]) -> None:
    """Files change one after the other; each time the fragment of that file, and no other, becomes another one."""
    seen = [] if case.unseen is not None and not Path(paths[0]).is_file() else paths
    with opened(case, paths) as early:
        for number, path in enumerate(seen):
            before = _fragments(case, paths)
            change(path)
            after = _fragments(case, paths)
            assert after == list(early.fragments())
            wanted = [True] if case.is_row_a_file else [place == number for place in range(len(paths))]
            assert [old != new for old, new in zip(before, after, strict=True)] == wanted
    for path in case.unseen(paths) if case.unseen is not None else []:
        before = _fragments(case, paths)
        touch(path)
        assert _fragments(case, paths) == before


def fingerprint_changes_with_the_time_of_any_file(case: Case, paths: Paths) -> None:
    _changes_are_seen(case, paths, touch)


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


def damaged_row_is_named_and_takes_no_other_down(case: Case, paths: Paths) -> None:
    if case.spoil is None:
        assert case.unspoilable
        return
    bad = case.spoil(paths)
    expected = case.rows_at(paths)
    for name, value in bad.left.items():
        expected = {**expected, name: [*expected[name][: bad.row], value, *expected[name][bad.row + 1 :]]}
    for rows_per_span in (1, 7, 64, 10_000):
        source = (case.open_spoiled or case.open)(paths)
        spans = list(source.divide(rows_per_span))
        assert spans[-1].stop == case.num_rows
        for reader in (source, cloudpickle.loads(cloudpickle.dumps(source))):
            rows, (failure,) = read_with_failures(reader, spans, case.columns)
            assert rows == expected
            assert (failure.row, failure.stage) == (bad.row, bad.stage)
            assert failure.origin == bad.origin or failure.origin.startswith(f"{bad.origin},")
            assert bad.says in failure.reason
            assert failure.reason
            assert failure.error
        close(source)


def file_that_is_gone_is_named(case: Case, paths: Paths) -> None:
    """As a failed row, where a file is a row; as an error of the input otherwise."""
    if not case.has_files or case.numbers is not None or not Path(paths[-1]).is_file():
        return
    source = case.open(paths)
    source.schema()
    spans = list(source.divide(64))
    os.remove(paths[-1])
    if case.is_row_a_file:
        _, (failure,) = read_with_failures(source, spans, case.columns)
        assert (failure.row, failure.origin) == (case.num_rows - 1, paths[-1])
        assert "No such file" in failure.reason
        return
    with pytest.raises(InputError) as caught:
        read_all(source, spans, case.columns)
    assert caught.value.exit_code == 5
    assert paths[-1] in str(caught.value)


def file_that_lost_rows_since_it_was_divided_is_noticed(case: Case, paths: Paths) -> None:
    """By an error or a failure: never by rows that are fewer, or another file's."""
    if not case.has_files or case.is_row_a_file or len(paths) < 2:
        return
    source = case.open(paths)
    spans = list(source.divide(64))
    shutil.copyfile(paths[-2], paths[-1])
    fresh = cloudpickle.loads(cloudpickle.dumps(source))
    with pytest.raises((InputError, AssertionError)):
        read_all(fresh, spans, case.columns)


FILE_PROMISES: list[Promise] = [
    fingerprint_changes_with_the_time_of_any_file,
    fingerprint_changes_with_the_size_of_any_file,
    fingerprint_changes_with_the_content_of_any_file,
    damaged_row_is_named_and_takes_no_other_down,
    file_that_is_gone_is_named,
    file_that_lost_rows_since_it_was_divided_is_noticed,
]
