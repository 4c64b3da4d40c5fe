"""The cache: converted steps are whole or not there, are compared before they are believed, and leave no rubbish."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import private_cache
from penstock.core.agreement import Proof
from penstock.core.output_selection import Answers
from penstock.core.plans import Choice, Plan, Trial, plan_from_json
from penstock.core.records import Device, ModelFile, TensorSpec
from penstock.options.records import PredictOptions, ReadOptions
from penstock.planning import store
from tests.support.converted_steps import write_step

MODEL = ModelFile("keras", "model.keras", "digest", ("tensorflow",))
CPU = Device("cpu", 0, "a cpu")
DAY_S = 24 * 3600


def test_a_step_that_lost_its_end_is_not_whole(tmp_path: Path) -> None:
    write_step(tmp_path, b"network")
    assert store.is_whole(str(tmp_path))
    (tmp_path / "model.onnx").write_bytes(b"netw")
    assert not store.is_whole(str(tmp_path))
    (tmp_path / "model.onnx").unlink()
    assert not store.is_whole(str(tmp_path))


def test_a_step_with_other_bytes_is_not_whole(tmp_path: Path) -> None:
    write_step(tmp_path, b"network")
    assert store.is_whole(str(tmp_path))
    (tmp_path / "model.onnx").write_bytes(b"netwerk")
    os.utime(tmp_path / "model.onnx", (1, 1))
    assert not store.is_whole(str(tmp_path))


def test_the_slower_of_two_runs_leaves_the_step_of_the_faster_alone(tmp_path: Path) -> None:
    folder = tmp_path / "converted" / "step"
    with store.staged(str(folder)) as slower:
        with store.staged(str(folder)) as faster:
            write_step(Path(faster), b"first")
        write_step(Path(slower), b"second")
    assert (folder / "model.onnx").read_bytes() == b"first"
    assert [entry.name for entry in folder.parent.iterdir()] == ["step"]


def test_a_damaged_step_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "converted" / "step"
    folder.mkdir(parents=True)
    write_step(folder, b"network")
    (folder / "model.onnx").write_bytes(b"")
    with store.staged(str(folder)) as staging:
        write_step(Path(staging), b"network")
    assert store.is_whole(str(folder))


def test_a_step_that_others_could_have_written_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "converted" / "step"
    folder.mkdir(parents=True)
    write_step(folder, b"theirs")
    folder.chmod(0o777)
    assert not store.is_whole(str(folder))
    with store.staged(str(folder)) as staging:
        write_step(Path(staging), b"ours")
    assert store.is_whole(str(folder))
    assert (folder / "model.onnx").read_bytes() == b"ours"


def test_a_step_that_cannot_take_its_place_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "converted" / "step"
    folder.parent.mkdir()
    folder.write_text("a file is in its place, and stays there")
    with pytest.raises(NotADirectoryError), store.staged(str(folder)) as staging:
        write_step(Path(staging), b"network")
    assert [entry.name for entry in folder.parent.iterdir()] == ["step"]


def test_clearing_the_cache_leaves_a_conversion_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    folder = tmp_path / "converted" / "step"
    with store.staged(str(folder)) as staging:
        write_step(Path(staging), b"network")
        private_cache.clear()
    assert store.is_whole(str(folder))
    private_cache.clear()
    assert not folder.exists()


def test_what_a_killed_conversion_left_goes_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / ".staging-old", tmp_path / ".staging-new"
    for folder, age_s in ((old, 2 * DAY_S), (new, 0)):
        folder.mkdir()
        stamp = os.stat(folder).st_mtime - age_s
        os.utime(folder, (stamp, stamp))
    with store.staged(str(tmp_path / "step")) as staging:
        write_step(Path(staging), b"network")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".staging-new", "step"]


def test_an_agreement_holds_for_its_runtime_its_device_and_tolerances_that_it_meets(tmp_path: Path) -> None:
    store.note_agreement(str(tmp_path), MODEL, "onnx", CPU, Proof(3e-6))
    assert store.is_agreed(str(tmp_path), MODEL, "onnx", CPU, 1e-4)
    assert not store.is_agreed(str(tmp_path), MODEL, "onnx", CPU, 1e-6)
    assert not store.is_agreed(str(tmp_path), MODEL, "onnx", Device("gpu", 0, "a cpu"), 1e-4)
    assert not store.is_agreed(str(tmp_path), MODEL, "openvino", CPU, 1e-4)


def test_an_agreement_does_not_hold_on_another_card_or_processor(tmp_path: Path) -> None:
    """The cache of a home folder may be that of several machines."""
    store.note_agreement(str(tmp_path), MODEL, "onnx", Device("gpu", 0, "NVIDIA H200"), Proof(3e-6))
    assert store.is_agreed(str(tmp_path), MODEL, "onnx", Device("gpu", 1, "NVIDIA H200"), 1e-4)
    assert not store.is_agreed(str(tmp_path), MODEL, "onnx", Device("gpu", 0, "NVIDIA T4"), 1e-4)


def test_agreement_by_noise_holds_for_no_tolerance_below_the_default(tmp_path: Path) -> None:
    store.note_agreement(str(tmp_path), MODEL, "onnx", CPU, Proof(2e-4, allowed=3e-4, needed=0.0))
    store.note_agreement(str(tmp_path), MODEL, "openvino", CPU, Proof(8e-4, allowed=1e-3, needed=8e-4))
    assert store.is_agreed(str(tmp_path), MODEL, "onnx", CPU, 1e-4)
    assert not store.is_agreed(str(tmp_path), MODEL, "onnx", CPU, 9e-5)
    assert not store.is_agreed(str(tmp_path), MODEL, "openvino", CPU, 1e-4)
    assert store.is_agreed(str(tmp_path), MODEL, "openvino", CPU, 1e-3)


SCHEMA = {"x": TensorSpec("x", "float32", (4,))}


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for frameworks is what unit tests must not do."""
    monkeypatch.setattr(store, "_versions", lambda: {"keras": "3.0"})


def kept_plan(options: PredictOptions, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Plan:
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    step = store.step_key(MODEL, SCHEMA, options)
    key, facts = store.plan_key(step, options, [CPU]), store.facts_of(MODEL, SCHEMA, options, [CPU])
    plan = Plan(Choice("tensorflow", 32, 1), step=step, key=key, made_for=facts)
    store.save_plan(plan)
    return plan


def test_step_of_an_evaluation_is_another_one() -> None:
    """It has logits beside the outputs, which predictions must not get."""
    evaluated = replace(MODEL, answers=Answers(logits=True))
    assert store.step_key(evaluated, SCHEMA, PredictOptions()) != store.step_key(MODEL, SCHEMA, PredictOptions())


def test_plan_for_other_options_is_told_with_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = kept_plan(PredictOptions(), monkeypatch, tmp_path)
    assert store.load_plan(plan.key) == plan
    wanted = PredictOptions(batch_size=64, reading=ReadOptions(image_size=(8, 8)))
    told = store.describe_nearest(store.facts_of(MODEL, SCHEMA, wanted, [CPU]))
    assert told == (
        "plan: one is known for this model, but not for image_size=[8, 8] (there: None), batch_size=64 (there: None)"
    )
    others = {name: TensorSpec(name, "float32", (4,)) for name in "xy"}
    told = store.describe_nearest(store.facts_of(MODEL, others, PredictOptions(), ()))
    assert told == "plan: one is known for this model, but not for these columns, these devices and cores"
    assert store.describe_nearest(store.facts_of(replace(MODEL, digest="another"), SCHEMA, wanted, [CPU])) is None


def test_nearest_of_several_plans_is_told_and_damaged_ones_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_plan(PredictOptions(batch_size=64, threads=3, tolerance=0.5, runtime="jax"), monkeypatch, tmp_path)
    kept_plan(PredictOptions(batch_size=64), monkeypatch, tmp_path)
    (tmp_path / "plans" / "broken.json").write_text("{", encoding="utf-8")
    told = store.describe_nearest(store.facts_of(MODEL, SCHEMA, PredictOptions(), [CPU]))
    assert told == "plan: one is known for this model, but not for batch_size=None (there: 64)"


def found(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    model: str,
    family: str,
    rates: dict[str, float],
    budget_s: float = 10.0,
    own: str = "tensorflow",
) -> None:
    """Keep a plan that found these rows a second."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    trials = [
        Trial(name, 8, 1, rows_per_s=rate, difference=None if name == own else 1e-6) for name, rate in rates.items()
    ]
    made_for = {"model": model, "hardware": [["cpu", "a cpu", 0], 2]}
    plan = Plan(Choice("tensorflow", 8, 1), tuple(trials), key=f"{model}-{family}", made_for=made_for, family=family)
    store.save_plan(replace(plan, budget_s=budget_s))


def test_what_earlier_plans_found_is_known_by_model_and_by_what_rows_look_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, tmp_path, "first", "images", {"tensorflow": 10.0, "onnx": 30.0, "jax": 5.0})
    found(monkeypatch, tmp_path, "second", "images", {"tensorflow": 10.0, "onnx": 20.0})
    found(monkeypatch, tmp_path, "third", "tables", {"tensorflow": 10.0, "onnx": 1.0})
    found(monkeypatch, tmp_path, "fourth", "images", {"tensorflow": 10.0, "onnx": 1.0}, budget_s=0.0)  # one look
    assert store.found_before("another", "tensorflow", "cpu", "images") == {"onnx": 2.5, "jax": 0.5}
    assert store.found_before("first", "tensorflow", "cpu", "images") == {"onnx": 3.0, "jax": 0.5}
    assert store.found_before("another", "tensorflow", "gpu", "images") == {}


def test_gains_over_another_framework_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as fast as TensorFlow may be twice as fast as Keras on JAX."""
    found(monkeypatch, tmp_path, "first", "images", {"tensorflow": 10.0, "onnx": 30.0})
    found(monkeypatch, tmp_path, "second", "images", {"jax": 100.0, "onnx": 30.0}, own="jax")
    assert store.found_before("another", "tensorflow", "cpu", "images") == {"onnx": 3.0}
    assert store.found_before("another", "jax", "cpu", "images") == {"onnx": 0.3}
    assert store.found_before("second", "torch", "cpu", "images") == {}


def test_old_plans_and_what_killed_runs_left_go_when_a_plan_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MOST_PLANS", 4)
    folder = tmp_path / "plans"
    folder.mkdir()
    for name, age_days in (("oldest.json", 9), ("older.json", 8), (".new-left", 2), (".new-now", 0)):
        (folder / name).write_text("{}")
        stamp = os.stat(folder / name).st_mtime - age_days * DAY_S
        os.utime(folder / name, (stamp, stamp))
    plan = kept_plan(PredictOptions(), monkeypatch, tmp_path)
    names = {entry.name for entry in folder.iterdir()}
    assert names == {f"{plan.key}.json", ".new-now", "older.json"}


def test_other_versions_are_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = kept_plan(PredictOptions(), monkeypatch, tmp_path)
    now = {**plan.made_for, "versions": {"keras": None, "jaxlib": "9.9"}}
    assert store.differences(now, plan.made_for) == ["keras gone (there: 3.0)", "jaxlib 9.9 (there: None)"]


WHOLE = Plan(
    Choice("tensorflow", 64, 2),
    (Trial("tensorflow", 64, 2, rows_per_s=10.0), Trial("onnx", 64, 2, rows_per_s=20.0, difference=0.0)),
    key="found",
    made_for={"model": "digest", "hardware": [["cpu", "a CPU", 1], 2], "versions": {"keras": "3"}},
    budget_s=5.0,
    family="tables",
)


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": "many"}, {"rows_per_s": "fast"}, {"start_s": None}, {"budget_s": "5"}, {"left": 5}, {"left": ["nope"]},
        {"family": 5}, {"made_for": []}, {"made_for": None}, {"made_for": {"hardware": []}},
        {"made_for": {"hardware": [[]]}}, {"made_for": {"versions": "3"}}, {"trials": [{"runtime": 5}]},
        {"trials": [{"runtime": "nope"}]}, {"trials": [{"runtime": "onnx", "rows_per_s": "fast"}]},
        {"trials": [{"runtime": "onnx", "start_s": None}]}, {"choice": []},
    ],
)  # fmt: skip
def test_a_plan_with_wrong_types_is_as_if_it_were_not_there(
    damage: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    store.save_plan(WHOLE)
    assert store.load_plan("found") == plan_from_json(json.loads(json.dumps(WHOLE.as_json())), "")
    assert store.found_before("digest", "tensorflow", "cpu", "tables") == {"onnx": 2.0}
    (tmp_path / "plans" / "found.json").write_text(json.dumps(WHOLE.as_json() | damage))
    assert store.load_plan("found") is None
    assert store.found_before("digest", "tensorflow", "cpu", "tables") == {}
    assert store.describe_nearest({"model": "digest", "versions": {"keras": "4"}}) is None


@pytest.mark.parametrize("content", [None, b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe", b""])
def test_what_is_no_plan_hangs_and_breaks_nothing(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    (tmp_path / "plans").mkdir()
    path = tmp_path / "plans" / "found.json"
    os.mkfifo(path) if content is None else path.write_bytes(content)
    assert store.load_plan("found") is None
    assert store.found_before("digest", "tensorflow", "cpu", "tables") == {}
