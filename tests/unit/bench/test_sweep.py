"""Where the sweep of the benchmark ends."""

from __future__ import annotations

from collections.abc import Callable

from bench.sweep import Climb, SweepPoint

GIB = 1 << 30


def climbed(climb: Climb, rate: Callable[[int], float], best_rate: float = 0.0, bytes_per_row: int = 0) -> str:
    """Climb with rates that a function gives; returns why it ended."""
    while (why := climb.why_end(best_rate)) is None:
        size = climb.next_size
        climb.points.append(SweepPoint(size, rate(size), size * bytes_per_row))
        best_rate = max(best_rate, rate(size))
    return why


def sizes_of(climb: Climb) -> list[int]:
    return [point.batch_size for point in climb.points]


def test_every_power_of_two_is_tried_up_to_the_most() -> None:
    climb = Climb(most=64, call_limit_s=2.0, room_bytes=GIB)
    assert climbed(climb, lambda size: 100.0 * size) == "64 rows are the most"
    assert sizes_of(climb) == [1, 2, 4, 8, 16, 32, 64]


def test_ladder_that_still_rises_goes_on_however_low_it_is() -> None:
    climb = Climb(most=4096, call_limit_s=2.0, room_bytes=GIB)
    climbed(climb, lambda size: 10.0 * size, best_rate=1e6)
    assert sizes_of(climb)[-1] == 4096


def test_ladder_that_is_flat_and_far_below_the_best_ends_after_three_sizes() -> None:
    climb = Climb(most=4096, call_limit_s=2e9, room_bytes=GIB)
    assert "below 60% of the best" in climbed(climb, lambda size: 5.0, best_rate=100.0)
    assert sizes_of(climb) == [1, 2, 4]


def test_no_size_is_left_out_while_calls_are_quick() -> None:
    climb = Climb(most=64, call_limit_s=2.0, room_bytes=GIB)
    climbed(climb, lambda size: 1000.0, best_rate=1e6)
    assert sizes_of(climb)[-1] == 64


def test_ladder_that_is_flat_and_near_the_best_goes_on() -> None:
    climb = Climb(most=64, call_limit_s=2.0, room_bytes=GIB)
    climbed(climb, lambda size: 90.0, best_rate=100.0)
    assert sizes_of(climb)[-1] == 64


def test_call_that_would_take_too_long_is_not_made() -> None:
    climb = Climb(most=4096, call_limit_s=2.0, room_bytes=GIB)
    assert climbed(climb, lambda size: 10.0) == "a call of 32 rows would take 3.2 s"
    assert sizes_of(climb)[-1] == 16


def test_size_that_would_not_fit_is_not_tried() -> None:
    climb = Climb(most=4096, call_limit_s=1e9, room_bytes=GIB)
    assert climbed(climb, lambda size: 10.0, bytes_per_row=GIB // 100) == "128 rows would not fit into 1.0 GiB"


def test_size_that_failed_ends_the_ladder() -> None:
    climb = Climb(most=64, call_limit_s=2.0, room_bytes=GIB)
    climb.points.append(SweepPoint(1, problem="out of memory"))
    assert climb.why_end(0.0) == "1 rows: out of memory"
