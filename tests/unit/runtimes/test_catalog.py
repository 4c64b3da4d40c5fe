"""Which runtime executes which model, and which of them a plan tries instead."""

from __future__ import annotations

import pytest

from penstock.core.kinds import Package
from penstock.core.records import ModelFile, Recipe
from penstock.errors import ModelError
from penstock.planning.candidates import can_convert, candidates, needs_conversion
from penstock.runtimes.catalog import choose_runtime, executes, like, own_runtime

KERAS = ModelFile("keras", "m.keras", "", ("tensorflow", "jax", "torch", "tf_keras"))
ONNX = ModelFile("onnx", "m.onnx", "", ("onnx",))


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every library is installed: looking for one is looking at a framework."""
    monkeypatch.setattr(Package, "version", property(lambda self: "1.0"))


def test_variants_execute_what_their_runtime_does() -> None:
    found = [name for name in ("onnx", "openvino", "onnx-tensorrt", "jax", "tflite") if executes(ONNX, name)]
    assert found == ["onnx", "openvino", "onnx-tensorrt"]


def test_runtime_that_reads_other_models_is_refused_with_those_that_do() -> None:
    with pytest.raises(ModelError) as caught:
        choose_runtime(ONNX, "tflite")
    assert caught.value.allowed == "onnx"


def test_runtimes_with_one_keras_load_the_same_models() -> None:
    assert like(KERAS, "jax")[:3] == ["tensorflow", "jax", "torch"]
    assert "tensorflow-xla" in like(KERAS, "jax")
    assert like(KERAS, "tf_keras") == ["tf_keras"]
    assert {"onnx", "openvino"} <= set(like(ONNX, "onnx"))


@pytest.mark.parametrize(
    ("used", "own"), [("jax", "tensorflow"), ("tensorflow-xla", "tensorflow"), ("tf_keras", "tf_keras")]
)
def test_keras_models_count_as_those_of_tensorflow_unless_only_tf_keras_reads_them(used: str, own: str) -> None:
    assert own_runtime(KERAS, used) == own


def test_converted_files_are_compared_with_the_framework_of_their_model() -> None:
    assert own_runtime(KERAS, "openvino") == "tensorflow"
    assert own_runtime(ONNX, "openvino") == "onnx"


def tried(model: ModelFile, own: str, device_kind: str) -> set[str]:
    return {candidate.runtime for candidate in candidates(model, Recipe(own, device_kind, 32, 1), ())}


def test_plan_tries_what_loads_the_model_alike_or_reads_its_converted_step() -> None:
    assert tried(KERAS, "tensorflow", "cpu") == {
        "openvino", "onnx", "jax", "tensorflow-xla", "torch-compiled", "torch",
    }  # fmt: skip
    assert tried(KERAS, "tensorflow", "gpu") == {"jax", "onnx-tensorrt", "onnx", "torch-compiled", "torch"}
    assert tried(KERAS, "tf_keras", "cpu") == {"openvino", "onnx"}
    assert tried(ONNX, "onnx", "cpu") == {"openvino"}


def test_most_promising_runtime_comes_first() -> None:
    ready = [each.runtime for each in candidates(KERAS, Recipe("tensorflow", "cpu", 32, 1), ())]
    assert ready == ["openvino", "onnx", "jax", "tensorflow-xla", "torch-compiled", "torch"]


def test_runtimes_that_compile_each_size_are_not_tried_on_rows_of_many_sizes() -> None:
    recipe = Recipe("tensorflow", "cpu", 32, 1, is_padded=False)
    found = {each.runtime: each.why_not for each in candidates(KERAS, recipe, ())}
    assert "compiles anew" in (found["jax"] or "")
    assert "compiles anew" not in (found["onnx"] or "")


def test_steps_of_tensorflow_are_converted_but_not_those_of_models_that_a_function_builds() -> None:
    assert can_convert(KERAS, "tensorflow")
    assert not can_convert(KERAS, "jax")
    assert not can_convert(ModelFile("builder", "m:f", "", KERAS.runtimes), "tensorflow")
    assert needs_conversion(KERAS, "openvino")
    assert not needs_conversion(ONNX, "openvino")
