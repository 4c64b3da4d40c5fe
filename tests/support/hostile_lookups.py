"""Models that try to get at code, files or all memory by what Keras and TensorFlow look up for them.

Written beside those of `hostile_models.py`, from the ordinary models that it makes.
"""

from __future__ import annotations

import base64
import json
import marshal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Change = Callable[[dict[str, Any]], None]


def lookups(hostile: Path, innocent: Path, folder: Path) -> None:
    keras_2_archives(hostile, innocent, folder)
    calls_by_symbol(hostile, innocent, folder)
    giants(hostile, innocent)
    graphs(hostile, innocent, folder)
    (folder / "operations.json").write_text(json.dumps(operations_with_texts()), encoding="utf-8")


def operations_with_texts() -> dict[str, list[str]]:
    """The operations that TensorFlow registers, with the names of their inputs and settings that may be texts."""
    from tensorflow.core.framework import op_def_pb2, types_pb2
    from tensorflow.python.client import pywrap_tf_session as session

    known = op_def_pb2.OpList.FromString(session.TF_GetBuffer(session.TF_GetAllOpList()))
    return {
        operation.name: [
            *(each.name for each in operation.input_arg if each.type in (types_pb2.DT_STRING, types_pb2.DT_INVALID)),
            *(each.name for each in operation.attr if each.type in ("string", "list(string)")),
        ]
        for operation in known.op
    }


def edited(source: Path, target: Path, change: Change) -> None:
    """A copy of a `.keras` file with its description changed."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    change(config)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in (members | {"config.json": json.dumps(config).encode()}).items():
            archive.writestr(name, content)


def _layer(config: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in config["config"]["layers"] if each["class_name"] == kind)
    return found


def keras_2_archives(hostile: Path, innocent: Path, folder: Path) -> None:
    """Archives of Keras 2, which only tf_keras loads: it imports the modules that they name."""
    import tf_keras

    layers = tf_keras.layers
    inputs = tf_keras.Input((1,), dtype="string")
    x = layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4)(inputs)
    x = layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(x))
    source = innocent / "of_keras_2.keras"
    tf_keras.Model(inputs, layers.Dense(2)(layers.ThresholdedReLU(0.1)(x))).save(source)

    mark = str(folder / "canary" / "unmarshalled")
    code = compile(f"lambda x: (open({mark!r}, 'w').write('ran') and None) or x", "", "eval").co_consts[0]
    unmarshalled = {
        "class_name": "core.Lambda",
        "module": "tensorflow.python.keras.layers",
        "registered_name": "a>b",
        "config": {
            "name": "l",
            "dtype": "string",
            "function": base64.encodebytes(marshal.dumps(code)).decode("ascii"),
            "function_type": "lambda",
            "arguments": {},
        },
    }
    (folder / "imported_by_a_model.py").write_text(f"open({str(folder / 'canary' / 'imported')!r}, 'w').write('ran')\n")
    module = {"module": "imported_by_a_model"}
    spec: dict[str, Any] = {
        "class_name": "__typespec__",
        "spec_name": "X",
        "registered_name": None,
        "config": [],
        **module,
    }
    misnamed = {"class_name": "function", "config": "f", "registered_name": "a>b", **module}
    registered = {"class_name": "function", "config": "f", "registered_name": "a>f", **module}

    def standardize(config: dict[str, Any]) -> None:
        _layer(config, "TextVectorization")["config"]["standardize"] = unmarshalled

    def input_dim(value: dict[str, Any]) -> Change:
        return lambda config: _layer(config, "Embedding")["config"].update(input_dim=value)

    edited(source, hostile / "unmarshals.keras", standardize)
    edited(source, hostile / "imports_for_a_spec.keras", input_dim(spec))
    edited(source, hostile / "imports_for_a_function.keras", input_dim(misnamed))
    # It looks like a function that its author registered: the file is opened, and the loader does not find it.
    edited(source, innocent / "registered_elsewhere.keras", input_dim(registered))


def calls_by_symbol(hostile: Path, innocent: Path, folder: Path) -> None:
    """Functions of TensorFlow that are called with constants while the model is put together."""
    for name, function, constant, others in (
        ("downloads.h5", "keras.utils.get_file", "got", {"origin": "file:///etc/hostname", "cache_dir": str(folder)}),
        ("loads_a_library.h5", "experimental.register_filesystem_plugin", str(folder / "evil.so"), {}),
        ("connects.h5", "compat.v1.Session", "grpc://127.0.0.1:1", {}),
        ("builds_another.h5", "keras.models.model_from_json", "{}", {}),
        ("samples_a_file.h5", "random.fixed_unigram_candidate_sampler", "", {"vocab_file": str(folder / "secret.txt")}),
    ):
        _call(innocent / "operator.h5", hostile / name, function, constant, others)


def _call(source: Path, target: Path, function: str, constant: str, others: dict[str, str]) -> None:
    import h5py

    target.write_bytes(source.read_bytes())
    with h5py.File(target, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        layer = _layer(config, "TFOpLambda")
        layer["config"]["function"] = function
        layer["inbound_nodes"] = [["_CONSTANT_VALUE", -1, constant, others]]
        file.attrs["model_config"] = json.dumps(config)


def giants(hostile: Path, innocent: Path) -> None:
    """Small files whose layers would take all memory, though no array in them is large."""
    import keras

    layers = keras.layers
    inputs = keras.Input((4,))
    source = innocent / "recurrent.keras"
    keras.Model(inputs, layers.Dense(2)(layers.LSTM(3)(layers.Reshape((4, 1))(inputs)))).save(source)

    def recurrent(config: dict[str, Any]) -> None:
        _layer(config, "LSTM")["config"]["units"] = 50_000
        _forget_shapes(config)

    def wide(config: dict[str, Any]) -> None:
        _layer(config, "InputLayer")["config"]["batch_shape"] = [None, 5_000_000_000]
        _forget_shapes(config)

    edited(source, hostile / "giant_recurrent.keras", recurrent)
    dense = innocent / "dense.keras"
    keras.Model(inputs, layers.Dense(2)(inputs)).save(dense)
    edited(dense, hostile / "giant_input.keras", wide)


def _forget_shapes(config: dict[str, Any]) -> None:
    for layer in config["config"]["layers"]:
        layer.pop("build_config", None)


def graphs(hostile: Path, innocent: Path, folder: Path) -> None:
    """Operations that write without being known for it, or by settings of their caller; and others that cannot run."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.identity(tf.compat.v1.placeholder(tf.float32, (None, 4), name="x") * 2.0, name="y")
        tf.constant("said", name="message")
    plain, dumping = graph.as_graph_def(), graph.as_graph_def()
    dump = dumping.node.add(name="dump", op="DumpTensor", input=["x"])
    for key, text in {"log_dir_path": str(folder / "canary"), "file_name": "dumped", "func_name": "f"}.items():
        dump.attr[key].s = text.encode()
    (hostile / "dumps.pb").write_bytes(dumping.SerializeToString())

    old = graph.as_graph_def()
    skipgram = old.node.add(name="words", op="Skipgram")
    skipgram.attr["filename"].s = str(folder / "secret.txt").encode()
    skipgram.attr["batch_size"].i = 1
    old.versions.producer = 18  # the last in which the operation was
    (hostile / "removed_operation.pb").write_bytes(old.SerializeToString())
    with tf.Graph().as_default() as giant:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
        tf.identity(x + tf.reduce_max(tf.fill([10**12], 1.0)), name="y")
    (innocent / "giant_constant.pb").write_bytes(giant.as_graph_def().SerializeToString())

    function = plain.library.function.add()
    function.signature.name = "says"
    function.signature.input_arg.add(name="text", type=7)
    function.signature.attr.add(name="where", type="string")
    said = function.node_def.add(name="said", op="PrintV2", input=["text"])
    said.attr["output_stream"].placeholder = "where"
    call = plain.node.add(name="call", op="says", input=["message"])
    call.attr["where"].s = f"file://{folder / 'canary' / 'said'}".encode()
    (hostile / "prints_by_its_caller.pb").write_bytes(plain.SerializeToString())
