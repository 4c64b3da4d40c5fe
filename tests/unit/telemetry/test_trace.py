"""Traces that Perfetto opens."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.core.records import Device, Timings
from penstock.core.tracing import LOAD, PREDICT, READ, SLOTS_IN_USE, WAIT_FOR_DATA, Level, Mark
from penstock.errors import OutputError
from penstock.telemetry.meter import Meter
from penstock.telemetry.trace import TraceWriter

GPU = Device("gpu", 0)
BEGAN = 1000.0
MARKS: list[Mark | Level] = [
    Mark(WAIT_FOR_DATA, "lane-1", 1000.5, 1001.0, span=3, batch=0, rows=32),
    Mark(PREDICT, "lane-1", 1001.0, 1001.25, span=3, batch=0, rows=32, slot=5),
    Mark(READ, "MainThread", 1000.1, 1000.2, span=3, rows=32, process="loader 4"),
    Mark(LOAD, "MainThread", 1000.1, 1000.4, span=3, batch=0, rows=32, slot=5, process="loader 4"),
    Level(SLOTS_IN_USE, 1001.5, 2),
]


def trace_to(path: Path) -> TraceWriter:
    """A trace two seconds after its run began, whatever the time is here: what it is given it writes at once."""
    return TraceWriter(str(path), BEGAN, clock=lambda: BEGAN + 2.0)


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def names_of(events: list[dict[str, Any]], kind: str) -> dict[tuple[int, int], str]:
    return {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == kind}


def test_trace_says_what_when_where_and_which_rows(tmp_path: Path) -> None:
    trace = trace_to(tmp_path / "trace.json")
    trace.observe(0, GPU, 32, MARKS)
    trace.close()
    events = events_of(tmp_path / "trace.json")
    (predict,) = [each for each in events if each["name"] == PREDICT]
    assert predict == {
        "ph": "X",
        "name": "predict",
        "cat": "predict",
        "pid": predict["pid"],
        "tid": predict["tid"],
        "ts": 1_000_000.0,
        "dur": 250_000.0,
        "args": {"span": 3, "batch": 0, "rows": 32, "slot": 5, "device": "gpu:0"},
    }
    processes, threads = names_of(events, "process_name"), names_of(events, "thread_name")
    assert set(processes.values()) == {"coordinator", "replica 0 on gpu:0", "loader 4"}
    assert processes[predict["pid"], 0] == "replica 0 on gpu:0"
    assert threads[predict["pid"], predict["tid"]] == "lane 1"
    (load,) = [each for each in events if each["name"] == LOAD]
    assert (processes[load["pid"], 0], threads[load["pid"], load["tid"]]) == ("loader 4", "main")
    (slots,) = [each for each in events if each["ph"] == "C" and each["name"] == "slots"]
    assert (slots["pid"], slots["args"]) == (predict["pid"], {"in use": 2})


def test_process_and_thread_are_named_once(tmp_path: Path) -> None:
    trace = trace_to(tmp_path / "trace.json")
    for _ in range(3):
        trace.observe(0, GPU, 32, MARKS)
    trace.observe(1, GPU, 32, [Mark(PREDICT, "lane-0", 1002.0, 1003.0, span=4, batch=0, rows=32)])
    trace.close()
    events = events_of(tmp_path / "trace.json")
    named = [(each["name"], each["pid"], each["tid"]) for each in events if each["ph"] == "M"]
    assert len(named) == len(set(named))
    assert [each["args"]["done"] for each in events if each["ph"] == "C" and each["name"] == "rows"] == [
        32,
        64,
        96,
        128,
    ]


def test_wait_of_a_result_for_its_turn_is_an_event_of_its_own(tmp_path: Path) -> None:
    trace = trace_to(tmp_path / "trace.json")
    trace.observe(0, GPU, 32, MARKS)
    trace.leaves(3)
    trace.leaves(3)
    trace.leaves(17)  # of which nothing was heard
    trace.close()
    begin, end = (each for each in events_of(tmp_path / "trace.json") if each["ph"] in "be")
    assert (begin["ph"], end["ph"], begin["id"], end["id"]) == ("b", "e", 3, 3)
    assert begin["ts"] <= end["ts"]


def test_trace_that_was_not_ended_is_an_array_without_its_bracket(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = trace_to(path)
    trace.observe(0, GPU, 32, MARKS)
    written = path.read_text()
    assert len(json.loads(written + "]")) > 3
    trace.close()
    assert path.read_text().startswith(written)


def test_events_reach_the_file_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = trace_to(path)
    for _ in range(2000):
        trace.observe(0, GPU, 32, MARKS)
    assert path.read_text().count('"predict"') > 1000
    trace.close()


def test_existing_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("x" * 10_000)
    trace_to(path).close()
    assert [each["ph"] for each in events_of(path)] == ["M", "M", "M"]


@pytest.mark.parametrize("path", ["no/such/folder/trace.json", "."])
def test_path_that_cannot_be_written_is_told_with_a_hint(path: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        trace_to(tmp_path / path)
    assert str(tmp_path / path) in str(caught.value.received)
    assert caught.value.hint is not None


def test_trace_that_can_no_longer_be_written_stops_nobody(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full on this system")
    trace = trace_to(Path("/dev/full"))
    trace.observe(0, GPU, 32, MARKS)
    trace.close()
    assert trace.problem == "No space left on device"


def test_threads_of_the_coordinator_write_at_the_same_time(tmp_path: Path) -> None:
    trace = trace_to(tmp_path / "trace.json")

    def work() -> None:
        for _ in range(200):
            with trace.doing('say "hello"', span=1):
                pass

    threads = [threading.Thread(target=work, name=f"worker-{number}") for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace.close()
    events = events_of(tmp_path / "trace.json")
    assert sum(each["name"] == 'say "hello"' for each in events) == 800
    assert set(names_of(events, "thread_name").values()) == {"main", *(f"worker {number}" for number in range(4))}


def test_meter_traces_what_it_observes_and_who_waits_for_the_writer(tmp_path: Path) -> None:
    trace = trace_to(tmp_path / "trace.json")
    meter = Meter(trace)
    meter.observe(0, GPU, Timings(rows=32, marks=MARKS))
    with meter.waiting_for_writer(3):
        threading.Event().wait(0.001)
    with meter.writing(3, 32):
        pass
    trace.close()
    kinds = {each["name"] for each in events_of(tmp_path / "trace.json")}
    assert {"predict", "wait for its turn", "wait for the writer", "span 3", "rows"} <= kinds
