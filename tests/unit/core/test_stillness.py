"""Which workers hang, by a clock that the test moves."""

from penstock.core.stillness import Stillness


def look_until(still: Stillness, start: float, stop: float, sign: object = 0) -> dict[int, float]:
    """Look every half second; what was found at the first look that found something."""
    now = start
    while now <= stop:
        if found := still.look(now, {7: sign}):
            return found
        now += 0.5
    return {}


def test_worker_without_progress_hangs_after_its_time_and_not_before() -> None:
    still = Stillness(60.0)
    assert look_until(still, 0.0, 60.0) == {}
    assert look_until(still, 60.5, 61.0) == {7: 60.5}


def test_every_sign_of_progress_begins_the_time_anew() -> None:
    still = Stillness(60.0)
    for round_ in range(4):
        assert look_until(still, 50.0 * round_, 50.0 * round_ + 49.5, round_) == {}


def test_worker_that_has_nothing_to_do_does_not_hang() -> None:
    still = Stillness(60.0)
    look_until(still, 0.0, 50.0)
    assert still.look(50.5, {}) == {}
    assert look_until(still, 51.0, 110.0) == {}


def test_limit_is_twenty_times_the_slowest_batch() -> None:
    still = Stillness(60.0)
    look_until(still, 0.0, 10.0)
    assert still.look(10.5, {7: "went on"}) == {}
    assert still.limit_s == 20 * 10.5
    assert look_until(still, 11.0, 200.0, "went on") == {}
    (seconds,) = look_until(still, 200.5, 400.0, "went on").values()
    assert 210.0 < seconds < 212.0


def test_limit_of_loading_does_not_grow() -> None:
    still = Stillness(60.0, times=0)
    look_until(still, 0.0, 50.0)
    still.look(50.5, {7: "went on"})
    assert still.limit_s == 60.0


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The coordinator was stopped, or waited for a disk: its workers waited for it."""
    still = Stillness(60.0)
    look_until(still, 0.0, 50.0)
    assert still.look(5000.0, {7: 0}) == {}
    assert look_until(still, 5000.5, 5020.0) != {}
