"""`--trace` on real jobs: every batch is in it once, on the thread that had it, and every row is accounted for."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows, summary_of
from tests.support.photos import draw_folder

Event = dict[str, Any]
BATCH_ROWS = 256


def slices_of(events: list[Event], what: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == what]


def tracks_of(events: list[Event]) -> dict[tuple[int, int], tuple[str, str]]:
    """The number of a process and a thread, to their names."""
    named = [event for event in events if event["ph"] == "M"]
    processes = {event["pid"]: event["args"]["name"] for event in named if event["name"] == "process_name"}
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in named if event["name"] == "thread_name"}
    return {numbers: (processes[numbers[0]], thread) for numbers, thread in threads.items()}


def assert_well_formed(events: list[Event]) -> None:
    """What the format asks for: fields by kind, and slices of a thread that lie beside or inside each other."""
    tracks = tracks_of(events)
    for event in events:
        assert event["ph"] in "XCMbe"
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0.0
        assert event["ph"] != "X" or (event["dur"] >= 0.0 and (event["pid"], event["tid"]) in tracks)
        assert event["ph"] != "C" or all(isinstance(value, int) for value in event["args"].values())
    for numbers, name in tracks.items():
        mine = [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == numbers]
        open_until: list[float] = []
        for event in sorted(mine, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= event["ts"] + 0.002:  # a double has room for a nanosecond or two
                open_until.pop()
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 0.002, (name, event)
            open_until.append(event["ts"] + event["dur"])


def assert_every_batch_once(events: list[Event], rows: int, batch_rows: int) -> None:
    tracks = tracks_of(events)
    loaded_spans = [
        event
        for event in slices_of(events, "span")
        if "span" in event["args"] and tracks[event["pid"], event["tid"]][0] != "coordinator"
    ]
    expected = Counter(
        (event["args"]["span"], batch)
        for event in loaded_spans
        for batch in range(-(-event["args"]["rows"] // batch_rows))
    )
    assert sum(event["args"]["rows"] for event in loaded_spans) == rows
    assert set(expected.values()) == {1}
    for what in ("load", "predict"):
        found = [event["args"] for event in slices_of(events, what) if "span" in event["args"]]
        assert Counter((args["span"], args["batch"]) for args in found) == expected, what
        assert sum(args["rows"] for args in found) == rows, what


def assert_every_row_is_committed(events: list[Event], rows: int) -> None:
    assert sum(event["args"]["rows"] for event in slices_of(events, "write")) == rows
    assert sum(event["args"]["rows"] for event in slices_of(events, "publish")) == rows
    done = [event["args"]["done"] for event in events if event["ph"] == "C" and event["name"] == "rows"]
    assert done == sorted(done)
    assert done[-1] == rows
    turns = [event for event in events if event["ph"] in "be"]
    spans = {event["args"]["span"] for event in slices_of(events, "write")}
    assert Counter((event["ph"], event["id"]) for event in turns) == Counter(
        (ph, span) for ph in "be" for span in spans
    )


def test_trace_of_a_table_has_every_batch_of_both_replicas(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("what was here before")
    ran = penstock_run(
        *("predict", light_models / "slow_digits.onnx", digits, "--output", tmp_path / "out"),
        *("--devices", "cpu:2", "--batch-size", BATCH_ROWS, "--part-rows", 4000, "--trace", trace, "--json"),
    )
    summary = summary_of(ran)
    assert summary["trace"] == str(trace)
    # Of a fast machine, nothing: a run of a few seconds has no bottleneck.
    assert summary["bottleneck"].partition("-bound: ")[0] in ("loading", "copying", "computing", "writing", "")
    events: list[Event] = json.loads(trace.read_text())
    assert_well_formed(events)
    assert_every_batch_once(events, 20_000, BATCH_ROWS)
    assert_every_row_is_committed(events, 20_000)
    assert read_rows(tmp_path / "out").column("row").to_pylist() == list(range(20_000))
    assert len(slices_of(events, "close and fsync")) == len(list((tmp_path / "out").glob("*.parquet")))
    processes = {process for process, _ in tracks_of(events).values()}
    assert (
        {"coordinator", "replica 0 on cpu:0"}
        <= processes
        <= {"coordinator", "replica 0 on cpu:0", "replica 1 on cpu:1"}
    )
    assert {event["args"]["device"] for event in slices_of(events, "predict")} <= {"cpu:0", "cpu:1"}


def test_trace_of_photos_shows_loader_processes_and_their_slots(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    draw_folder(tmp_path / "photos", 300)
    trace = tmp_path / "trace.json"
    ran = penstock_run(
        *("predict", light_models / "colour.onnx", tmp_path / "photos", "--output", tmp_path / "out"),
        *("--loaders", 2, "--batch-size", 16, "--trace", trace, "--json"),
    )
    assert summary_of(ran)["rows"] == 300
    events: list[Event] = json.loads(trace.read_text())
    assert_well_formed(events)
    assert_every_batch_once(events, 300, 16)
    assert_every_row_is_committed(events, 300)
    tracks = tracks_of(events)
    loaders = {tracks[event["pid"], event["tid"]] for event in slices_of(events, "load")}
    assert loaders <= {("loader 0", "main"), ("loader 1", "main")}
    filled = {
        (event["args"]["span"], event["args"]["batch"]): event["args"]["slot"]
        for event in slices_of(events, "load")
        if "span" in event["args"]
    }
    read = {
        (event["args"]["span"], event["args"]["batch"]): event["args"]["slot"] for event in slices_of(events, "predict")
    }
    assert filled == read
    assert any(event["ph"] == "C" and event["name"] == "slots" for event in events)


def test_run_that_is_killed_leaves_a_trace_that_opens(light_models: Path, digits: Path, tmp_path: Path) -> None:
    trace, output = tmp_path / "trace.json", tmp_path / "out"
    command = penstock_command(
        *("predict", light_models / "digits.onnx", digits, "--output", output),
        *("--batch-size", 1, "--part-rows", 500, "--trace", trace),
    )
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    try:
        while journal_length(output) < 2 or trace.stat().st_size < 100_000:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    written = trace.read_text()
    assert not written.rstrip().endswith("]")
    events: list[Event] = json.loads(written + "]")
    assert_well_formed(events)
    assert len(slices_of(events, "predict")) > 100


def test_trace_that_cannot_be_written_is_told_before_the_job_begins(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output, trace = tmp_path / "out", tmp_path / "no" / "such" / "folder" / "trace.json"
    ran = penstock_run("predict", light_models / "digits.onnx", digits, "--output", output, "--trace", trace)
    assert ran.returncode == 7, ran.stderr
    assert "the trace cannot be written" in ran.stderr
    assert "hint: " in ran.stderr
    assert not output.exists()
