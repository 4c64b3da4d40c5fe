"""A plan survives being written down, and nonsense in its file is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.plans import Choice, Plan, Trial, left_out_in_words, plan_from_json
from penstock.errors import UsageError

PLAN = Plan(
    Choice("openvino", 8, 2, 1, 2, "model", "/some/folder"),
    (Trial("tensorflow", 16, 2, 1, 2, 90.0, 1 << 30, 5.0), Trial("torch", rejected="not installed")),
    ("cpu:0",), 1000, 250.0, 6.0, "computing", "computing-bound", "fast", 40.0, 120.0, 3.0, ("a note",), "step", "abc",
)  # fmt: skip


def test_what_is_written_is_read() -> None:
    assert plan_from_json(json.loads(json.dumps(PLAN.as_json())), "plan.json") == PLAN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0), ("batch_size", -8), ("batch_size", "8"), ("batch_size", 1 << 40), ("batch_size", True),
        ("lanes", 0), ("lanes", 1000), ("replicas", 0), ("threads", 1.5), ("runtime", "abacus"), ("runtime", None),
        ("precision", "float1"), ("converted", 5), ("unknown", 1),
    ],
)  # fmt: skip
def test_nonsense_in_a_choice_is_refused(name: str, value: Any) -> None:
    document = json.loads(json.dumps(PLAN.as_json()))
    document["choice"][name] = value
    with pytest.raises(UsageError, match="the plan is damaged"):
        plan_from_json(document, "plan.json")


def test_a_plan_may_have_tried_what_is_not_known_here() -> None:
    document = PLAN.as_json() | {"trials": [{"runtime": "abacus"}], "left": ["sundial"]}
    assert plan_from_json(json.loads(json.dumps(document)), "plan.json").choice == PLAN.choice


@pytest.mark.parametrize("document", [None, [], 5, {}, {"penstock_plan": 99}, {"penstock_plan": 1}])
def test_what_is_no_plan_is_refused(document: Any) -> None:
    with pytest.raises(UsageError):
        plan_from_json(document, "plan.json")


def test_people_see_which_row_was_chosen_and_why_others_were_not() -> None:
    chosen = Trial("openvino", 8, 2, 1, 2, 250.0, 1 << 28, 1.0, 5e-6)
    slower = replace(chosen, rows_per_s=240.0)
    lines = str(replace(PLAN, trials=(*PLAN.trials, chosen, slower))).splitlines()
    marked = [line for line in lines if line.startswith("►")]
    assert len(marked) == 1
    assert "openvino" in marked[0]
    assert "250" in marked[0]
    assert any("torch: not installed" in line for line in lines)


def test_table_fits_80_columns_and_says_what_its_last_column_means() -> None:
    trials = (
        Trial("tensorflow", 65_536, 2, 1, 2, 16_471_318.0, 10 << 30, 100.1),
        Trial("tensorflow-xla", 4, 2, 2, 2, 35.3, 847 << 20, 7.0, 6.3e-6, allowed=1e-4),
        Trial("openvino", 8, 2, 1, 2, 250.0, 1 << 28, 1.0, 2e-4, allowed=3e-4),
        Trial("onnx", 8, 2, 1, 2, 250.0, 1 << 28, 1.0, 0.0, allowed=1e-4),
    )
    lines = str(replace(PLAN, trials=trials)).splitlines()
    table = lines[:6]
    assert all(len(line) <= 80 for line in lines[:8])
    assert [line.split()[-1] for line in table] == ["differs", "by", "reference", "2.0e-04", "nothing", "6.3e-06"]
    assert lines[6].startswith("  differs by: the largest difference from the reference")
    assert lines[7].endswith("allowed is 1.0e-04 to 3.0e-04")


def test_runtimes_that_were_not_measured_are_told_with_the_reason() -> None:
    slow = "not tried: it takes about 7 s"
    trials = (Trial("jax", rejected=slow), Trial("onnx", rows_per_s=9.0), Trial("onnx", rejected="it died"))
    told = left_out_in_words(replace(PLAN, trials=(*PLAN.trials, *trials, Trial("tensorflow-xla", rejected=slow))))
    assert told == f"torch (not installed); jax, tensorflow-xla ({slow})"
    assert left_out_in_words(replace(PLAN, trials=PLAN.trials[:1])) == ""


STARTS = replace(
    PLAN,
    choice=Choice("tensorflow", 64, 2),
    trials=(
        Trial("tensorflow", 64, 2, rows_per_s=1000.0, start_s=5.0),
        Trial("onnx", 32, 2, rows_per_s=800.0, start_s=1.0, difference=1e-6),
        Trial("onnx", 16, 2, rows_per_s=700.0, start_s=1.0, difference=1e-6),
        Trial("openvino", 16, 2, rows_per_s=900.0, start_s=1.0, difference=1e-6),
        Trial("jax", 64, 2, start_s=1.0, rejected="it died"),
    ),
    rows_per_s=1000.0,
)


def test_a_short_job_counts_the_start() -> None:
    ready = {"tensorflow", "onnx", "jax"}
    soonest = STARTS.for_rows(4_000).soonest(ready)
    assert soonest.choice == Choice("onnx", 32, 2)
    assert soonest.seconds == pytest.approx(6.0)
    assert STARTS.for_rows(4_000).soonest({*ready, "openvino"}).choice.runtime == "openvino"


def test_what_is_done_sooner_has_its_own_rate_and_reason() -> None:
    soonest = replace(STARTS, reason="1,000 rows/s, twice as fast as jax").for_rows(4_000).soonest({"onnx"})
    assert (soonest.rows_per_s, soonest.start_s, soonest.seconds) == (800.0, 1.0, 6.0)
    assert soonest.reason == "800 rows/s, and with its start done sooner than tensorflow"


def test_two_choices_of_one_runtime_are_told_apart_by_what_differs() -> None:
    one, other = Choice("openvino", 1024, 2, 1, 2), Choice("openvino", 8, 1, 2, 2)
    assert one.told_from(other) == "openvino with batches of 1,024, 1 replica, 2 threads"
    assert other.told_from(one) == "openvino with batches of 8, 2 replicas, 1 thread"
    assert one.told_from(replace(one, lanes=3)) == "openvino with 2 in flight"
    assert one.told_from(Choice("onnx", 8, 1)) == "openvino"
    split = Trial("tensorflow", 32, 1, 2, rows_per_s=1500.0, start_s=1.0)
    soonest = replace(STARTS, trials=(*STARTS.trials, split)).for_rows(4_000).soonest({"tensorflow"})
    assert soonest.reason.endswith("done sooner than tensorflow with batches of 64, 1 replica, 2 threads")


def test_what_took_too_much_memory_is_never_chosen() -> None:
    """It ran, so there is a figure for it."""
    greedy = Trial("onnx", 4096, 2, rows_per_s=5000.0, start_s=1.0, difference=1e-6, rejected="too much memory")
    plan = replace(STARTS, trials=(*STARTS.trials, greedy)).for_rows(4_000)
    assert plan.soonest({"onnx"}).choice == Choice("onnx", 32, 2)
    assert plan.gains()["onnx"] == 0.8
    assert not any("5,000" in line for line in str(plan).splitlines())
    assert any("onnx: too much memory" in line for line in str(plan).splitlines())


def test_starting_a_choice_must_save_more_than_it_takes() -> None:
    """It runs 250 rows a second and starts in 3 s."""
    present = Choice("jax", 16, 2)
    assert PLAN.for_rows(1_000).is_sooner_than(present, 100.0)  # 7 s in place of 10
    assert not PLAN.for_rows(1_000).is_sooner_than(present, 200.0)  # 7 s in place of 5
    assert PLAN.for_rows(10_000).is_sooner_than(present, 200.0)  # 43 s in place of 50


def test_what_the_search_measured_of_a_running_choice_counts_more_than_what_its_warm_up_promised() -> None:
    present = Choice("tensorflow", 16, 2, 1, 2)
    assert PLAN.for_rows(1_000).is_sooner_than(present, 1e9)  # 7 s in place of 11
    assert not PLAN.for_rows(300).is_sooner_than(present, 1.0)  # 4.2 s in place of 3.3


def test_a_plan_of_before_that_has_no_parameters_is_read() -> None:
    document = json.loads(json.dumps(PLAN.as_json()))
    del document["parameters"]
    assert plan_from_json(document, "plan.json") == PLAN


def test_a_long_job_runs_on_what_is_fastest() -> None:
    assert STARTS.for_rows(100_000).soonest({"onnx", "openvino"}).choice == STARTS.choice
    # Nothing else is ready, or hardly anything would be saved.
    assert STARTS.for_rows(4_000).soonest(()).choice == STARTS.choice
    assert STARTS.for_rows(13_000).soonest({"onnx"}).choice == STARTS.choice


def test_where_loading_bounds_a_job_the_start_decides() -> None:
    bound = replace(STARTS, bound_by="loading", rows_per_s=500.0)
    assert bound.for_rows(10_000).soonest({"onnx", "openvino"}).choice.runtime in ("onnx", "openvino")
    assert bound.done_in(bound.trials[1]) == pytest.approx(1.0 + bound.rows / 500)


def test_a_plan_for_a_few_rows_is_no_plan_for_millions() -> None:
    few = replace(PLAN, choice=replace(PLAN.choice, batch_size=128), rows=100)
    assert few.is_outgrown_by(3_000_000)
    assert not few.is_outgrown_by(150)
    assert not PLAN.is_outgrown_by(3_000_000)
