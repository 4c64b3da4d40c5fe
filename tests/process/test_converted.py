"""Steps of TensorFlow models as ONNX: onnxruntime and OpenVINO answer as TensorFlow did, or there is a reason."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

from penstock.core.agreement import other_on_strangers
from penstock.core.protocols import Replica, Runtime
from penstock.core.records import Columns, Device, ModelFile
from penstock.errors import DeviceError, ModelError, OutOfMemory, RefusedByRuntime
from penstock.pool.guard.strangers import answer_strangers
from penstock.runtimes.onnx.runtime import OnnxRuntime
from penstock.runtimes.openvino import OpenVinoRuntime
from tests.conftest import ENVIRONMENT
from tests.support.told import ROWS, Told

ROOT = Path(__file__).parents[2]
RUNTIMES: dict[str, Runtime] = {"onnx": OnnxRuntime(), "openvino": OpenVinoRuntime()}
CONVERTED = [
    "image", "groups", "ranked", "several", "lstm", "masked gru", "encoder", "quantized", "saved model", "frozen graph",
    "carried", "divided", "heavy", "heavy lstm", "heavy int4", "heavy int8", "heavy bfloat16",
]  # fmt: skip


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Told]]:
    """Steps that one process converted, and what it says of each."""
    folder = tmp_path_factory.mktemp("converted")
    quiet = ENVIRONMENT | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.convert_models", str(folder)],
        capture_output=True, text=True, cwd=ROOT, env=quiet, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "tf2onnx" not in ran.stdout + ran.stderr
    return folder, read_told(folder)


def read_told(folder: Path) -> dict[str, Told]:
    found: dict[str, Told] = pickle.loads((folder / "told.pickle").read_bytes())
    return found


def load(runtime: str, folder: Path, precision: str = "model", threads: int = 1) -> Replica:
    file = ModelFile("converted", str(folder), "", (runtime,), precision=precision)
    return RUNTIMES[runtime].load(file, Device("cpu", 0), threads)


def assert_agree(found: Columns, wanted: Columns, tolerance: float = 1e-5) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        spread = float(np.ptp(array.astype("f8"))) or 1.0
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance * spread, err_msg=name)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_step_answers_as_tensorflow_did(
    converted: tuple[Path, dict[str, Told]], runtime: str, name: str
) -> None:
    folder, told = converted[0] / name, converted[1][name]
    assert told.reason is None
    replica = load(runtime, folder)
    assert replica.signature == told.signature
    assert_agree(replica.predict(told.batch), told.answers)
    two_rows = {key: array[1:3] for key, array in told.batch.items()}
    assert_agree(replica.predict(two_rows), {key: array[1:3] for key, array in told.answers.items()}, 1e-4)
    replica.close()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_large_weights_that_are_put_in_last_change_no_bit(
    converted: tuple[Path, dict[str, Told]], runtime: str
) -> None:
    folder, told = converted
    whole, put_in = (load(runtime, folder / name) for name in ("heavy with weights", "heavy"))
    wanted, found = (replica.predict(told["heavy"].batch) for replica in (whole, put_in))
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())
    graph = onnx.load(folder / "heavy" / "model.onnx").graph
    assert [given.name for given in graph.input] == ["input_0"]


def test_a_recurrent_layer_with_large_weights_stays_one(converted: tuple[Path, dict[str, Told]]) -> None:
    graph = onnx.load(converted[0] / "heavy lstm" / "model.onnx").graph
    assert [node.op_type for node in graph.node if node.op_type in ("LSTM", "Loop")] == ["LSTM"]


@pytest.mark.parametrize(
    ("name", "runtime", "problem"),
    [
        ("saved model", "onnx", None),
        ("saved model", "openvino", "it answers numbers that are out of range"),
        ("encoder", "onnx", None),
        ("divided", "onnx", None),
        ("several", "onnx", "rows with NaN are answered otherwise"),
        ("frozen graph", "onnx", None),
        ("frozen graph", "openvino", None),
    ],
)
def test_rows_that_no_sample_has_tell_runtimes_apart(
    converted: tuple[Path, dict[str, Told]], name: str, runtime: str, problem: str | None
) -> None:
    folder, told = converted[0] / name, converted[1][name]
    found = other_on_strangers(
        answer_strangers(load(runtime, folder), told.batch, list(told.strangers)), told.strangers
    )
    assert not found if problem is None else problem in "".join(found.values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wide", "whole numbers are cut to 32 bits"),
        ("wide loop", "whole numbers are cut to 32 bits"),
        ("wide table", "whole numbers are cut to 32 bits"),
        ("last of each", "an id that is out of range ends the process"),
    ],
)
def test_what_openvino_would_answer_otherwise_stays_with_who_has_it(
    converted: tuple[Path, dict[str, Told]], name: str, reason: str
) -> None:
    folder, told = converted[0] / name, converted[1][name]
    assert_agree(load("onnx", folder).predict(told.batch), told.answers, 0.0)
    with pytest.raises(RefusedByRuntime, match=reason):
        load("openvino", folder)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("words", "ONNX has no LookupTableFindV2"),
        ("heavy words", "ONNX has no LookupTableFindV2"),
        ("bins", "ONNX has no Bucketize"),
        ("bfloat16", "MatMul"),
    ],
)
def test_what_cannot_be_converted_is_named(converted: tuple[Path, dict[str, Told]], name: str, reason: str) -> None:
    folder, told = converted[0] / name, converted[1][name]
    assert told.reason is not None
    assert reason in told.reason
    assert "\n" not in told.reason
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_threads_that_call_at_once_get_their_own_answers(converted: tuple[Path, dict[str, Told]], runtime: str) -> None:
    folder, told = converted[0] / "several", converted[1]["several"]
    replica = load(runtime, folder)
    batches = [{key: np.roll(array, turn, axis=0) for key, array in told.batch.items()} for turn in range(ROWS)]
    wanted = [replica.predict(batch) for batch in batches]
    with ThreadPoolExecutor(4) as lanes:
        found = list(lanes.map(replica.predict, batches * 20))
    for turn, answers in enumerate(found):
        for key, array in wanted[turn % ROWS].items():
            np.testing.assert_array_equal(answers[key], array)


def test_openvino_gives_the_same_bits_in_another_process(converted: tuple[Path, dict[str, Told]]) -> None:
    folder, told = converted[0] / "encoder", converted[1]["encoder"]
    script = (
        "import sys, pickle; from tests.process.test_converted import *;"
        "folder = Path(sys.argv[1]); told = read_told(folder.parent)['encoder'];"
        "found = load('openvino', folder, threads=2).predict(told.batch);"
        "sys.stdout.buffer.write(pickle.dumps(found))"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, cwd=ROOT, check=True)
    here = load("openvino", folder, threads=2).predict(told.batch)
    for name, array in pickle.loads(ran.stdout).items():
        np.testing.assert_array_equal(array, here[name])


def test_openvino_asks_nobody_and_writes_nothing_home(converted: tuple[Path, dict[str, Told]], tmp_path: Path) -> None:
    script = (
        "import sys, socket, subprocess; from pathlib import Path;"
        "sys.addaudithook(lambda event, _: sys.exit(event) if event in ('socket.connect', 'subprocess.Popen') else 0);"
        "from penstock.core.records import Device, ModelFile;"
        "from penstock.runtimes.openvino import OpenVinoRuntime;"
        "OpenVinoRuntime().load(ModelFile('converted', sys.argv[1], '', ()), Device('cpu', 0), 1);"
        "print([name for name in sys.modules if 'telemetry' in name or name in ('tensorflow', 'keras')])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(converted[0] / "lstm")],
        capture_output=True, text=True, env=ENVIRONMENT | {"HOME": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    # A package of penstock is called telemetry, too.
    assert [name for name in eval(ran.stdout) if not name.startswith("penstock")] == []
    assert list(tmp_path.iterdir()) == []


def test_lower_precision_is_computed_only_where_it_was_asked_for(converted: tuple[Path, dict[str, Told]]) -> None:
    folder, told = converted[0] / "encoder", converted[1]["encoder"]
    try:
        replica = load("openvino", folder, "bfloat16")
    except DeviceError as error:
        pytest.skip(f"{error.problem}: {error.allowed}")
    found = next(iter(replica.predict(told.batch).values()))
    wanted = next(iter(told.answers.values()))
    difference = float(np.abs(found - wanted).max() / np.ptp(wanted))
    assert 1e-4 < difference < 0.2


@pytest.mark.parametrize(("runtime", "precision"), [("openvino", "int8"), ("onnx", "bfloat16"), ("onnx", "int8")])
def test_a_precision_that_a_runtime_lacks_is_refused(
    converted: tuple[Path, dict[str, Told]], runtime: str, precision: str
) -> None:
    with pytest.raises(DeviceError, match=f"does not compute in {precision}") as raised:
        load(runtime, converted[0] / "lstm", precision)
    assert "model" in str(raised.value.allowed)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_folder_without_a_step_is_refused(tmp_path: Path, runtime: str) -> None:
    with pytest.raises(ModelError, match="not a converted model"):
        load(runtime, tmp_path)
    (tmp_path / "signature.json").write_text(json.dumps({"format": 99}), encoding="utf-8")
    with pytest.raises(ModelError, match="format 99"):
        load(runtime, tmp_path)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_batch_of_another_shape_fails_alone(converted: tuple[Path, dict[str, Told]], runtime: str) -> None:
    folder, told = converted[0] / "image", converted[1]["image"]
    replica = load(runtime, folder)
    wrong = {"image": told.batch["image"][:, :5]}
    with pytest.raises(Exception, match=r"image|input_0|[Ss]hape|dimension") as raised:
        replica.predict(wrong)
    assert not isinstance(raised.value, OutOfMemory)
    assert_agree(replica.predict(told.batch), told.answers)
