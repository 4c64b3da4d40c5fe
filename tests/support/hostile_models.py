"""Writes models that try to run code or reach files, and ordinary ones that only look as if they might.

`python -m tests.support.hostile_models FOLDER` fills `FOLDER/hostile` and `FOLDER/innocent`. Whatever runs leaves its
mark in `FOLDER/canary`. Each is made by the real framework and then, where that would refuse, changed in its files.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.core.records import ModelFile
from penstock.runtimes.environment import lean_imports
from tests.support.hostile_lookups import lookups

_FEATURES = 4


def main(folder: Path) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    hostile, innocent = folder / "hostile", folder / "innocent"
    hostile.mkdir()
    innocent.mkdir()
    (folder / "canary").mkdir()
    (folder / "secret.txt").write_text("secret\n", encoding="utf-8")
    keras_files(hostile, innocent, folder)
    h5_files(hostile, innocent, folder)
    saved_models(hostile, innocent, folder)
    first_generation(hostile, innocent, folder)
    frozen_graphs(hostile, innocent, folder)
    onnx_models(hostile, innocent)
    tflite_models(hostile, innocent)
    exports_of_jax(innocent)
    lookups(hostile, innocent, folder)
    for mark in (folder / "canary").iterdir():
        mark.unlink()  # Keras called some of the functions while the models were made


def _code(folder: Path, name: str) -> Callable[[Any], Any]:
    """A lambda that leaves a mark when it runs. Its text has everything in it: only the code object is saved."""
    mark = str(folder / "canary" / name)
    made: Callable[[Any], Any] = eval(f"lambda x: (open({mark!r}, 'w').write('ran') and None) or x * 2")
    return made


# ---- .keras


def keras_files(hostile: Path, innocent: Path, folder: Path) -> None:
    with lean_imports(ModelFile("keras", "", "", ()), "tensorflow"):
        import keras

    layers = keras.layers
    lambda_layer = layers.Lambda(_code(folder, "lambda"), output_shape=(_FEATURES,))
    keras.Sequential([keras.Input((_FEATURES,)), lambda_layer]).save(hostile / "lambda.keras")
    plain = innocent / "plain.keras"
    model = keras.Sequential([keras.Input((_FEATURES,)), layers.Dense(3, activation="relu", name="dense")])
    model.compile(loss=lambda y, p: p, optimizer="sgd")  # what it was compiled with is never loaded
    model.save(plain)
    words = layers.StringLookup(vocabulary=["a", "b"])
    keras.Sequential([keras.Input((1,), dtype="string"), words, layers.Embedding(3, 2)]).save(innocent / "words.keras")

    def activation(module: str, name: str) -> Callable[[Any], None]:
        spec = {"module": module, "class_name": "function", "config": name, "registered_name": name}
        return lambda config: config["config"]["layers"][1]["config"].update(activation=spec)

    def units(config: Any) -> None:
        config["config"]["layers"][1]["config"]["units"] = 10**12

    def vocabulary(config: Any) -> None:
        config["config"]["layers"][1]["config"]["vocabulary"] = str(folder / "secret.txt")

    _edited(plain, hostile / "os_system.keras", activation("os", "system"))
    _edited(plain, hostile / "eval.keras", activation("builtins", "eval"))
    _edited(plain, hostile / "get_file.keras", activation("keras.utils", "get_file"))
    _edited(plain, hostile / "giant_layer.keras", units)
    _edited(innocent / "words.keras", hostile / "vocabulary.keras", vocabulary)
    _edited(plain, hostile / "climbing.keras", extra={"assets/../../canary/climbed": b"ran", "../canary/up": b"ran"})
    _edited(plain, hostile / "giant_array.keras", weights=_giant_array)
    _edited(plain, hostile / "external_array.keras", weights=lambda path: _external_array(path, folder))


def _edited(
    source: Path,
    target: Path,
    change: Callable[[Any], None] | None = None,
    extra: dict[str, bytes] | None = None,
    weights: Callable[[Path], None] | None = None,
) -> None:
    """A copy of a `.keras` file with its description, its members or its weights changed."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if change is not None:
        config = json.loads(members["config.json"])
        change(config)
        members["config.json"] = json.dumps(config).encode()
    if weights is not None:
        path = target.with_suffix(".weights.h5")
        path.write_bytes(members["model.weights.h5"])
        weights(path)
        members["model.weights.h5"] = path.read_bytes()
        path.unlink()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in (members | (extra or {})).items():
            archive.writestr(name, content)


# ---- .h5


def h5_files(hostile: Path, innocent: Path, folder: Path) -> None:
    import h5py
    import tf_keras

    layers = tf_keras.layers

    def saved(model: Any, path: Path) -> None:
        model.save(path, save_format="h5")

    plain = innocent / "plain.h5"
    saved(tf_keras.Sequential([layers.Input((_FEATURES,)), layers.Dense(3, name="dense")]), plain)
    saved(
        tf_keras.Sequential([layers.Input((_FEATURES,)), layers.Lambda(_code(folder, "marshalled"))]),
        hostile / "marshalled.h5",
    )
    inputs = tf_keras.Input((_FEATURES,))
    saved(tf_keras.Model(inputs, inputs * 2.0), innocent / "operator.h5")
    secret = folder / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["kernel"] = [[1.0] * 3] * _FEATURES

    for name, change in {
        "external_link.h5": _external_link(secret),
        "external_array.h5": lambda path: _external_array(path, folder),
        "virtual_array.h5": _virtual_array(secret),
        "giant_array.h5": _giant_array,
        "writes_by_symbol.h5": _symbol("io.write_file", innocent / "operator.h5"),
    }.items():
        target = hostile / name
        target.write_bytes(plain.read_bytes())
        change(target)


def _array_in(file: Any) -> tuple[Any, str]:
    """The group and the name of a model's first matrix."""
    import h5py

    found: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and len(item.shape) == 2:
            found.append(name)

    file.visititems(visit)
    group, _, name = found[0].rpartition("/")
    return file[group], name


def _giant_array(path: Path) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        group, name = _array_in(file)
        del group[name]
        group.create_dataset(name, shape=(10**6, 10**6), chunks=(1000, 1000), dtype="f4")


def _external_array(path: Path, folder: Path) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        group, name = _array_in(file)
        del group[name]
        values = [(str(folder / "secret.txt"), 0, h5py.h5f.UNLIMITED)]
        group.create_dataset(name, shape=(_FEATURES, 3), dtype="f4", external=values)


def _external_link(secret: Path) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        import h5py

        with h5py.File(path, "r+") as file:
            group, name = _array_in(file)
            del group[name]
            group[name] = h5py.ExternalLink(str(secret), "/kernel")

    return change


def _virtual_array(secret: Path) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        import h5py

        with h5py.File(path, "r+") as file:
            group, name = _array_in(file)
            del group[name]
            layout = h5py.VirtualLayout((_FEATURES, 3), "f4")
            layout[:] = h5py.VirtualSource(str(secret), "kernel", (_FEATURES, 3))
            group.create_virtual_dataset(name, layout)

    return change


def _symbol(function: str, source: Path) -> Callable[[Path], None]:
    """A layer that names a function of TensorFlow, given another name."""

    def change(path: Path) -> None:
        import h5py

        path.write_bytes(source.read_bytes())
        with h5py.File(path, "r+") as file:
            config = str(file.attrs["model_config"])
            assert "math.multiply" in config
            file.attrs["model_config"] = config.replace("math.multiply", function)

    return change


# ---- SavedModels


def saved_models(hostile: Path, innocent: Path, folder: Path) -> None:
    import tensorflow as tf

    def save(name: str, body: Callable[[Any], Any], where: Path = hostile) -> None:
        module = tf.Module()
        module.weight = tf.Variable(tf.ones((_FEATURES,)))
        module.serve = tf.function(
            lambda x: {"y": body(x) * module.weight},
            input_signature=[tf.TensorSpec((None, _FEATURES), tf.float32, name="x")],
        )
        tf.saved_model.save(module, str(where / name), signatures=module.serve)

    def after(operation: Callable[[], Any]) -> Callable[[Any], Any]:
        def body(x: Any) -> Any:
            with tf.control_dependencies([operation()]):
                return tf.identity(x)

        return body

    def mark(name: str) -> str:
        return str(folder / "canary" / name)

    def debug(x: Any) -> Any:
        return tf.raw_ops.DebugIdentityV2(
            input=x, tfdbg_context_id="a", op_name="b", output_slot=0, tensor_debug_mode=2,
            debug_urls=[f"file://{mark('debug')}"],
        )  # fmt: skip

    def in_a_branch(x: Any) -> Any:
        write = after(lambda: tf.io.write_file(mark("branch"), "ran"))
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: write(x), lambda: x)

    def printed(x: Any) -> Any:
        tf.print("a", output_stream=f"file://{mark('printed')}")
        return x

    save("writes", after(lambda: tf.io.write_file(mark("writes"), "ran")))
    save("reads", lambda x: x + tf.cast(tf.strings.length(tf.io.read_file(str(folder / "secret.txt"))), x.dtype))
    save("calls_python", lambda x: tf.py_function(lambda value: value, [x], tf.float32))
    save("prints", printed)
    save("debugs", debug)
    save("branches", in_a_branch)
    save("plain", lambda x: x, innocent)
    save("says", lambda x: (tf.print("said"), x)[1], innocent)
    _with_a_long_length(hostile / "writes", hostile / "hidden")
    _with_tables(hostile, innocent, folder)
    _with_link(hostile, innocent, folder)


def _with_a_long_length(source: Path, target: Path) -> None:
    """A copy in which the length of `WriteFile` takes three bytes: parsers accept that, a search does not."""
    import shutil

    from tensorflow.core.protobuf import saved_model_pb2

    shutil.copytree(source, target)
    proto = saved_model_pb2.SavedModel.FromString((source / "saved_model.pb").read_bytes())
    (meta_graph,) = proto.meta_graphs
    library = b"".join(_field(1, _hidden(function)) for function in meta_graph.graph_def.library.function)
    meta_graph.graph_def.library.Clear()
    graph = meta_graph.graph_def.SerializeToString() + _field(2, library)
    meta_graph.graph_def.Clear()
    whole = _field(2, meta_graph.SerializeToString() + _field(2, graph))
    proto.meta_graphs.pop()
    (target / "saved_model.pb").write_bytes(proto.SerializeToString() + whole)


def _hidden(function: Any) -> bytes:
    nodes = b""
    for node in function.node_def:
        operation = node.op.encode()
        node.op = ""
        nodes += _field(3, node.SerializeToString() + b"\x12" + bytes([len(operation) | 0x80, 0x80, 0]) + operation)
    del function.node_def[:]
    written: bytes = function.SerializeToString()
    return written + nodes


def _field(number: int, content: bytes) -> bytes:
    length, encoded = len(content), b""
    while length >= 0x80:
        encoded += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + content


def _with_tables(hostile: Path, innocent: Path, folder: Path) -> None:
    """A table that is filled from an asset, and one whose asset lies outside of the model."""
    import shutil

    import keras
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    words = folder / "words.txt"
    words.write_text("a\nb\n", encoding="utf-8")
    module = tf.Module()
    initializer = tf.lookup.TextFileInitializer(
        str(words), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.table = tf.lookup.StaticVocabularyTable(initializer, 1)
    module.counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    module.serve = tf.function(
        lambda text: {"id": module.table.lookup(text), "count": module.counts.lookup(text)},
        input_signature=[tf.TensorSpec((None,), tf.string, name="text")],
    )
    tf.saved_model.save(module, str(innocent / "table"), signatures=module.serve)
    shutil.copytree(innocent / "table", hostile / "climbing_asset")
    graph = hostile / "climbing_asset" / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(graph.read_bytes())
    proto.meta_graphs[0].asset_file_def[0].filename = "../../../secret.txt"
    graph.write_bytes(proto.SerializeToString())

    vectorise = keras.layers.TextVectorization(vocabulary=["a", "b"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), vectorise, keras.layers.Embedding(9, 2)])
    model.export(innocent / "exported", verbose=False)

    import tf_keras

    layers = tf_keras.layers
    net = [layers.Input((5, 2)), layers.LSTM(3), layers.BatchNormalization(), layers.Dense(1)]
    recurrent = tf_keras.Sequential(net)
    recurrent.compile("adam", "mse")
    recurrent.save(innocent / "recurrent")


def _with_link(hostile: Path, innocent: Path, folder: Path) -> None:
    import shutil

    shutil.copytree(innocent / "plain", hostile / "linked")
    (hostile / "linked" / "variables" / "variables.index").unlink()
    (hostile / "linked" / "variables" / "variables.index").symlink_to(folder / "secret.txt")


def first_generation(hostile: Path, innocent: Path, folder: Path) -> None:
    """SavedModels as TensorFlow 1 wrote them: what runs is told by collections and by the saver."""
    import tensorflow as tf

    v1 = tf.compat.v1

    def mark(name: str) -> Any:
        return v1.io.write_file(str(folder / "canary" / name), "ran")

    def save(path: Path, is_asset: bool = True, init: str | None = None, restore: str | None = None) -> None:
        words = folder / "words.txt"
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.string, (None,), name="text")
            name = v1.constant(str(words))
            initializer = tf.lookup.TextFileInitializer(
                name, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
            )
            table = tf.lookup.StaticHashTable(initializer, -1)
            scale = v1.get_variable("scale", (), tf.float32, use_resource=True)
            y = tf.cast(table.lookup(x), tf.float32) * scale
            session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            saver = v1.train.Saver(sharded=True)
            if restore is not None:
                with tf.control_dependencies([mark(restore)]):
                    restored = tf.group(session.graph.get_operation_by_name(saver.saver_def.restore_op_name))
                saver.saver_def.restore_op_name = restored.name
            started = [v1.tables_initializer()] + ([mark(init)] if init else [])
            builder = v1.saved_model.Builder(str(path))
            signature = v1.saved_model.predict_signature_def({"text": x}, {"y": y})
            assets = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS) if is_asset else None
            builder.add_meta_graph_and_variables(
                session, ["serve"], {"serving_default": signature}, assets, main_op=tf.group(*started), saver=saver
            )
            builder.save()

    save(innocent / "first_generation")
    save(hostile / "writes_when_initialised", init="initialised")
    save(hostile / "writes_when_restored", restore="restored")
    save(hostile / "table_of_another_file", is_asset=False)


# ---- frozen graphs and ONNX


def frozen_graphs(hostile: Path, innocent: Path, folder: Path) -> None:
    import tensorflow as tf

    for path, operation in (
        (hostile / "writes.pb", lambda: tf.io.write_file(str(folder / "canary" / "frozen"), "ran")),
        (innocent / "plain.pb", tf.no_op),
    ):
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, (None, _FEATURES), name="x")
            with tf.control_dependencies([operation()]):
                tf.identity(x * 2.0, name="y")
        path.write_bytes(graph.as_graph_def().SerializeToString())


def onnx_models(hostile: Path, innocent: Path) -> None:
    import numpy as np
    from onnx import TensorProto, external_data_helper, helper, numpy_helper, save

    def model() -> Any:
        weight = numpy_helper.from_array(np.ones((_FEATURES, 2), "f4"), "w")
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, _FEATURES])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
        return helper.make_model(graph, producer_name="by hand", opset_imports=[helper.make_opsetid("", 17)])

    save(model(), innocent / "plain.onnx")
    save(model(), innocent / "external.onnx", save_as_external_data=True, location="external.weights", size_threshold=0)
    climbing = model()
    external_data_helper.set_external_data(climbing.graph.initializer[0], "../secret.txt")
    climbing.graph.initializer[0].ClearField("raw_data")
    (hostile / "climbing.onnx").write_bytes(climbing.SerializeToString())


def tflite_models(hostile: Path, innocent: Path) -> None:
    import tensorflow as tf

    def convert(source: Path, target: Path) -> None:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(source))
        sets = tf.lite.OpsSet
        converter.target_spec.supported_ops = [sets.TFLITE_BUILTINS, sets.SELECT_TF_OPS]
        target.write_bytes(converter.convert())

    convert(innocent / "plain", innocent / "plain.tflite")
    convert(hostile / "reads", hostile / "reads.tflite")


def exports_of_jax(innocent: Path) -> None:
    import jax
    import jax.numpy as jnp
    from jax import export

    rows = jax.ShapeDtypeStruct(export.symbolic_shape("rows, 4"), jnp.float32)
    exported = export.export(jax.jit(lambda x: jnp.tanh(x)))(rows)
    (innocent / "plain.jax_export").write_bytes(exported.serialize())
    (innocent / "plain.mlirbc").write_bytes(exported.mlir_module_serialized)
    (innocent / "plain.mlir").write_text(exported.mlir_module(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
