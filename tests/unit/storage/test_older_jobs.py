"""Folders that an older penstock wrote (manifest versions 4 and 5): they can be looked at and removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.storage.ledger import committed_records, is_finished, part_files, remove_job
from penstock.storage.manifest import Manifest, load_manifest, older_job
from penstock.storage.places import place_of

DATA = Path(__file__).parents[2] / "data" / "manifest4"
"""Written by that version: a finished job of 60 rows as npy, and one of 200 rows as csv that stopped after 128."""


@pytest.fixture(params=["finished", "stopped"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    shutil.copytree(DATA / name, tmp_path / "out")
    return tmp_path / "out"


def loaded(folder: Path) -> Manifest:
    manifest = load_manifest(place_of(str(folder)))
    assert manifest is not None
    return manifest


def test_older_job_is_read_with_what_it_committed(folder: Path, name: str) -> None:
    manifest = loaded(folder)
    records = committed_records(place_of(str(folder)), manifest)
    counted = (manifest.rows, sum(record.rows for record in records), sum(record.failed for record in records))
    assert counted == ((60, 58, 2) if name == "finished" else (200, 96, 32))
    assert manifest.is_older
    assert is_finished(manifest, records) == (name == "finished")


def test_older_job_without_a_part_is_not_finished(tmp_path: Path) -> None:
    shutil.copytree(DATA / "finished", tmp_path / "out")
    (tmp_path / "out" / "row" / "part-00000000.npy").unlink()
    manifest = loaded(tmp_path / "out")
    assert not is_finished(manifest, committed_records(place_of(str(tmp_path / "out")), manifest))


def test_older_job_is_removed_and_nothing_else(folder: Path) -> None:
    (folder / "notes.txt").write_bytes(b"mine")
    place, manifest = place_of(str(folder)), loaded(folder)
    assert part_files(place, manifest)
    remove_job(place, manifest)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == ["_penstock", "notes.txt"]


def test_error_says_which_version_wrote_it_and_what_can_be_done(folder: Path) -> None:
    error = older_job(place_of(str(folder)), loaded(folder))
    assert "written by an older version of penstock" in error.problem
    assert error.received == f"{folder}: penstock 0.1.0, manifest version 4"
    assert "--overwrite" in (error.hint or "")
    assert "only with manifests of versions 6 to 7, and this one has version 4" in (error.hint or "")
