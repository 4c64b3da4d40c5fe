"""Runs models in several precisions on one framework, and prints what came out as JSON: `FRAMEWORK MODELS`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.protocols import Gauged
from penstock.core.records import Device, ModelFile
from penstock.errors import PenstockError
from penstock.runtimes.jax.runtime import JaxRuntime
from penstock.runtimes.tensorflow.runtime import TensorFlowRuntime

CPU = Device("cpu", 0)
WIDE_ROWS = np.arange(10_000, 10_064, dtype=np.float32)[:, None]
ROWS = np.random.default_rng(1).integers(0, 17, (64, 64), dtype=np.uint8)


def outcome(runtime: Any, file: ModelFile, batch: dict[str, Any]) -> dict[str, Any]:
    """The answers, or why there are none."""
    try:
        replica = runtime.load(file, CPU, 1)
        (answers,) = replica.predict(batch).values()
    except PenstockError as error:
        return {"error": type(error).__name__, "problem": error.problem, "received": error.received}
    told = {"dtype": str(answers.dtype), "answers": answers.tolist(), "notes": list(replica.signature.notes)}
    if isinstance(replica, Gauged):
        before = len(replica._steps)  # type: ignore[attr-defined]
        twice = {name: np.concatenate([array, array]) for name, array in batch.items()}
        told["predicted"] = [replica.predicted_bytes(batch), replica.predicted_bytes(twice)]
        told["compiled"] = [before, len(replica._steps)]  # type: ignore[attr-defined]
        told["peak"] = replica.peak_bytes()
    return told | {"dtypes": dtypes_of(replica, batch)}


def dtypes_of(replica: Any, batch: dict[str, Any]) -> list[str]:
    """What the step multiplies in, as the framework's own description of it says."""
    if hasattr(replica, "_lowered"):
        text = replica._lowered(batch).as_text()
        lines = [line for line in text.splitlines() if "dot_general" in line or "stablehlo.convolution" in line]
        return sorted({line.rpartition("tensor<")[2].rpartition("x")[2].partition(">")[0] for line in lines})
    import tensorflow as tf

    step = replica._plain.get_concrete_function({name: tf.constant(array) for name, array in batch.items()})
    operations = step.graph.get_operations()
    return sorted({each.outputs[0].dtype.name for each in operations if each.type in ("MatMul", "Conv2D")})


def words_model(path: str) -> None:
    """Strings, whole numbers and floats in one model."""
    import keras

    word = keras.Input((1,), dtype="string", name="word")
    number = keras.layers.StringLookup(vocabulary=["a", "b"])(word)
    vector = keras.layers.Flatten()(keras.layers.Embedding(3, 4)(number))
    keras.Model(word, keras.layers.Dense(2, name="sense")(vector)).save(path)


def wide_model(path: str) -> None:
    """Floats outside, whole numbers of 64 bits inside."""
    import keras

    x = keras.Input((1,), name="x")
    rest = keras.ops.mod(keras.ops.cast(x, "int64") * 1_000_003, 9973)
    keras.Model(x, keras.ops.cast(rest, "float32")).save(path)


def main(framework: str, models: str) -> None:
    runtime = {"tensorflow": TensorFlowRuntime(), "jax": JaxRuntime()}[framework]
    digits = ModelFile("keras", f"{models}/digits.keras", "", (framework,))
    found = {
        precision: outcome(runtime, replace(digits, precision=precision), {"pixels": ROWS})
        for precision in ("model", "bfloat16", "float16", "int8")
    }
    photo = {"photo": np.zeros((2, 32, 32, 3), np.float32)}
    colour = replace(digits, location=f"{models}/colour.keras")
    for precision in ("int8", "bfloat16"):
        found[f"no layers, {precision}"] = outcome(runtime, replace(colour, precision=precision), photo)
    if framework == "tensorflow":
        found |= only_tensorflow(digits, models)
    # The last: on JAX it changes what the whole process computes in.
    wide = replace(digits, location=f"{models}/wide_on_{framework}.keras")
    wide_model(wide.location)
    found["wide"] = outcome(runtime, wide, {"x": WIDE_ROWS})
    print(json.dumps(found))


def only_tensorflow(digits: ModelFile, models: str) -> dict[str, Any]:
    xla = TensorFlowRuntime(is_xla=True)
    words = replace(digits, location=f"{models}/for_precision.keras")
    words_model(words.location)
    asked = {"word": np.array([["a"], ["b"], ["c"]], dtype=object)}
    graph = replace(digits, kind="saved_model", location=f"{models}/fixed_batch", signature="shout")
    return {
        "words": outcome(TensorFlowRuntime(), replace(words, precision="bfloat16"), asked),
        "saved model": outcome(TensorFlowRuntime(), replace(graph, precision="bfloat16"), {}),
        "xla": outcome(xla, digits, {"pixels": ROWS}),
        "xla of strings": outcome(xla, words, asked),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
