"""Writes SavedModels and frozen graphs of every age and signature: `python make_saved_models.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from penstock.core.records import ModelFile
from penstock.runtimes.environment import lean_imports

KINDS = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float64",
    "bool",
)


def main(folder: Path) -> None:
    with lean_imports(ModelFile("saved_model", "", "", ()), "tensorflow"):
        import tensorflow as tf

    for make in (_kinds, _not_rows, _composites, _widths, _hub, _parsing, _lookup, _sparse, _hub_of_old, _frozen):
        make(tf, folder)


def _spec(tf: Any, shape: Any, kind: str, name: str) -> Any:
    return tf.TensorSpec(shape, kind, name=name)


def _save(tf: Any, path: Path, **functions: Any) -> None:
    module = tf.Module()
    for name, function in functions.items():
        setattr(module, f"f_{name}", function)
    tf.saved_model.save(module, str(path), signatures=functions)


def _kinds(tf: Any, folder: Path) -> None:
    """Every dtype in and out, one value a row and vectors, under one roof."""
    vectors = [_spec(tf, (None, 2), kind, f"v_{kind}") for kind in KINDS]
    singles = [_spec(tf, (None,), kind, f"s_{kind}") for kind in KINDS]

    @tf.function(input_signature=[*vectors, *singles])
    def twice(*tensors: Any) -> dict[str, Any]:
        names = [spec.name for spec in (*vectors, *singles)]
        return {
            "o" + name: tf.logical_not(tensor) if tensor.dtype == tf.bool else tensor + tf.cast(1, tensor.dtype)
            for name, tensor in zip(names, tensors, strict=True)
        }

    @tf.function(
        input_signature=[
            _spec(tf, (None, 2), "float32", "x"), _spec(tf, (), "float32", "factor"), _spec(tf, (), "string", "suffix"),
            _spec(tf, (), "bool", "training"), _spec(tf, (2,), "int32", "shift"),
        ]
    )  # fmt: skip
    def scaled(x: Any, factor: Any, suffix: Any, training: Any, shift: Any) -> dict[str, Any]:
        y = x * factor + tf.cast(shift, tf.float32) + tf.where(training, 1000.0, 0.0)
        return {"y": y, "text": tf.strings.join([tf.strings.as_string(x[:, 0], precision=1), suffix])}

    _save(tf, folder / "kinds", serving_default=twice, scaled=scaled)


def _not_rows(tf: Any, folder: Path) -> None:
    x = [_spec(tf, (None, 4), "float32", "x")]

    @tf.function(input_signature=x)
    def flattened(x: Any) -> dict[str, Any]:
        return {"flat": tf.reshape(x, [-1]), "x": x}

    @tf.function(input_signature=x)
    def classes(x: Any) -> dict[str, Any]:
        return {"names": tf.constant(["a", "b", "c"]), "best": tf.argmax(x, 1)}

    @tf.function(input_signature=x)
    def total(x: Any) -> dict[str, Any]:
        return {"sum": tf.reduce_sum(x)}

    @tf.function(input_signature=x)
    def unknown(x: Any) -> dict[str, Any]:
        return {"y": tf.ensure_shape(tf.raw_ops.PlaceholderWithDefault(input=x * 2, shape=None), None)}

    @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.complex64, name="z")])
    def wave(z: Any) -> dict[str, Any]:
        return {"z": z * 1j}

    _save(tf, folder / "not_rows", flattened=flattened, classes=classes, total=total, unknown=unknown, wave=wave)


def _composites(tf: Any, folder: Path) -> None:
    @tf.function(input_signature=[tf.RaggedTensorSpec((None, None), tf.int32)])
    def ragged(x: Any) -> dict[str, Any]:
        return {"sums": tf.reduce_sum(x, axis=1), "twice": x * 2, "pairs": tf.stack([x, -x], axis=2)}

    @tf.function(input_signature=[tf.SparseTensorSpec((None, 5), tf.float32)])
    def sparse(bag: Any) -> dict[str, Any]:
        return {"sums": tf.sparse.reduce_sum(bag, 1), "again": bag, "count": _count(tf, bag)}

    @tf.function(input_signature=[_spec(tf, (None,), "string", "text")])
    def words(text: Any) -> dict[str, Any]:
        return {"words": tf.strings.split(text)}

    _save(tf, folder / "ragged", serving_default=ragged)
    _save(tf, folder / "sparse", serving_default=sparse)
    _save(tf, folder / "words", serving_default=words)


def _widths(tf: Any, folder: Path) -> None:
    """Outputs as wide as the largest row of their batch, and a constant that is a matrix."""

    @tf.function(input_signature=[_spec(tf, (None,), "int32", "n"), _spec(tf, (2, 2), "int8", "bias")])
    def wide(n: Any, bias: Any) -> dict[str, Any]:
        return {
            "mask": tf.sequence_mask(n),
            "pairs": tf.stack([tf.sequence_mask(n, dtype=tf.int32)] * 2, axis=2),
            "digits": tf.strings.bytes_split(tf.strings.as_string(n * n * n)).to_sparse(),
            "gaps": tf.sparse.from_dense(tf.sequence_mask(n, dtype=tf.int32) * tf.range(tf.reduce_max(n))[None]),
            "biased": n + tf.cast(bias[1, 0], tf.int32),
        }

    @tf.function(input_signature=[_spec(tf, (None, None), "int32", "x")])
    def explained(x: Any) -> dict[str, Any]:
        return {"same": x * 2, "mask": tf.sequence_mask(x[:, 0])}

    @tf.function(input_signature=[_spec(tf, (None,), "int32", "n")])
    def undeclared(n: Any) -> dict[str, Any]:
        mask = tf.sequence_mask(n)
        return {"mask": tf.raw_ops.PlaceholderWithDefault(input=mask, shape=None)}

    _save(tf, folder / "widths", serving_default=wide, explained=explained, undeclared=undeclared)


def _count(tf: Any, sparse: Any) -> Any:
    ones = tf.SparseTensor(sparse.indices, tf.ones_like(sparse.values), sparse.dense_shape)
    return tf.reshape(tf.sparse.reduce_sum(ones, 1), [-1])


def _hub(tf: Any, folder: Path) -> None:
    """Saved without signatures, as TF-Hub has them."""

    class Scaler(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable([[2.0], [3.0]])

        @tf.function
        def __call__(self, inputs: Any, training: bool = False) -> Any:
            return {"score": inputs["x"] @ self.weight * (100.0 if training else 1.0), "id": inputs["id"]}

    model = Scaler()
    inputs = {"x": _spec(tf, (None, 2), "float32", "x"), "id": _spec(tf, (None,), "int64", "id")}
    for training in (True, False):
        model.__call__.get_concrete_function(inputs, training=training)
    tf.saved_model.save(model, str(folder / "hub"))
    plain = tf.Module()
    plain.weight = tf.Variable(1.0)
    tf.saved_model.save(plain, str(folder / "nothing"))


def _parsing(tf: Any, folder: Path) -> None:
    """Records parsed inside the graph: in a nested function, and one by one in a loop."""
    io = tf.io
    features = {
        "age": io.FixedLenFeature([], tf.int64), "size": io.FixedLenFeature([2], tf.float32),
        "city": io.FixedLenFeature([], tf.string, default_value="nowhere"), "tags": io.VarLenFeature(tf.string),
        "marks": io.FixedLenSequenceFeature([], tf.float32, allow_missing=True, default_value=-1.0),
    }  # fmt: skip

    @tf.function
    def nested(records: Any) -> dict[str, Any]:
        parsed = io.parse_example(records, features)
        tags = tf.sparse.to_dense(parsed["tags"], default_value="")
        marks = tf.reduce_sum(tf.maximum(parsed["marks"], 0.0), axis=1)
        joined = tf.strings.regex_replace(tf.strings.reduce_join(tags, axis=1, separator="+"), r"\++$", "")
        plain = {name: parsed[name] for name in ("age", "size", "city")}
        return {**plain, "marks": marks, "tags": joined}

    @tf.function(input_signature=[_spec(tf, (None,), "string", "records")])
    def outer(records: Any) -> Any:
        return nested(records)

    @tf.function(input_signature=[_spec(tf, (None,), "string", "records")])
    def one_by_one(records: Any) -> dict[str, Any]:
        wanted = {"age": features["age"]}
        return {
            "age": tf.map_fn(
                lambda one: io.parse_single_example(one, wanted)["age"], records, fn_output_signature=tf.int64
            )
        }

    _save(tf, folder / "parsing", serving_default=outer, one_by_one=one_by_one)


def _lookup(tf: Any, folder: Path) -> None:
    """TensorFlow 1: words looked up in an asset file, embedded, averaged and batch-normalised."""
    v1 = tf.compat.v1
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("red\ngreen\nblue\n", encoding="utf-8")
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None, 2], name="words")
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(vocabulary),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            num_oov_buckets=1,
        )
        weights = v1.get_variable("embedding", initializer=tf.reshape(tf.range(8.0), (4, 2)))
        mean = tf.reduce_mean(tf.gather(weights, table.lookup(words)), axis=1)
        moving = [v1.get_variable(f"moving_{i}", initializer=[1.0 + i, 2.0], trainable=False) for i in range(2)]
        normal = tf.nn.batch_normalization(mean, moving[0], moving[1], [0.5, 0.5], [2.0, 2.0], 1e-3)
        back = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), ["low", "high"]), "?"
        )
        level = back.lookup(tf.cast(normal[:, 0] > 1, tf.int64))
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        v1.saved_model.simple_save(
            session, str(folder / "lookup"), {"words": words}, {"normal": normal, "level": level},
            legacy_init_op=v1.tables_initializer(),
        )  # fmt: skip


def _sparse(tf: Any, folder: Path) -> None:
    """TensorFlow 1: a sparse placeholder, one with a default, and a flag that says whether it trains."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.sparse_placeholder(tf.int64, shape=[None, None], name="ids")
        keep = v1.placeholder_with_default(1.0, [], name="keep")
        is_training = v1.placeholder(tf.bool, [], name="is_training")
        weights = v1.get_variable("w", initializer=tf.reshape(tf.range(10.0), (5, 2)))
        y = tf.nn.embedding_lookup_sparse(weights, ids, None, combiner="sum") * keep + tf.cast(is_training, tf.float32)
        session.run(v1.global_variables_initializer())
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def(
            {"ids": info(ids), "keep": info(keep), "is_training": info(is_training)}, {"y": info(y)}, "predict"
        )
        builder = v1.saved_model.Builder(str(folder / "old_sparse"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"predict": signature, "regression": signature})
        builder.save()


def _hub_of_old(tf: Any, folder: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2])
        y = x @ v1.get_variable("w", initializer=[[1.0], [10.0]])
        session.run(v1.global_variables_initializer())
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def({"default": info(x)}, {"default": info(y)}, "predict")
        builder = v1.saved_model.Builder(str(folder / "old_hub"))
        builder.add_meta_graph_and_variables(session, [], {"default": signature})
        builder.add_meta_graph(["train"], {"default": signature})
        builder.save()
    (folder / "old_hub" / "tfhub_module.pb").write_bytes(b"\x08\x03")


def _frozen(tf: Any, folder: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        keep = v1.placeholder_with_default(1.0, [], name="keep")
        hidden = tf.nn.relu(x @ tf.constant([[1.0, -1.0], [2.0, 1.0]]), name="block/hidden")
        tf.math.top_k(hidden * keep, 1, name="best")
        tf.identity(v1.placeholder(tf.string, [None], name="text"), name="echo")
        v1.assert_non_negative(hidden)
    (folder / "frozen.pb").write_bytes(graph.as_graph_def().SerializeToString())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
