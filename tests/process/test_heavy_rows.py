"""Small rows that take a model long: the rule of thumb goes by their bytes, and a few of them tell better."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ENVIRONMENT, penstock_command, read_rows

ROWS = 200
"""By the rule of thumb one batch of 256, which would take five seconds."""

MODEL = """
import time
from pathlib import Path

import keras
import tensorflow as tf

SEEN = Path(__file__).with_name("seen.txt")

def work(x):
    with SEEN.open("a") as file:
        print(len(x), file=file)
    time.sleep(0.02 * len(x))
    return 2 * x

def refuse(x):
    if (x < 0).any():
        raise ValueError("a negative number")
    return 2 * x

class Slow(keras.layers.Layer):
    function = staticmethod(work)

    def call(self, x):
        out = tf.numpy_function(self.function, [x], tf.float32)
        out.set_shape(x.shape)
        return out

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)

class Picky(Slow):
    function = staticmethod(refuse)

def build(layer=Slow):
    inputs = keras.Input((4,), name="x")
    return keras.Model(inputs, layer(name="y")(inputs))

def build_picky():
    return build(Picky)

def lift(columns):
    return {"x": columns["data"] + 1}
"""

LIVE = """
import numpy as np
import penstock
from slow import build

x = np.load("x.npy")
np.testing.assert_array_equal(penstock.predict(build(), x), 2 * x)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(MODEL)
    np.save(tmp_path / "x.npy", np.arange(4 * ROWS, dtype="f4").reshape(ROWS, 4))
    return tmp_path


def run(place: Path, command: list[str]) -> str:
    environment = ENVIRONMENT | {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(place)}
    ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert max(map(int, (place / "seen.txt").read_text().split())) == 32
    return ran.stdout


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--input", "x=data"), id="by threads", marks=pytest.mark.slow),
        pytest.param(("--preprocess", "slow:lift"), id="by loader processes"),
    ],
)
@pytest.mark.slow
def test_batches_are_smaller_than_by_the_rule_of_thumb(place: Path, options: tuple[str, ...]) -> None:
    said = run(
        place,
        penstock_command(
            "predict", "slow:build", "x.npy", "--output", place / "out", "--runtime", "tensorflow",
            "--plan", "off", "--json", *options,
        ),
    )  # fmt: skip
    assert json.loads(said)["recipe"]["batch_size"] == 32
    found = read_rows(place / "out")
    assert found.column("row").to_pylist() == list(range(ROWS))
    x = np.load(place / "x.npy") + ("slow:lift" in options)
    np.testing.assert_array_equal(np.array(found.column("y").to_pylist()), 2 * x)


@pytest.mark.slow
def test_live_models_get_smaller_batches_too(place: Path) -> None:
    run(place, [sys.executable, "-c", LIVE])


def test_a_model_that_rejects_the_few_rows_is_judged_by_a_whole_batch(place: Path) -> None:
    x = np.load(place / "x.npy")
    x[:40] = -1
    np.save(place / "x.npy", x)
    command = penstock_command(
        "predict", "slow:build_picky", "x.npy", "--input", "x=data", "--output", place / "out", "--runtime",
        "tensorflow", "--plan", "off", "--max-failures", 0.5,
    )  # fmt: skip
    environment = ENVIRONMENT | {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(place)}
    ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 3, ran.stderr
    assert read_rows(place / "out").column("row").to_pylist() == list(range(40, ROWS))
