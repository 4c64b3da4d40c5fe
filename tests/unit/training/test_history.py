"""The records of training: tables that are cut to a checkpoint, and events of TensorBoard."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from penstock.core.training import Position
from penstock.sources.tfrecord.framing import masked_crc
from penstock.training.history import TrainingRecords


def train(records: TrainingRecords, start: int, end: int) -> dict[int, Any]:
    """Steps from `start` to `end`, three in an epoch; the state after each."""
    states = {}
    for step in range(start, end):
        position = Position(step // 3, step + 1, 4 * (step % 3 + 1), step % 3 + 1)
        records.step(position, lambda step=step: {"loss": 1 / (step + 1), "of": object()})  # type: ignore[misc]
        if step % 3 == 2:
            logs = {"loss": 0.1 + step, "accuracy": step / 3}
            records.epoch(position, {**logs, "val_loss": 2.0} if step > 3 else logs)
        states[step + 1] = records.state()
    return states


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 5, 6, 8])
def test_records_of_a_resumed_run_are_those_of_an_undisturbed_one(tmp_path: Path, kept: int) -> None:
    whole = TrainingRecords(str(tmp_path / "whole"), every_steps=2)
    whole.begin(Position(), None)
    train(whole, 0, 9)
    killed = TrainingRecords(str(tmp_path / "killed"), every_steps=2)
    killed.begin(Position(), None)
    states = train(killed, 0, 9) | {0: None}
    with (tmp_path / "killed" / "steps.csv").open("a") as table:
        table.write("3,10,0.0")  # a line that a crash has torn
    again = TrainingRecords(str(tmp_path / "killed"), every_steps=2)
    again.begin(Position(kept // 3, kept, 0), states[kept])
    train(again, kept, 9)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    for records in (whole, killed, again):
        records.close()


def test_history_has_a_row_for_each_epoch_and_every_column_that_came(tmp_path: Path) -> None:
    records = TrainingRecords(str(tmp_path))
    records.begin(Position(), None)
    train(records, 0, 6)
    assert (tmp_path / "history.csv").read_text().splitlines() == [
        "epoch,step,loss,accuracy,val_loss",
        "1,3,2.1,0.6666666666666666,",
        "2,6,5.1,1.6666666666666667,2.0",
    ]
    assert not (tmp_path / "steps.csv").exists()


def test_steps_are_recorded_as_often_as_asked(tmp_path: Path) -> None:
    records = TrainingRecords(str(tmp_path), every_steps=2)
    records.begin(Position(), None)
    train(records, 0, 5)
    records.close()
    assert (tmp_path / "steps.csv").read_text() == "epoch,step,loss\n1,2,0.5\n2,4,0.25\n"


def test_a_folder_that_cannot_be_written_is_said_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = list[str]()
    records = TrainingRecords(str(tmp_path / "file"), every_steps=1, has_events=True, say=said.append)
    records.begin(Position(), None)
    train(records, 0, 3)
    assert {line.partition(" ")[0] for line in said} == {"history.csv", "steps.csv", "tensorboard"}


def test_events_are_records_with_checksums_and_say_where_they_go_on(tmp_path: Path) -> None:
    records = TrainingRecords(str(tmp_path), every_steps=1, has_events=True)
    records.begin(Position(0, 4), [])
    train(records, 4, 6)
    records.close()
    [file] = (tmp_path / "tensorboard" / "train").iterdir()
    content, events = file.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert struct.unpack("<I", content[8:12])[0] == masked_crc(content[:8])
        events.append(content[12 : 12 + length])
        assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked_crc(events[-1])
        content = content[16 + length :]
    assert events[0].endswith(b"brain.Event:2")
    assert events[1].endswith(b"\x10\x05\x3a\x02\x08\x01")  # the session begins with step 5
    assert [event[9:11] for event in events[2:]] == [b"\x10\x05", b"\x10\x06", b"\x10\x06"]
    assert b"batch_loss" in events[2]
    assert b"epoch_loss" in events[4]
    assert [path.parent.name for path in tmp_path.glob("tensorboard/validation/*")] == ["validation"]
