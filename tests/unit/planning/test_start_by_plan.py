"""Whether a search that was cut short goes on, and which processes a job is started on after one."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.plans import Choice, Plan, Trial
from penstock.core.records import Device, ModelFile, TensorSpec
from penstock.core.stopping import StopFlag
from penstock.jobs.decide import Request
from penstock.jobs.run_context import RunContext
from penstock.options.records import PredictOptions
from penstock.planning import store
from penstock.planning.start_by_plan import _has_failed, _PlannedStart

MODEL = ModelFile("keras", "model.keras", "digest", ("tensorflow",))
PLAN = Plan(
    Choice("tensorflow", 64, 2),
    (Trial("tensorflow", 64, 2, rows_per_s=100.0, start_s=5.0),),
    rows=6_000,
    rows_per_s=100.0,
    budget_s=5.0,
    is_cut_short=True,
    left=("openvino",),
    family="images",
)


@pytest.mark.parametrize(("parameters", "goes_on"), [(None, True), (8_000_000, True), (200_000_000, False)])
def test_search_goes_on_with_a_converted_runtime_only_where_converting_pays(
    parameters: int | None, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO can be expected to save half of a minute; a model of 200,000,000 parameters takes 26 s to convert."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "_versions", dict)
    monkeypatch.setattr(_PlannedStart, "_devices", lambda self: [Device("cpu", 0)])
    source: Any = SimpleNamespace(schema=lambda: {"x": TensorSpec("x", "float32", (4,))})
    start = _PlannedStart(MODEL, Request(source, PredictOptions()), RunContext(io.BytesIO(), StopFlag()))
    assert start._goes_on(replace(PLAN, parameters=parameters), 60.0) == goes_on


def test_processes_that_failed_are_left_and_those_that_took_too_much_memory_are_not() -> None:
    started: Any = SimpleNamespace(choice=PLAN.choice)
    greedy = Trial("tensorflow", 4096, 2, rows_per_s=90.0, rejected="too much memory")
    dead = Trial("tensorflow", 64, 2, rejected="replicas died")
    assert not _has_failed(replace(PLAN, trials=(*PLAN.trials, greedy)), started)
    assert _has_failed(replace(PLAN, trials=(*PLAN.trials, dead)), started)
