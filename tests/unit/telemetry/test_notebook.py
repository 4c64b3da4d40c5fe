"""What a notebook is shown: a bar that says how far a run is, and a table at its end."""

from __future__ import annotations

import threading

from penstock.core.records import Device, Timings
from penstock.telemetry.meter import Meter
from penstock.telemetry.notebook import bar, is_notebook, table
from penstock.telemetry.progress import Later, Progress
from penstock.telemetry.summary import Summary


def test_bar_says_how_far_the_run_is() -> None:
    meter = Meter(is_written=False)
    meter.observe(0, Device("cpu", 0), Timings(rows=250, compute=1.0))
    shown = bar(meter, 1000, 0, 50.0)
    assert '<progress value="250" max="1000"' in shown
    assert "250 of 1,000 rows, 50 rows/s, 15 s left, cpu:0 busy 100%" in shown
    assert "committed" not in shown


def test_bar_of_a_stream_has_no_end_and_a_job_with_a_folder_tells_what_is_committed() -> None:
    meter = Meter()
    meter.rows, meter.failed = 9, 2
    shown = bar(meter, 0, 0, 0.0)
    assert "max=" not in shown
    assert "9 rows, 0 rows/s, 0 committed, 2 of 9 failed" in shown


def test_finished_run_is_done() -> None:
    meter = Meter(is_written=False)
    meter.observe(0, Device("cpu", 0), Timings(rows=10))
    assert "10 of 10 rows, 5 rows/s, done" in bar(meter, 10, 0, 5.0)


def test_what_is_shown_is_no_html_of_its_own() -> None:
    assert table("<b>", [("a&b", "<i>")]) == (
        "<table><caption>&lt;b&gt;</caption><tbody>"
        '<tr><th style="text-align: left">a&amp;b</th><td style="text-align: left">&lt;i&gt;</td></tr></tbody></table>'
    )


def test_summary_is_a_table_with_all_that_it_says_in_lines() -> None:
    summary = Summary("out/", 10, 1, 1, 2.0, 1.0, 1.0, 10.0, devices=("cpu:0",), recipe={"runtime": "jax"})
    shown = summary._repr_html_()
    assert shown.startswith("<table><caption>10 rows in 1 part in out/</caption>")
    for line in str(summary).splitlines()[1:]:
        assert line.rpartition(": ")[2] in shown
    assert '<th style="text-align: left">1 row failed</th>' in shown


def test_this_is_no_notebook() -> None:
    assert not is_notebook()


class Recorded(Progress):
    """Notes that it was shown."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)

    def begin(self, meter: Meter, total: int, before: int) -> None:
        self.told.append(f"{total} rows")
        self.begun.set()

    def end(self) -> None:
        self.told.append("end")


def test_call_that_is_over_at_once_shows_nothing() -> None:
    made: list[Progress] = []

    def show() -> Progress:
        made.append(Recorded())
        return made[-1]

    later = Later(show, after_s=3600.0)
    later.begin(Meter(is_written=False), 10, 0)
    later.note("nobody reads it")
    later.end()
    assert made == []


def test_call_that_lasts_is_shown_and_ended() -> None:
    recorded = Recorded()
    later = Later(lambda: recorded, after_s=0.0)
    later.begin(Meter(is_written=False), 10, 0)
    assert recorded.begun.wait(60)
    later.note("a line")
    later.end()
    assert recorded.told == ["10 rows", "a line", "end"]
