"""What a search expects decides what it tries, in which order, and how long it may take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.planning.candidates import Candidate
from penstock.planning.outlook import LIGHT_START_S, LOOK_S, Outlook, expected_gains
from tests.support.converted_steps import write_step

OTHERS = [Candidate("openvino", True), Candidate("onnx", True), Candidate("jax"), Candidate("torch")]


def outlook(gains: dict[str, float], folder: Path) -> Outlook:
    return Outlook.of(OTHERS, gains, 5.0, 8_000_000, str(folder))


def test_the_most_promising_comes_first_and_what_is_unknown_by_its_rank(tmp_path: Path) -> None:
    found = outlook({"onnx": 2.0, "jax": 0.5}, tmp_path)
    assert [each.runtime for each in found.candidates] == ["onnx", "openvino", "torch", "jax"]


def test_a_step_that_must_be_converted_first_costs_time(tmp_path: Path) -> None:
    found = outlook({"openvino": 2.0}, tmp_path)
    assert found.conversion_s == pytest.approx(2.0)
    assert found.cost_s("openvino") == LIGHT_START_S + LOOK_S
    assert found.cost_s("jax") == 5.0 + LOOK_S
    # Half of 145 s can be saved, and six tenths of that be spent; half of 12 s does not pay for 4 s.
    assert found.budget(145.0).seconds == pytest.approx(43.5)
    assert found.budget(12.0).seconds == 0.0
    write_step(tmp_path, b"step")
    assert outlook({"openvino": 2.0}, tmp_path).budget(12.0).seconds == pytest.approx(3.6)


def test_a_plan_that_is_known_leaves_less_to_gain(tmp_path: Path) -> None:
    found = outlook({"openvino": 2.0}, tmp_path)
    assert found.budget(60.0).is_by_gain
    assert not found.budget(60.0, faster=1.9).is_by_gain
    assert not found.budget(60.0, first_s=20.0).is_by_gain


def test_a_short_job_searches_for_the_next_where_two_of_those_pay_for_it(tmp_path: Path) -> None:
    found = outlook({"openvino": 2.0}, tmp_path)
    assert found.for_the_next_s(6.0) == LOOK_S + 2.0 + LIGHT_START_S + LOOK_S
    assert found.for_the_next_s(4.0) == 0.0  # the job is shorter than the search
    assert replace(found, heavy_start_s=3.0).for_the_next_s(6.0) == 0.0
    assert replace(found, candidates=(Candidate("jax"),)).for_the_next_s(6.0) == 0.0


def test_a_look_must_be_able_to_save_more_than_it_takes(tmp_path: Path) -> None:
    found = outlook({"openvino": 2.0, "onnx": 1.6, "jax": 0.7}, tmp_path)
    assert found.is_worth_a_look("openvino", 40.0, 40.0, 6_000)
    assert found.is_worth_a_look("onnx", 40.0, 60.0, 6_000)
    assert not found.is_worth_a_look("onnx", 40.0, 90.0, 6_000)
    assert not found.is_worth_a_look("jax", 40.0, 40.0, 6_000_000)
    assert not found.is_worth_a_look("openvino", 40.0, 40.0, 60)


def test_what_one_runtime_of_the_converted_step_gains_and_takes_is_expected_of_the_others(tmp_path: Path) -> None:
    found = outlook({"openvino": 2.0, "onnx": 1.6, "jax": 0.7}, tmp_path)
    assert found.is_worth_a_look("onnx", 20.0, 33.0, 1_000)
    known = found.after("openvino", 1.62, 5.0)
    assert known.gain("onnx") == pytest.approx(1.6 * 0.9)
    assert known.cost_s("onnx") == 5.0
    assert not known.is_worth_a_look("onnx", 20.0, 33.0, 1_000)
    assert known.is_worth_a_look("onnx", 20.0, 33.0, 10_000)
    assert (known.gain("jax"), known.cost_s("jax")) == (found.gain("jax"), found.cost_s("jax"))
    assert found.after("jax", 0.1, 30.0) == found


def test_usual_gains_are_those_over_tensorflow_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    gains = expected_gains("digest", "tensorflow", "cpu", "images")
    assert gains["openvino"] > gains["onnx"] > 1 > gains["jax"]
    assert expected_gains("digest", "tensorflow", "gpu", "images") == {}
    assert expected_gains("digest", "jax", "cpu", "images") == {}
