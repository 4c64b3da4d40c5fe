"""Which devices a hand-over tries again where replicas do not come up."""

from __future__ import annotations

import pytest

from penstock.core.records import Device
from penstock.estimator.replicas import DeviceTrial

CPUS = [Device("cpu", index) for index in range(4)]


def comes_up(trial: DeviceTrial, bad: set[int]) -> bool:
    """One attempt: the first replica alone, then as many as the trial says in each step."""
    steps = [1] if trial.devices[0].index in bad else trial.steps()
    return not any(bad.intersection(device.index for device in trial.devices[:count]) for count in steps)


def brought_up(trial: DeviceTrial, bad: set[int]) -> list[int]:
    """The devices that run in the end; none where this process has to go on alone."""
    while not comes_up(trial, bad):
        if not trial.next_after_failure()[0]:
            return []
    return [device.index for device in trial.devices]


def test_all_devices_start_at_once_where_none_fails() -> None:
    assert list(DeviceTrial(CPUS).steps()) == [4]


@pytest.mark.parametrize("bad", range(4))
def test_one_bad_device_is_left_out(bad: int) -> None:
    assert brought_up(DeviceTrial(CPUS), {bad}) == [index for index in range(4) if index != bad]


def test_two_bad_devices_are_left_out() -> None:
    assert brought_up(DeviceTrial(CPUS), {1, 3}) == [0, 2]


@pytest.mark.parametrize("bad", [{0, 1, 2, 3}, {0, 1}, {1, 2, 3}])
def test_this_process_goes_on_alone_where_the_model_fails_or_one_device_is_left(bad: set[int]) -> None:
    assert brought_up(DeviceTrial(CPUS), bad) == []


def test_one_of_two_devices_is_no_more_than_this_process() -> None:
    assert brought_up(DeviceTrial(CPUS[:2]), {1}) == []


def test_a_failure_that_does_not_come_again_leaves_no_device_out() -> None:
    trial = DeviceTrial(CPUS)
    assert not comes_up(trial, {2})
    assert trial.next_after_failure() == (True, None)
    assert brought_up(trial, set()) == [0, 1, 2, 3]
