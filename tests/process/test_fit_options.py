"""Options of `penstock fit` on files that change how a model is trained."""

from __future__ import annotations

import json
import operator
import re
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import Penstock, summary_of
from tests.support.fit_models import write_rows
from tests.support.photos import draw_folder


def fit(made: Path, output: Path, *more: object, model: object = None) -> list[object]:
    rows = made / "rows.parquet"
    return ["fit", model or made / "model.keras", rows, "--label", "y", "--batch-size", 16, "-o", output, *more]


def config_of(model: Path) -> dict[str, Any]:
    with zipfile.ZipFile(model) as archive:
        found: dict[str, Any] = json.loads(archive.read("config.json"))
    return found


@pytest.mark.parametrize("runtime", ["tensorflow", "jax", "torch"])
@pytest.mark.slow
def test_mixed_precision_is_kept_by_a_restart_and_in_the_file_that_predict_takes(
    made: Path, penstock_run: Penstock, tmp_path: Path, runtime: str
) -> None:
    pytest.importorskip(runtime)
    output = tmp_path / "out"
    asked = ("--mixed-precision", "mixed_float16", "--epochs", 3, "--devices", "cpu:2", "--runtime", runtime)
    crash = {"PENSTOCK_CRASH_AT": "checkpoint_written:2"}
    ran = penstock_run(*fit(made, output, *asked, "--checkpoint-every", 10, "--json"), environment=crash)
    assert "it is started again, from the last checkpoint" in ran.stderr
    history = summary_of(ran)["history"]
    assert history[2]["loss"] < history[0]["loss"]
    config = config_of(output / "model.keras")
    policies = [
        layer["config"]["dtype"]["config"]["name"]
        for layer in config["config"]["layers"]
        if layer["class_name"] != "InputLayer"
    ]
    # The outputs stay float32.
    assert policies == ["mixed_float16", "mixed_float16", "float32"]
    assert config["compile_config"]["optimizer"]["class_name"] == "LossScaleOptimizer"
    found = penstock_run("predict", output / "model.keras", made / "rows.parquet", "-o", tmp_path / "predicted")
    assert found.returncode == 0, found.stderr


def test_mixed_precision_is_one_of_the_two_of_keras(made: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    refused = penstock_run(*fit(made, tmp_path / "out", "--mixed-precision", "int8"))
    assert refused.returncode == 2
    assert "mixed_bfloat16" in refused.stderr


@pytest.mark.slow
def test_a_batch_size_that_was_measured_is_kept_and_trains_as_one_that_was_given(
    penstock_run: Penstock, made: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.parquet"
    write_rows(rows, 3001)
    asked = ("--label", "y", "--epochs", 2)
    crash = {"PENSTOCK_CRASH_AT": "checkpoint_written:2"}
    auto = ("--batch-size", "auto", "--checkpoint-every", 10, "-o", tmp_path / "auto")
    ran = penstock_run("fit", made / "model.keras", rows, *asked, *auto, environment=crash)
    assert ran.returncode == 0, ran.stderr
    assert "it is started again, from the last checkpoint" in ran.stderr
    # After the crash it is not chosen again.
    [chosen] = re.findall(r"batch size (\d+), chosen by timing steps", ran.stderr)
    # 20 steps an epoch need batches of at most 150 rows.
    assert int(chosen) in (32, 64, 128)
    given = penstock_run("fit", made / "model.keras", rows, *asked, "--batch-size", chosen, "-o", tmp_path / "given")
    assert given.returncode == 0, given.stderr
    assert (tmp_path / "auto" / "history.csv").read_bytes() == (tmp_path / "given" / "history.csv").read_bytes()


@pytest.mark.parametrize("runtime", ["tensorflow", "jax", "torch"])
@pytest.mark.slow
def test_a_step_function_trains_on_two_devices_as_the_compiled_loss_does(
    made: Path, penstock_run: Penstock, tmp_path: Path, runtime: str
) -> None:
    pytest.importorskip(runtime)
    (tmp_path / "own_steps.py").write_text(STEP, encoding="utf-8")
    asked = ("--epochs", 2, "--devices", "cpu:2", "--runtime", runtime, "--json")
    model = made / "sure.keras"
    plain = penstock_run(*fit(made, tmp_path / "plain", *asked, model=model), cwd=tmp_path)
    own = penstock_run(*fit(made, tmp_path / "own", *asked, "--step", "own_steps:step", model=model), cwd=tmp_path)
    curves = [[row["loss"] for row in summary_of(ran)["history"]] for ran in (own, plain)]
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert ("Keras on torch trains on one device: cpu:0 of 2" in own.stderr) == (runtime == "torch")


def test_a_step_function_and_a_reduction_that_cannot_be_are_refused(
    made: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "own_steps.py").write_text(STEP, encoding="utf-8")
    missing = penstock_run(*fit(made, tmp_path / "no", "--step", "own_steps:another"), cwd=tmp_path)
    assert missing.returncode == 2
    assert "the step function cannot be imported" in missing.stderr
    nccl = penstock_run(*fit(made, tmp_path / "no", "--all-reduce", "nccl"))
    assert nccl.returncode == 2
    assert "this way to add gradients up is for GPUs" in nccl.stderr


STEP = """
import keras

def step(model, x, y, sample_weight):
    predictions = model(x, training=True)
    return keras.losses.sparse_categorical_crossentropy(y, predictions), predictions
"""


@pytest.mark.slow
def test_the_classes_of_two_outputs_are_known_to_evaluate_and_predict(
    made: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "two_outputs.py").write_text(_TWO_OUTPUTS, encoding="utf-8")
    output, rows = tmp_path / "out", made / "rows.parquet"
    labels = ("--label", "kind=name", "--label", "again=name")
    ran = penstock_run("fit", "two_outputs:build", rows, *labels, "-o", output, "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = penstock_run("evaluate", output / "model.keras", rows, *labels, "--confusion", "--json")
    assert summary_of(found)["confusion"]["again"]["classes"] == ["ant", "bee", "cat"]
    named = ("--argmax", "--labels", output / "labels.json", "--keep", "name", "-o", tmp_path / "predicted")
    assert summary_of(penstock_run("predict", output / "model.keras", rows, *named, "--json"))["rows"] == 203
    table = pq.read_table(tmp_path / "predicted")
    assert set(table["again_label"].to_pylist()) <= {"ant", "bee", "cat"}
    counts = summary_of(found)["confusion"]["kind"]["matrix"]
    hits = sum(map(operator.eq, table["kind_label"].to_pylist(), table["name"].to_pylist()))
    assert hits == sum(row[place] for place, row in enumerate(counts))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_photos_are_scaled_before_a_step_function_on_two_devices_and_predict_says_how(
    penstock_run: Penstock, tmp_path: Path, runtime: str
) -> None:
    draw_folder(tmp_path / "photos" / "cats", 20)
    draw_folder(tmp_path / "photos" / "dogs", 21)
    (tmp_path / "models_of_photos.py").write_text(_MODELS_OF_PHOTOS, encoding="utf-8")
    rows = ("--label", "@folder", "--batch-size", 8, "--devices", "cpu:2", "--validation-split", 0.2)
    asked = (*rows, "--step", "models_of_photos:step", "--runtime", runtime)
    for model, *more in (("outside", "--preset", "scale-1-1"), ("inside",)):
        line = ("fit", f"models_of_photos:{model}", tmp_path / "photos", *asked, *more, "-o", tmp_path / model)
        ran = penstock_run(*line, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert "images are decoded and resized as by keras (stretch)" in ran.stderr
        assert ("pixels are fed as 0 to 255" in ran.stderr) == (model == "inside")
    assert (tmp_path / "outside" / "history.csv").read_bytes() == (tmp_path / "inside" / "history.csv").read_bytes()
    predict = ("predict", tmp_path / "outside" / "model.keras", tmp_path / "photos", "-o", tmp_path / "predicted")
    warning = "the model was trained with --preset scale-1-1, and this job feeds it otherwise"
    assert warning in penstock_run(*predict).stderr
    assert warning not in penstock_run(*predict, "--overwrite", "--preset", "scale-1-1").stderr


_MODELS_OF_PHOTOS = """
import keras

def outside(*layers):
    keras.utils.set_random_seed(1)
    last = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2, "softmax")]
    model = keras.Sequential([keras.Input((24, 24, 3)), *layers, *last])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model

def inside():
    return outside(keras.layers.Rescaling(1 / 127.5, -1.0))

def step(model, x, y, sample_weight):
    return keras.losses.sparse_categorical_crossentropy(y, model(x, training=True))
"""


_TWO_OUTPUTS = """
import keras

def build():
    inputs = keras.Input((8,), name="x")
    outputs = {name: keras.layers.Dense(3, "softmax", name=name)(inputs) for name in ("kind", "again")}
    return keras.Model(inputs, outputs)
"""
