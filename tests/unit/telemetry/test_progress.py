"""Progress that tells the truth."""

from __future__ import annotations

import io

import pytest

from penstock.core.records import Device, Timings
from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Bars, Lines, Rate, Silent, line, time_left


@pytest.mark.parametrize(
    ("rows", "rate", "expected"),
    [
        (100, 0.0, "–"),
        (100, -1.0, "–"),
        (0, 10.0, "0 s"),
        (120, 10.0, "12 s"),
        (124, 10.0, "12 s"),
        (126, 10.0, "13 s"),
        (59, 1.0, "59 s"),
        (596, 10.0, "1 min 00 s"),
        (200, 1.0, "3 min 20 s"),
        (3599, 1.0, "59 min 59 s"),
        (3600, 1.0, "1 h 00 min"),
        (3720, 1.0, "1 h 02 min"),
        (360_000, 1.0, "100 h 00 min"),
    ],
)
def test_time_left_is_told_in_words(rows: int, rate: float, expected: str) -> None:
    assert time_left(rows, rate) == expected


def test_rate_is_nothing_before_there_are_two_points() -> None:
    rate = Rate()
    assert rate.at(5.0, 100) == 0.0
    assert rate.at(5.0, 200) == 0.0


def test_rate_is_rows_over_seconds() -> None:
    rate = Rate()
    rate.at(0.0, 0)
    assert rate.at(2.0, 100) == 50.0
    assert rate.at(6.0, 100) == 25.0


def test_rate_forgets_what_is_older_than_ten_seconds() -> None:
    rate = Rate()
    for second in range(31):
        now = rate.at(float(second), 1000 * second if second <= 10 else 10_000 + 10 * (second - 10))
    assert now == pytest.approx(10.0)


def test_rate_of_a_run_that_stands_still_falls_to_nothing() -> None:
    rate = Rate()
    rate.at(0.0, 0)
    rate.at(1.0, 1000)
    for second in range(2, 30):
        now = rate.at(float(second), 1000)
    assert now == 0.0


def test_rate_spans_a_gap_longer_than_its_memory() -> None:
    rate = Rate()
    rate.at(0.0, 0)
    assert rate.at(100.0, 1000) == 10.0
    assert rate.at(200.0, 3000) == 15.0


def test_rate_is_steady_where_rows_come_by_spans_that_take_long() -> None:
    """Two replicas, each done with 96 rows every 40 s, one a second behind the other: 4.8 rows/s."""
    rate = Rate()
    shown = [rate.at(float(now), 96 * ((now + 1) // 40 + now // 40)) for now in range(400)]
    assert all(4 <= each <= 6 for each in shown[120:])


def meter_with(rows: int, failed: int = 0, committed: int = 0) -> Meter:
    seconds = iter([0.0, *[10.0] * 100])
    meter = Meter(clock=lambda: next(seconds))
    meter.observe(0, Device("cpu", 0), Timings(compute=3.0, wait_for_data=1.0, rows=rows))
    meter.failed, meter.committed_rows = failed, committed
    return meter


def test_line_says_how_far_how_fast_how_long_and_who_is_busy() -> None:
    text = line(meter_with(1000, committed=500), total=4000, before=1000, rate=100.0)
    assert text == (
        "2,000 of 4,000 rows (50%), 100 rows/s, 20 s left, 1,500 committed, cpu:0 busy 75%; "
        "computing-bound: computing took 75% of the time of the model's threads"
    )


def test_line_says_how_many_failed_only_when_some_did() -> None:
    assert "failed" not in line(meter_with(10), 100, 0, 1.0)
    assert ", 1,234 of 5,000 failed, " in line(meter_with(3000, failed=1234), 9000, 2000, 1.0)


def test_bars_count_failed_rows_among_those_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    bars = Bars()
    bars.begin(meter_with(2000, failed=3, committed=2000), total=3000, before=1000)
    bars.end()
    assert "3,000 rows committed; 3 of 3,000 failed" in stream.getvalue()


def test_line_of_an_input_that_streams_promises_no_total_and_no_time() -> None:
    assert line(Meter(), 0, 0, 0.0) == "0 rows, 0 rows/s, 0 committed"


def test_lines_are_written_until_the_end() -> None:
    stream = io.StringIO()
    lines = Lines(stream, every_s=0.001)
    lines.begin(meter_with(5), 10, 0)
    for _ in range(2000):
        if "5 of 10 rows" in stream.getvalue():
            break
        lines._ended.wait(0.005)
    lines.end()
    written = stream.getvalue()
    assert "5 of 10 rows (50%)" in written
    lines.note("done")
    assert stream.getvalue() == written + "done\n"


def test_lines_that_never_began_end() -> None:
    stream = io.StringIO()
    Lines(stream).end()
    assert stream.getvalue() == ""


def test_silence_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Silent()
    silent.begin(Meter(), 1, 0)
    silent.note("unseen")
    silent.end()
    assert capsys.readouterr() == ("", "")


def test_rows_that_the_postprocess_function_is_not_done_with_are_not_done() -> None:
    meter = meter_with(1000)
    meter.postprocessed_rows = 0
    with meter.postprocessing(400):
        pass
    assert line(meter, total=1000, before=0, rate=20.0).startswith(
        "400 of 1,000 rows (40%), 20 rows/s, 30 s left, 600 in the postprocess function, 0 committed"
    )


def test_run_whose_last_rows_are_being_written_is_not_called_done() -> None:
    assert "0 rows/s, writing the last rows, 50 committed" in line(meter_with(100, committed=50), 100, 0, 0.0)
    assert "0 rows/s, done, 100 committed" in line(meter_with(100, committed=100), 100, 0, 0.0)


@pytest.mark.parametrize(("every_s", "expected"), [(0.0, ["step 1", "step 2"]), (1e9, [])])
def test_the_state_of_a_run_without_a_meter_is_a_line_every_few_seconds(every_s: float, expected: list[str]) -> None:
    stream = io.StringIO()
    lines = Lines(stream, every_s)
    lines.state("step 1")
    lines.state("step 2")
    assert stream.getvalue().splitlines() == expected
