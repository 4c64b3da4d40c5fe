"""Checkpoints in a folder: what comes back, which are kept, and what becomes of damage and faults."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.records import Array, RowFailure
from penstock.core.training import Checkpoint, Position, Progress
from penstock.errors import OutputError
from penstock.training.checkpoints import MOST_FAILED, Cadence, CheckpointFolder, CheckpointKeeper

BAD = RowFailure(7, "rows.csv:9", "read", "ValueError", "no number")


def checkpoint(step: int, **other: Any) -> Checkpoint:
    state: dict[str, Array] = {
        "weights/0": np.array([[step, -0.0], [np.inf, 1e-45]], np.float32),
        "weights/1": np.array(step, np.float64),
        "optimizer/0": np.zeros((0, 3), np.int64),
        "seed/0": np.array([1, step], np.uint32),
    }
    return Checkpoint(Progress(Position(1, step, 40, 5), {"loss": 0.1}, {"loss": 0.3}, 2), state, **other)


def same(one: Any, other: Any) -> bool:
    """Equal values of equal types, arrays bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return bool(one == other)


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    callbacks = {
        "attributes": [("EarlyStopping", {"best": np.float32(0.1), "wait": 2, "best_weights": [np.arange(3.0)]})],
        "of": {3: (None, True, "ä", [])},
    }
    written = checkpoint(
        12, callbacks=callbacks, failures=(BAD,), records=[1], facts={"seed": 4, "labels": ["cat", "dog"]}
    )
    folder = CheckpointFolder(str(tmp_path / "new" / "checkpoints"))
    path = folder.write(written)
    found = folder.newest()
    assert found is not None
    assert (found.path, found.damaged) == (path, ())
    assert same(vars(found.checkpoint), vars(written))


def test_the_newest_are_kept_and_others_go(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=2)
    (tmp_path / "step-0000000001.safetensors.tmp").write_bytes(b"of a run that was killed")
    (tmp_path / "mine.txt").write_text("stays")
    for step in (1, 2, 3):
        folder.write(checkpoint(step))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["mine.txt", "step-0000000002.safetensors", "step-0000000003.safetensors"]


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert CheckpointFolder(str(tmp_path / "none")).newest() is None


@pytest.mark.parametrize("damage", ["cut", "altered", "empty", "header"])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path, damage: str) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=3)
    folder.write(checkpoint(1))
    newest = Path(folder.write(checkpoint(2)))
    content = bytearray(newest.read_bytes())
    if damage == "altered":
        content[-9] ^= 1
    if damage == "header":
        content[20] ^= 1
    newest.write_bytes(bytes(content[:-3] if damage == "cut" else b"" if damage == "empty" else content))
    found = folder.newest()
    assert found is not None
    assert found.checkpoint.progress.position.step == 1
    [reason] = found.damaged
    assert str(newest) in reason


def test_a_folder_of_damaged_checkpoints_is_an_error(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    Path(folder.write(checkpoint(1))).write_bytes(b"x" * 100)
    with pytest.raises(OutputError, match="no checkpoint can be read"):
        folder.newest()


def test_a_checkpoint_is_due_by_steps_or_by_minutes() -> None:
    now = [0.0]
    by_steps = Cadence(steps=4)
    assert [step for step in range(1, 13) if by_steps.is_due(step)] == [4, 8, 12]
    by_minutes = Cadence(minutes=2, clock=lambda: now[0])
    assert not by_minutes.is_due(4)
    now[0] = 120.0
    assert by_minutes.is_due(5)
    with by_minutes.writing():
        pass
    assert not by_minutes.is_due(6)
    assert not Cadence().is_due(1)


def test_checkpoints_that_nobody_asked_for_are_as_often_as_they_cost_little() -> None:
    now = [0.0]
    cadence = Cadence(by_cost=True, clock=lambda: now[0])

    def next_due_after(cost_s: float) -> float:
        with cadence.writing():
            now[0] += cost_s
        written = now[0]
        while not cadence.is_due(1):
            now[0] += 1
        return now[0] - written

    assert [next_due_after(cost) for cost in (0.125, 1.0, 30.0)] == [20, 50, 300]


class FullDisk(CheckpointFolder):
    """A folder whose disk is full for a while."""

    is_full = True

    def write(self, checkpoint: Checkpoint) -> str:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(checkpoint)


def test_a_full_disk_is_said_and_the_next_checkpoint_is_tried(tmp_path: Path) -> None:
    folder, said = FullDisk(str(tmp_path)), list[str]()
    CheckpointFolder(str(tmp_path)).write(checkpoint(1))
    keeper = CheckpointKeeper(folder, Cadence(steps=1), said.append, {"seed": 3})
    keeper.keep(checkpoint(2))
    assert said == [
        "the checkpoint after step 2 could not be written: [Errno 28] No space left on device; "
        "the last good one stays (step-0000000001.safetensors)"
    ]
    folder.is_full = False
    keeper.keep(checkpoint(3))
    found = folder.newest()
    assert found is not None
    assert found.checkpoint.facts == {"seed": 3}
    assert keeper.written == found.path


def test_a_disk_that_stays_full_ends_training(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(FullDisk(str(tmp_path)), Cadence(steps=1), list[str]().append)
    for step in range(1, MOST_FAILED):
        keeper.keep(checkpoint(step))
    with pytest.raises(OutputError, match="3 checkpoints in a row") as told:
        keeper.keep(checkpoint(MOST_FAILED))
    assert told.value.hint == "there is none yet; free space and resume"


def test_a_file_in_the_place_of_the_folder_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    path.touch()
    keeper = CheckpointKeeper(CheckpointFolder(str(path)), Cadence(steps=1), list[str]().append)
    for step in range(1, MOST_FAILED):
        keeper.keep(checkpoint(step))
    with pytest.raises(OutputError, match="3 checkpoints in a row") as told:
        keeper.keep(checkpoint(MOST_FAILED))
    assert str(path) in str(told.value)
    assert told.value.hint == "there is none yet; move that file away and resume"


@pytest.mark.parametrize("name", ["weights/0", "optimizer/3"])
def test_weights_that_are_no_numbers_are_not_kept(tmp_path: Path, name: str) -> None:
    folder, said = CheckpointFolder(str(tmp_path)), list[str]()
    keeper = CheckpointKeeper(folder, Cadence(steps=1), said.append)
    keeper.keep(Checkpoint(Progress(), {name: np.array([1, np.nan])}))
    assert folder.newest() is None
    assert said == ["no checkpoint after step 0: weights or the optimizer are NaN or infinite; there is none yet"]


def test_an_optimizer_that_overflowed_is_not_kept_but_a_mask_of_infinities_is(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    keeper = CheckpointKeeper(folder, Cadence(steps=1), lambda remark: None)
    keeper.keep(Checkpoint(Progress(), {"optimizer/1": np.array([1, np.inf])}))
    assert folder.newest() is None
    keeper.keep(Checkpoint(Progress(), {"weights/0": np.array([1, -np.inf])}))
    assert folder.newest() is not None
