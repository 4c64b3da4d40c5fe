"""Who did what for how long."""

from __future__ import annotations

import threading

import pytest

from penstock.core.records import Device, Timings
from penstock.telemetry.meter import DeviceMeter, Meter

CPU0, CPU1 = Device("cpu", 0), Device("cpu", 1)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_where_sums_over_replicas_and_names_every_activity() -> None:
    meter = Meter()
    meter.observe(0, CPU0, Timings(read=1.0, compute=2.0, wait_for_data=0.5, wait_for_room=0.25, rows=10))
    meter.observe(1, CPU1, Timings(read=0.5, compute=1.0, wait_for_data=0.125, hand_over=0.5, rows=5))
    meter.observe(0, CPU0, Timings(read=1.0, wait_for_slot=0.25, rows=10))
    meter.writing_s = 0.75
    assert meter.where() == {
        "reading": 2.5,
        "computing": 3.0,
        "waiting_for_data": 0.625,
        "waiting_for_the_model": 0.25,
        "handing_over": 0.5,
        "waiting_to_hand_over": 0.25,
        "writing": 0.75,
        "waiting_for_the_writer": 0.0,
    }
    assert meter.rows == 25


def test_copying_is_named_where_a_runtime_could_tell() -> None:
    meter = Meter()
    meter.observe(0, CPU0, Timings(compute=3.0, copy=1.0))
    assert meter.where()["copying"] == 1.0
    assert meter.where()["computing"] == 2.0


def test_figures_are_rounded_to_milliseconds() -> None:
    meter = Meter()
    meter.observe(0, CPU0, Timings(read=1 / 3))
    assert meter.where()["reading"] == 0.333


@pytest.mark.parametrize(
    ("compute", "waited", "expected"),
    [
        (1.0, 0.0, "computing-bound: computing took 100% of the time of the model's threads"),
        (3.0, 1.0, "computing-bound: computing took 75% of the time of the model's threads"),
        (1.0, 0.4, "loading-bound: waiting for data took 29% of the time of the model's threads"),
        (0.0, 1.0, "loading-bound: waiting for data took 100% of the time of the model's threads"),
        (0.0, 0.0, ""),
    ],
)
def test_bottleneck_is_what_the_others_waited_for(compute: float, waited: float, expected: str) -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    meter.begin()
    clock.now += 10.0
    meter.observe(0, CPU0, Timings(compute=compute, wait_for_data=waited))
    assert meter.bottleneck() == expected


def test_time_in_which_the_writer_had_no_room_counts_from_the_start_of_the_run() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    clock.now += 1000.0  # the model is loaded
    meter.begin()
    meter.observe(0, CPU0, Timings(compute=1.0, wait_for_data=9.0, rows=5))
    with meter.waiting_for_writer(span=0):
        clock.now += 6.0
        assert meter.bottleneck().startswith("writing-bound: ")  # while it waits already
    clock.now += 4.0
    assert meter.bottleneck() == "writing-bound: waiting for the writer took 60% of the time by the clock"
    assert meter.where()["waiting_for_the_writer"] == 6.0


def test_time_of_writing_is_counted_also_where_it_fails() -> None:
    clock = Clock()
    meter = Meter(clock=clock)

    def write() -> None:
        with meter.writing(0, 10):
            clock.now += 2.0
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write()
    assert meter.where()["writing"] == 2.0


def test_bottleneck_lately_forgets_what_is_long_ago() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    meter.begin()
    for second in range(100):
        clock.now += 1.0
        is_late = second >= 80
        meter.observe(0, CPU0, Timings(compute=float(is_late), wait_for_data=float(not is_late), rows=1))
    assert meter.bottleneck() == "loading-bound: waiting for data took 80% of the time of the model's threads"
    assert meter.bottleneck_lately() == "computing-bound: computing took 100% of the time of the model's threads"


def test_bottleneck_lately_is_that_of_the_run_at_its_beginning() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    assert meter.bottleneck_lately() == ""
    clock.now += 5.0
    meter.observe(0, CPU0, Timings(compute=1.0, rows=1))
    assert meter.bottleneck_lately() == "computing-bound: computing took 100% of the time of the model's threads"


def test_run_of_a_second_has_no_bottleneck() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    meter.begin()
    clock.now += 1.0
    meter.observe(0, CPU0, Timings(compute=1.0, rows=1))
    assert meter.bottleneck() == meter.bottleneck_lately() == ""
    clock.now += 3.0
    assert meter.bottleneck().startswith("computing-bound")


def test_bottleneck_judges_all_replicas_together() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    meter.begin()
    clock.now += 10.0
    meter.observe(0, CPU0, Timings(compute=1.0))
    meter.observe(1, CPU1, Timings(wait_for_data=1.0))
    assert meter.bottleneck().startswith("loading")


def test_busy_share_is_that_of_the_last_span() -> None:
    meter = Meter()
    meter.observe(0, CPU0, Timings(compute=0.0, wait_for_data=9.0))
    meter.observe(0, CPU0, Timings(compute=3.0, wait_for_data=1.0))
    (device,) = meter.snapshot()
    assert device.busy_share == 0.75
    assert device.total.wait_for_data == 10.0
    assert DeviceMeter(CPU0).busy_share == 0.0


def test_shares_say_what_the_lanes_of_a_replica_did() -> None:
    meter = DeviceMeter(CPU0, recent=Timings(compute=5.0, wait_for_data=2.0, hand_over=1.0, wait_for_slot=2.0))
    assert meter.shares == {"computing": 0.5, "waiting for data": 0.2, "handing over": 0.3}


def test_snapshot_has_a_meter_for_each_replica_with_its_device() -> None:
    meter = Meter()
    meter.observe(3, CPU1, Timings(rows=1))
    meter.observe(0, CPU0, Timings(rows=1))
    assert [str(each.device) for each in meter.snapshot()] == ["cpu:1", "cpu:0"]


def test_replicas_that_are_lost_count_and_are_not_shown_as_working() -> None:
    meter = Meter()
    meter.observe(3, CPU1, Timings(rows=1))
    meter.observe(0, CPU0, Timings(rows=1))
    meter.lose(range(2, 9))
    assert [str(each.device) for each in meter.working()] == ["cpu:0"]
    assert meter.total().rows == len(meter.snapshot()) == 2


def test_spans_that_are_reported_from_several_threads_all_count() -> None:
    meter = Meter()

    def report(number: int) -> None:
        for _ in range(500):
            meter.observe(number, CPU0, Timings(read=0.5, rows=1))

    threads = [threading.Thread(target=report, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.rows == 2000
    assert meter.total() == Timings(read=1000.0, rows=2000)


def test_run_that_waits_for_the_function_behind_the_model_is_bound_by_it_and_not_by_loading() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    meter.begin()
    meter.postprocessed_rows = 0
    meter.observe(0, CPU0, Timings(compute=1.0, wait_for_data=9.0, rows=5))
    with meter.postprocessing(5):
        clock.now += 9.0
        assert (
            meter.bottleneck()
            == "postprocess-bound: waiting for the function behind the model took 100% of the time by the clock"
        )
        assert meter.done_rows == 0
    clock.now += 1.0
    assert (
        meter.bottleneck()
        == "postprocess-bound: waiting for the function behind the model took 90% of the time by the clock"
    )
    assert meter.where()["waiting_for_the_function"] == 9.0
    assert meter.done_rows == 5
