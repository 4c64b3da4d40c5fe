"""The loop of training over a trainer and data that only write down what happens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.core.records import Array, RowFailure
from penstock.core.training import Checkpoint, Position, Progress, TrainBatch
from penstock.errors import ModelError
from penstock.training import loop

NAN = float("nan")


class Data:
    """10 rows in batches of 4, 4 and 2."""

    rows: int | None = 10

    def __init__(self, is_nan: Collection[int] = ()) -> None:
        self._is_nan = is_nan

    @property
    def failures(self) -> Mapping[int, RowFailure]:
        return {}

    def batches(self, epoch: int, skip_rows: int = 0) -> Iterator[TrainBatch]:
        for begin in range(skip_rows, 10, 4):
            numbers = np.arange(begin, min(begin + 4, 10))
            x = np.where(np.isin(numbers, list(self._is_nan)), NAN, 1.0)
            yield TrainBatch(len(numbers), {"x": x[:, None]}, {"": numbers}, {}, numbers)

    def remarks(self) -> list[str]:
        return []

    def close(self) -> None: ...


class Diary:
    """A trainer and callbacks in one: every call is an entry. The losses of steps are given."""

    def __init__(self, losses: list[float] | None = None, stop_after: int = 0, spoiling: Collection[int] = ()) -> None:
        self.entries: list[str] = []
        self.ends: list[dict[str, float]] = []
        self.is_stopped = False
        self.initial_epoch = 0
        self._losses = losses or []
        self._steps = 0
        self._stop_after = stop_after
        self._spoiling = spoiling  # steps after which weights are NaN

    def ahead(self, batches: Iterator[TrainBatch]) -> Iterator[TrainBatch]:
        return batches

    def train_on(self, batch: TrainBatch) -> None:
        self._steps += 1
        self.entries.append(f"train {batch.rows}")
        batch.release()

    def test_on(self, batch: TrainBatch) -> None:
        self.entries.append(f"test {batch.rows}")

    def step_logs(self) -> Any:
        return {"loss": self._losses[self._steps - 1] if self._steps <= len(self._losses) else 1.0}

    def results(self) -> dict[str, float]:
        return {"loss": 1.0}

    def undo(self) -> None:
        self.entries.append("undo")

    def reset(self) -> None:
        self.entries.append("reset")

    def state(self) -> dict[str, Array]:
        return {}

    def has_nan_weights(self) -> bool:
        return self._steps in self._spoiling

    def restore(self, state: Any) -> None:
        self.entries.append("restore")

    def finish(self) -> None:
        self.entries.append("finish")

    def save(self, path: str) -> None: ...

    def close(self) -> None: ...

    def train_begin(self) -> None:
        self.entries.append("begin")

    def train_end(self, logs: dict[str, float]) -> None:
        self.entries.append("end")

    def epoch_begin(self, epoch: int) -> None:
        self.entries.append(f"epoch {epoch}")

    def epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.ends.append(logs)

    def train_batch_begin(self, step: int) -> None: ...

    def train_batch_end(self, step: int, logs: Callable[[], Any]) -> None:
        self.is_stopped = self._steps == self._stop_after

    def test_begin(self) -> None: ...

    def test_batch_begin(self, step: int) -> None: ...

    def test_batch_end(self, step: int, logs: Callable[[], Any]) -> None: ...

    def test_end(self, logs: dict[str, float]) -> None: ...


STEPS = ["train 4", "train 4", "train 2"]


def test_an_epoch_resets_trains_and_validates() -> None:
    diary = Diary()
    end = loop.train(diary, Data(), diary, loop.Schedule(2, validation_freq=2), validation=Data())
    tests = ["reset", "test 4", "test 4", "test 2"]
    assert diary.entries == ["begin", "reset", "epoch 0", *STEPS, "reset", "epoch 1", *STEPS, *tests, "finish", "end"]
    assert diary.ends == [{"loss": 1.0}, {"loss": 1.0, "val_loss": 1.0}]
    assert end == Position(2, 6, 0)


def test_training_goes_on_in_mid_epoch_with_the_metrics_it_had() -> None:
    diary = Diary()
    start = Checkpoint(Progress(Position(1, 4, 4, 1)), {})
    end = loop.train(diary, Data(), diary, loop.Schedule(2), start=start)
    assert diary.entries == ["begin", "epoch 1", "restore", "restore", "train 4", "train 2", "finish", "end"]
    assert end == Position(2, 6, 0)


def test_positions_after_steps_say_where_to_go_on() -> None:
    diary, positions = Diary(), list[Position]()
    loop.train(diary, Data(), diary, loop.Schedule(2, after_step=positions.append))
    assert positions[:4] == [
        Position(0, 1, 4, 1),
        Position(0, 2, 8, 2),
        Position(0, 3, 10, 3),
        Position(1, 4, 4, 1),
    ]


def test_a_callback_ends_training_after_a_step() -> None:
    diary = Diary(stop_after=2)
    loop.train(diary, Data(), diary, loop.Schedule(9))
    assert diary.entries == ["begin", "reset", "epoch 0", "train 4", "train 4", "finish", "end"]


def test_validation_may_follow_listed_epochs() -> None:
    assert [epoch for epoch in range(6) if loop.Schedule(6, [2, 5]).validates(epoch)] == [1, 4]


def test_a_loss_that_is_no_number_stops_and_names_step_and_rows() -> None:
    diary = Diary([1.0, NAN, NAN])
    with pytest.raises(ModelError, match=r"nan in step 2 \(epoch 1\), rows 4 to 7"):
        loop.train(diary, Data(), diary, loop.Schedule(1))


@pytest.mark.parametrize("on_nan", [loop.STOP, loop.SKIP])
@pytest.mark.parametrize(("is_nan", "named"), [([5], "row 5"), ([5, 7], "rows 5, 7"), ([4, 5, 9], "rows 4 to 5")])
def test_of_a_step_whose_loss_is_no_number_the_rows_with_such_values_are_named(
    on_nan: str, is_nan: list[int], named: str
) -> None:
    diary, said = Diary([1.0, NAN, NAN]), list[str]()
    schedule = loop.Schedule(1, on_nan=on_nan, on_skip=said.append)
    if on_nan == loop.STOP:
        with pytest.raises(ModelError) as told:
            loop.train(diary, Data(is_nan), diary, schedule)
        said = [told.value.received or ""]
    else:
        loop.train(diary, Data(is_nan), diary, schedule)
    assert said[0].endswith(f", NaN or infinite values in {named}")


@pytest.mark.parametrize(("is_nan", "named"), [(5, "row 5"), (3, "row 3 of the step before")])
def test_rows_in_memory_are_looked_at_there(is_nan: int, named: str) -> None:
    def read(numbers: Array) -> TrainBatch:
        return TrainBatch(len(numbers), {"": np.where(numbers == is_nan, NAN, 1.0)}, {}, {}, numbers)

    diary, stream = Diary([1.0, NAN, NAN]), Data()
    stream.rows = None
    with pytest.raises(ModelError, match=f"NaN or infinite values in {named}\n"):
        loop.train(diary, stream, diary, loop.Schedule(1, read=read))


def test_memory_of_a_step_that_is_undone_is_released_once_its_rows_were_looked_at() -> None:
    class Lent(Data):
        """What is released is written over."""

        def __init__(self) -> None:
            super().__init__([5])
            self.released: list[int] = []

        def batches(self, epoch: int, skip_rows: int = 0) -> Iterator[TrainBatch]:
            for batch in super().batches(epoch, skip_rows):

                def release(batch: TrainBatch = batch) -> None:
                    batch.inputs["x"][:] = 0
                    self.released.append(int(batch.numbers[0]))

                yield replace(batch, release=release)

    diary, data, said = Diary([1.0, NAN, 1.0]), Lent(), list[str]()
    loop.train(diary, data, diary, loop.Schedule(1, on_nan=loop.SKIP, on_skip=said.append))
    assert said == ["step 2 was undone: its loss is nan, NaN or infinite values in row 5"]
    assert data.released == [0, 4, 8]


def test_a_row_of_the_step_before_is_named_where_it_spoiled_the_weights_and_not_the_loss() -> None:
    diary = Diary([1.0, NAN, NAN])
    with pytest.raises(ModelError, match=r"nan in step 2 .* NaN or infinite values in row 3 of the step before"):
        loop.train(diary, Data([3]), diary, loop.Schedule(1))


def test_a_loss_that_is_no_number_may_be_undone() -> None:
    diary, said = Diary([1.0, NAN, 1.0]), list[str]()
    loop.train(diary, Data(), diary, loop.Schedule(1, on_nan=loop.SKIP, on_skip=said.append))
    assert diary.entries == ["begin", "reset", "epoch 0", "train 4", "train 4", "undo", "train 2", "finish", "end"]
    assert said == ["step 2 was undone: its loss is nan, rows 4 to 7"]


def test_steps_are_not_undone_for_ever() -> None:
    diary = Diary([NAN] * 100)
    with pytest.raises(ModelError, match="NaN or infinite"):
        loop.train(diary, Data(), diary, loop.Schedule(100, on_nan=loop.SKIP))


def test_a_loss_that_is_no_number_may_be_ignored() -> None:
    diary = Diary([NAN] * 3)
    loop.train(diary, Data(), diary, loop.Schedule(1, on_nan=loop.IGNORE))
    assert diary.entries[-1] == "end"


def test_weights_that_are_no_number_end_training_with_or_without_a_checkpoint() -> None:
    diary, kept = Diary(spoiling=[3]), Kept(2)
    for schedule in (loop.Schedule(1, keeper=kept), loop.Schedule(1)):
        with pytest.raises(ModelError, match=r"(?s)weights are NaN.*after step 3"):
            loop.train(diary, Data(), diary, schedule)
        diary = Diary(spoiling=[3])
    assert [each.progress.position.step for each in kept] == [2]
    loop.train(diary, Data(), diary, loop.Schedule(1, on_nan=loop.IGNORE))
    assert diary.entries[-1] == "end"


def test_a_step_that_spoils_the_weights_may_be_undone() -> None:
    diary, said = Diary(spoiling=[2]), list[str]()
    loop.train(diary, Data(), diary, loop.Schedule(1, on_nan=loop.SKIP, on_skip=said.append))
    assert said == ["step 2 was undone: weights were NaN after it, rows 4 to 7"]
    diary = Diary(spoiling=range(1, 100))
    with pytest.raises(ModelError, match="weights are NaN"):
        loop.train(diary, Data(), diary, loop.Schedule(100, on_nan=loop.SKIP))


class Kept(list[Checkpoint]):
    """Checkpoints that are due after some steps."""

    def __init__(self, *due: int) -> None:
        super().__init__()
        self._due = due

    def is_due(self, position: Position) -> bool:
        return position.step in self._due

    def keep(self, checkpoint: Checkpoint) -> None:
        self.append(checkpoint)


def test_a_checkpoint_at_the_last_step_of_an_epoch_has_its_results() -> None:
    diary, kept = Diary(), Kept(2, 3)
    loop.train(diary, Data(), diary, loop.Schedule(1, keeper=kept), validation=Data())
    middle, last, over, *_ = (each.progress for each in kept)
    assert (middle.position, middle.epoch_logs) == (Position(0, 2, 8, 2), None)
    assert (last.position, last.epoch_logs) == (Position(0, 3, 10, 3), {"loss": 1.0})
    assert (over.position, over.last_logs) == (Position(1, 3), {"loss": 1.0, "val_loss": 1.0})
    again = Diary()
    loop.train(again, Data(), again, loop.Schedule(1), validation=Data(), start=kept[1])
    tests = ["reset", "test 4", "test 4", "test 2"]
    assert again.entries == ["begin", "epoch 0", "restore", "restore", *tests, "finish", "end"]
    assert again.ends == diary.ends


def test_a_run_that_was_over_only_ends_once_more() -> None:
    diary = Diary()
    start = Checkpoint(Progress(Position(2, 6), last_logs={"loss": 1.0}), {})
    loop.train(diary, Data(), diary, loop.Schedule(2), start=start)
    assert diary.entries == ["begin", "restore", "restore", "finish", "end"]


def test_a_loss_is_looked_at_before_a_checkpoint_is_written() -> None:
    diary, kept = Diary([1.0, NAN, NAN]), Kept(1, 2)
    with pytest.raises(ModelError, match="nan in step 2"):
        loop.train(diary, Data(), diary, loop.Schedule(1, keeper=kept))
    assert [each.progress.position.step for each in kept] == [1]


def test_a_stop_that_is_asked_for_ends_training_after_the_step_with_a_checkpoint() -> None:
    diary, kept = Diary(), Kept()
    schedule = loop.Schedule(9, keeper=kept, is_stop_wanted=lambda: diary.entries.count("train 4") == 2)
    with pytest.raises(loop.TrainingStopped):
        loop.train(diary, Data(), diary, schedule)
    assert diary.entries == ["begin", "reset", "epoch 0", "train 4", "train 4"]
    assert [each.progress.position for each in kept] == [Position(0, 2, 8, 2)]


def test_a_stop_in_validation_repeats_the_validation() -> None:
    diary, kept = Diary(), Kept()
    schedule = loop.Schedule(1, keeper=kept, is_stop_wanted=lambda: "test 4" in diary.entries)
    with pytest.raises(loop.TrainingStopped):
        loop.train(diary, Data(), diary, schedule, validation=Data())
    [checkpoint] = kept
    assert checkpoint.progress.epoch_logs == {"loss": 1.0}
    assert checkpoint.progress.position == Position(0, 3, 10, 3)
