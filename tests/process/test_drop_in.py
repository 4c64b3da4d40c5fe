"""`penstock.predict(model, x)` is `model.predict(x)`: structure, dtypes, values; on every backend that is here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ENVIRONMENT

AS_KERAS = Path(__file__).parents[1] / "support" / "as_keras_takes_it.py"
COMPARE = """
import sys, keras, numpy as np, penstock
layers = keras.layers
keras.utils.set_random_seed(5)
rng = np.random.default_rng(2)

def check(model, x, what):
    ours, theirs = penstock.predict(model, x), model.predict(x, verbose=0)
    assert type(ours) is type(theirs) or isinstance(theirs, dict), (what, type(ours), type(theirs))
    keras.tree.assert_same_structure(ours, theirs)
    for a, b in zip(keras.tree.flatten(ours), keras.tree.flatten(theirs)):
        assert a.dtype == b.dtype and a.shape == b.shape, (what, a.dtype, b.dtype, a.shape, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=what)

single = keras.Sequential([keras.Input((5,)), layers.Dense(4, activation="tanh"), layers.Dense(2)])
x = rng.normal(size=(1000, 5)).astype("f4")
check(single, x, "an array")
check(single, x.astype("f8"), "float64")
check(single, (x * 10).astype("i4"), "integers")
check(single, x[::2], "a strided view")
check(single, x[:1], "one row")
check(single, x[:33], "33 rows")

a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
xa, xb = rng.normal(size=(70, 3)).astype("f4"), rng.normal(size=(70, 2)).astype("f4")
joined = layers.Concatenate()([a, b])
check(keras.Model([a, b], layers.Dense(2)(joined)), [xa, xb], "a list of inputs")
check(keras.Model([a, b], layers.Dense(2)(joined)), {"a": xa, "b": xb}, "a dict for a list of inputs")
check(keras.Model([a, b], [layers.Dense(2)(a), layers.Dense(1)(b)]), [xa, xb], "a list of outputs")
check(keras.Model({"a": a, "b": b}, {"s": layers.Dense(2)(a), "t": layers.Dense(1)(b)}), {"b": xb, "a": xa}, "dicts")

ids = keras.Input((4,), dtype="int32", name="ids")
check(keras.Model(ids, layers.Embedding(10, 3)(ids)), rng.integers(0, 10, (50, 4)), "int64 for int32, rank 3 out")
check(keras.Model(ids, layers.Embedding(10, 3)(ids)), rng.integers(0, 10, (50, 4)).astype("f4"), "floats for int32")

@keras.saving.register_keras_serializable()
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
    def call(self, x):
        return {"y": self.dense(x), "twice": x * 2}
own = Own()
own(np.zeros((1, 5), "f4"))
check(own, x, "a subclass")

pixels = keras.Input((4, 4, 3))
check(keras.Model(pixels, layers.GlobalAveragePooling2D()(layers.Rescaling(1 / 255)(pixels))),
      rng.integers(0, 256, (40, 4, 4, 3), dtype=np.uint8), "uint8 pixels")

before = penstock.predict(single, x)
single.set_weights([w + 1 for w in single.get_weights()])
assert not np.allclose(before, penstock.predict(single, x)), "stale weights"
check(single, x, "after the weights changed")

parts = list(penstock.stream(single, x, batch_size=16))
assert np.concatenate([part["row"] for part in parts]).tolist() == list(range(1000))

import os
if os.environ.get("EXPECT_DEVICES"):
    from penstock.runtimes.keras.live import wrap_live
    assert len(wrap_live(single).replicas) == int(os.environ["EXPECT_DEVICES"])
print("ALL THE SAME")
"""


def compare(tmp_path: Path, environment: dict[str, str], preamble: str = "") -> None:
    ran = subprocess.run(
        [sys.executable, "-c", preamble + COMPARE], capture_output=True, text=True, cwd=tmp_path,
        env=ENVIRONMENT | environment, timeout=240, check=False,
    )  # fmt: skip
    assert "ALL THE SAME" in ran.stdout, ran.stderr[-3000:]


def test_on_tensorflow(tmp_path: Path) -> None:
    compare(tmp_path, {"KERAS_BACKEND": "tensorflow"})


@pytest.mark.slow
def test_on_jax(tmp_path: Path) -> None:
    compare(tmp_path, {"KERAS_BACKEND": "jax"})


@pytest.mark.slow
def test_on_torch_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
    compare(tmp_path, {"KERAS_BACKEND": "torch"})


def test_on_several_devices_of_tensorflow(tmp_path: Path) -> None:
    split = (
        "import tensorflow as tf\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)\n"
    )
    compare(tmp_path, {"KERAS_BACKEND": "tensorflow", "EXPECT_DEVICES": "3"}, split)


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
def test_everything_that_keras_takes_is_taken_and_refusals_are_told_in_python(tmp_path: Path, backend: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(AS_KERAS)], capture_output=True, text=True, cwd=tmp_path,
        env=ENVIRONMENT | {"KERAS_BACKEND": backend}, timeout=280, check=False,
    )  # fmt: skip
    assert "ALL THE SAME" in ran.stdout, ran.stderr[-3000:]
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_on_several_devices_of_jax(tmp_path: Path) -> None:
    flags = "--xla_force_host_platform_device_count=3"
    compare(tmp_path, {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags, "EXPECT_DEVICES": "3"})


VOCABULARIES = """
import sys, numpy as np, tf_keras, penstock
texts = np.array([["red fox"], ["blue"], ["red"], ["green fox"]], object)
layers = tf_keras.layers
for layer in (layers.TextVectorization(output_mode="multi_hot"), layers.StringLookup(output_mode="one_hot")):
    layer.adapt(["red fox", "blue", "green"])
    entry = tf_keras.Input((1,), dtype="string")
    model = tf_keras.Model(entry, layers.Dense(2)(layer(entry)))
    expected = model.predict(texts, verbose=0)
    np.testing.assert_allclose(penstock.predict(model, texts), expected, rtol=1e-5, atol=1e-6)
    model.save(sys.argv[1])
    np.testing.assert_allclose(penstock.predict(sys.argv[1], texts), expected, rtol=1e-5, atol=1e-6)
"""


def test_models_of_keras_2_with_a_vocabulary_answer_as_they_do_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", VOCABULARIES, str(tmp_path / "words.keras")]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
