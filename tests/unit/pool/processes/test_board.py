"""A loader's notice board."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.records import RowFailure
from penstock.pool.processes.board import Board
from penstock.pool.processes.serving import BoardWatch


@pytest.fixture
def boards() -> Iterator[tuple[Board, Board]]:
    """The same board as the loader and as the coordinator see it."""
    ours = Board.create()
    theirs = Board(os.dup(ours.descriptor))
    yield ours, theirs
    ours.close()
    theirs.close()


def test_nothing_is_under_way_at_first(boards: tuple[Board, Board]) -> None:
    assert [board.read() for board in boards] == [None, None]


def test_what_one_side_writes_the_other_side_reads_with_the_time(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    before = time.monotonic()
    theirs.write(1 << 40, 3)
    notice = ours.read()
    assert notice is not None
    assert (notice.first_row, notice.rows) == (1 << 40, 3)
    assert before <= notice.since <= time.monotonic()


def test_later_notice_takes_the_place_of_the_one_before(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    theirs.write(1, 5)
    theirs.write(2, 1)
    notice = ours.read()
    assert notice is not None
    assert (notice.first_row, notice.rows) == (2, 1)


def test_cleared_board_says_nothing(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    theirs.write(7, 1)
    theirs.clear()
    assert ours.read() is None


def test_work_on_no_rows_is_no_work(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    theirs.write(7, 0)
    assert ours.read() is None


def test_last_notice_outlives_who_wrote_it() -> None:
    ours = Board.create()
    theirs = Board(os.dup(ours.descriptor))
    theirs.write(11, 1)
    theirs.close()
    notice = ours.read()
    ours.close()
    assert notice is not None
    assert notice.first_row == 11


@given(first_row=st.integers(0, (1 << 63) - 1), rows=st.integers(1, (1 << 63) - 1))
def test_any_row_can_be_named(first_row: int, rows: int) -> None:
    board = Board.create()
    board.write(first_row, rows)
    notice = board.read()
    board.close()
    assert notice is not None
    assert (notice.first_row, notice.rows) == (first_row, rows)


def test_board_has_no_name_and_leaves_no_descriptor_open() -> None:
    names, open_before = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        Board.create().close()
    assert set(os.listdir("/dev/shm")) == names
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_watch_of_a_loader_writes_on_its_board_and_takes_what_it_is_told(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    watch = BoardWatch(theirs)
    assert not watch.is_careful
    watch.begin(30, 2)
    notice = ours.read()
    assert notice is not None
    assert (notice.first_row, notice.rows) == (30, 2)
    watch.end()
    assert ours.read() is None
    lost = RowFailure(33, "", "load", "LoaderDied", "why")
    watch.take((lost,), is_careful=True)
    assert watch.is_careful
    assert watch.poisoned == {33: lost}
    watch.take((), is_careful=False)
    assert not watch.is_careful
    assert watch.poisoned == {}


def test_notice_that_is_being_written_is_not_read(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    theirs.write(5, 1)
    theirs._memory[0] |= 1  # as it stands in the middle of a write
    assert ours.read() is None
    theirs.write(6, 2)
    notice = ours.read()
    assert notice is not None
    assert (notice.first_row, notice.rows) == (6, 2)


def test_reader_never_sees_rows_of_now_with_a_time_of_long_ago(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            theirs.write(7, 7)
            theirs.clear()

    began = time.monotonic()
    writer = threading.Thread(target=write)
    writer.start()
    seen = [notice for _ in range(20_000) if (notice := ours.read()) is not None]
    is_over.set()
    writer.join()
    assert all((notice.first_row, notice.rows) == (7, 7) and notice.since >= began for notice in seen)
