"""The ladder of batch sizes finds the knee of any curve, stays below the memory, and ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.records import Binding
from penstock.core.tuning import KNEE, Budget, Ladder, Point, family

MIB = 1 << 20


def climb(ladder: Ladder, rate: Callable[[int], float], memory: Callable[[int], int] = lambda size: 0) -> Point:
    for _ in range(100):
        size = ladder.next()
        if size is None:
            assert ladder.best is not None
            return ladder.best
        ladder.add(Point(size, rate(size), memory(size)))
    raise AssertionError("it does not end")


def saturating(most: float, half: float) -> Callable[[int], float]:
    """A step that takes a constant time and a time for each row."""
    return lambda size: most * size / (size + half)


def test_it_stops_at_the_knee_and_not_at_the_largest_batch() -> None:
    ladder = Ladder(1, 1 << 16)
    found = climb(ladder, saturating(1000.0, 4.0))
    assert 64 <= found.batch_size <= 512
    assert max(point.batch_size for point in ladder.points) < 1 << 12
    assert ladder.stopped == "larger batches are no faster"


def test_a_runtime_that_is_fastest_at_one_row_gets_one_row() -> None:
    assert climb(Ladder(1, 1 << 16), lambda size: 200.0 / size**0.1).batch_size == 1


@pytest.mark.parametrize(("first", "fastest"), [(512, 64), (8, 1), (64, 64)])
def test_it_goes_down_where_it_began_too_high(first: int, fastest: int) -> None:
    found = climb(Ladder(first, 1 << 16), lambda size: 100.0 - 9 * abs(size.bit_length() - fastest.bit_length()))
    assert fastest <= found.batch_size <= 2 * fastest


def test_one_slow_step_in_between_does_not_end_it() -> None:
    rates = {1: 100.0, 2: 99.0, 4: 180.0, 8: 300.0, 16: 310.0, 32: 305.0}
    assert climb(Ladder(1, 32), lambda size: rates.get(size, 250.0)).batch_size in (8, 12, 16)


def test_a_size_at_which_the_machine_was_busy_is_measured_once_more() -> None:
    rates = {4: iter([52.5]), 8: iter([29.0, 56.6]), 16: iter([51.6]), 6: iter([55.0])}
    ladder = Ladder(4, 64)
    assert climb(ladder, lambda size: next(rates[size])).batch_size == 8
    assert [point.batch_size for point in ladder.points] == [4, 8, 16, 8, 6]
    slow = Ladder(4, 64)
    assert climb(slow, {4: 52.5, 8: 29.0, 16: 51.6, 6: 40.0, 2: 30.0, 3: 31.0}.__getitem__).batch_size == 4


def test_it_does_not_take_more_memory_than_is_allowed() -> None:
    ladder = Ladder(1, 1 << 16, room_bytes=100 * MIB)
    found = climb(ladder, lambda size: float(size), memory=lambda size: size * MIB)
    assert found.batch_size <= 100
    assert max(point.memory_bytes for point in ladder.points) <= 100 * MIB
    assert "memory" in (ladder.stopped or "")


def test_a_size_that_did_not_fit_ends_the_climb_and_is_never_chosen() -> None:
    ladder = Ladder(1, 1 << 16)
    for size in (1, 2, 4):
        assert ladder.next() == size
        ladder.add(Point(size, 10.0 * size))
    assert ladder.next() == 8
    ladder.add(Point(8, problem="out of memory"))
    middle = ladder.next()
    assert middle in (3, None)
    assert ladder.best is not None
    assert ladder.best.batch_size == 4


def test_a_pinned_size_is_measured_once() -> None:
    ladder = Ladder(64, 64)
    assert climb(ladder, lambda size: 5.0).batch_size == 64
    assert len(ladder.points) == 1


@given(st.floats(1.0, 1e6), st.floats(0.1, 5000.0), st.integers(0, 10).map(lambda n: 1 << n), st.integers(0, 16))
def test_what_it_finds_is_near_the_best_of_all_it_tried(most: float, half: float, start: int, steps: int) -> None:
    ladder = Ladder(start, max(start, 1 << steps))
    found = climb(ladder, saturating(most, half))
    fastest = max(point.rows_per_s for point in ladder.points)
    assert found.rows_per_s >= (1 - KNEE) * fastest
    assert all(point.batch_size <= max(start, 1 << steps) for point in ladder.points)


@pytest.mark.parametrize(("job_s", "search_s"), [(10.0, 0.0), (29.0, 0.0), (30.0, 3.0), (600.0, 60.0), (1e6, 120.0)])
def test_a_search_that_expects_no_gain_takes_a_tenth_of_the_job_and_two_minutes_at_most(
    job_s: float, search_s: float
) -> None:
    assert Budget.of(job_s).seconds == pytest.approx(search_s)


@pytest.mark.parametrize(
    ("job_s", "gain", "search_s"),
    [(145.0, 2.0, 43.5), (145.0, 1.0, 14.5), (145.0, 0.5, 14.5), (30.0, 2.0, 9.0), (25.0, 2.0, 0.0), (1e6, 2.0, 120.0)],
)
def test_a_search_takes_as_long_as_the_gain_is_worth_if_it_gets_so_far(
    job_s: float, gain: float, search_s: float
) -> None:
    budget = Budget.of(job_s, gain, least_s=8.0)
    assert budget.seconds == pytest.approx(search_s)
    assert budget.is_by_gain == (gain > 1 and search_s > 0)


def test_a_job_that_waits_for_its_rows_is_not_searched_for_longer_because_of_a_faster_runtime() -> None:
    assert Budget.of(145.0, 2.0, least_s=8.0, computed_s=5.0) == Budget.of(145.0)


def bound(dtype: str, *shape: int) -> Binding:
    return Binding("x", ("x",), dtype, shape)


def test_what_rows_look_like() -> None:
    assert family([bound("uint8", 224, 224, 3), bound("float32", 4)]) == "images"
    assert family([bound("float32", 64, 32)]) == "sequences"
    assert family([bound("int32", 64)]) == "sequences"
    assert family([bound("float32", 30), bound("string")]) == "tables"
    assert family([bound("uint8", 784)]) == "tables"
