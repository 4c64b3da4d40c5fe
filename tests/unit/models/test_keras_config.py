"""What in the description of a Keras model needs trust."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.models import keras_config


def layer(class_name: str, module: str | None = "keras.layers", **config: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"class_name": class_name, "config": {"name": "it", **config}}
    return described | ({"module": module, "registered_name": None} if module else {})


def function(module: str | None, name: str, registered: str | None = None) -> dict[str, Any]:
    return {"class_name": "function", "config": name, "module": module, "registered_name": registered or name}


def model(*layers: dict[str, Any]) -> dict[str, Any]:
    return {"class_name": "Sequential", "module": "keras", "config": {"layers": list(layers)}}


HARMLESS: list[dict[str, Any]] = [
    layer("Dense", units=3, activation="relu"),
    layer("Dense", units=3, activation=function("builtins", "relu")),
    layer("Dense", units=3, activation=function(None, "relu")),
    layer("Activation", activation=function("keras.ops", "tanh")),
    layer("Dense", None, units=3),
    layer("MyLayer", None),
    layer("Custom>MyLayer", None),
    layer("MyLayer", "my_code.layers") | {"registered_name": "mine>MyLayer"},
    layer("MyLayer", "__main__") | {"registered_name": "Custom>MyLayer"},
    layer("Dense", activation=function("my_code", "act", "mine>act")),
    layer("StringLookup", vocabulary=["a", "b"]),
    layer("StringLookup", vocabulary=None),
    layer("FeatureSpace", "keras.utils"),
    layer("TFOpLambda", None, function="math.multiply"),
    layer("TFOpLambda", None, function="nn.relu"),
    layer("TFOpLambda", None, function="concat"),
    layer("TFOpLambda", None, function="compat.v1.image.resize"),
    layer("SlicingOpLambda", None, function="__operators__.getitem"),
    layer("TensorFlowOpLayer", None, node_def={"op": "Mul"}),
    layer("TensorFlowOpLayer", None, node_def="\n\x01n\x12\x03Mul"),
    {"class_name": "__typespec__", "spec_name": "TensorSpec", "module": "tensorflow", "config": []},
]
REACHING: list[tuple[dict[str, Any], str]] = [
    (layer("Lambda", function={"class_name": "__lambda__", "config": {"code": "4wEA"}}), "marshalled Python code"),
    (layer("Lambda", function=function("keras.ops", "relu")), "layer 'it' is a Lambda"),
    (layer("Lambda", None, function=["4wEA", None, None], function_type="lambda"), "marshalled Python code"),
    (layer("Custom>Lambda", None), "is a Lambda"),
    (layer("Dense", activation={"class_name": "__lambda__", "config": {"value": "4wEA"}}), "marshalled Python code"),
    (layer("Dense", activation=function("os", "system")), "os.system"),
    (layer("Dense", activation=function("os", "system", "Custom>system")), "os.system"),
    (layer("Dense", activation=function("builtins", "eval")), "eval"),
    (layer("Dense", activation=function(None, "exec")), "exec"),
    (layer("Dense", activation=function("keras.utils", "get_file")), "keras.utils.get_file"),
    (layer("Dense", activation=function("keras.src.saving", "load_model")), "keras.src.saving.load_model"),
    (layer("Popen", "subprocess"), "subprocess.Popen"),
    (layer("MyLayer", "my_code"), "my_code.MyLayer"),
    (layer("CSVLogger", "keras.callbacks"), "keras.callbacks.CSVLogger"),
    (layer("TFSMLayer", filepath="/x"), "loads a SavedModel"),
    (layer("TorchModuleWrapper", module="gAJ"), "unpickles"),
    (layer("StringLookup", vocabulary="/etc/passwd"), "reads the file '/etc/passwd'"),
    (layer("TextVectorization", None, vocabulary="words.txt"), "reads the file"),
    (layer("TFOpLambda", None, function="io.write_file"), "tf.io.write_file"),
    (layer("TFOpLambda", None, function="raw_ops.WriteFile"), "tf.raw_ops.WriteFile"),
    (layer("TFOpLambda", None, function="py_function"), "tf.py_function"),
    (layer("TFOpLambda", None, function="compat.v1.py_func"), "tf.py_func"),
    (layer("TFOpLambda", None, function="keras.models.load_model"), "load_model"),
    (layer("TFOpLambda", None, function=["x"]), "not named"),
    (layer("TensorFlowOpLayer", None, node_def={"op": "WriteFile"}), "writes files: WriteFile"),
    (layer("TensorFlowOpLayer", None, node_def="\n\x01n\x12\x09WriteFile"), "writes files: WriteFile"),
    (layer("TensorFlowOpLayer", None, node_def="\x12"), "cannot be read"),
]


@pytest.mark.parametrize("described", HARMLESS)
def test_ordinary_layers_need_no_trust(described: dict[str, Any]) -> None:
    assert keras_config.needs_trust(model(described)) == []


@pytest.mark.parametrize(("described", "reason"), REACHING)
def test_layers_that_run_code_or_open_files_need_trust(described: dict[str, Any], reason: str) -> None:
    wrapped = layer("TimeDistributed", layer=model(described))
    assert reason in "; ".join(keras_config.needs_trust(model(wrapped)))


def test_what_the_model_was_compiled_with_is_left_out_at_the_top_only() -> None:
    compiled = model(layer("Dense")) | {"compile_config": {"loss": function("my_code", "loss")}}
    assert keras_config.needs_trust(compiled) == []
    assert keras_config.needs_trust(model(compiled)) == ["it calls the function my_code.loss"]


def test_deep_descriptions_are_walked_to_the_end() -> None:
    described = layer("Lambda")
    for _ in range(5000):
        described = {"config": [described]}
    assert keras_config.needs_trust(described) == ["layer 'it' is a Lambda"]


@pytest.mark.parametrize(
    ("described", "least"),
    [
        (layer("Dense", units=10) | {"build_config": {"input_shape": [None, 4]}}, 40),
        (layer("Dense", units=10), 10),
        (layer("Conv2D", filters=8), 8),
        (layer("Embedding", input_dim=100, output_dim=7), 700),
        (layer("Dense", units=None), 0),
        (layer("Rescaling"), 0),
    ],
)
def test_declared_weights_are_counted_from_below(described: dict[str, Any], least: int) -> None:
    assert keras_config.least_parameters(model(described)) == least
