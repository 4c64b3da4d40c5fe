"""The plan: what is tried, what is chosen, what is kept, and what is rejected because its answers are wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import private_cache
from penstock.core.plans import Choice, Plan
from penstock.planning import search
from penstock.planning.candidates import candidates
from penstock.planning.outlook import Outlook
from tests.conftest import ENVIRONMENT, Penstock, penstock_command, read_rows, summary_of
from tests.support.converted_steps import write_step

RUNTIMES_TRIED = {"tensorflow", "openvino", "onnx", "jax", "tensorflow-xla"}
NARROW = ("--batch-size", 64, "--threads", 1, "--devices", "cpu:1")
"""Every runtime is tried, each in one way only: for tests that are not about the fastest."""


def without(*libraries: str) -> dict[str, str]:
    """An environment in which these seem not to be installed: what a test is not about costs seconds to try."""
    return {"HIDDEN": ",".join(libraries)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of its own, so that no other test finds these plans."""
    folder = tmp_path_factory.mktemp("cache")
    before, ENVIRONMENT["PENSTOCK_CACHE"] = ENVIRONMENT["PENSTOCK_CACHE"], str(folder)
    yield folder
    ENVIRONMENT["PENSTOCK_CACHE"] = before


@pytest.fixture(scope="module")
def planned(cache: Path, models: Path, digits: Path, penstock_run: Penstock) -> dict[str, Any]:
    """The plan for a small network, and what was said meanwhile."""
    ran = penstock_run("plan", models / "digits.keras", digits, "--json")
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found | {"said": ran.stderr}


def test_every_installed_runtime_is_tried_and_compared(planned: dict[str, Any]) -> None:
    measured = [trial for trial in planned["trials"] if trial["rows_per_s"]]
    assert {trial["runtime"] for trial in measured} == RUNTIMES_TRIED
    assert all((trial["difference"] is None) == (trial["runtime"] == "tensorflow") for trial in measured)
    assert all(trial["difference"] is None or trial["difference"] < 1e-4 for trial in measured)
    assert all(trial["memory_bytes"] > 50 << 20 for trial in measured)
    assert any(len({t["batch_size"] for t in measured if t["runtime"] == name}) >= 3 for name in RUNTIMES_TRIED)
    missing = [trial for trial in planned["trials"] if trial["runtime"] == "torch"]
    assert "pip install 'penstock[torch]'" in missing[0]["rejected"]


def test_every_runtime_is_looked_at_once_before_any_is_climbed_with(planned: dict[str, Any]) -> None:
    measured = [trial["runtime"] for trial in planned["trials"] if trial["rows_per_s"]]
    assert measured[0] == "tensorflow"
    assert set(measured[: len(RUNTIMES_TRIED)]) == RUNTIMES_TRIED
    tried = [line for line in planned["said"].splitlines() if "plan: trying" in line and "replicas" not in line]
    # For tables ONNX Runtime usually gains most, and XLA least.
    assert "onnx" in tried[0]
    assert "tensorflow-xla" in tried[-1]


@pytest.mark.parametrize(
    ("rate", "says"), [(100.0, "goes on now with onnx"), (1e7, "going on with onnx would not pay")]
)
def test_a_search_that_was_cut_short_goes_on_where_that_pays(
    rate: float,
    says: str,
    planned: dict[str, Any],
    cache: Path,
    models: Path,
    digits: Path,
    tmp_path: Path,
    penstock_run: Penstock,
) -> None:
    """The plan in the cache is altered: only TensorFlow was measured, and there was no time for onnx.

    Whether onnx is then tried is decided by what TensorFlow really reaches.
    """
    file = cache / "plans" / f"{planned['key']}.json"
    whole = file.read_text()
    own = next(t for t in planned["trials"] if t["runtime"] == "tensorflow" and t["rows_per_s"]) | {"rows_per_s": rate}
    names = ("runtime", "batch_size", "threads", "replicas", "lanes")
    document = json.loads(whole) | {"trials": [own], "rows_per_s": rate, "is_cut_short": True, "left": ["onnx"]}
    document["choice"] |= {name: own[name] for name in names} | {"converted": None}
    file.write_text(json.dumps(document | {"budget_s": 60.0}))
    try:
        ran = penstock_run("predict", models / "digits.keras", digits, "--output", tmp_path / "out", "--json")
        after = json.loads(file.read_text())
    finally:
        file.write_text(whole)
    assert summary_of(ran)["rows"] == 20_000
    assert says in ran.stderr
    goes_on = rate == 100.0
    assert ("searching for about" in ran.stderr) == goes_on
    assert any(trial["rows_per_s"] > rate for trial in after["trials"]) == goes_on
    assert any(trial["runtime"] == "onnx" for trial in after["trials"]) == goes_on
    assert not any(trial["runtime"] == "openvino" for trial in after["trials"])


def test_the_choice_is_among_what_was_measured_and_near_the_fastest(planned: dict[str, Any]) -> None:
    choice = planned["choice"]
    names = ("runtime", "batch_size", "threads", "replicas", "lanes")
    chosen = [t for t in planned["trials"] if all(t[name] == choice[name] for name in names)]
    assert chosen
    fastest = max(trial["rows_per_s"] for trial in planned["trials"])
    # Figures of a busy machine jump about; a choice below half of the best would be a fault of the search.
    assert max(trial["rows_per_s"] for trial in chosen) > 0.5 * fastest
    assert planned["rows"] == 20_000
    assert planned["bound_by"] in ("loading", "copying", "computing", "writing")
    assert planned["advice"].startswith(f"{planned['bound_by']}-bound")
    assert planned["search_s"] <= 120


def test_the_second_time_it_is_known_at_once(
    planned: dict[str, Any], models: Path, digits: Path, penstock_run: Penstock
) -> None:
    ran = penstock_run("plan", models / "digits.keras", digits, "--json")
    again: dict[str, Any] = json.loads(ran.stdout)
    assert again == {key: value for key, value in planned.items() if key != "said"}
    assert "found in the cache" in ran.stderr


def test_predict_goes_by_it_and_gives_the_same_answers(
    planned: dict[str, Any], models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    ran = penstock_run("predict", models / "digits.keras", digits, "--output", tmp_path / "auto", "--json")
    found = summary_of(ran)
    sooner = rf"but with its start {found['recipe']['runtime']}\b.* is done sooner"
    if re.search(sooner, ran.stderr) is None:  # the job is short
        assert found["recipe"]["runtime"] == planned["choice"]["runtime"]
        assert found["recipe"]["threads"] == planned["choice"]["threads"]
        assert len(found["devices"]) == planned["choice"]["replicas"]
    penstock_run("predict", models / "digits.keras", digits, "--output", tmp_path / "own", "--plan", "off")
    ours, own = read_rows(tmp_path / "auto"), read_rows(tmp_path / "own")
    assert ours["row"].to_pylist() == list(range(20_000))
    np.testing.assert_allclose(np.stack(ours["digit"].to_numpy()), np.stack(own["digit"].to_numpy()), atol=1e-5)


def test_a_plan_in_a_file_is_followed(
    planned: dict[str, Any], models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    document = {key: value for key, value in planned.items() if key != "said"}
    document["choice"] = document["choice"] | {
        "runtime": "onnx", "batch_size": 48, "threads": 1, "replicas": 1, "lanes": 1,
        "converted": str(tmp_path / "gone"),
    }  # fmt: skip
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    arguments = ("predict", models / "digits.keras", digits, "--output", tmp_path / "out", "--plan", file, "--json")
    recipe = summary_of(penstock_run(*arguments))["recipe"]
    assert (recipe["runtime"], recipe["batch_size"], recipe["threads"]) == ("onnx", 48, 1)


def test_a_job_by_a_plan_is_another_job_by_another_plan(
    light_models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    for size in (32, 48):
        plan = Plan(Choice("onnx", size, 1))
        (tmp_path / f"{size}.json").write_text(json.dumps(plan.as_json()))
    job = ("predict", light_models / "digits.onnx", digits, "--limit", "500", "--output", tmp_path / "out", "--json")
    recipe = summary_of(penstock_run(*job, "--plan", tmp_path / "32.json"))["recipe"]
    assert (recipe["runtime"], recipe["batch_size"], recipe["threads"]) == ("onnx", 32, 1)
    other = penstock_run(*job, "--plan", tmp_path / "48.json")
    assert other.returncode == 7
    assert "the output folder holds another job" in other.stderr
    assert "'batch_size': 48" in other.stderr
    assert penstock_run(*job, "--plan", tmp_path / "32.json").returncode == 0
    assert penstock_run("resume", tmp_path / "out").returncode == 0


@pytest.mark.slow
def test_a_killed_job_goes_on_with_the_runtime_it_began_with_even_without_the_cache(
    planned: dict[str, Any], models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    options = ("--runtime", "openvino", "--batch-size", "16", "--part-rows", "512", "--threads", "1")
    job = ("predict", models / "digits.keras", digits, "--output", tmp_path / "out", *options)
    process = subprocess.Popen(penstock_command(*job), stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    journal = tmp_path / "out" / "_penstock" / "journal"
    try:
        while not (journal.exists() and journal.stat().st_size) and process.poll() is None:
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()
    empty = {"PENSTOCK_CACHE": str(tmp_path / "empty")}
    ran = penstock_run("resume", tmp_path / "out", "--json", environment=empty)
    assert summary_of(ran)["recipe"]["runtime"] == "openvino"
    assert read_rows(tmp_path / "out")["row"].to_pylist() == list(range(20_000))


def test_a_runtime_with_wrong_answers_is_rejected(
    planned: dict[str, Any], cache: Path, models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    """The converted network is altered behind penstock's back: one weight of thousands."""
    import onnx
    from onnx import numpy_helper

    altered = tmp_path / "cache"
    shutil.copytree(cache, altered)
    folders = list((altered / "converted").iterdir())
    assert len(folders) == 1
    file = folders[0] / "model.onnx"
    network = onnx.load(str(file))
    kernel = max(network.graph.initializer, key=lambda each: int(np.prod(each.dims)))
    values = numpy_helper.to_array(kernel).copy()
    values.reshape(-1)[:8] += 0.5
    kernel.CopyFrom(numpy_helper.from_array(values, kernel.name))
    write_step(folders[0], network.SerializeToString())
    for mark in folders[0].glob("agreed-*"):
        mark.unlink()
    own = {"PENSTOCK_CACHE": str(altered), **without("jax")}
    search = ("plan", models / "digits.keras", digits, *NARROW)
    found = json.loads(penstock_run(*search, "--json", "--fresh", environment=own).stdout)
    job = ("predict", models / "digits.keras", digits, "--output", tmp_path / "out", "--runtime", "onnx")
    forced = penstock_run(*job, environment=own)
    text = penstock_run(*search, environment=own).stdout
    rejected = {t["runtime"]: t["rejected"] for t in found["trials"] if t["rejected"] and not t["rows_per_s"]}
    for runtime in ("openvino", "onnx"):
        assert "the answers are not those of the model's own framework: digit, row" in rejected[runtime]
    assert found["choice"]["runtime"] not in ("openvino", "onnx")
    assert "the answers are not those" in text
    assert forced.returncode == 6
    assert "the answers are not those of the model's own framework" in forced.stderr


def test_a_short_job_runs_on_what_is_done_soonest_with_its_start(
    planned: dict[str, Any], cache: Path, models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    """The plan in the cache is altered: TensorFlow is much faster, and takes much longer to start."""
    altered = tmp_path / "cache"
    shutil.copytree(cache, altered)
    own = {"PENSTOCK_CACHE": str(altered)}
    plans = (altered / "plans").iterdir()
    file = next(path for path in plans if json.loads(path.read_text())["key"] == planned["key"])
    rates = {"tensorflow": (1e6, 30.0), "onnx": (1e5, 1.0)}
    document = json.loads(file.read_text())
    document["trials"] = [
        trial | {"rows_per_s": rates[trial["runtime"]][0], "start_s": rates[trial["runtime"]][1]}
        for trial in document["trials"]
        if trial["runtime"] in rates and trial["rows_per_s"] and trial["replicas"] == 1
    ]
    fastest = next(trial for trial in document["trials"] if trial["runtime"] == "tensorflow")
    names = ("runtime", "batch_size", "threads", "replicas", "lanes")
    document["choice"] |= {name: fastest[name] for name in names} | {"converted": None}
    document |= {"rows_per_s": 1e6, "bound_by": "computing"}
    file.write_text(json.dumps(document))
    job = ("predict", models / "digits.keras", digits, "--json", "--output")
    ran = penstock_run(*job, tmp_path / "out", environment=own)
    assert summary_of(ran)["recipe"]["runtime"] == "onnx"
    assert "tensorflow is the fastest, but with its start onnx is done sooner" in ran.stderr
    again = penstock_run("resume", tmp_path / "out", "--json", environment=own)
    assert summary_of(again)["recipe"]["runtime"] == "onnx"

    [converted] = (altered / "converted").iterdir()
    write_step(converted, bytes(1000))
    ran = penstock_run(*job, tmp_path / "damaged", environment=own)
    assert summary_of(ran)["recipe"]["runtime"] == "tensorflow"
    assert "trying tensorflow" in ran.stderr
    assert file.exists()
    assert not converted.exists()


def test_a_converted_step_with_damaged_bytes_is_made_anew(
    planned: dict[str, Any], cache: Path, models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    altered = tmp_path / "cache"
    shutil.copytree(cache, altered)
    [network] = (altered / "converted").glob("*/model.onnx")
    whole = network.read_bytes()
    damaged = whole[:-400] + bytes(100) + whole[-300:]
    network.write_bytes(damaged)
    job = ("predict", models / "digits.keras", digits, "--output", tmp_path / "out", "--runtime", "onnx")
    ran = penstock_run(*job, environment={"PENSTOCK_CACHE": str(altered)})
    assert ran.returncode == 0, ran.stderr
    assert "converting the model" in ran.stderr
    assert network.read_bytes() != damaged


def test_cleared_cache_leaves_the_converted_model_that_a_restarted_replica_reads(
    models: Path, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    blocks = penstock.stream(models / "digits.keras", digits, runtime="onnx", threads=1, batch_size=16, progress=False)
    rows = [*next(blocks)["row"]]
    private_cache.clear()
    replicas = [each for each in psutil.Process().children(recursive=True) if "replica" in " ".join(each.cmdline())]
    assert replicas
    for replica in replicas:
        replica.kill()
    for block in blocks:
        rows += [*block["row"]]
    assert rows == list(range(20_000))
    private_cache.clear()
    assert not (tmp_path / "converted").exists()


def test_a_short_job_may_leave_a_plan_for_the_next_with_one_runtime_that_starts_sooner(
    models: Path, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Outlook, "for_the_next_s", lambda self, predicted_s: 60.0)
    penstock.predict(models / "digits.keras", digits, output=tmp_path / "first", limit=1000)
    [file] = (tmp_path / "cache" / "plans").iterdir()
    plan = json.loads(file.read_text())
    measured = {trial["runtime"] for trial in plan["trials"] if trial["rows_per_s"]}
    assert measured in ({"tensorflow", "onnx"}, {"tensorflow", "openvino"})
    assert {"jax", "tensorflow-xla"} <= set(plan["left"])
    monkeypatch.setattr(Outlook, "for_the_next_s", lambda self, predicted_s: 0.0)
    penstock.predict(models / "digits.keras", digits, output=tmp_path / "second", limit=1000)
    manifest = json.loads((tmp_path / "second" / "_penstock" / "manifest.json").read_text())
    assert manifest["recipe"]["runtime"] != "tensorflow"
    ours, own = (np.stack(read_rows(tmp_path / name)["digit"].to_numpy()) for name in ("second", "first"))
    np.testing.assert_allclose(ours, own, atol=1e-4)


def test_a_conversion_that_takes_too_long_loses_nothing_that_was_measured(
    models: Path, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(search, "_CONVERSION_SHARE", -1e6)
    monkeypatch.setattr(search, "candidates", lambda *of: [each for each in candidates(*of) if each.is_converted])
    found = penstock.plan(models / "digits.keras", digits, progress=False)
    assert found.choice.runtime == "tensorflow"
    assert found.rows_per_s
    assert "nothing that was tried is faster than tensorflow" in found.reason
    rejected = {trial.runtime: trial.rejected for trial in found.trials if trial.rejected}
    assert "not tried: converting the model takes more than" in str(rejected["onnx"])
    assert "tensorflow" not in rejected


def test_a_short_job_is_not_searched_for_and_says_so(
    models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    none = {"PENSTOCK_CACHE": str(tmp_path / "none")}
    job = ("predict", models / "digits.keras", digits, "--limit", "1000", "--output", tmp_path / "out")
    ran = penstock_run(*job, environment=none)
    assert ran.returncode == 0, ran.stderr
    assert "too short for a search" in ran.stderr
    assert f"penstock plan {models / 'digits.keras'} {digits} --limit 1000\n" in ran.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--memory-fraction", "0"), "--memory-fraction is out of range"),
        (("--memory-fraction", "1.5"), "--memory-fraction is out of range"),
        (("--batch-size", "many"), "auto, 1, 2, 3"),
        (("--replicas-per-device", "0"), "--replicas-per-device must be a positive whole number"),
        (("--plan", "nowhere.json"), "the plan cannot be read"),
        (("--plan", os.devnull), "the plan cannot be read"),
    ],
)
def test_what_is_out_of_range_is_told(
    options: tuple[str, ...], words: str, models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    ran = penstock_run("predict", models / "digits.keras", digits, "--output", tmp_path / "out", *options)
    assert ran.returncode == 2
    assert words in ran.stderr


@pytest.mark.slow
def test_a_plan_that_was_made_for_something_else_never_brings_its_converted_step_along(
    planned: dict[str, Any], models: Path, digits: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    document = {key: value for key, value in planned.items() if key != "said"}
    document["choice"] = document["choice"] | {"runtime": "onnx"}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    options = ("--argmax", "--limit", "500", "--json")
    job = ("predict", models / "digits.keras", digits, "--output")
    ran = penstock_run(*job, tmp_path / "best", *options, "--plan", tmp_path / "plan.json")
    assert summary_of(ran)["recipe"]["runtime"] == "onnx"
    assert "it was not made for argmax=True (there: False)" in ran.stderr
    penstock_run(*job, tmp_path / "own", *options, "--plan", "off")
    best, own = read_rows(tmp_path / "best"), read_rows(tmp_path / "own")
    assert best.column_names == own.column_names
    assert best.equals(own)


@pytest.mark.slow
def test_a_search_copes_with_rows_that_fail_and_with_ranked_answers(
    cache: Path, models: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    """Row 5 has an id that is out of range: TensorFlow rejects it, and so must whoever takes its place."""
    ids = np.arange(4000, dtype=np.int32) % 100
    ids[5] = 5000
    pq.write_table(pa.table({"id": ids}), tmp_path / "ids.parquet")
    search = ("plan", models / "embedding.keras", tmp_path / "ids.parquet", "--argmax", *NARROW, "--json")
    ran = penstock_run(*search, environment=without("openvino"))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    rejected = {trial["runtime"]: trial["rejected"] for trial in found["trials"] if trial["rejected"]}
    assert "out of range" in rejected["jax"] or "fails on one side only" in rejected["jax"]
    assert {trial["runtime"] for trial in found["trials"] if trial["rows_per_s"]} >= {"tensorflow", "onnx"}
