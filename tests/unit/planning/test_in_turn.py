"""Contenders are looked at in turn, as often as the time allows, and the middle look counts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.stopping import StopFlag
from penstock.core.tuning import Point
from penstock.planning.clock import Clock
from penstock.planning.contender import in_turn


class Watch(Clock):
    """A clock that goes on only when something is looked at."""

    def __init__(self, seconds: float) -> None:
        super().__init__(StopFlag(), seconds)
        self.now = seconds

    @property
    def left(self) -> float:
        return self.now


def look_for(clock: Watch, seconds: float, rates: list[float]) -> Any:
    def look(contender: Any, size: int, lanes: int) -> Point:
        clock.now -= seconds
        return Point(size, rates.pop(0) * size)

    return look


ENTRIES: Any = [(None, 1, 1), (None, 10, 1)]


def test_one_look_that_was_disturbed_does_not_count() -> None:
    clock = Watch(100.0)
    found = in_turn(ENTRIES, look_for(clock, 1.0, [5, 5, 99, 6, 6, 1, 4, 4, 5, 5]), clock)
    assert found == [Point(1, 5.0), Point(10, 50.0)]


@pytest.mark.parametrize(("seconds", "rounds"), [(100.0, 5), (10.0, 1), (25.0, 4)])
def test_it_takes_a_third_of_the_time_at_most_but_looks_once(seconds: float, rounds: int) -> None:
    clock = Watch(seconds)
    assert in_turn(ENTRIES, look_for(clock, 1.0, [5.0] * 10), clock) is not None
    assert seconds - clock.now == 2 * rounds


def test_what_fails_after_it_ran_gives_no_answer() -> None:
    clock, looks = Watch(100.0), iter([Point(1, 5.0), Point(10, 50.0), Point(1, 5.0), Point(10, problem="it died")])
    assert in_turn(ENTRIES, lambda contender, size, lanes: next(looks), clock) is None


def test_what_fails_gives_no_answer() -> None:
    clock = Watch(100.0)
    assert in_turn(ENTRIES, lambda contender, size, lanes: Point(size, problem="it died"), clock) is None
