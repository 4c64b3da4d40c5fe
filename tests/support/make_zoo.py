"""Writes models that need no Keras to run, and what the frameworks that wrote them answer: `python make_zoo.py FOLDER`.

TensorFlow Lite files by TensorFlow's converter, exported functions and StableHLO by JAX.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.records import ModelFile
from penstock.runtimes.environment import lean_imports

ROWS = 37


def main(folder: Path) -> None:
    rng = np.random.default_rng(11)
    images = rng.random((ROWS, 8, 8, 1)).astype("f4")
    x = rng.normal(size=(ROWS, 4)).astype("f4")
    np.save(folder / "images.npy", images)
    np.savez(folder / "rows.npz", x=x, k=np.arange(ROWS, dtype="i4"))
    expected = {"x": x} | make_tflite(folder, images) | make_recurrent_tflite(folder, x) | make_jax(folder, x)
    np.savez(folder / "expected.npz", **expected)


def make_tflite(folder: Path, images: Any) -> dict[str, Any]:
    with lean_imports(ModelFile("tflite", "", "", ()), "tensorflow"):
        import keras
        import tensorflow as tf

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    (folder / "digits.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[None]] for image in images)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    (folder / "quantised.tflite").write_bytes(converter.convert())
    stored, stored_answers = _run_quantised(folder / "quantised.tflite", images)
    np.save(folder / "stored.npy", stored)

    class Two(tf.Module):
        # The batch is written into the shape: this one takes one row, and no two.
        @tf.function(input_signature=[tf.TensorSpec((1, 4), tf.float32, name="x")])
        def fold(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"folded": tf.reshape(x, (1, 2, 2)), "total": tf.reduce_sum(x)}

        @tf.function(
            input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x"), tf.TensorSpec((None,), tf.int32, name="k")]
        )
        def add(self, x: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"sum": x + tf.cast(k, tf.float32)[:, None]}

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="text")])
        def lower(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"lowered": tf.strings.lower(text)}

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="text")])
        def same(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"same": tf.gather(text, tf.range(tf.shape(text)[0]))}

    two = Two()
    tf.saved_model.save(two, str(folder / "two"), signatures={"fold": two.fold, "add": two.add})
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "two"), signature_keys=["fold", "add"])
    (folder / "two.tflite").write_bytes(converter.convert())
    for name in ("lower", "same"):
        converter = tf.lite.TFLiteConverter.from_concrete_functions([getattr(two, name).get_concrete_function()], two)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        (folder / f"{name}.tflite").write_bytes(converter.convert())
    return {"digits": model.predict(images, verbose=0), "quantised": stored_answers}


def make_recurrent_tflite(folder: Path, x: Any) -> dict[str, Any]:
    """Signatures that keep state from run to run, one that keeps none, and one that finds none, one or many."""
    import tensorflow as tf
    import tf_keras

    tf_keras.utils.set_random_seed(2)
    # Converted for one row, it is one fused operation with its state in variable tensors.
    lstm = tf_keras.Sequential([tf_keras.layers.Input((4, 1)), tf_keras.layers.LSTM(3), tf_keras.layers.Dense(2)])
    row = [tf.TensorSpec((1, 4), tf.float32, name="x")]

    class Keeping(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.runs = lstm, tf.Variable(0.0)

        @tf.function(input_signature=row)
        def recur(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"state": self.lstm(x[:, :, None])}

        @tf.function(input_signature=row)
        def count(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"counted": x + self.runs.assign_add(1.0)}

        @tf.function(input_signature=row)
        def find(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            found = tf.where(x[0] > 0)
            return {"found": tf.concat([tf.cast(found, tf.float32), tf.gather(x[0], found)], axis=1)}

    keeping = Keeping()
    names = ("count", "find", "recur")
    path = str(folder / "keeping")
    tf.saved_model.save(keeping, path, signatures={name: getattr(keeping, name) for name in names})
    converter = tf.lite.TFLiteConverter.from_saved_model(path, signature_keys=list(names))
    converter.experimental_enable_resource_variables = True
    (folder / "keeping.tflite").write_bytes(converter.convert())
    return {"recurrent": lstm(x[:, :, None]).numpy()}


def _run_quantised(path: Path, images: Any) -> tuple[Any, Any]:
    """The plain loop that everybody writes: quantise, invoke row by row, dequantise."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(path))
    interpreter.allocate_tensors()
    taken, given = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    scale, zero = taken["quantization"]
    stored = np.clip(np.rint(images / np.float32(scale)) + zero, -128, 127).astype("i1")
    answers = []
    for row in stored:
        interpreter.set_tensor(taken["index"], row[None])
        interpreter.invoke()
        answers.append(interpreter.get_tensor(given["index"])[0])
    scale, zero = given["quantization"]
    return stored, (np.stack(answers).astype("f4") - zero) * np.float32(scale)


def make_jax(folder: Path, x: Any) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax import export
    from jax.extend.mlir.dialects import stablehlo

    weights = jnp.asarray(np.random.default_rng(3).normal(size=(4, 3)).astype("f4"))

    def score(row: dict[str, Any], factor: Any) -> dict[str, Any]:
        logits = row["x"] @ weights * factor
        return {"logits": logits, "best": logits.argmax(-1), "half": logits.astype(jnp.bfloat16)}

    def project(x: Any) -> tuple[Any, Any]:
        return x @ weights, (x > 0).sum(-1)

    (rows,) = export.symbolic_shape("rows")
    row = {"x": jax.ShapeDtypeStruct((rows, 4), jnp.float32)}
    number = jax.ShapeDtypeStruct((), jnp.float32)
    (folder / "score.jax").write_bytes(export.export(jax.jit(score))(row, number).serialize())
    for_tpu = export.export(jax.jit(project), platforms=["tpu"])(row["x"])
    (folder / "for_tpu.jax").write_bytes(for_tpu.serialize())
    open_batch = export.export(jax.jit(project))(row["x"])
    (folder / "open_batch.mlirbc").write_bytes(open_batch.mlir_module_serialized)

    module = jax.jit(project).lower(jax.ShapeDtypeStruct((8, 4), jnp.float32)).compiler_ir("stablehlo")
    (folder / "project.mlir").write_text(str(module), encoding="utf-8")
    artifact = stablehlo.serialize_portable_artifact(module, stablehlo.get_minimum_version())
    (folder / "project.mlirbc").write_bytes(artifact)

    scored = {f"score_{name}": np.asarray(value, "f4") for name, value in score({"x": x}, 2.0).items()}
    projected, positive = project(x)
    return scored | {"projected": np.asarray(projected), "positive": np.asarray(positive)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
