"""What in the description of a Keras model needs trust."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.models.scan import keras_config, keras_size


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
    layer("Dense", activation=function("keras.src.activations.activations", "relu")),
    layer("Dense", activation=function("builtins", "mine>act", "function")),
    layer("TFOpLambda", None, function="keras.backend.mean"),
    layer("TFOpLambda", None, function="keras.losses.binary_crossentropy"),
    layer("TFOpLambda", None, function="linalg.matmul"),
    layer("TFOpLambda", None, function="math.special.dawsn"),
    layer("TFOpLambda", None, function="io.decode_jpeg"),
    layer("ClassMethod", None, cls_symbol="RaggedTensor", method_name="from_row_splits"),
    layer("InstanceMethod", None, attr_name="to_tensor"),
    layer("InstanceProperty", None, attr_name="values"),
    layer("ResidualWrapper", None, function_type="function", function="add"),
]
UNMARSHALS = {"function": "4wEA", "function_type": "lambda"}
SPEC: dict[str, Any] = {"class_name": "__typespec__", "spec_name": "X", "registered_name": None, "config": []}
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
    # a class by a path, under another name, or under the name that it was registered with
    (layer("core.Lambda", "tensorflow.python.keras.layers") | {"registered_name": "a>b"}, "is a Lambda"),
    (layer("core.Dense", "keras.layers"), "by a path: core.Dense"),
    (layer("Harmless", "keras.layers") | {"registered_name": "Lambda"}, "is a Lambda"),
    (layer("Dense", activation=function("keras", "utils.get_file")), "by a path: utils.get_file"),
    # code as a text, and under other keys than those of a Lambda
    (layer("Mine", None, **UNMARSHALS), "marshalled Python code"),
    (layer("ResidualWrapper", None, residual_fn="4wEA", residual_fn_type="lambda"), "marshalled Python code"),
    # modules that would be imported
    (SPEC | {"module": "their_code"}, "their_code.X"),
    (layer("Dense", activation=function("their_code", "f", "a>b")), "their_code.f"),
    (layer("MyLayer", "their_code") | {"registered_name": "a>Other"}, "their_code.MyLayer"),
    (layer("Mine", "tensorflow.python.keras.layers") | {"registered_name": "a>Mine"}, "tensorflow.python.keras"),
    (layer("Dense", activation=function("keras.models", "load_model")), "keras.models.load_model"),
    (layer("Dense", activation=function("builtins", "map")), "Python function map"),
    (layer("Columns", None, ckpt_to_load_from="/etc/x"), "reads the file '/etc/x'"),
    # functions of TensorFlow that do more than compute
    (layer("TFOpLambda", None, function="keras.utils.get_file"), "tf.keras.utils.get_file"),
    (layer("TFOpLambda", None, function="experimental.register_filesystem_plugin"), "register_filesystem_plugin"),
    (layer("TFOpLambda", None, function="compat.v1.Session"), "tf.Session"),
    (layer("TFOpLambda", None, function="random.fixed_unigram_candidate_sampler"), "fixed_unigram"),
    (layer("TFOpLambda", None, function="keras.models.model_from_json"), "model_from_json"),
    (layer("TFOpLambda", None, function="quantization.experimental.quantize_saved_model"), "quantize_saved_model"),
    (layer("TFOpLambda", None, function="raw_ops.PrintV2"), "tf.raw_ops.PrintV2"),
    (layer("TFOpLambda", None, function="io.decode_proto"), "tf.io.decode_proto"),
    (layer("TFOpLambda", None, function="keras.backend.set_floatx"), "set_floatx"),
    (layer("ClassMethod", None, function="nn.relu", cls_symbol="io.gfile.GFile", method_name="x"), "gfile.GFile.x"),
    (layer("ClassMethod", None, cls_symbol="RaggedTensor", method_name="__reduce__"), "RaggedTensor.__reduce__"),
    (layer("InstanceProperty", None, attr_name="graph"), "the attribute graph"),
    (layer("TensorFlowOpLayer", None, node_def={"op": "FixedUnigramCandidateSampler"}), "FixedUnigram"),
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


def test_modules_that_the_user_named_are_fine_but_what_runs_code_is_not() -> None:
    mine = [layer("MyLayer", "my_code.layers"), layer("Dense", activation=function("my_code", "act"))]
    assert keras_config.needs_trust(model(*mine), own=("my_code",)) == []
    assert keras_config.needs_trust(model(layer("Lambda", "my_code")), own=("my_code",)) == ["layer 'it' is a Lambda"]
    assert keras_config.needs_trust(model(layer("MyLayer", "my_code_too")), own=("my_code",))


GIVEN_BY_INPUT = {"inbound_nodes": [[["input", 0, 0, {}]]]}
GIVEN_BY_KERAS_3 = {
    "inbound_nodes": [
        {"args": [{"class_name": "__keras_tensor__", "config": {"shape": [], "keras_history": ["input", 0, 0]}}]}
    ]
}


@pytest.mark.parametrize(
    ("described", "least"),
    [
        (layer("Dense", units=10) | {"build_config": {"input_shape": [None, 4]}}, 40),
        (layer("Dense", units=10), 10),
        (layer("Dense", units=10) | GIVEN_BY_INPUT, 5000),
        (layer("Dense", units=10) | GIVEN_BY_KERAS_3, 5000),
        (layer("Conv2D", filters=8), 8),
        (layer("Conv2D", filters=8, kernel_size=[3, 5]), 120),
        (layer("DepthwiseConv2D", kernel_size=[3, 3], depth_multiplier=2), 18),
        (layer("Embedding", input_dim=100, output_dim=7), 700),
        (layer("LSTM", units=10), 440),
        (layer("Custom>GRUCell", units=10), 330),
        (layer("MultiHeadAttention", num_heads=4, key_dim=50), 200),
        (layer("Dense", units=None), 0),
        (layer("Rescaling"), 0),
    ],
)
def test_declared_weights_are_counted_from_below(described: dict[str, Any], least: int) -> None:
    given = {"class_name": "InputLayer", "config": {"name": "input", "batch_shape": [None, 500]}}
    assert keras_size.least_parameters(model(given, described)) == least
