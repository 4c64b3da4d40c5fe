"""Lower precision only where it was asked for, and then really; XLA where it was asked for, or a refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ENVIRONMENT

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "lower_precision.py"


def run(framework: str, models: Path) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), framework, str(models)],
        env=ENVIRONMENT | {"KERAS_BACKEND": framework, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def on_tensorflow(models: Path) -> dict[str, Any]:
    return run("tensorflow", models)


@pytest.fixture(scope="module")
def on_jax(models: Path) -> dict[str, Any]:
    return run("jax", models)


@pytest.fixture(params=["on_tensorflow", pytest.param("on_jax", marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    ran: dict[str, Any] = request.getfixturevalue(request.param)
    return ran


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Relative to the spread of the first."""
    expected = np.array(one["answers"])
    return float(np.abs(expected - np.array(other["answers"])).max() / np.ptp(expected))


def test_model_precision_multiplies_in_float32(found: dict[str, Any]) -> None:
    assert found["model"]["dtypes"] in (["float32"], ["f32"])
    assert found["model"]["notes"] == []


@pytest.mark.slow
def test_tensorflow_and_jax_agree_in_float32(on_tensorflow: dict[str, Any], on_jax: dict[str, Any]) -> None:
    assert difference(on_tensorflow["model"], on_jax["model"]) < 1e-5


@pytest.mark.parametrize(("precision", "short"), [("bfloat16", "bf16"), ("float16", "f16")])
def test_sixteen_bits_are_really_computed_in(found: dict[str, Any], precision: str, short: str) -> None:
    lowered = found[precision]
    assert lowered["dtypes"] in ([precision], [short])
    assert lowered["dtype"] == "float32"
    assert lowered["notes"] == [f"computes in {precision}: 3 of 3 layers with weights"]
    assert 1e-5 < difference(found["model"], lowered) < 0.05


def test_int8_quantizes_what_can_be(found: dict[str, Any]) -> None:
    assert found["int8"]["notes"] == ["computes in int8: 2 of 3 layers with weights"]
    assert 1e-5 < difference(found["model"], found["int8"]) < 0.05
    assert found["int8"]["dtype"] == "float32"


def test_a_model_without_such_layers_is_told_what_it_has(found: dict[str, Any]) -> None:
    for precision in ("int8", "bfloat16"):
        refused = found[f"no layers, {precision}"]
        assert refused["error"] == "ModelError"
        assert refused["received"] == "InputLayer ×1, GlobalAveragePooling2D ×1"


def test_strings_and_whole_numbers_stay_what_they_are(on_tensorflow: dict[str, Any]) -> None:
    words = on_tensorflow["words"]
    assert (words["dtype"], words["dtypes"]) == ("float32", ["bfloat16"])
    assert np.array(words["answers"]).shape == (3, 2)


def test_a_graph_keeps_its_precision_and_says_who_could_change_it(on_tensorflow: dict[str, Any]) -> None:
    refused = on_tensorflow["saved model"]
    assert refused["error"] == "ModelError"
    assert refused["received"] == "--precision bfloat16 for a model of kind saved_model"


def test_xla_on_a_cpu_agrees(on_tensorflow: dict[str, Any]) -> None:
    assert difference(on_tensorflow["model"], on_tensorflow["xla"]) < 1e-5


def test_whole_numbers_inside_a_model_keep_their_64_bits(found: dict[str, Any]) -> None:
    expected = np.arange(10_000, 10_064) * 1_000_003 % 9973
    np.testing.assert_array_equal(np.array(found["wide"]["answers"])[:, 0], expected)


def test_what_xla_does_not_compile_is_refused_and_not_run_otherwise(on_tensorflow: dict[str, Any]) -> None:
    refused = on_tensorflow["xla of strings"]
    assert (refused["error"], refused["problem"]) == ("RefusedByRuntime", "XLA does not compile this model")


@pytest.mark.slow
def test_jax_says_what_a_batch_takes_without_running_it(on_jax: dict[str, Any]) -> None:
    model = on_jax["model"]
    once, twice = model["predicted"]
    assert 64 * 64 < once < twice < 2 * once
    assert model["compiled"] == [1, 2]  # what was run already was not compiled again
    assert model["peak"] is None  # on a CPU all memory is that of the process
