"""ONNX files on OpenVINO: as on onnxruntime, or refused, and never in fewer bits than the file has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from penstock.core.output_selection import Answers
from penstock.core.records import Device, ModelFile, Scaling
from penstock.errors import DeviceError, RefusedByRuntime
from penstock.runtimes.openvino import MOST_SHAPES, OpenVinoReplica, OpenVinoRuntime
from tests.support import onnx_models
from tests.support.onnx_models import node

ROOT = Path(__file__).parents[2]
X = np.arange(12, dtype=np.uint8).reshape(3, 4)
ROWS_OF_4: onnx_models.Tensors = {"x": ("FLOAT", ["rows", 4])}


def load(path: Path, *, device: str = "cpu", **options: Any) -> OpenVinoReplica:
    file = ModelFile("onnx", str(path), "digest", ("onnx", "openvino"), **options)
    replica = OpenVinoRuntime().load(file, Device(device, 0), 1)
    assert isinstance(replica, OpenVinoReplica)
    return replica


def same(path: Path, element: str, nodes: list[Any] | None = None) -> Path:
    shape: tuple[str, list[int | str]] = (element, ["rows", 4])
    return onnx_models.save(path, nodes or [node("Identity", ["x"], ["y"])], {"x": shape}, {"y": shape})


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("FLOAT", "float32"), ("FLOAT16", "float16"), ("BOOL", "bool"), ("INT8", "int8"), ("UINT8", "uint8"),
        ("INT16", "int16"), ("UINT16", "uint16"), ("INT32", "int32"), ("UINT32", "uint32"), ("INT64", "int64"),
        ("UINT64", "uint64"),
    ],
)  # fmt: skip
def test_every_dtype_is_cast_to_and_comes_back(tmp_path: Path, element: str, dtype: str) -> None:
    replica = load(same(tmp_path / "same.onnx", element))
    assert [(spec.name, spec.dtype) for spec in replica.signature.inputs] == [("x", dtype)]
    found = replica.predict({"x": X})["y"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, X.astype(dtype))


@pytest.mark.parametrize("element", ["DOUBLE", "STRING", "BFLOAT16"])
def test_types_that_openvino_cannot_compute_in_are_refused(tmp_path: Path, element: str) -> None:
    with pytest.raises(RefusedByRuntime, match="type"):
        load(same(tmp_path / "same.onnx", element))


def test_double_precision_inside_a_model_is_refused(tmp_path: Path) -> None:
    inside = [node("Cast", ["x"], ["wide"], to=11), node("Exp", ["wide"], ["e"]), node("Cast", ["e"], ["y"], to=1)]
    with pytest.raises(RefusedByRuntime, match="f64 in Exp"):
        load(same(tmp_path / "wide.onnx", "FLOAT", inside))


def test_whole_numbers_of_more_than_32_bits_fail_instead_of_being_cut_off(tmp_path: Path) -> None:
    replica = load(same(tmp_path / "same.onnx", "INT64"))
    with pytest.raises(ValueError, match="more than 32 bits"):
        replica.predict({"x": np.array([[1, 2, 3, 2**40]])})
    largest = np.array([[2**31 - 1, -(2**31), 0, 1]])
    np.testing.assert_array_equal(replica.predict({"x": largest})["y"], largest)


def hashing(path: Path) -> Path:
    """Rows of a table by what is left of a whole number."""
    table, size = np.arange(3988, dtype=np.float32).reshape(997, 4), np.array(997)
    nodes = [node("Mod", ["ids", "size"], ["places"]), node("Gather", ["table", "places"], ["y"])]
    outputs: onnx_models.Tensors = {"y": ("FLOAT", ["rows", 4])}
    return onnx_models.save(
        path, nodes, {"ids": ("INT64", ["rows"])}, outputs, initializers={"table": table, "size": size}
    )


def test_arithmetic_of_large_whole_numbers_is_refused_and_that_of_truth_values_and_places_is_not(
    tmp_path: Path,
) -> None:
    with pytest.raises(RefusedByRuntime) as caught:
        load(hashing(tmp_path / "hash.onnx"))
    assert caught.value.received == "whole numbers are cut to 32 bits: Mod of 64 bits in the model"
    rows = np.array([[3, 1, 2], [0, 5, 4]])
    positive = [node("Greater", ["x", "zero"], ["is"]), node("Cast", ["is"], ["one"], to=TensorProto.INT64)]
    count = [*positive, node("CumSum", ["one", "axis"], ["y"])]
    constants = {"zero": np.array(0), "axis": np.array(1)}
    numbers: onnx_models.Tensors = {"x": ("INT64", ["rows", 3])}
    path = onnx_models.save(tmp_path / "c.onnx", count, numbers, {"y": ("INT64", ["rows", 3])}, initializers=constants)
    np.testing.assert_array_equal(load(path).predict({"x": rows})["y"], (rows > 0).cumsum(axis=1))
    best = [node("ArgMax", ["x"], ["at"], axis=1, keepdims=0), node("Add", ["at", "two"], ["y"])]
    two = {"two": np.array(2)}
    path = onnx_models.save(tmp_path / "b.onnx", best, ROWS_OF_4, {"y": ("INT64", ["rows"])}, initializers=two)
    np.testing.assert_array_equal(load(path).predict({"x": X.astype(np.float32)})["y"], [5, 5, 5])


def test_what_is_no_onnx_or_holds_unknown_operators_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello", encoding="utf-8")
    own = [node("Fancy", ["x"], ["y"], domain="my.own")]
    path = onnx_models.save(tmp_path / "own.onnx", own, ROWS_OF_4, {"y": ("FLOAT", None)}, domains={"my.own": 1})
    for bad in (tmp_path / "text.onnx", path):
        with pytest.raises(RefusedByRuntime, match="does not read the model"):
            load(bad)


def test_inputs_are_scaled_and_constants_given(tmp_path: Path) -> None:
    path = onnx_models.save(
        tmp_path / "add.onnx",
        [node("Add", ["x", "shift"], ["y"])],
        {**ROWS_OF_4, "shift": ("FLOAT", [])},
        {"y": ("FLOAT", ["rows", 4])},
    )
    replica = load(path, constants={"shift": "0.5"}, scaling=Scaling((2.0,)))
    np.testing.assert_array_equal(replica.predict({"x": X})["y"], X * 2.0 + 0.5)


def test_the_first_of_equal_values_is_the_best(tmp_path: Path) -> None:
    path = onnx_models.save(
        tmp_path / "best.onnx",
        [node("TopK", ["x", "k"], ["value", "place"])],
        {"x": ("FLOAT", ["rows", 40])},
        {"value": ("FLOAT", ["rows", 5]), "place": ("INT64", ["rows", 5])},
        initializers={"k": np.array([5])},
    )
    tied = np.random.default_rng(0).integers(0, 4, (16, 40)).astype("f4")
    found = load(path).predict({"x": tied})["place"]
    np.testing.assert_array_equal(found, np.argsort(-tied, axis=1, kind="stable")[:, :5])


def test_answers_are_ranked_and_chosen(tmp_path: Path) -> None:
    nodes = [node("Identity", ["x"], ["p"]), node("Neg", ["x"], ["q"])]
    outputs: onnx_models.Tensors = {"p": ("FLOAT", ["rows", 4]), "q": ("FLOAT", ["rows", 4])}
    path = onnx_models.save(tmp_path / "two.onnx", nodes, ROWS_OF_4, outputs)
    found = load(path, answers=Answers(outputs=("q",), argmax=True)).predict({"x": X})
    assert {name: array.tolist() for name, array in found.items()} == {"classes:q": [0, 0, 0]}


def test_a_file_of_one_row_takes_many(tmp_path: Path) -> None:
    tensors = {"x": ("FLOAT", [1, 4])}, {"y": ("FLOAT", [1, 4])}
    replica = load(onnx_models.save(tmp_path / "one.onnx", [node("Neg", ["x"], ["y"])], *tensors))
    assert replica.signature.fixed_batch is None
    np.testing.assert_array_equal(replica.predict({"x": X})["y"], -X.astype("f4"))


def test_a_wrong_shape_fails_and_does_not_change_the_network(tmp_path: Path) -> None:
    replica = load(same(tmp_path / "same.onnx", "FLOAT"))
    with pytest.raises(ValueError, match=r"x has the shape \(3, 2\)"):
        replica.predict({"x": X[:, :2]})
    np.testing.assert_array_equal(replica.predict({"x": X})["y"], X.astype("f4"))


def test_any_number_of_shapes_is_answered(tmp_path: Path) -> None:
    replica = load(same(tmp_path / "same.onnx", "FLOAT"))
    for turn in range(2):
        for rows in range(1, MOST_SHAPES + 4):
            batch = np.full((rows, 4), turn, np.uint8)
            np.testing.assert_array_equal(replica.predict({"x": batch})["y"], batch.astype("f4"))


def test_answers_are_the_callers_own(tmp_path: Path) -> None:
    replica = load(same(tmp_path / "same.onnx", "FLOAT"))
    first = replica.predict({"x": X})["y"]
    replica.predict({"x": X + 100})
    np.testing.assert_array_equal(first, X.astype("f4"))


_LARGE_THEN_SMALL = """
import resource, sys
import numpy as np
from pathlib import Path
from penstock.errors import OutOfMemory
from tests.process.test_openvino_runtime import load
replica = load(Path(sys.argv[1]))
replica.predict({"x": np.ones((2, 4), np.uint8)})
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
try:
    replica.predict({"x": np.ones((50_000, 4), np.uint8)})
except OutOfMemory as error:
    print(error.hint)
print(replica.predict({"x": np.ones((3, 4), np.uint8)})["y"].shape)
"""


def test_a_batch_that_does_not_fit_is_out_of_memory_and_a_smaller_one_goes_on(tmp_path: Path) -> None:
    path = onnx_models.save(
        tmp_path / "wide.onnx",
        [node("MatMul", ["x", "w"], ["wide"]), node("Exp", ["wide"], ["e"]), node("ReduceMax", ["e", "axis"], ["y"])],
        ROWS_OF_4,
        {"y": ("FLOAT", ["rows", 1])},
        initializers={"w": np.ones((4, 2**16), np.float32), "axis": np.array([1])},
    )
    ran = subprocess.run(
        [sys.executable, "-c", _LARGE_THEN_SMALL, str(path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.stdout.splitlines() == ["try --batch-size 25000", "(3, 1)"], ran.stderr


def test_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="processors only"):
        load(same(tmp_path / "same.onnx", "FLOAT"), device="gpu")
