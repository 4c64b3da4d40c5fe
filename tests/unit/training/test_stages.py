"""Stages of training: their times, and the watchdog over them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.core.stillness import Timeouts
from penstock.pool.processes.board import Board
from penstock.training.stages import Stage, StageClock, Watchdog

TIMEOUTS = Timeouts(row_s=8.0, hang_s=10.0, start_s=100.0)


class Now:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def still_for(
    watchdog: Watchdog, board: Board, begin: int, end: int, *, is_stopped: bool = False
) -> list[float | None]:
    """What the watchdog says each second, while nothing is heard of the process."""
    process = cast(Any, SimpleNamespace(board=board, pid=1, progress=(0, board.changes), is_stopped=is_stopped))
    return [watchdog.look(process, float(now)) for now in range(begin, end)]


def test_times_of_stages_are_added_up_and_noted_in_a_traced_job() -> None:
    now, board = Now(), Board.create()
    clock = StageClock(board, is_traced=True, clock=now)
    for stage, seconds in ((Stage.WAIT, 1.0), (Stage.STEP, 2.0), (Stage.WAIT, 1.5), (Stage.STEP, 0.5)):
        clock.enter(stage, 4 if stage == Stage.STEP else 0)
        now.seconds += seconds
    clock.beat()
    spent = clock.seconds
    assert (spent[Stage.WAIT], spent[Stage.COMPILE], spent[Stage.STEP]) == (2.5, 2.0, 0.5)
    marks = clock.take_marks()
    assert [(mark.what, mark.start, mark.end, mark.rows) for mark in marks] == [
        ("wait for rows", 0.0, 1.0, -1),
        ("step", 1.0, 3.0, 4),
        ("wait for rows", 3.0, 4.5, -1),
        ("step", 4.5, 5.0, 4),
    ]
    assert clock.take_marks() == ()
    board.close()


@pytest.mark.parametrize(
    ("stages", "limit"),
    [
        ([], 100),
        ([(Stage.STEP, 4)], 100),
        ([(Stage.STEP, 4), (Stage.STEP, 4)], 10),
        ([(Stage.STEP, 4), (Stage.STEP, 3)], 100),
        ([(Stage.STEP, 4), (Stage.TEST, 4)], 100),
        ([(Stage.STEP, 4), (Stage.WAIT, 0)], 40),
        ([(Stage.STEP, 4), (Stage.CHECKPOINT, 0)], 100),
    ],
)
def test_a_stage_has_the_limit_of_what_it_does(stages: list[tuple[Stage, int]], limit: int) -> None:
    """A first step with so many rows compiles, and rows may come from afar."""
    board, watchdog = Board.create(), Watchdog(TIMEOUTS)
    clock = StageClock(board)
    for stage, rows in stages:
        clock.enter(stage, rows)
    watchdog.begin()
    said = still_for(watchdog, board, 0, limit + 3)
    assert said[: limit + 1] == [None] * (limit + 1)
    assert said[limit + 1] is not None
    board.close()


def test_a_process_that_is_stopped_has_the_shortest_limit_whatever_it_did() -> None:
    board, watchdog = Board.create(), Watchdog(TIMEOUTS)
    StageClock(board).enter(Stage.CHECKPOINT)
    said = still_for(watchdog, board, 0, 13, is_stopped=True)
    assert said[10] is None
    assert said[11] is not None
    assert watchdog.option == "--hang-timeout"
    board.close()


def test_progress_is_no_hang() -> None:
    board, watchdog = Board.create(), Watchdog(TIMEOUTS)
    clock = StageClock(board)
    for begin in range(0, 80, 8):
        clock.enter(Stage.STEP, 4)
        assert still_for(watchdog, board, begin, begin + 8) == [None] * 8
    board.close()
