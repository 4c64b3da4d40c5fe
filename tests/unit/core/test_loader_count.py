"""How many loaders: an observation goes in, a number comes out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.loader_count import (
    LEAST_SHARE_OF_GAIN,
    LOADERS_WAIT,
    PATIENCE,
    REPLICAS_WAIT,
    WINDOW_S,
    LoaderCount,
    Observation,
)
from penstock.core.records import Timings


def starving(rate: float = 100.0) -> Observation:
    """Replicas wait for data all the time."""
    return Observation(1.0, int(rate), replica_busy_s=0.2, replica_wait_s=0.8, loader_busy_s=1.0, loader_wait_s=0.0)


def content(rate: float = 100.0) -> Observation:
    """Nobody waits."""
    return Observation(1.0, int(rate), replica_busy_s=1.0, replica_wait_s=0.0, loader_busy_s=1.0, loader_wait_s=0.0)


def idling(rate: float = 100.0) -> Observation:
    """Loaders wait for replicas nearly all the time."""
    return Observation(1.0, int(rate), replica_busy_s=1.0, replica_wait_s=0.0, loader_busy_s=0.05, loader_wait_s=0.95)


def test_more_loaders_are_tried_while_replicas_wait_and_each_brings_something() -> None:
    policy = LoaderCount(start=1, most=4)
    counts = [policy.decide(starving(rate)) for rate in (100, 200, 200, 300, 300, 400, 400)]
    assert counts == [2, 2, 3, 3, 4, 4, 4]
    assert policy.highest == 4
    assert policy.start == 1


def test_steps_grow_with_the_number_of_loaders() -> None:
    policy = LoaderCount(start=8, most=13)
    assert [policy.decide(starving(rate)) for rate in (100, 200, 200, 300, 300, 400, 400)] == [
        10,
        10,
        12,
        12,
        13,
        13,
        13,
    ]


def test_loaders_that_brought_nothing_are_taken_back_and_not_tried_again_for_a_while() -> None:
    policy = LoaderCount(start=2, most=8)
    assert policy.decide(starving(100)) == 3
    assert policy.decide(starving(100)) == 2
    assert [policy.decide(starving(100)) for _ in range(PATIENCE - 1)] == [2] * (PATIENCE - 1)
    assert policy.decide(starving(100)) == 3
    assert policy.highest == 3


def test_every_vain_try_makes_the_next_one_wait_twice_as_long() -> None:
    policy = LoaderCount(start=2, most=8)
    counts = [policy.decide(starving(100)) for _ in range(10 * PATIENCE)]
    tries = [window for window, count in enumerate(counts) if count == 3]
    assert [later - earlier for earlier, later in itertools.pairwise(tries)][:3] == [
        PATIENCE + 1,
        2 * PATIENCE + 1,
        4 * PATIENCE + 1,
    ]


def test_all_loaders_of_a_step_are_taken_back() -> None:
    policy = LoaderCount(start=8, most=16)
    assert policy.decide(starving(100)) == 10
    assert policy.decide(starving(100)) == 8


def test_loader_that_made_it_slower_is_taken_back() -> None:
    policy = LoaderCount(start=2, most=8)
    policy.decide(starving(100))
    assert policy.decide(starving(50)) == 2


@pytest.mark.parametrize("start", [1, 4, 16])
def test_gain_must_be_a_good_share_of_what_so_many_loaders_could_bring(start: int) -> None:
    step = max(1, start // 4)
    for share, expected in ((LEAST_SHARE_OF_GAIN * 0.9, start), (LEAST_SHARE_OF_GAIN * 1.1, start + step)):
        policy = LoaderCount(start, most=64)
        policy.decide(starving(10_000))
        assert policy.decide(starving(10_000 * (1 + share * step / start))) == expected


def test_nothing_changes_while_nobody_waits() -> None:
    policy = LoaderCount(start=3, most=8)
    assert [policy.decide(content()) for _ in range(5)] == [3] * 5


def test_fewer_loaders_are_kept_while_they_wait_for_replicas() -> None:
    policy = LoaderCount(start=4, most=8)
    assert [policy.decide(idling()) for _ in range(6)] == [3, 2, 1, 1, 1, 1]


def test_loaders_that_wait_a_little_stay() -> None:
    policy = LoaderCount(start=4, most=8)
    wait = LOADERS_WAIT - 0.05
    seen = Observation(1.0, 100, 1.0, 0.0, loader_busy_s=1 - wait, loader_wait_s=wait)
    assert policy.decide(seen) == 4


def test_replicas_that_wait_a_little_have_enough() -> None:
    policy = LoaderCount(start=1, most=8)
    wait = REPLICAS_WAIT - 0.01
    assert policy.decide(Observation(1.0, 100, 1 - wait, wait, 1.0, 0.0)) == 1


def test_nothing_was_seen_and_nothing_changes() -> None:
    policy = LoaderCount(start=2, most=8)
    assert policy.decide(Observation(0.0, 0, 0.0, 0.0, 0.0, 0.0)) == 2


def test_loaders_may_grow_again_after_they_shrank() -> None:
    policy = LoaderCount(start=2, most=4)
    assert policy.decide(idling()) == 1
    assert policy.decide(starving()) == 2


seconds = st.floats(0, 10)


@given(
    start=st.integers(1, 6),
    room=st.integers(0, 6),
    seen=st.lists(
        st.builds(
            Observation,
            seconds=seconds,
            rows=st.integers(0, 1000),
            replica_busy_s=seconds,
            replica_wait_s=seconds,
            loader_busy_s=seconds,
            loader_wait_s=seconds,
        ),
        max_size=30,
    ),
)
def test_there_is_always_one_and_never_more_than_allowed_and_it_changes_in_steps(
    start: int, room: int, seen: list[Observation]
) -> None:
    policy = LoaderCount(start, most=start + room)
    before = start
    for observation in seen:
        count = policy.decide(observation)
        assert 1 <= count <= start + room
        assert abs(count - before) <= max(1, before // 4)
        assert policy.highest >= count
        before = count


def test_windows_are_cut_by_the_clock_and_empty_ones_decide_nothing() -> None:
    policy = LoaderCount(start=1, most=4)
    starved = Timings(rows=100, compute=0.2, wait_for_data=0.8)
    assert policy.look(10.0, 0.0, 0.0, has_newcomers=False) is None
    assert policy.look(20.0, 1.0, 0.0, has_newcomers=False) is None, "no row was predicted"
    policy.add(starved)
    assert policy.look(10.0 + WINDOW_S / 2, 1.0, 0.0, has_newcomers=False) is None, "the window is not over"
    assert policy.look(20.0, 1.0, 0.0, has_newcomers=True) is None, "what a new loader brings is not seen yet"
    policy.add(starved)
    assert policy.look(20.0 + WINDOW_S, 2.0, 0.0, has_newcomers=False) == 2


def test_number_of_loaders_is_told_in_words() -> None:
    policy = LoaderCount(start=2, most=6)
    assert policy.describe(2) == "2"
    assert policy.take_all() == 6
    assert policy.describe(5) == "5 (began with 2, up to 6)"
