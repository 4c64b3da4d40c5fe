"""The folder of a training job that replaces another one: at any moment, one of the two is there and whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.commands.fit_folder import FitFolder
from penstock.storage.fit_manifest import load_fit_manifest
from penstock.storage.manifest import MANIFEST
from penstock.storage.places import Place, place_of
from tests.unit.storage.test_fit_manifest import SAVED

NEW = replace(SAVED, fingerprint="of the new job")
FILES = ("model.keras", "history.csv", "checkpoints/step-00000007.keras", "_penstock/result.json")


class Killed(BaseException):
    """Stands for a kill between two calls that touch the disk."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder with a trained model in it, and a file of the user."""
    for name in (*FILES, "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"old {name}")
    SAVED.save(place_of(str(tmp_path)))
    return place_of(str(tmp_path))


def content_of(place: Place) -> dict[str, bytes]:
    folder = Path(place.address())
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def killed_at(patch: pytest.MonkeyPatch, calls: Iterator[int], last: int) -> None:
    """Be killed before one of the calls that rename or remove something."""
    for owner, name in ((os, "replace"), (os, "remove"), (shutil, "rmtree")):
        really = getattr(owner, name)

        def call(*arguments: Any, really: Any = really, **options: Any) -> None:
            if next(calls) == last:
                raise Killed
            really(*arguments, **options)

        patch.setattr(owner, name, call)


def test_a_job_stays_until_training_begins_that_replaces_it(place: Place) -> None:
    before = content_of(place)
    folder = FitFolder(place, None, replaces=True)
    folder.begin(NEW)
    assert load_fit_manifest(place) == NEW
    assert not (Path(place.address()) / "model.keras").exists()
    (Path(place.address()) / "model.keras").write_text("half of a new one")
    folder.give_up()
    assert content_of(place) == before


def test_a_job_goes_when_training_begins_that_replaces_it(place: Place) -> None:
    folder = FitFolder(place, None, replaces=True)
    folder.begin(NEW)
    folder.keep()
    assert content_of(place).keys() == {"notes.txt", MANIFEST}
    assert not folder.holds_another


def test_a_job_that_never_began_to_replace_another_is_replaced_itself(place: Place) -> None:
    before = content_of(place)
    FitFolder(place, None, replaces=True).begin(NEW)  # and is killed
    folder = FitFolder(place, None, replaces=True)
    folder.recover(None)
    folder.begin(replace(NEW, fingerprint="of a third job"))
    folder.give_up()
    assert content_of(place) == before


def test_a_job_that_was_killed_before_its_first_checkpoint_makes_room_for_the_one_it_replaces(place: Place) -> None:
    before = content_of(place)
    FitFolder(place, None, replaces=True).begin(NEW)  # and is killed
    FitFolder(place, None, replaces=False).recover(NEW.fingerprint)
    assert load_fit_manifest(place) == NEW, "it goes on where it is asked for"
    FitFolder(place, None, replaces=False).recover(SAVED.fingerprint)
    assert content_of(place) == before


def test_a_job_that_was_killed_behind_its_first_checkpoint_stays(place: Place) -> None:
    FitFolder(place, None, replaces=True).begin(NEW)
    (Path(place.address()) / "checkpoints").mkdir()
    place.write("checkpoints/step-00000001.keras", b"new")
    FitFolder(place, None, replaces=False).recover(SAVED.fingerprint)
    assert content_of(place).keys() == {"notes.txt", MANIFEST, "checkpoints/step-00000001.keras"}


@pytest.mark.parametrize("undoes", [False, True])
def test_a_kill_at_any_step_leaves_one_of_two_jobs_whole(place: Place, tmp_path: Path, undoes: bool) -> None:
    before = content_of(place)
    for step in range(100):
        copy = tmp_path / f"copy-{step}"
        shutil.copytree(place.address(), copy, ignore=shutil.ignore_patterns("copy-*"))
        here = place_of(str(copy))
        folder = FitFolder(here, None, replaces=True)
        if undoes:
            folder.begin(NEW)
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, iter(range(1000)), step)
            try:
                folder.give_up() if undoes else folder.begin(NEW)
            except Killed:
                is_killed = True
            else:
                is_killed = False
        FitFolder(here, None, replaces=False).recover(NEW.fingerprint)
        found = content_of(here)
        has_begun = load_fit_manifest(here) == NEW
        kept = {name.removeprefix("_penstock/replaced/"): content for name, content in found.items()}
        if has_begun:
            kept[MANIFEST] = found[f"_penstock/replaced/{MANIFEST}"]
        kept = {name: content for name, content in kept.items() if not name.endswith(".tmp")}
        assert kept == before, step
        if not is_killed:
            assert has_begun != undoes
            return
    raise AssertionError("it does not end")
