"""The cache: converted steps are whole or not there, are compared before they are believed, and leave no rubbish."""

from __future__ import annotations

import json
import os
from pathlib import Path

from penstock.core.records import ModelFile
from penstock.planning import store

MODEL = ModelFile("keras", "model.keras", "digest", ("tensorflow",))
DAY_S = 24 * 3600


def write_step(folder: Path | str, content: bytes = b"network") -> None:
    Path(folder, "model.onnx").write_bytes(content)
    Path(folder, "signature.json").write_text(json.dumps({"num_bytes": len(content)}), encoding="utf-8")


def test_a_step_that_lost_its_end_is_not_whole(tmp_path: Path) -> None:
    write_step(tmp_path)
    assert store.is_whole(str(tmp_path))
    (tmp_path / "model.onnx").write_bytes(b"netw")
    assert not store.is_whole(str(tmp_path))
    (tmp_path / "model.onnx").unlink()
    assert not store.is_whole(str(tmp_path))


def test_the_slower_of_two_runs_leaves_the_step_of_the_faster_alone(tmp_path: Path) -> None:
    folder = tmp_path / "converted" / "step"
    with store.staged(str(folder)) as slower:
        with store.staged(str(folder)) as faster:
            write_step(faster, b"first")
        write_step(slower, b"second")
    assert (folder / "model.onnx").read_bytes() == b"first"
    assert [entry.name for entry in folder.parent.iterdir()] == ["step"]


def test_a_damaged_step_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "converted" / "step"
    folder.mkdir(parents=True)
    write_step(folder, b"network")
    (folder / "model.onnx").write_bytes(b"")
    with store.staged(str(folder)) as staging:
        write_step(staging)
    assert store.is_whole(str(folder))


def test_what_a_killed_conversion_left_goes_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / ".staging-old", tmp_path / ".staging-new"
    for folder, age_s in ((old, 2 * DAY_S), (new, 0)):
        folder.mkdir()
        stamp = os.stat(folder).st_mtime - age_s
        os.utime(folder, (stamp, stamp))
    with store.staged(str(tmp_path / "step")) as staging:
        write_step(staging)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".staging-new", "step"]


def test_an_agreement_holds_for_its_runtime_its_device_and_tolerances_that_it_meets(tmp_path: Path) -> None:
    store.note_agreement(str(tmp_path), MODEL, "onnx", "cpu", 3e-6)
    assert store.is_agreed(str(tmp_path), MODEL, "onnx", "cpu", 1e-4)
    assert not store.is_agreed(str(tmp_path), MODEL, "onnx", "cpu", 1e-6)
    assert not store.is_agreed(str(tmp_path), MODEL, "onnx", "gpu", 1e-4)
    assert not store.is_agreed(str(tmp_path), MODEL, "openvino", "cpu", 1e-4)
