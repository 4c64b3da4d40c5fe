"""The local folder of a run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from penstock.storage.scratch import Scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folder_is_private_and_removed_with_what_is_in_it(temporary: Path) -> None:
    scratch = Scratch()
    assert os.stat(scratch.path).st_mode & 0o077 == 0
    Path(scratch.path, "part").write_bytes(b"half")
    scratch.remove()
    scratch.remove()
    assert os.listdir(temporary) == []


def test_folder_of_a_run_that_was_killed_is_swept_away_and_that_of_a_living_one_is_not(temporary: Path) -> None:
    left = temporary / "penstock-parts-left"
    left.mkdir()
    (left / "part").write_bytes(b"half")
    foreign = temporary / "penstock-other"
    foreign.mkdir()
    scratch = Scratch()
    assert not left.exists()
    Scratch().remove()
    assert os.path.isdir(scratch.path)
    assert foreign.exists()
    scratch.remove()
