"""Too little memory: caught, or died of. Every row is predicted once, in order; one that never fits fails alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.records import Result
from penstock.errors import WorkersDied
from tests.conftest import ENVIRONMENT, penstock_command, read_rows
from tests.support.arithmetic import LARGE, Arithmetic
from tests.support.arithmetic_run import Ran, replica_of_this_process, run_arithmetic

REPOSITORY = Path(__file__).parents[2]
ROWS = 400

MODEL = """
import os
import keras
import numpy as np

def guard(x):
    if len(x) > int(os.environ.get("MOST_ROWS", 1 << 40)):
        raise MemoryError(f"RESOURCE_EXHAUSTED: no room for {len(x)} rows")
    return x

class Guard(keras.layers.Layer):
    def call(self, x):
        if keras.backend.backend() == "jax":
            import jax
            return jax.pure_callback(guard, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        import tensorflow as tf
        out = tf.numpy_function(guard, [x], tf.float32)
        out.set_shape(x.shape)
        return out

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)

def build():
    inputs = keras.Input((4,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(3, activation="tanh", name="y")(Guard()(inputs)))
    model.set_weights([np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3), np.ones(3, "f4")])
    return model
"""
WEIGHTS = np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3)

LIVE = """
import os
import numpy as np
import penstock
from guarded import build

model = build()
x = np.load("x.npy")
whole = penstock.predict(model, x, batch_size=64)
np.testing.assert_allclose(whole, np.load("answers.npy"), rtol=0, atol=1e-5)
for most in (1, 2, 3, 5, 63, 64):
    os.environ["MOST_ROWS"] = str(most)
    np.testing.assert_allclose(penstock.predict(model, x, batch_size=64), whole, rtol=0, atol=1e-5)
"""


@pytest.fixture(scope="module")
def x() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).normal(size=(ROWS, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, x: np.ndarray[Any, np.dtype[np.float32]]) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "guarded.py").write_text(MODEL)
    np.save(folder / "x.npy", x)
    np.save(folder / "answers.npy", np.tanh(x @ WEIGHTS + 1))
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 4)
    pq.write_table(pa.table({"x": column}), folder / "rows.parquet", row_group_size=100)
    return folder


def run_limited(command: list[str], place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=place, env=ENVIRONMENT | environment, capture_output=True, text=True, check=False, timeout=240
    )


class TestCaught:
    def test_live_model_answers_the_same_at_every_batch_size_that_fits(self, place: Path) -> None:
        ran = run_limited([sys.executable, "-c", LIVE], place, KERAS_BACKEND="jax", PYTHONPATH=str(place))
        assert ran.returncode == 0, ran.stderr

    def test_replicas_go_on_with_less_and_the_journal_says_so(self, place: Path, tmp_path: Path) -> None:
        command = penstock_command(
            "predict", "guarded:build", "rows.parquet", "--output", tmp_path / "out", "--runtime", "tensorflow",
            "--devices", "cpu:2", "--threads", 1, "--batch-size", 64, "--part-rows", 100,
        )  # fmt: skip
        ran = run_limited(command, place, MOST_ROWS="5")
        assert ran.returncode == 0, ran.stderr
        found = read_rows(tmp_path / "out")
        assert found.column("row").to_pylist() == list(range(ROWS))
        answers = np.array(found.column("y").to_pylist())
        np.testing.assert_allclose(answers, np.load(place / "answers.npy"), rtol=0, atol=1e-5)
        log = (tmp_path / "out" / "_penstock" / "log.txt").read_text()
        assert log.count("cpu:0 ran out of memory at a batch of 64 rows: going on with 32") == 1
        assert "ran out of memory at a batch of 8 rows: going on with 4" in log
        assert [record["reduced"] for record in journal(tmp_path / "out")] == [{str(span): 4} for span in range(4)]

    def test_real_limit_on_the_address_space(self, place: Path, tmp_path: Path) -> None:
        """What the model makes of 256 rows are 4 GB; the process may have 4 GB in all."""
        write_wide_model(tmp_path / "wide.onnx")
        command = penstock_command(
            "predict", tmp_path / "wide.onnx", "rows.parquet", "--output", tmp_path / "out", "--batch-size", 256,
            "--limit", 200, "--threads", 1,
        )  # fmt: skip
        limited = ["prlimit", f"--as={4 << 30}", *command]
        ran = run_limited(limited, place, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        assert ran.returncode == 0, ran.stderr
        found = read_rows(tmp_path / "out")
        assert found.column("row").to_pylist() == list(range(200))
        np.testing.assert_array_equal(found.column("y").to_numpy(), np.load(place / "x.npy")[:200].max(axis=1))
        assert "cpu:0 ran out of memory at a batch of 256 rows" in (tmp_path / "out/_penstock/log.txt").read_text()
        assert min(journal(tmp_path / "out")[0]["reduced"].values()) < 256


def journal(output: Path) -> list[dict[str, Any]]:
    lines = (output / "_penstock" / "journal").read_text().splitlines()
    return [json.loads(line.partition(" ")[2]) for line in lines]


def write_wide_model(path: Path) -> None:
    """The largest of the values of a row, found among a million copies of each: 16 MB for each row."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Tile", ["x", "times"], ["wide"]),
        helper.make_node("ReduceMax", ["wide"], ["y"], axes=[1], keepdims=0),
    ]
    times = numpy_helper.from_array(np.array([1, 1_000_000], np.int64), "times")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows"])]
    graph = helper.make_graph(nodes, "wide", inputs, outputs, [times])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))


@pytest.fixture
def predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)

    def run(x: Any, runtime: Arithmetic, *, kill_first: bool = False, **more: Any) -> Ran:
        def kill(results: list[Result]) -> None:
            if kill_first and len(results) == 1:
                replica_of_this_process().kill()

        return run_arithmetic(tmp_path, x, runtime, after_each=kill, **more)

    return run


class TestDied:
    @pytest.mark.parametrize("ends_by", ["kill", "abort", "give up"])
    def test_step_that_kills_its_process_is_warmed_up_smaller(self, predict: Any, x: Any, ends_by: str) -> None:
        ran = predict(x, Arithmetic(most_rows=3, ends_by=ends_by))
        assert ran.rows == list(range(ROWS))
        np.testing.assert_array_equal(ran.answers, x * 2)
        assert set(ran.reduced) == {2}
        assert ran.told == [
            "cpu:0 ran out of memory at a batch of 8 rows: going on with 4",
            "cpu:0 ran out of memory at a batch of 4 rows: going on with 2",
        ]
        # The kernel says that it killed nobody: the same is tried once more before anything is made smaller.
        assert ran.log.count("at the first batch") == (3 if ends_by == "kill" else 2)

    @pytest.mark.parametrize("placement", [{}, {"replicas": 2}, {"has_loader_processes": True, "most_loaders": 1}])
    def test_row_that_kills_its_process_alone_fails_and_the_others_do_not(
        self, predict: Any, x: Any, placement: dict[str, Any]
    ) -> None:
        x = x.copy()
        x[130, 0] = LARGE
        ran = predict(x, Arithmetic(ends_by="abort"), batch_size=2, **placement)
        assert [(failure.row, failure.stage, failure.error) for failure in ran.failures] == [
            (130, "predict", "OutOfMemory")
        ]
        assert ran.failures[0].reason.startswith("does not fit into the memory by itself: the process that predicted")
        assert ran.rows == [row for row in range(ROWS) if row != 130]
        np.testing.assert_array_equal(ran.answers, np.delete(x, 130, axis=0) * 2)

    def test_replica_that_somebody_killed_changes_no_batch_size(self, predict: Any, x: Any) -> None:
        ran = predict(x, Arithmetic(), kill_first=True)
        assert ran.rows == list(range(ROWS))
        np.testing.assert_array_equal(ran.answers, x * 2)
        assert ran.told == []
        assert set(ran.reduced) == {None}

    def test_device_that_holds_no_row_ends_the_run(self, predict: Any, x: Any) -> None:
        with pytest.raises(WorkersDied) as caught:
            predict(x, Arithmetic(most_rows=0, ends_by="abort"), batch_size=4)
        assert caught.value.received is not None
        assert "was killed by SIGABRT" in caught.value.received
        assert "std::bad_alloc" in caught.value.received

    def test_model_that_dies_of_something_else_whatever_it_is_given_ends_the_run(self, predict: Any, x: Any) -> None:
        with pytest.raises(WorkersDied, match="SIGSEGV"):
            predict(x, Arithmetic(most_rows=0, ends_by="crash"), batch_size=2)
