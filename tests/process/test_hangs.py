"""Models that crash or hang on a row, and processes that hang: found, named, replaced; every other row is predicted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper

from penstock.core.records import Result
from penstock.core.stillness import Timeouts
from penstock.errors import WorkersDied
from penstock.pool.processes import supervisor
from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows, run_penstock
from tests.support import onnx_models
from tests.support.arithmetic import ENDLESS, LARGE, REJECTED, Arithmetic
from tests.support.arithmetic_run import Ran, run_arithmetic
from tests.support.photos import draw_folder
from tests.support.processes import MARK, marked, new_mark, wait_until

REPOSITORY = Path(__file__).parents[2]
SHORT = Timeouts(hang_s=3.0, start_s=60.0)
GIVEN: onnx_models.Tensors = {"x": ("FLOAT", ["rows", 4])}
ANSWERED: onnx_models.Tensors = {"y": ("FLOAT", ["rows", 4])}


@pytest.fixture
def predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)

    def run(x: Any, runtime: Arithmetic, **more: Any) -> Ran:
        return run_arithmetic(tmp_path, x, runtime, **{"timeouts": SHORT, **more})

    return run


def random_rows(count: int) -> Any:
    return np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32)


def times(folder: Path, count: int) -> str:
    folder.mkdir()
    for number in range(count):
        (folder / str(number)).touch()
    return str(folder)


class TestRows:
    @pytest.mark.slow
    def test_poison_rows_among_a_hundred_thousand_fail_alone(self, predict: Any) -> None:
        """One is in the first batch, two are in one batch, one is the last row, which also fills its batch up."""
        x = random_rows(100_000)
        crashing, endless, rejected = [5, 70_003, 70_011, 99_999], [31_000], [123, 31_001, 70_004]
        x[crashing, 0], x[endless, 0], x[rejected, 0] = LARGE, ENDLESS, REJECTED
        ran = predict(x, Arithmetic(ends_by="crash"), batch_size=64, span_rows=4096, replicas=2)
        poison = sorted([*crashing, *endless, *rejected])
        assert [failure.row for failure in ran.failures] == poison
        errors = {failure.row: (failure.stage, failure.error) for failure in ran.failures}
        assert {errors[row] for row in crashing} == {("predict", "ReplicaDied")}
        assert {errors[row] for row in endless} == {("predict", "TimeoutError")}
        assert {errors[row] for row in rejected} == {("predict", "ValueError")}
        assert ran.rows == [row for row in range(100_000) if row not in poison]
        np.testing.assert_array_equal(ran.answers, np.delete(x, poison, axis=0) * 2)
        assert set(ran.reduced) == {None}, "the shape of every batch stayed"
        deaths = ran.log.count("was killed by SIGSEGV")
        assert deaths <= len(crashing) * np.log2(64), "about log2(batch) for each row"
        assert any("hung for" in line for line in ran.said)

    def test_crash_at_the_first_rows_is_found_where_loaders_feed_the_replica(self, predict: Any) -> None:
        x = random_rows(400)
        x[[0, 130], 0] = LARGE
        ran = predict(x, Arithmetic(ends_by="crash"), has_loader_processes=True, most_loaders=1)
        assert [(failure.row, failure.error) for failure in ran.failures] == [(0, "ReplicaDied"), (130, "ReplicaDied")]
        assert "was killed by SIGSEGV" in ran.failures[0].reason
        np.testing.assert_array_equal(ran.answers, np.delete(x, [0, 130], axis=0) * 2)


class TestStarts:
    @pytest.mark.parametrize("when", ["at_load", "at_first"])
    @pytest.mark.parametrize("how", ["kill", "crash"])
    def test_replica_that_dies_at_its_start_once_is_replaced(
        self, predict: Any, tmp_path: Path, when: str, how: str
    ) -> None:
        x = random_rows(100)
        ends: dict[str, Any] = {when: how, "times": times(tmp_path / "times", 1)}
        ran = predict(x, Arithmetic(**ends))
        np.testing.assert_array_equal(ran.answers, x * 2)
        assert set(ran.reduced) == {None}
        assert "another one is started" in ran.log

    def test_replica_that_always_dies_at_its_start_ends_the_run_at_the_third(
        self, predict: Any, tmp_path: Path
    ) -> None:
        folder = times(tmp_path / "times", 9)
        with pytest.raises(WorkersDied, match="died while loading the model") as caught:
            predict(random_rows(100), Arithmetic(at_load="crash", times=folder))
        assert "was killed by SIGSEGV" in str(caught.value)
        assert len(list(Path(folder).iterdir())) == 9 - 3

    def test_loading_that_never_ends_is_ended_with_its_reason(self, predict: Any, tmp_path: Path) -> None:
        runtime = Arithmetic(at_load="hang", times=times(tmp_path / "times", 9))
        with pytest.raises(WorkersDied, match="hung while loading the model") as caught:
            predict(random_rows(100), runtime, timeouts=Timeouts(start_s=3.0))
        assert "--start-timeout" in str(caught.value)


def test_stopped_replica_is_named_and_replaced(predict: Any) -> None:
    x = random_rows(2000)
    stopped: list[psutil.Process] = []

    def stop_one(results: list[Result]) -> None:
        if not stopped:
            replica = next(
                each for each in psutil.Process().children() if "processes.replica" in " ".join(each.cmdline())
            )
            replica.send_signal(signal.SIGSTOP)
            stopped.append(replica)

    ran = predict(x, Arithmetic(), replicas=2, after_each=stop_one)
    np.testing.assert_array_equal(ran.answers, x * 2)
    assert ran.failures == []
    assert any("replica 0 on cpu:0 was stopped for" in line for line in ran.said)
    assert not stopped[0].is_running()


def start(command: list[str], mark: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=cwd, env=ENVIRONMENT | {MARK: mark}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_one_signal_ends_a_run_whose_replica_is_stopped(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    mark, output = new_mark(), tmp_path / "out"
    command = penstock_command(
        "predict", light_models / "slow_digits.onnx", digits, "--output", output, "--threads", 1, "--batch-size", 32,
        "--part-rows", 1000, "--devices", "cpu:1", "--hang-timeout", 3,
    )  # fmt: skip
    process = start(command, mark)
    wait_until(lambda: journal_length(output) >= 1 or process.poll() is not None)
    (replica,) = marked(mark, "processes.replica")
    replica.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert "was stopped for" in errors
    assert marked(mark) == []
    ran = penstock_run("resume", output)
    assert ran.returncode == 0, ran.stderr
    assert read_rows(output).column("row").to_pylist() == list(range(20_000))


WAITING = """
import os, time

def waiting(block):
    time.sleep(0.002 * len(block["path"]))
    return {"photo": block["image"]}

def named(block):
    time.sleep(0.002 * len(block["path"]))
    return {"name": [os.path.basename(path) for path in block["path"]]}

def interrupted(row):
    if row["path"].endswith("00017.jpg"):
        raise KeyboardInterrupt
    return {"photo": row["image"]}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    draw_folder(folder / "photos", 200)
    (folder / "functions.py").write_text(WAITING)
    return folder


def photos_command(light_models: Path, output: Path, *more: object) -> list[str]:
    return penstock_command(
        "predict", light_models / "colour.onnx", "photos", "--output", output, "--image-size", "32x32",
        "--batch-size", 16, "--part-rows", 32, "--loaders", 2, *more,
    )  # fmt: skip


def test_stopped_loaders_are_replaced_and_fail_no_row(light_models: Path, place: Path, tmp_path: Path) -> None:
    mark, output = new_mark(), tmp_path / "out"
    more = ["--preprocess", "functions:waiting", "--hang-timeout", 3, "--row-timeout", 3]
    process = start(photos_command(light_models, output, *more), mark, place)
    wait_until(lambda: journal_length(output) >= 1 or process.poll() is not None)
    for loader in marked(mark, "processes.loader"):
        loader.send_signal(signal.SIGSTOP)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert read_rows(output).column("row").to_pylist() == list(range(200))
    assert "was stopped for" in (output / "_penstock" / "log.txt").read_text()
    assert marked(mark) == []


@pytest.mark.slow
def test_stopped_finisher_is_replaced_and_fails_no_row(light_models: Path, place: Path, tmp_path: Path) -> None:
    mark, output = new_mark(), tmp_path / "out"
    more = ["--postprocess", "functions:named", "--keep", "path", "--hang-timeout", 3, "--row-timeout", 3]
    process = start(photos_command(light_models, output, *more), mark, place)
    wait_until(lambda: journal_length(output) >= 1 or process.poll() is not None)
    for finisher in marked(mark, "processes.finisher"):
        finisher.send_signal(signal.SIGSTOP)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert read_rows(output).column("name").to_pylist() == [f"{row:05d}.jpg" for row in range(200)]
    assert "was stopped for" in (output / "_penstock" / "log.txt").read_text()
    assert marked(mark) == []


def test_interrupt_that_a_function_raises_is_about_its_row(light_models: Path, place: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    more = ["--preprocess-row", "functions:interrupted", "--limit", 60]
    process = start(photos_command(light_models, output, *more), new_mark(), place)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    assert "Traceback" not in errors
    (failure,) = map(json.loads, (output / "_penstock" / "failures.jsonl").read_text().splitlines())
    assert (failure["row"], failure["stage"], failure["error"]) == (17, "preprocess", "KeyboardInterrupt")


def write_endless_model(path: Path) -> None:
    """A loop whose condition never becomes false."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["go_on_out"]), helper.make_node("Add", ["v", "v"], ["v_out"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [None, 4]),
        ],
        [
            helper.make_tensor_value_info("go_on_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_out", TensorProto.FLOAT, [None, 4]),
        ],
    )
    loop = helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    onnx_models.save(path, [loop], GIVEN, ANSWERED, initializers={"yes": np.array(True)})


@pytest.mark.slow
def test_model_that_loops_for_ever_ends_with_its_reason_and_leaves_nothing(tmp_path: Path) -> None:
    mark = new_mark()
    write_endless_model(tmp_path / "endless.onnx")
    np.save(tmp_path / "x.npy", random_rows(100))
    command = penstock_command(
        "predict", "endless.onnx", "x.npy", "--output", "out", "--batch-size", 32, "--start-timeout", 3
    )
    process = start(command, mark, tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 9, errors
    assert "hung" in errors
    assert "--start-timeout" in errors
    assert marked(mark) == []


POISONED = """
import os, signal, time
import numpy as np

def faulty(block):
    x = block["x"].copy()
    for kind in x[x[:, 0] < -100, 0]:
        match int(kind):
            case -101: raise KeyError("poison")
            case -102: os.kill(os.getpid(), signal.SIGSEGV); time.sleep(60)
            case -103: time.sleep(3600)
            case -104: return {"x": x[:, :3]}
            case -105: x[x[:, 0] == -105, 0] = np.nan
    return {"x": x}
"""


@pytest.mark.slow
def test_poison_rows_of_a_function_among_a_hundred_thousand_fail_alone(tmp_path: Path) -> None:
    """It raises, crashes, hangs, gives a row of the wrong shape; what is not a number is predicted, and counted."""
    x = np.abs(random_rows(100_000))
    poison = {17: -101, 20_000: -102, 40_001: -103, 60_002: -104, 99_999: -101}
    for row, kind in (*poison.items(), (50_000, -105)):
        x[row, 0] = kind
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 4)
    pq.write_table(pa.table({"x": column}), tmp_path / "rows.parquet")
    (tmp_path / "functions.py").write_text(POISONED)
    onnx_models.save(tmp_path / "twice.onnx", [onnx_models.node("Add", ["x", "x"], ["y"])], GIVEN, ANSWERED)
    ran = run_penstock(
        "predict", "twice.onnx", "rows.parquet", "--output", "out", "--preprocess", "functions:faulty",
        "--row-timeout", 3, "--loaders", 2, "--batch-size", 512, "--json", cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    summary = json.loads(ran.stdout)
    assert (summary["rows"], summary["failed"], summary["not_finite"]) == (100_000 - len(poison), len(poison), 1)
    failures = map(json.loads, (tmp_path / "out" / "_penstock" / "failures.jsonl").read_text().splitlines())
    assert {failure["row"]: failure["error"] for failure in failures} == {
        17: "KeyError", 20_000: "LoaderDied", 40_001: "TimeoutError", 60_002: "WrongAnswer", 99_999: "KeyError",
    }  # fmt: skip
    found = read_rows(tmp_path / "out")
    rows = found.column("row").to_numpy()
    assert rows.tolist() == [row for row in range(100_000) if row not in poison]
    expected = np.where(x[rows] == -105, np.nan, 2 * x[rows])
    np.testing.assert_array_equal(np.stack(found.column("y").to_numpy()), expected.astype(np.float32))


def test_process_that_takes_nothing_from_its_line_does_not_block_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_STANDS_STILL_S", 1)
    (tmp_path / "deaf.py").write_text("import time; time.sleep(3600)")
    worker = supervisor.WorkerProcess("deaf", (), (), {"PYTHONPATH": str(tmp_path)}, subprocess.DEVNULL)
    try:
        worker.send(bytes(10 << 20))
        assert worker.describe_end() == "hung for 1 s"
        with pytest.raises((EOFError, OSError)):
            worker.receive()
    finally:
        worker.close()
