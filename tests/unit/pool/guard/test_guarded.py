"""Batches that do not fit into the memory: cut, remembered, and every row predicted once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.memory import Ceilings
from penstock.core.messages import Care
from penstock.core.records import Columns, RowFailure, Shortage
from penstock.errors import ModelError, OutOfMemory
from penstock.pool.guard.guarded import GuardedReplica, RowTooLarge
from penstock.pool.guard.warmup import warm_up
from penstock.pool.processes.board import Board
from tests.unit.pool.piping import TIMEOUT_S, Blocks, Doubler, X, inputs_of, predict_all, spans_of, values

ROW_BYTES = 12


class Narrow(Doubler):
    """A model on a device that holds so many rows at once, over all lanes; a row of `large` needs more than all."""

    def __init__(self, room: int, *, large: float | None = None, poison: float | None = None) -> None:
        super().__init__(poison=poison)
        self.room = room
        self._large = large
        self._taken = 0
        self._lock = threading.Lock()
        self.sizes: list[int] = []
        self.fitted: list[int] = []

    def predict(self, batch: Columns) -> Columns:
        x = batch["x"]
        with self._lock:
            self.sizes.append(len(x))
            self._taken += len(x)
            is_full = self._taken > self.room
        try:
            if is_full or (self._large is not None and (x >= self._large).any()):
                raise OutOfMemory("the device ran out of memory", received=f"a batch of {len(x)} rows: no room")
            answered = super().predict(batch)
            self.fitted.append(len(x))
            return answered
        finally:
            with self._lock:
                self._taken -= len(x)


class Told:
    """What a replica that ran short has told."""

    def __init__(self) -> None:
        self.shortages: list[Shortage] = []
        self.ceilings: Mapping[int, int] = {}

    def __call__(self, shortage: Shortage, ceilings: Mapping[int, int]) -> None:
        self.shortages.append(shortage)
        self.ceilings = ceilings


def no_pause(seconds: float) -> None:
    raise AssertionError(f"waited {seconds} s for memory")


def guarded(replica: Doubler, told: Told | None = None, **more: object) -> GuardedReplica:
    return GuardedReplica(replica, "gpu:0", told or Told(), **{"pause": no_pause, **more})  # type: ignore[arg-type]


def batch_of(x: Columns | np.ndarray[tuple[int, ...], np.dtype[np.float32]], rows: int | None = None) -> Batch:
    array = x["x"] if isinstance(x, dict) else x
    real = len(array) if rows is None else rows
    return Batch(0, range(real), real, {"x": array})


@given(room=st.integers(1, 70), size=st.integers(1, 70), data=st.data())
def test_every_row_is_answered_whatever_fits(room: int, size: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, size))
    x = inputs_of(np.arange(size))
    x[rows:] = x[rows - 1]
    replica = Narrow(room)
    batch = batch_of(x, rows)
    outputs, failures = guarded(replica).answer(batch, 0)
    np.testing.assert_array_equal(outputs["y"], x * 2)
    np.testing.assert_array_equal(outputs["total"], x.sum(axis=1))
    assert failures == []
    assert len(set(replica.fitted)) == 1, "all pieces have one size"
    assert batch.reduced_to == (None if size <= room else replica.fitted[0])
    assert len(replica.fitted) == -(-rows // replica.fitted[0]), "padding is not predicted"


@pytest.mark.parametrize("room", [1, 2, 3, 5, 64])
def test_spans_come_out_whole_and_say_how_small_their_batches_were(room: int) -> None:
    replica, told = Narrow(room), Told()
    job = Job(Blocks([30, 70]), (X,), (), batch_size=64)
    results = predict_all(guarded(replica, told), job, spans_of(3, 100), loaders=2, lanes=3)
    for result in results:
        rows = np.arange(result.span.start, result.span.stop)
        assert values(result, "y") == (inputs_of(rows) * 2).tolist()
        assert result.failures == ()
    if room < 64:
        assert all(result.reduced_to is not None and result.reduced_to <= room for result in results)
        assert told.ceilings[ROW_BYTES] <= room
    else:
        assert {result.reduced_to for result in results} == {None}, "fewer at once is enough, and keeps the bits"
        assert told.ceilings == {}


def test_ceiling_is_found_once_and_kept() -> None:
    replica, told = Narrow(10), Told()
    guard = guarded(replica, told)
    batch = {"x": inputs_of(np.arange(64))}
    guard.call(batch)
    assert replica.sizes == [64, 32, 16, *[8] * 8]
    assert [str(shortage) for shortage in told.shortages] == [
        "gpu:0 ran out of memory at a batch of 64 rows: going on with 32",
        "gpu:0 ran out of memory at a batch of 32 rows: going on with 16",
        "gpu:0 ran out of memory at a batch of 16 rows: going on with 8",
    ]
    assert told.ceilings == {ROW_BYTES: 8}
    replica.sizes.clear()
    guard.call(batch)
    assert replica.sizes == [8] * 8


def test_replica_that_comes_after_begins_where_the_other_stopped() -> None:
    replica = Narrow(10)
    guarded(replica, ceilings={ROW_BYTES: 8}).call({"x": inputs_of(np.arange(64))})
    assert replica.sizes == [8] * 8


def test_what_others_on_the_same_memory_found_out_holds_here_too() -> None:
    replica = Narrow(100)
    guard = guarded(replica)
    guard.limit({ROW_BYTES: 16})
    guard.call({"x": inputs_of(np.arange(64))})
    assert replica.sizes == [16] * 4


def test_rows_of_another_length_have_a_ceiling_of_their_own() -> None:
    class ByBytes(Doubler):
        def predict(self, batch: Columns) -> Columns:
            if batch["x"].nbytes > 1000:
                raise MemoryError("no room")
            self.shapes.add(batch["x"].shape)
            return {"y": batch["x"]}

    replica, told = ByBytes(), Told()
    guard = guarded(replica, told)
    guard.call({"x": np.zeros((64, 8), np.float32)})
    guard.call({"x": np.zeros((64, 2), np.float32)})
    assert replica.shapes == {(16, 8), (64, 2)}
    assert told.ceilings == {32: 16}


def test_longer_rows_begin_with_what_shorter_ones_could_not_exceed() -> None:
    known = Ceilings({100: 8, 400: 2})
    assert [known.most(size, 64) for size in (50, 100, 399, 400, 5000)] == [64, 8, 8, 2, 2]
    known.put_back(400, None)
    assert known.most(400, 64) == 8


class TestOneRowThatDoesNotFit:
    def test_it_fails_alone_and_costs_little(self) -> None:
        x = inputs_of(np.arange(1024))
        x[700] = 1e6
        replica, told = Narrow(5000, large=1e6), Told()
        guard = guarded(replica, told)
        guard.call({"x": x[:4]})
        replica.sizes.clear()
        batch = batch_of(x)
        outputs, failures = guard.answer(batch, 5000)
        assert [(failure.row, failure.stage, failure.error) for failure in failures] == [
            (5700, "predict", "OutOfMemory")
        ]
        assert failures[0].reason == "does not fit into the memory by itself: a batch of 1 rows: no room"
        alive = np.arange(1024) != 700
        np.testing.assert_array_equal(outputs["y"][alive], x[alive] * 2)
        assert len(replica.sizes) <= 30
        assert str(told.shortages[-1]) == "gpu:0 ran out of memory at a single row: the row has failed"

    def test_others_keep_their_batch_size(self) -> None:
        x = inputs_of(np.arange(64))
        x[[3, 50]] = 1e6
        replica, told = Narrow(5000, large=1e6), Told()
        guard = guarded(replica, told)
        _, failures = guard.answer(batch_of(x), 0)
        assert [failure.row for failure in failures] == [3, 50]
        assert told.ceilings == {}
        replica.sizes.clear()
        guard.answer(batch_of(inputs_of(np.arange(64))), 0)
        assert replica.sizes == [64]

    def test_first_row_of_all_may_be_the_one(self) -> None:
        x = inputs_of(np.arange(64))
        x[:3] = 1e6
        replica, told = Narrow(5000, large=1e6), Told()
        _, failures = guarded(replica, told).answer(batch_of(x), 0)
        assert [failure.row for failure in failures] == [0, 1, 2]
        assert told.ceilings == {}
        assert replica.fitted == [1, 64]

    def test_batch_of_such_rows_alone_fails_whole(self) -> None:
        replica = Narrow(5000, large=1e6)
        guard = guarded(replica)
        guard.call({"x": inputs_of(np.arange(4))})
        outputs, failures = guard.answer(batch_of(np.full((4, 3), 1e6, np.float32)), 0)
        assert [failure.row for failure in failures] == [0, 1, 2, 3]
        assert {name: len(output) for name, output in outputs.items()} == {"y": 4, "total": 4}

    def test_caller_that_knows_no_rows_gets_an_ordinary_exception(self) -> None:
        replica = Narrow(5000, large=1e6)
        x = inputs_of(np.arange(4))
        x[1] = 1e6
        with pytest.raises(RowTooLarge, match="by itself"):
            guarded(replica).call({"x": x})

    def test_memory_that_others_took_is_waited_for_and_no_row_fails(self) -> None:
        replica = Narrow(64)
        waited: list[float] = []

        def pause(seconds: float) -> None:
            waited.append(seconds)
            replica.room = 64 if len(waited) == 3 else 0

        guard = guarded(replica, pause=pause)
        x = inputs_of(np.arange(8))
        guard.call({"x": x})
        replica.room = 0
        outputs, failures = guard.answer(batch_of(x), 0)
        assert waited == [1.0, 2.0, 4.0]
        assert failures == []
        np.testing.assert_array_equal(outputs["y"], x * 2)

    def test_device_that_has_no_memory_left_for_anything_is_an_error_and_no_row_failure(self) -> None:
        replica = Narrow(64)
        waited: list[float] = []
        guard = guarded(replica, pause=waited.append)
        x = inputs_of(np.arange(8))
        guard.call({"x": x})
        replica.room = 0
        with pytest.raises(OutOfMemory, match="no memory left, not even for a row that it has held before"):
            guard.answer(batch_of(x), 0)
        assert waited == [1.0, 2.0, 4.0, 8.0]

    def test_device_that_holds_no_row_from_the_start_is_told_after_a_few(self) -> None:
        replica = Narrow(0)
        with pytest.raises(OutOfMemory, match="not even one row fits"):
            guarded(replica).answer(batch_of(inputs_of(np.arange(1024))), 0)
        assert len(replica.sizes) < 30


def test_model_that_takes_one_batch_size_only_cannot_be_cut() -> None:
    replica = Narrow(4)
    replica.signature = replace(replica.signature, fixed_batch=8)
    with pytest.raises(OutOfMemory, match="batches of one size only") as caught:
        guarded(replica).call({"x": inputs_of(np.arange(8))})
    assert replica.sizes == [8]
    assert caught.value.hint is not None


def test_rejected_row_in_a_small_piece_is_found_without_running_the_others_again() -> None:
    class NoZeros(Narrow):
        def predict(self, batch: Columns) -> Columns:
            if (batch["x"] == 0).all(axis=1).any():
                raise ValueError("zeros are no rows")
            return super().predict(batch)

    replica = NoZeros(1, poison=1000)
    x = np.ones((64, 3), np.float32)
    x[40] = 1000
    outputs, failures = guarded(replica, ceilings={ROW_BYTES: 1}).answer(batch_of(x), 0)
    assert [(failure.row, failure.error) for failure in failures] == [(40, "ValueError")]
    assert (np.delete(outputs["y"], 40, axis=0) == 2).all()
    assert len(replica.sizes) < 64 + 10


def test_piece_of_a_model_that_sums_over_its_batch_is_refused() -> None:
    class Sum(Narrow):
        def predict(self, batch: Columns) -> Columns:
            return {"loss": super().predict(batch)["y"].sum(axis=0)}

    with pytest.raises(ModelError, match="does not have one row for each row"):
        guarded(Sum(4)).answer(batch_of(inputs_of(np.arange(8))), 0)


def test_several_lanes_that_are_too_much_together_run_one_by_one_and_keep_their_size() -> None:
    class Meeting(Doubler):
        """The first two calls meet on the device, and neither fits beside the other."""

        def __init__(self) -> None:
            super().__init__()
            self.both = threading.Barrier(2)
            self.numbers = iter(range(100))
            self.inside = self.most_inside = 0

        def predict(self, batch: Columns) -> Columns:
            if next(self.numbers) < 2:
                self.both.wait(TIMEOUT_S)
                raise OutOfMemory("the device ran out of memory", received="two at once")
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            try:
                return super().predict(batch)
            finally:
                self.inside -= 1

    replica, told = Meeting(), Told()
    guard = guarded(replica, told)
    x = inputs_of(np.arange(32))
    answers: list[Columns] = []
    lanes = [threading.Thread(target=lambda: answers.append(guard.call({"x": x}))) for _ in range(2)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join(TIMEOUT_S)
    assert [answer["y"].tolist() for answer in answers] == [(x * 2).tolist()] * 2
    assert [str(shortage) for shortage in told.shortages] == [
        "gpu:0 ran out of memory at 2 batches of 32 rows at once: going on with 1"
    ]
    assert told.ceilings == {}
    assert replica.shapes == {(32, 3)}
    assert replica.most_inside == 1


def test_row_at_which_a_replica_died_is_left_out_and_never_run() -> None:
    x = inputs_of(np.arange(8))
    x[5] = 7777
    lost = RowFailure(105, "", "predict", "OutOfMemory", "the process that predicted it was killed")
    replica = Doubler(poison=7777)
    guard = guarded(replica)
    guard.leave_out([lost])
    outputs, failures = guard.answer(batch_of(x), 100)
    assert failures == [lost]
    assert replica.calls == 1
    assert [len(column) for column in outputs.values()] == [8, 8]
    np.testing.assert_array_equal(np.delete(outputs["y"], 5, axis=0), np.delete(x, 5, axis=0) * 2)

    outputs, failures = guard.answer(batch_of(x[5:6]), 105)
    assert failures == [lost]
    assert replica.calls == 1, "nothing is left of that batch"
    assert len(outputs["y"]) == 1


def test_board_says_what_is_under_way_and_nothing_when_nothing_is() -> None:
    board = Board.create()
    seen: list[tuple[int, int, int]] = []

    class Reading(Narrow):
        def predict(self, batch: Columns) -> Columns:
            notice = board.read()
            assert notice is not None
            seen.append((notice.first_row, notice.rows, notice.row_bytes))
            return super().predict(batch)

    guarded(Reading(2), board=board).answer(batch_of(inputs_of(np.arange(5)), 5), 40)
    assert seen == [(40, 5, 12), (40, 2, 12), (42, 2, 12), (44, 2, 12)]
    assert board.read() is None
    board.close()


def test_step_that_never_fits_as_it_was_asked_for_is_warmed_up_in_pieces() -> None:
    replica = Narrow(3)
    x = inputs_of(np.arange(8))
    prepared = warm_up(guarded(replica), batch_of(x), spans_of(1, 8)[0])
    assert [spec.name for spec in prepared.outputs] == ["y", "total"]
    assert replica.fitted == [2] * 8


def test_outputs_as_long_as_the_longest_row_of_their_piece_become_lists() -> None:
    class Longest(Doubler):
        def predict(self, batch: Columns) -> Columns:
            x = batch["x"]
            if len(x) > 2:
                raise MemoryError
            return {"mask": np.ones((len(x), int(x.max())), np.float32)}

    x = np.array([[1.0], [2.0], [3.0], [1.0]], np.float32)
    outputs = guarded(Longest()).call({"x": x})
    assert outputs["mask"].tolist() == [[1.0] * 2] * 2 + [[1.0] * 3] * 2


class Noting(Doubler):
    """A model that notes which rows it runs, and what stands on its board meanwhile."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board
        self.noted: list[tuple[tuple[int, int, int, int], list[float]]] = []

    def predict(self, batch: Columns) -> Columns:
        notice = self._board.read()
        assert notice is not None
        assert len(batch["x"]) == 16, "the shape stays"
        places = (notice.batch_row, notice.first_row, notice.start, notice.stop)
        self.noted.append((places, batch["x"][:, 0].tolist()))
        return super().predict(batch)


class TestCare:
    def test_suspected_rows_run_a_few_at_a_time_with_harmless_ones_beside_them(self) -> None:
        board = Board.create()
        model = Noting(board)
        guarded = GuardedReplica(model, "cpu:0", lambda *_: None, board=board)
        x = np.arange(1.0, 49.0, dtype=np.float32).reshape(16, 3)
        first = {name: array[:, 0] for name, array in {"x": x}.items()}["x"].tolist()
        guarded.answer(Batch(0, range(16), 16, {"x": x}), 100)  # its first row is known to run from now on
        model.noted.clear()
        guarded.take_care(200, Care({232: (4, 12)}))
        outputs, failures = guarded.answer(Batch(2, range(32, 48), 16, {"x": x}), 200)
        np.testing.assert_array_equal(outputs["y"], x * 2)
        assert failures == []
        fill = first[0]
        tried = [((232, 236, 4, 4), [fill] * 16)]
        for place in range(4, 12):
            row = [fill] * 16
            row[place] = first[place]
            tried.append(((232, 232 + place, place, place + 1), row))
        assert model.noted == [*tried, ((232, 232, 0, 16), first)]
        board.close()

    def test_rows_that_are_left_out_keep_their_place_and_so_does_every_other(self) -> None:
        board = Board.create()
        model = Noting(board)
        guarded = GuardedReplica(model, "cpu:0", lambda *_: None, board=board)
        x = np.arange(1.0, 49.0, dtype=np.float32).reshape(16, 3)
        x[10:] = x[9]  # filled up with the last one
        guarded.leave_out(RowFailure(row, "", "predict", "ReplicaDied", "died") for row in (100, 109))
        outputs, failures = guarded.answer(Batch(0, range(10), 10, {"x": x}), 100)
        np.testing.assert_array_equal(outputs["y"][1:9], x[1:9] * 2)
        assert [(failure.row, failure.error) for failure in failures] == [(100, "ReplicaDied"), (109, "ReplicaDied")]
        ((_, ran),) = model.noted
        assert ran == [x[1, 0], *x[1:9, 0], *[x[1, 0]] * 7]
        board.close()
