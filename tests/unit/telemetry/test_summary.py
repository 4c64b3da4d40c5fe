"""One summary at the end of a run."""

from __future__ import annotations

import json

from penstock.telemetry.summary import Summary

DONE = Summary(
    output="out",
    rows=12_000,
    failed=0,
    parts=3,
    seconds=12.34,
    start_seconds=2.5,
    run_seconds=9.84,
    rows_per_s=1219.5,
    devices=("cpu:0", "cpu:1"),
    recipe={"runtime": "jax", "batch_size": 32},
    where={"reading": 1.0, "computing": 3.0},
    bottleneck="computing-bound: computing took 100% of the time of the model's threads",
)


def test_summary_says_what_was_done_how_fast_and_where_the_time_went() -> None:
    assert str(DONE).splitlines() == [
        "12,000 rows in 3 parts in out",
        "12.3 s: 2.5 s to start, then 1,220 rows/s",
        "cpu:0, cpu:1; runtime jax, batch_size 32",
        "time of all threads: reading 25%, computing 75%",
        "computing-bound: computing took 100% of the time of the model's threads",
    ]


def test_summary_leaves_out_what_took_no_time() -> None:
    where = {"reading": 1.0, "handing_over": 0.0, "computing": 3.0}
    assert "time of all threads: reading 25%, computing 75%" in str(Summary(**{**vars(DONE), "where": where}))


def test_summary_says_how_it_was_planned_where_memory_ran_out_and_where_the_trace_is() -> None:
    told = ("gpu:0 ran out of memory at a batch of 64 rows: going on with 32",)
    more = {"plan": "onnx, batches of 4", "memory_events": told, "trace": "run.json"}
    lines = str(Summary(**{**vars(DONE), **more})).splitlines()
    assert "plan: onnx, batches of 4" in lines
    assert f"out of memory once, no row lost: {told[0]}" in lines
    assert lines[-1] == "trace: run.json; https://ui.perfetto.dev opens it"
    assert "out of memory 2 times" in str(Summary(**{**vars(DONE), "memory_events": told * 2}))


def test_summary_points_to_the_failures() -> None:
    text = str(Summary(**{**vars(DONE), "failed": 3}))
    assert "/_penstock/failures.jsonl" in text
    on = {f"10.0.0.{number}": number for number in (9, 8, 7, 6, 5, 4)}
    text = str(Summary(**{**vars(DONE), "failed": sum(on.values()), "failed_on": on}))
    where = "9 on 10.0.0.9, 8 on 10.0.0.8, 7 on 10.0.0.7, 6 on 10.0.0.6, 9 on 2 other nodes"
    assert f"/_penstock/failures.jsonl; {where}\n" in text


def test_summary_counts_answers_that_are_no_numbers() -> None:
    assert "3 rows have a prediction that is NaN or infinite" in str(Summary(**{**vars(DONE), "not_finite": 3}))
    assert "1 row has a prediction that is NaN or infinite" in str(Summary(**{**vars(DONE), "not_finite": 1}))
    assert "NaN" not in str(DONE)


def test_summary_of_a_finished_job_says_that_nothing_was_redone() -> None:
    again = Summary("out", 12_000, 0, 1, 0.1, 0.0, 0.0, 0.0, rows_before=12_000)
    assert str(again).splitlines() == [
        "12,000 rows in 1 part in out",
        "the job was finished already; nothing was redone",
    ]


def test_summary_of_a_resumed_job_says_what_was_there() -> None:
    assert "5,000 rows of the input were done before this run" in str(Summary(**{**vars(DONE), "rows_before": 5000}))


def test_summary_of_a_retry_says_how_many_failed_rows_have_answers_now() -> None:
    text = str(Summary(**{**vars(DONE), "failed": 1, "rows_before": 11_996, "retried": 4}))
    assert "3 of 4 failed rows have answers now\n" in text
    assert "12.3 s: 2.5 s to start\n" in text, "a rate of 4 rows says nothing"


def test_slow_jobs_show_a_fraction() -> None:
    assert "1.5 rows/s" in str(Summary(**{**vars(DONE), "rows_per_s": 1.46}))


def test_summary_is_plain_json() -> None:
    document = json.loads(json.dumps(DONE.as_json()))
    assert document["rows"] == 12_000
    assert document["devices"] == ["cpu:0", "cpu:1"]
    assert document["recipe"] == {"runtime": "jax", "batch_size": 32}
