"""Models that change when they are called: in order where the order matters, by the job's seed where they draw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.conftest import ENVIRONMENT, journal_length, penstock_command, read_rows, run_penstock

SUPPORT = Path(__file__).parents[1] / "support"
HERE = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), ENVIRONMENT.get("PYTHONPATH", "")])}
OWN = ["--custom-objects", "state_models"]

LIVE = """
import numpy as np, keras, penstock, state_models

def values(model):
    return [np.array(keras.ops.convert_to_numpy(each)) for each in model.variables]

def set_back(model):
    keras.utils.set_random_seed(9)
    for each in model.variables:
        if "seed" in each.path:
            each.assign([7, 0])
        elif each.path.endswith("calls"):
            each.assign(0.0)
    for layer in model.layers:
        if getattr(layer, "stateful", False):
            layer.reset_states()

for name in ("recurrent", "counter", "dropout", "plain"):
    keras.utils.set_random_seed(1)
    model, x = getattr(state_models, name)(), state_models.rows_for(name)
    size = state_models.BATCH.get(name, 32)
    set_back(model)
    theirs = [model.predict(x, batch_size=size, verbose=0) for _ in range(2)]
    left = values(model)
    set_back(model)
    ours = [penstock.predict(model, x) for _ in range(2)]
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=name)
    for a, b in zip(values(model), left):
        np.testing.assert_array_equal(a, b, err_msg=name)
    set_back(model)
    streamed = np.concatenate([block[list(block)[-1]] for block in penstock.stream(model, x, batch_size=size)])
    np.testing.assert_allclose(streamed, theirs[0], rtol=1e-6, atol=1e-6, err_msg=name)

assert not np.array_equal(*ours) or name == "plain"
model, x = state_models.dropout(), np.ones((96, 8), "f4")
before = values(model)
one, again, other = (penstock.predict(model, x, batch_size=32, seed=seed) for seed in (5, 5, 6))
np.testing.assert_array_equal(one, again)
assert not np.array_equal(one, other)
assert not np.array_equal(one[:32], one[32:64]), "every batch draws another mask"
for a, b in zip(values(model), before):
    np.testing.assert_array_equal(a, b, err_msg="a seed was only lent")
print("AS MODEL.PREDICT")
"""


GRAPHS = """
import numpy as np, tensorflow as tf
from penstock.core.records import Signature, TensorSpec
from penstock.core.state import NONE, SEEDS, VARIABLES
from penstock.runtimes.tensorflow.runtime import replica_on

signature = Signature((TensorSpec("x", "float32", (3,)),), (TensorSpec("y", "float32", (3,)),))
generator = tf.random.Generator.from_seed(3)
total = tf.Variable(0.0, name="total")
table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
is_training = tf.Variable(False)

@tf.function
def adds_in_a_branch_of_a_loop():
    for number in tf.range(3):
        if number > 1:
            total.assign_add(1.0)
    return total.read_value()

def writes_to_a_table(x):
    table.insert(tf.constant([1], tf.int64), tf.constant([2], tf.int64))
    return x

def dropped_in_training(x):
    return tf.cond(is_training, lambda: tf.nn.dropout(x, 0.5), lambda: x)

cases = {
    "nothing": (lambda x: x * tf.random.stateless_uniform([3], (1, 2)), NONE, ""),
    "a generator": (lambda x: x + generator.normal([3]), SEEDS, "StateVar"),
    "a variable, deep inside": (lambda x: x + adds_in_a_branch_of_a_loop(), VARIABLES, "total"),
    "an operation that draws": (lambda x: x + tf.random.normal([3]), VARIABLES, "RandomStandardNormal"),
    "one that is never run": (dropped_in_training, NONE, ""),
    "a table": (writes_to_a_table, VARIABLES, "LookupTableInsertV2"),
}
rows = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
for what, (step, kind, names) in cases.items():
    replica = replica_on("/CPU:0", signature, lambda tensors, step=step: {"y": step(tensors["x"])})
    found = replica.look(rows)
    assert (found.kind, str(found)) == (kind, names), (what, found)
    assert found.is_repeatable == (what not in ("an operation that draws", "a table")), what
    replica.hold(7)
    replica.turn(40)
    first = replica.predict(rows)["y"]
    replica.turn(44)
    replica.predict(rows)
    replica.restore()
    replica.turn(40)
    is_same = np.array_equal(first, replica.predict(rows)["y"])
    assert is_same == (what != "an operation that draws"), what
assert total.numpy() == 1.0, "put back once, and called once since"
print("ALL FOUND")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    script = SUPPORT / "state_models.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True, env=HERE)
    return folder


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_penstock(*arguments, environment=HERE)


def predict(model: Path, rows: Path, output: Path, *more: object) -> subprocess.CompletedProcess[str]:
    ran = run("predict", model, rows, "--output", output, *OWN, *more)
    assert ran.returncode == 0, ran.stderr
    return ran


def answers_in(output: Path) -> Any:
    table = read_rows(output)
    assert table.column("row").to_pylist() == list(range(table.num_rows))
    return np.array(table.column(1).combine_chunks().to_pylist(), np.float32)


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
def test_live_model_answers_and_is_left_as_by_model_predict(tmp_path: Path, backend: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIVE], capture_output=True, text=True, cwd=tmp_path,
        env=HERE | {"KERAS_BACKEND": backend}, timeout=240, check=False,
    )  # fmt: skip
    assert "AS MODEL.PREDICT" in ran.stdout, ran.stderr[-3000:]


def test_graph_of_tensorflow_tells_what_a_step_changes(tmp_path: Path) -> None:
    # A file, because TensorFlow translates loops and branches from their source.
    (tmp_path / "graphs.py").write_text(GRAPHS, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "graphs.py"], capture_output=True, text=True, cwd=tmp_path, env=HERE, timeout=240, check=False
    )
    assert "ALL FOUND" in ran.stdout, ran.stderr[-3000:]


@pytest.mark.slow
def test_live_model_on_torch_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
    test_live_model_answers_and_is_left_as_by_model_predict(tmp_path, "torch")


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """A model that adds random numbers to `x`, by an operation that keeps its own generator."""
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 3]) for name in "xy")
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["drawn"]), helper.make_node("Add", ["x", "drawn"], ["y"])]
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(helper.make_graph(nodes, "noise", [x], [y]), opset_imports=opset, ir_version=9)
    onnx.save(model, tmp_path / "noise.onnx")
    return tmp_path / "noise.onnx"


def test_model_of_another_kind_is_seen_to_answer_differently(noise: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((100, 3), np.float32))
    ran = run("predict", noise, tmp_path / "rows.npy", "-o", tmp_path / "out", "--devices", "cpu:2")
    assert ran.returncode == 0, ran.stderr
    assert "it answers the same batch differently when it is called again" in ran.stderr
    assert "one replica, batches of 32 rows in order; another run gives other answers" in ran.stderr
    assert len(np.unique(answers_in(tmp_path / "out"))) > 250


def test_batches_are_as_large_as_asked_for_and_touched_input_is_compared(noise: Path, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(10):
        (files / f"{number}.csv").write_text("a,b,c\n" + "1,2,3\n" * 4, encoding="utf-8")
    arguments = ["predict", noise, files, "-o", tmp_path / "out", "--input", "x=a,b,c", "--batch-size", 32]
    ran = run(*arguments)
    assert ran.returncode == 0, ran.stderr
    assert "one replica, batches of 32 rows in order" in ran.stderr
    (files / "3.csv").touch()
    ran = run(*arguments)
    assert ran.returncode == 0, ran.stderr
    assert "the input was touched since the job began" in ran.stderr
    assert "nothing was redone" in ran.stdout
    (files / "3.csv").write_text("a,b,c\n" + "1,2,4\n" * 4, encoding="utf-8")
    ran = run(*arguments)
    assert ran.returncode == 5, ran.stderr
    assert f"the input changed since the job began: {files / '3.csv'}" in ran.stderr


@pytest.mark.parametrize(
    ("model", "rows", "options"),
    [
        ("recurrent.keras", "recurrent.npy", ["--devices", "cpu:2"]),
        # Row groups of 50 rows are no whole batches of 32: they are read as if there were none.
        ("counter.keras", "counter.parquet", ["--devices", "cpu:2", "--part-rows", 40, "--check"]),
        pytest.param("counter", "counter.npy", ["--devices", "cpu"], marks=pytest.mark.slow),
        ("counter.keras", "counter.npy", ["--runtime", "jax", "--devices", "cpu:2"]),
    ],
    ids=["recurrent", "row groups", "SavedModel", "jax"],
)
def test_model_that_keeps_state_answers_as_model_predict(
    place: Path, tmp_path: Path, model: str, rows: str, options: list[object]
) -> None:
    ran = predict(place / model, place / rows, tmp_path / "out", *options)
    assert "the model keeps state (" in ran.stderr
    assert "one replica, batches of " in ran.stderr
    name = Path(model).stem
    np.testing.assert_allclose(answers_in(tmp_path / "out"), np.load(place / f"{name}-answers.npy"), atol=1e-6)
    manifest = json.loads((tmp_path / "out" / "_penstock" / "manifest.json").read_text())
    assert manifest["recipe"]["state"] == "variables"
    assert manifest["split"] == [1, 1]


def test_rows_that_are_left_out_keep_their_numbers(place: Path, tmp_path: Path) -> None:
    predict(place / "counter.keras", place / "counter.parquet", tmp_path / "out", "--skip", 10, "--limit", 70)
    table = read_rows(tmp_path / "out")
    assert table.column("row").to_pylist() == list(range(10, 80))
    calls = np.repeat([1, 2, 3], [32, 32, 6])[:, None]
    found = np.array(table.column(1).combine_chunks().to_pylist(), np.float32)
    np.testing.assert_allclose(found, np.load(place / "counter.npy")[10:80] + calls, atol=1e-6)


@pytest.fixture(scope="module")
def drawn(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one replica draws, by the seed 0."""
    output = tmp_path_factory.mktemp("drawn") / "out"
    ran = predict(place / "dropout.keras", place / "dropout.npy", output, "--devices", "cpu:1", "--threads", 1)
    assert "the model draws random numbers (" in ran.stderr
    assert json.loads((output / "_penstock" / "manifest.json").read_text())["recipe"]["state"] == "seeds"
    return answers_in(output)


@pytest.mark.parametrize(
    ("model", "options"),
    [("dropout.keras", ["--devices", "cpu:2"]), ("dropout", ["--devices", "cpu:1", "--check"])],
    ids=["two replicas", "SavedModel"],
)
def test_random_numbers_are_the_same_wherever_they_are_drawn(
    place: Path, tmp_path: Path, drawn: Any, model: str, options: list[object]
) -> None:
    predict(place / model, place / "dropout.npy", tmp_path / "out", "--threads", 1, *options)
    np.testing.assert_array_equal(answers_in(tmp_path / "out"), drawn)


def test_another_seed_draws_others_and_every_batch_its_own(place: Path, tmp_path: Path, drawn: Any) -> None:
    rows = np.tile(np.load(place / "dropout.npy")[:32], (3, 1))
    np.save(tmp_path / "same.npy", rows)
    predict(place / "dropout.keras", tmp_path / "same.npy", tmp_path / "out", "--seed", 3, "--threads", 1)
    found = answers_in(tmp_path / "out")
    assert not np.array_equal(found[:32], drawn[:32])
    assert not np.array_equal(found[:32], found[32:64])


@pytest.mark.slow
def test_jax_draws_the_same_from_two_replicas(place: Path, tmp_path: Path) -> None:
    options = ["--runtime", "jax", "--threads", 1]
    predict(place / "dropout.keras", place / "dropout.npy", tmp_path / "one", *options, "--devices", "cpu:1")
    predict(place / "dropout.keras", place / "dropout.npy", tmp_path / "two", *options, "--devices", "cpu:2")
    one = answers_in(tmp_path / "one")
    np.testing.assert_array_equal(one, answers_in(tmp_path / "two"))
    assert len(np.unique(one[:, 0])) > 300


def kill_in_the_middle(arguments: list[object], output: Path) -> int:
    """Start a job of small parts and kill it once some are there; returns how many rows are."""
    process = subprocess.Popen(penstock_command(*arguments), env=HERE, stderr=subprocess.DEVNULL)
    while journal_length(output) < 2 and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    rows = int(read_rows(output).num_rows)
    assert 0 < rows < 20_000, "the kill came too late to mean anything"
    return rows


@pytest.mark.parametrize("name", ["counter", pytest.param("dropout", marks=pytest.mark.slow)])
def test_killed_job_is_resumed_to_the_same_answers(place: Path, tmp_path: Path, name: str) -> None:
    rows = np.resize(np.load(place / f"{name}.npy"), (20_000, 3 if name == "counter" else 8))
    np.save(tmp_path / "many.npy", rows)
    whole, output = tmp_path / "whole", tmp_path / "out"
    shared = ["predict", place / f"{name}.keras", tmp_path / "many.npy", *OWN, "--threads", 1, "--part-rows", 512]
    assert run(*shared, "--output", whole, "--devices", "cpu:1").returncode == 0
    there = kill_in_the_middle([*shared, "--output", output, "--devices", "cpu:2"], output)
    ran = run("resume", output)
    assert ran.returncode == 0, ran.stderr
    np.testing.assert_array_equal(answers_in(output), answers_in(whole))
    begins_again = "beginning again, as the model keeps state: " in ran.stderr
    assert begins_again == (name == "counter")
    assert (f"resuming: {there:,} of 20,000 rows are there" in ran.stderr) == (name == "dropout")
    if name == "counter":
        np.testing.assert_allclose(answers_in(output)[-1], rows[-1] + 20_000 // 32, atol=1e-3)


def test_replica_that_dies_takes_the_state_with_it(place: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.resize(np.load(place / "counter.npy"), (40_000, 3)))
    output = tmp_path / "out"
    command = penstock_command(
        "predict", place / "counter.keras", tmp_path / "many.npy", *OWN, "--output", output, "--part-rows", 512
    )
    process = subprocess.Popen(command, env=HERE, text=True, stderr=subprocess.PIPE)
    while journal_length(output) < 1 and process.poll() is None:
        time.sleep(0.002)
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 9, errors
    assert "died while predicting" in errors


@pytest.mark.parametrize(
    ("name", "runtime", "reason"),
    [
        ("dropout", "onnx", "it draws random numbers"),
        pytest.param("counter", "openvino", "it keeps state (counter/calls)", marks=pytest.mark.slow),
    ],
)
def test_converted_model_would_freeze_it(place: Path, tmp_path: Path, name: str, runtime: str, reason: str) -> None:
    ran = run(
        "predict", place / f"{name}.keras", place / f"{name}.npy", "-o", tmp_path / "out", *OWN, "--runtime", runtime
    )
    assert ran.returncode == 6, ran.stderr
    assert "the model does not convert" in ran.stderr
    assert f"{reason}" in ran.stderr


@pytest.mark.slow
def test_there_is_nothing_to_plan(place: Path) -> None:
    ran = run("plan", place / "counter.keras", place / "counter.npy", *OWN)
    assert ran.returncode == 2, ran.stderr
    assert "what this model answers depends on how it is run" in ran.stderr
    assert "the model keeps state (counter/calls)" in ran.stderr


def test_failed_row_ends_a_job_whose_other_answers_depend_on_it(place: Path, tmp_path: Path) -> None:
    lines = ["{'x': [1.0, 2.0, 3.0]}"] * 40
    lines[35] = "{'x': 'oops'}"
    (tmp_path / "rows.jsonl").write_text("\n".join(lines).replace("'", '"'), encoding="utf-8")
    ran = run("predict", place / "counter.keras", tmp_path / "rows.jsonl", "-o", tmp_path / "out", *OWN)
    assert ran.returncode == 5, ran.stderr
    assert "a row failed, and the model keeps state" in ran.stderr
    assert "row 35: " in ran.stderr
