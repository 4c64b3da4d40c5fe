"""The batch size that is chosen by timing steps."""

from __future__ import annotations

from penstock.training.batch_size import knee


def everything_fits(size: int) -> bool:
    return True


def test_the_climb_ends_where_twice_the_rows_bring_little() -> None:
    rates = {32: 100.0, 64: 190.0, 128: 300.0, 256: 310.0, 512: 900.0}
    assert knee(32, 8192, rates.get, everything_fits) == 128


def test_a_size_that_runs_out_of_memory_is_not_chosen() -> None:
    assert knee(32, 8192, {32: 100.0, 64: 190.0}.get, everything_fits) == 64
    assert knee(32, 8192, lambda size: None, everything_fits) == 32


def test_an_epoch_keeps_its_steps_and_the_machine_its_memory() -> None:
    assert knee(32, 100, float, everything_fits) == 64
    assert knee(32, 8192, float, lambda size: size < 1000) == 512


def test_without_a_choice_nothing_is_timed() -> None:
    assert knee(32, 63, lambda size: 1 / 0, everything_fits) == 32
