"""Agreement by noise: a runtime as near to the truth as the model's own framework is taken, a wrong one is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ENVIRONMENT, Penstock, summary_of
from tests.support.converted_steps import write_step

ROOT = Path(__file__).parents[2]
NARROW = ("--batch-size", 16, "--threads", 1, "--devices", "cpu:1")
LIGHT = {"HIDDEN": "jax"}
"""Without the runtimes that take long to start and are tried as any other."""


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with noisy.keras, photos.npy and found.json."""
    folder = tmp_path_factory.mktemp("noisy")
    quiet = ENVIRONMENT | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.support.noisy_models", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=quiet, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def planned(noisy: Path, cache: Path, penstock_run: Penstock) -> dict[str, Any]:
    job = ("plan", noisy / "noisy.keras", noisy / "photos.npy", *NARROW)
    ran = penstock_run(*job, "--json", environment=LIGHT | {"PENSTOCK_CACHE": str(cache)})
    assert ran.returncode == 0, ran.stderr
    shown = penstock_run(*job, environment=LIGHT | {"PENSTOCK_CACHE": str(cache)})
    found: dict[str, Any] = json.loads(ran.stdout)
    return found | {"said": ran.stderr, "shown": shown.stdout}


def test_a_graph_is_computed_in_float64_where_it_can_be(noisy: Path) -> None:
    found = json.loads((noisy / "found.json").read_text(encoding="utf-8"))
    for name in ("noisy", "loop", "fused"):
        assert found[name]["dtypes"] == ["float64"]
    assert 2e-5 < found["noisy"]["share"] < 1e-2
    assert 0 < found["loop"]["share"] < 1e-6
    assert 0 < found["fused"]["share"] < 1e-6
    assert set(found) == {"noisy", "loop", "fused", "resized", "short"}


def test_a_runtime_that_is_no_noisier_than_the_framework_is_taken(planned: dict[str, Any]) -> None:
    measured = {trial["runtime"]: trial for trial in planned["trials"] if trial["rows_per_s"]}
    others = [trial for name, trial in measured.items() if name != "tensorflow"]
    assert max(trial["difference"] for trial in others) > 1e-4
    assert all(trial["difference"] <= trial["allowed"] <= 1e-3 for trial in others)
    assert planned["noise"] > 2e-5
    assert planned["noise_from"] == "its answers in float64"


def test_the_plan_shows_both_figures(planned: dict[str, Any]) -> None:
    assert (
        f"tensorflow itself is {planned['noise']:.1e} of the spread away from its answers in float64"
        in planned["shown"]
    )
    trial = next(each for each in planned["trials"] if each["rows_per_s"] and each["difference"])
    assert f"{trial['difference']:.1e}\n" in planned["shown"]
    assert f"allowed is {trial['allowed']:.1e}" in planned["shown"]


def test_a_converted_step_that_agrees_by_noise_is_compared_once_and_passes_the_check(
    planned: dict[str, Any], noisy: Path, cache: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    job = ("predict", noisy / "noisy.keras", noisy / "photos.npy", "--runtime", "onnx", "--batch-size", 16)
    ran = penstock_run(*job, "--output", tmp_path / "out", "--check", environment={"PENSTOCK_CACHE": str(cache)})
    assert ran.returncode == 0, ran.stderr
    assert "comparing" not in ran.stderr
    assert "checked: 16 rows are as tensorflow on the CPU gives each of them alone" in ran.stderr


def test_who_asks_for_less_difference_than_the_default_gets_it(
    planned: dict[str, Any], noisy: Path, cache: Path, tmp_path: Path, penstock_run: Penstock
) -> None:
    job = ("predict", noisy / "noisy.keras", noisy / "photos.npy", "--runtime", "onnx", "--output", tmp_path / "out")
    ran = penstock_run(*job, "--tolerance", "1e-6", environment={"PENSTOCK_CACHE": str(cache)})
    assert ran.returncode == 6
    assert "the answers are not those of the model's own framework" in ran.stderr


def rounded_to_float16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(np.float16).astype(np.float32)


def slightly_altered(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values * np.float32(1.002)


@pytest.mark.parametrize("change", [rounded_to_float16, slightly_altered])
@pytest.mark.parametrize("model", ["noisy", pytest.param("digits", marks=pytest.mark.slow)])
def test_a_wrong_runtime_is_refused_however_noisy_the_model_is(
    change: Callable[[Any], Any],
    model: str,
    planned: dict[str, Any],
    noisy: Path,
    models: Path,
    digits: Path,
    cache: Path,
    tmp_path: Path,
    penstock_run: Penstock,
) -> None:
    """All weights of the converted network are altered behind penstock's back."""
    own = {"PENSTOCK_CACHE": str(cache if model == "noisy" else tmp_path / "cache")}
    files = (noisy / "noisy.keras", noisy / "photos.npy") if model == "noisy" else (models / "digits.keras", digits)
    job = ("predict", *files, "--runtime", "onnx", "--limit", 64)
    if model == "digits":
        assert summary_of(penstock_run(*job, "--output", tmp_path / "right", "--json", environment=own))["rows"] == 64
    with altered(Path(own["PENSTOCK_CACHE"]), change):
        ran = penstock_run(*job, "--output", tmp_path / "wrong", environment=own)
    assert ran.returncode == 6
    assert "the answers are not those of the model's own framework" in ran.stderr


@contextmanager
def altered(cache: Path, change: Callable[[Any], Any]) -> Iterator[None]:
    """The only converted step of a cache with other weights, and without what is known of it."""
    import onnx
    from onnx import numpy_helper

    (folder,) = (cache / "converted").iterdir()
    file = folder / "model.onnx"
    whole = file.read_bytes()
    network = onnx.load(str(file))
    for weights in network.graph.initializer:
        values = numpy_helper.to_array(weights)
        if values.dtype == np.float32 and values.size > 1:
            weights.CopyFrom(numpy_helper.from_array(change(values), weights.name))
    write_step(folder, network.SerializeToString())
    for mark in folder.glob("agreed-*"):
        mark.unlink()
    try:
        yield
    finally:
        write_step(folder, whole)
