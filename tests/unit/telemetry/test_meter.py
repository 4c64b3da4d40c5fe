"""Who did what for how long."""

from __future__ import annotations

import threading

import pytest

from penstock.core.records import Device, Timings
from penstock.telemetry.meter import DeviceMeter, Meter

CPU0, CPU1 = Device("cpu", 0), Device("cpu", 1)


def test_where_sums_over_replicas_and_names_every_activity() -> None:
    meter = Meter()
    meter.observe(0, CPU0, Timings(read=1.0, compute=2.0, wait_for_data=0.5, wait_for_room=0.25, rows=10))
    meter.observe(1, CPU1, Timings(read=0.5, compute=1.0, wait_for_data=0.125, rows=5))
    meter.observe(0, CPU0, Timings(read=1.0, rows=10))
    meter.writing_s = 0.75
    assert meter.where() == {
        "reading": 2.5,
        "computing": 3.0,
        "waiting_for_data": 0.625,
        "waiting_for_the_model": 0.25,
        "writing": 0.75,
    }
    assert meter.rows == 25


def test_figures_are_rounded_to_milliseconds() -> None:
    meter = Meter()
    meter.observe(0, CPU0, Timings(read=1 / 3))
    assert meter.where()["reading"] == 0.333


@pytest.mark.parametrize(
    ("compute", "waited", "expected"),
    [
        (1.0, 0.0, "computing: the model was busy"),
        (1.0, 0.3, "computing: the model was busy"),
        (1.0, 0.4, "loading: the model waited for data"),
        (0.0, 1.0, "loading: the model waited for data"),
        (0.0, 0.0, "computing: the model was busy"),
    ],
)
def test_bottleneck_is_what_the_others_waited_for(compute: float, waited: float, expected: str) -> None:
    meter = Meter()
    meter.observe(0, CPU0, Timings(compute=compute, wait_for_data=waited))
    assert meter.bottleneck() == expected


def test_bottleneck_judges_all_replicas_together() -> None:
    meter = Meter()
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


def test_snapshot_has_a_meter_for_each_replica_with_its_device() -> None:
    meter = Meter()
    meter.observe(3, CPU1, Timings(rows=1))
    meter.observe(0, CPU0, Timings(rows=1))
    assert [str(each.device) for each in meter.snapshot()] == ["cpu:1", "cpu:0"]


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
