"""Models of ten years of Keras, each written by the Keras of its time, against what that one predicted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ENVIRONMENT, Penstock, read_rows

DATA = Path(__file__).parents[1] / "data"
SUPPORT = Path(__file__).parents[1] / "support"
KERAS_1 = ("images_channels_first", "images_channels_last", "sequences", "signals", "graph", "towers")


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of support/make_legacy_models.py, and what Keras 1 and 2 left in tests/data."""
    folder = tmp_path_factory.mktemp("legacy")
    environment = ENVIRONMENT | {"TF_USE_LEGACY_KERAS": "1"}
    script = [sys.executable, str(SUPPORT / "make_legacy_models.py"), str(folder)]
    made = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == 0, made.stderr[-3000:]
    for path in (*DATA.glob("keras1/*.*5"), *DATA.glob("keras1/*.npz"), *DATA.glob("keras2/*.*")):
        shutil.copy(path, folder)
    as_tensorflow_wrote_it(folder / "images_channels_first.h5", folder / "images_on_tensorflow.h5")
    return folder


def as_tensorflow_wrote_it(path: Path, copy: Path) -> None:
    """What Keras 1 would have written for the same answers on TensorFlow, where kernels are not turned."""
    shutil.copy(path, copy)
    with h5py.File(copy, "r+") as file:
        for group in file["model_weights"].values():
            names = [str(name) for name in group.attrs["weight_names"]]
            for name in names:
                array = np.asarray(group[name])
                del group[name]
                group[name + ":0"] = array[:, :, ::-1, ::-1] if array.ndim == 4 else array
            group.attrs["weight_names"] = [f"{name}:0".encode() for name in names]


class Loaded:
    """What many models told and answered in one process of a runtime."""

    def __init__(self, folder: Path, runtime: str, cases: list[dict[str, Any]]) -> None:
        (folder / f"{runtime}.json").write_text(json.dumps(cases))
        script = [sys.executable, str(SUPPORT / "load_models.py"), runtime, f"{runtime}.json", f"{runtime}.npz"]
        paths = os.pathsep.join([str(Path(__file__).parents[2]), str(folder)])
        ran = subprocess.run(
            script, capture_output=True, text=True, cwd=folder, env=ENVIRONMENT | {"PYTHONPATH": paths}, check=False
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        self.told: dict[str, Any] = json.loads(ran.stdout.partition("TOLD")[2])
        self._answers = np.load(folder / f"{runtime}.npz")

    def answers(self, name: str) -> list[Any]:
        assert "outputs" in self.told[name], self.told[name]
        return [self._answers[f"{name}/{output}"] for output in self.told[name]["outputs"]]


def case(folder: Path, name: str, kind: str, location: str, inputs: str, **more: Any) -> dict[str, Any]:
    """One model to load, its inputs under the names that it gives them."""
    return {
        "name": name,
        "file": {"kind": kind, "location": location if kind == "builder" else str(folder / location), **more},
        "inputs": str(folder / f"{inputs}.npz"),
    }


def keras_1_cases(folder: Path) -> list[dict[str, Any]]:
    """Inputs of a `Sequential` are called after its first layers, and were given names of their own in the files."""
    cases = []
    for name in (*KERAS_1, "images_on_tensorflow"):
        given = np.load(folder / f"{name.replace('on_tensorflow', 'channels_first')}.npz")
        config = json.loads(h5py.File(folder / f"{name}.h5").attrs["model_config"])
        inputs = [array for key, array in given.items() if not key.startswith("answer")]
        np.savez(folder / f"{name}_fed.npz", **dict(zip(input_names(config), inputs, strict=True)))
        cases.append(case(folder, name, "h5", f"{name}.h5", f"{name}_fed"))
    return cases


def input_names(config: dict[str, Any]) -> list[str]:
    if config["class_name"] == "Model":
        return [layer[0] for layer in config["config"]["input_layers"]]
    first = config["config"][0]
    branches = first["config"]["layers"] if first["class_name"] == "Merge" else [config]
    return [f"{branch['config'][0]['config']['name']}_input" for branch in branches]


@pytest.fixture(scope="module")
def on_tensorflow(legacy: Path) -> Loaded:
    small = {"weights": str(legacy / "new.weights.h5")}, {"weights": str(legacy / "old.h5")}
    cases = [
        *keras_1_cases(legacy),
        case(legacy, "pictures", "h5", "pictures.h5", "pictures"),
        case(legacy, "early_keras_3", "keras", "keras_3_0.keras", "keras_3_0"),
        case(legacy, "gated", "keras", "gated.keras", "gated"),
        case(legacy, "two", "keras", "two.keras", "two"),
        case(legacy, "new_weights", "builder", "builders:small", "new_weights", **small[0]),
        case(legacy, "old_weights", "builder", "builders:small", "old_weights", **small[1]),
        case(legacy, "wide_new", "builder", "builders:wide", "new_weights", **small[0]),
        case(legacy, "wide_old", "builder", "builders:wide", "old_weights", **small[1]),
        case(legacy, "more_layers", "builder", "builders:deep", "old_weights", **small[1]),
        case(legacy, "of_tf_keras", "builder", "builders:of_tf_keras", "old_weights"),
    ]
    return Loaded(legacy, "tensorflow", cases)


@pytest.fixture(scope="module")
def on_tf_keras(legacy: Path) -> Loaded:
    cases = [
        case(legacy, "keras_2_15.keras", "keras", "keras_2_15.keras", "keras_2_15"),
        case(legacy, "keras_2_15.h5", "h5", "keras_2_15.h5", "keras_2_15"),
        case(legacy, "pictures_folder", "saved_model", "pictures_folder", "pictures"),
        case(legacy, "gated.h5", "h5", "gated.h5", "gated"),
        case(legacy, "gated.keras", "keras", "gated.keras", "gated"),
        case(legacy, "two", "keras", "two.keras", "two"),
        case(legacy, "theano", "h5", "keras_2_2_theano.h5", "theano_fed"),
        case(legacy, "checkpoint", "builder", "builders:legacy", "old_weights", weights="checkpoint/at_the_end"),
        case(legacy, "lambda", "h5", "lambda.h5", "own"),
    ]
    given = np.load(legacy / "keras_2_2_theano.npz")
    np.savez(legacy / "theano_fed.npz", conv_input=given["x"])
    return Loaded(legacy, "tf_keras", cases)


def expected(folder: Path, name: str) -> list[Any]:
    found = np.load(folder / f"{name}.npz")
    return [found[key] for key in found if key.startswith("answer")]


@pytest.mark.parametrize("name", [*KERAS_1, "images_on_tensorflow"])
def test_keras_1_answers_as_keras_1_did(legacy: Path, on_tensorflow: Loaded, name: str) -> None:
    wanted = expected(legacy, name.replace("on_tensorflow", "channels_first"))
    answers = on_tensorflow.answers(name)
    assert len(answers) == len(wanted)
    for ours, theirs in zip(answers, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert on_tensorflow.told[name]["notes"] == ["Keras 1.2.2 wrote the model: its layers were translated for Keras 3"]


@pytest.mark.parametrize(("name", "file"), [("early_keras_3", "keras_3_0"), ("pictures", "pictures")])
def test_keras_3_answers_as_early_keras_3_and_keras_2_did(
    legacy: Path, on_tensorflow: Loaded, name: str, file: str
) -> None:
    np.testing.assert_allclose(on_tensorflow.answers(name)[0], expected(legacy, file)[0], rtol=1e-5, atol=1e-6)
    assert on_tensorflow.told[name]["structure"] == "single"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("keras_2_15.keras", "keras_2_15"), ("keras_2_15.h5", "keras_2_15"), ("pictures_folder", "pictures"),
        ("gated.h5", "gated"), ("gated.keras", "gated"), ("theano", "keras_2_2_theano"), ("checkpoint", "old_weights"),
    ],
)  # fmt: skip
def test_keras_2_answers_as_keras_2_did(legacy: Path, on_tf_keras: Loaded, name: str, file: str) -> None:
    np.testing.assert_allclose(on_tf_keras.answers(name)[0], expected(legacy, file)[0], rtol=1e-5, atol=1e-6)
    assert on_tf_keras.told[name]["structure"] == "single"
    assert "was used" in on_tf_keras.told[name]["notes"][0]


def test_outputs_in_a_dict_keep_their_names(legacy: Path, on_tf_keras: Loaded) -> None:
    wanted = np.load(legacy / "two.npz")
    assert on_tf_keras.told["two"]["structure"] == "dict"
    for name, answer in zip(on_tf_keras.told["two"]["outputs"], on_tf_keras.answers("two"), strict=True):
        np.testing.assert_allclose(answer, wanted[name], rtol=1e-5, atol=1e-6)


def test_marshalled_code_in_an_h5_needs_trust_on_tf_keras_too(on_tf_keras: Loaded) -> None:
    told = on_tf_keras.told["lambda"]
    assert told["error"] == "ModelError"
    assert "--trust-model" in told["message"]


@pytest.mark.parametrize(
    ("name", "why"), [("gated", "hard_sigmoid"), ("two", "Functional"), ("of_tf_keras", "tf_keras")]
)
def test_keras_3_leaves_to_tf_keras_what_it_cannot_do_or_would_do_otherwise(
    on_tensorflow: Loaded, name: str, why: str
) -> None:
    assert on_tensorflow.told[name]["error"] == "RefusedByRuntime"
    assert why in on_tensorflow.told[name]["message"]


@pytest.mark.parametrize("name", ["new_weights", "old_weights"])
def test_weights_of_keras_2_and_3_go_into_what_a_function_builds(
    legacy: Path, on_tensorflow: Loaded, name: str
) -> None:
    np.testing.assert_allclose(on_tensorflow.answers(name)[0], expected(legacy, name)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("wide_new", "(5, 7)"),
        ("wide_old", "last has (5, 7), (7,), the file (5, 3), (3,)"),
        ("more_layers", "not in the file: more"),
    ],
)
def test_weights_that_do_not_fit_are_named(on_tensorflow: Loaded, name: str, difference: str) -> None:
    told = on_tensorflow.told[name]
    assert told["error"] == "ModelError"
    assert "the weights do not fit the model" in told["message"]
    assert difference in told["message"]


def rows_of(path: Path, column: str) -> np.ndarray[Any, Any]:
    return np.stack(read_rows(path).column(column).to_numpy())


@pytest.mark.slow
def test_keras_1_from_the_shell(legacy: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    given = np.load(legacy / "graph.npz")
    np.savez(tmp_path / "rows.npz", a=given["a"], b=given["b"])
    ran = penstock_run("predict", legacy / "graph.h5", tmp_path / "rows.npz", "--output", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    for name, wanted in zip(("first", "second"), expected(legacy, "graph"), strict=True):
        np.testing.assert_allclose(rows_of(tmp_path / "out", name), wanted, rtol=1e-5, atol=1e-6)


def test_tf_keras_takes_over_what_keras_3_refuses_and_says_so(
    legacy: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    given = np.load(legacy / "thresholded.npz")
    np.save(tmp_path / "x.npy", given["x"])
    ran = penstock_run("predict", legacy / "thresholded.h5", tmp_path / "x.npy", "--output", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    assert "tf_keras is used, because tensorflow refuses the model" in ran.stderr
    assert "ThresholdedReLU" in ran.stderr
    np.testing.assert_allclose(rows_of(tmp_path / "out", "above"), given["answer"], rtol=1e-5, atol=1e-6)


def test_ragged_and_sparse_inputs_are_fed_from_lists(legacy: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    given = np.load(legacy / "ragged.npz")
    words = np.split(given["flat"], np.cumsum(given["lengths"])[:-1])
    marks = pa.FixedSizeListArray.from_arrays(pa.array(given["marks"].reshape(-1)), 6)
    pq.write_table(pa.table({"words": pa.array([list(w) for w in words]), "marks": marks}), tmp_path / "rows.parquet")
    ran = penstock_run(
        "predict", legacy / "ragged.h5", tmp_path / "rows.parquet", "--output", tmp_path / "out",
        "--runtime", "tf_keras",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    np.testing.assert_allclose(rows_of(tmp_path / "out", "both"), given["both"], rtol=1e-5, atol=1e-6)


def test_a_layer_of_its_own_needs_its_module(legacy: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    given = np.load(legacy / "own.npz")
    np.save(tmp_path / "x.npy", given["x"])
    arguments = ["predict", "own.h5", tmp_path / "x.npy", "--output", tmp_path / "out"]
    ran = penstock_run(*arguments, cwd=legacy)
    assert ran.returncode == 6
    assert "'Twice' is not known" in ran.stderr
    assert "--custom-objects MODULE" in ran.stderr
    ran = penstock_run(*arguments, "--custom-objects", "own_layers", cwd=legacy)
    assert ran.returncode == 0, ran.stderr
    np.testing.assert_allclose(rows_of(tmp_path / "out", "last"), given["answer"], rtol=1e-5, atol=1e-6)


LIVE = """
import numpy as np, tf_keras, penstock
from tf_keras import layers
tf_keras.utils.set_random_seed(5)
rng = np.random.default_rng(2)

def check(model, x, what):
    ours, theirs = penstock.predict(model, x), model.predict(x, verbose=0)
    assert type(ours) is type(theirs), (what, type(ours), type(theirs))
    flat = lambda y: [y[k] for k in sorted(y)] if isinstance(y, dict) else y if isinstance(y, list) else [y]
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (what, a.dtype, b.dtype, a.shape, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=what)

single = tf_keras.Sequential([tf_keras.Input((5,)), layers.Dense(4, activation="tanh"), layers.Dense(2)])
x = rng.normal(size=(300, 5)).astype("f4")
check(single, x, "an array")
check(single, x.astype("f8"), "float64")
a, b = tf_keras.Input((3,), name="a"), tf_keras.Input((2,), name="b")
xa, xb = rng.normal(size=(70, 3)).astype("f4"), rng.normal(size=(70, 2)).astype("f4")
check(tf_keras.Model([a, b], [layers.Dense(2)(a), layers.Dense(1)(b)]), [xa, xb], "lists")
check(tf_keras.Model({"a": a, "b": b}, {"s": layers.Dense(2)(a), "t": layers.Dense(1)(b)}), {"b": xb, "a": xa}, "dicts")

class Own(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
    def call(self, x):
        return self.dense(x)
    def predict_step(self, data):
        return {"twice": 2 * self(data[0] if isinstance(data, tuple) else data)}
check(Own(), x, "a subclass with a step of its own")

before = penstock.predict(single, x)
single.set_weights([w + 1 for w in single.get_weights()])
assert not np.allclose(before, penstock.predict(single, x)), "stale weights"
check(single, x, "after the weights changed")
best = penstock.predict(single, x, argmax=True)
assert (next(iter(best.values())) == single.predict(x, verbose=0).argmax(-1)).all(), best
print("ALL THE SAME")
"""


def test_a_live_model_of_tf_keras_predicts_as_ever(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIVE], capture_output=True, text=True, cwd=tmp_path,
        env=ENVIRONMENT | {"TF_USE_LEGACY_KERAS": "1"}, check=False,
    )  # fmt: skip
    assert "ALL THE SAME" in ran.stdout, ran.stderr[-3000:]
