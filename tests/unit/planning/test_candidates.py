"""What a plan may try: what is missing is named, together with the line that installs it."""

from __future__ import annotations

import pytest

from penstock.core import kinds
from penstock.core.kinds import Package
from penstock.core.records import ModelFile, Recipe
from penstock.planning.candidates import candidates
from penstock.pool.devices import runtime_probe

KERAS = ModelFile("keras", "model.keras", "digest", ("tensorflow", "jax"))
BUILT = ModelFile("builder", "zoo:build", "digest", ("tensorflow", "jax"))
CONVERT = "pip install 'penstock[convert]'"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which distributions are installed, for once."""
    names = {"tensorflow", "jax", "openvino", "tf2onnx", "onnxruntime"}

    def version(package: Package) -> str | None:
        return "1.0" if names & set(package.distributions) else None

    monkeypatch.setattr(Package, "version", property(version))
    return names


def reasons(model: ModelFile, own: str) -> dict[str, str | None]:
    return {each.runtime: each.why_not for each in candidates(model, Recipe(own, "cpu", 32, 1), ())}


def test_everything_is_tried_where_everything_is_there(installed: set[str]) -> None:
    assert kinds.missing_to_convert() is None
    tried = reasons(KERAS, "tensorflow")
    assert tried["openvino"] is None
    assert tried["onnx"] is None
    assert runtime_probe._verdict("openvino", kinds.runtime("openvino"), "cpu", None) == "yes, 1.0"


def test_without_the_converter_the_plan_and_the_devices_name_it(installed: set[str]) -> None:
    installed.remove("tf2onnx")
    assert reasons(KERAS, "tensorflow")["openvino"] == f"it needs a converted model, and that needs tf2onnx: {CONVERT}"
    verdict = runtime_probe._verdict("openvino", kinds.runtime("openvino"), "cpu", None)
    assert verdict == f"yes, 1.0; Keras and TensorFlow models need tf2onnx: {CONVERT}"
    assert runtime_probe._verdict("jax", kinds.runtime("jax"), "cpu", None) == "yes, 1.0"


def test_without_tensorflow_the_plan_names_it_too(installed: set[str]) -> None:
    installed -= {"tensorflow", "tf2onnx"}
    told = reasons(KERAS, "jax")["openvino"]
    assert told is not None
    assert told.endswith(f"needs tensorflow and tf2onnx: pip install 'penstock[tensorflow]', {CONVERT}")


def test_runtime_that_is_missing_itself_comes_first(installed: set[str]) -> None:
    installed -= {"openvino", "tf2onnx"}
    assert reasons(KERAS, "tensorflow")["openvino"] == "not installed: pip install 'penstock[openvino]'"


def test_models_that_are_never_converted_ask_for_no_converter(installed: set[str]) -> None:
    installed.remove("tf2onnx")
    assert "openvino" not in reasons(BUILT, "tensorflow")
    assert "openvino" not in reasons(BUILT, "jax")
