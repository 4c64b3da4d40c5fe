"""Files of a training job that were touched are told from those with another content."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.core.records import Fragment
from penstock.errors import InputError
from penstock.sources.files.paths import fragments
from penstock.storage.places import Place, place_of
from penstock.training.input_digests import DIGESTS, check_same_bytes, digested_meanwhile


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "out" / "_penstock").mkdir(parents=True)
    return place_of(str(tmp_path / "out"))


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    return list(map(str, paths))


def digest(place: Place, listed: list[Fragment], files: Sequence[Fragment]) -> None:
    with digested_meanwhile(place, listed, lambda: files):
        while place.read(DIGESTS) is None:
            pass


def test_touched_files_are_the_same_and_one_changed_byte_is_not(place: Place, paths: list[str]) -> None:
    digest(place, list(fragments(paths)), fragments(paths))
    os.utime(paths[1], (1, 1))
    check_same_bytes(place, fragments(paths), paths[1], "")
    Path(paths[1]).write_bytes(b"b" * 99 + b"c")
    with pytest.raises(InputError, match=f"the input changed since training began: {paths[1]}"):
        check_same_bytes(place, fragments(paths), paths[1], "")


def test_file_that_changed_after_it_was_listed_is_never_taken_for_the_same(place: Place, paths: list[str]) -> None:
    listed = list(fragments(paths))
    Path(paths[0]).write_bytes(b"c" * 100)
    os.utime(paths[0], (1, 1))
    digest(place, listed, fragments(paths))
    with pytest.raises(InputError, match=f"the input changed since training began: {paths[0]}"):
        check_same_bytes(place, fragments(paths), paths[0], "")


@pytest.mark.parametrize("noted", [None, b"", b"[", b"5", b'["00000000"]'])
def test_without_whole_digests_touched_files_are_refused(place: Place, paths: list[str], noted: bytes | None) -> None:
    if noted is not None:
        place.write(DIGESTS, noted)
    with pytest.raises(InputError, match=f"the input may have changed since training began: {paths[0]}"):
        check_same_bytes(place, fragments(paths), paths[0], "")


def test_file_that_cannot_be_read_keeps_no_other_from_being_compared(place: Place, paths: list[str]) -> None:
    listed = [*fragments(paths), Fragment(paths[0] + " is not there", 5, 5)]
    digest(place, listed, listed)
    check_same_bytes(place, listed, paths[0], "")


def test_objects_in_a_store_are_not_digested(place: Place, paths: list[str]) -> None:
    listed = [*fragments(paths), Fragment("s3://bucket/c", 5, 5)]
    with digested_meanwhile(place, listed, lambda: listed):
        pass
    assert place.read(DIGESTS) is None
