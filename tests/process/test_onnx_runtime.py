"""What ONNX files may hold: every dtype, dicts for rows, one row at a time; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from penstock.core.output_selection import Answers
from penstock.core.protocols import Replica
from penstock.core.records import Device, ModelFile
from penstock.errors import DeviceError, ModelError
from penstock.runtimes.onnx.runtime import OnnxRuntime
from tests.support import onnx_models
from tests.support.onnx_models import node

X = np.arange(12, dtype=np.uint8).reshape(3, 4)
MANY_ROWS: onnx_models.Tensors = {"x": ("FLOAT", ["rows", 4])}


def load(path: Path, **options: Any) -> Replica:
    return OnnxRuntime().load(ModelFile("onnx", str(path), "digest", ("onnx",), **options), Device("cpu", 0), 1)


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("FLOAT16", "float16"), ("DOUBLE", "float64"), ("BOOL", "bool"), ("INT8", "int8"), ("UINT8", "uint8"),
        ("INT16", "int16"), ("UINT16", "uint16"), ("INT32", "int32"), ("UINT32", "uint32"), ("INT64", "int64"),
        ("UINT64", "uint64"),
    ],
)  # fmt: skip
def test_every_dtype_is_cast_to_and_comes_back(tmp_path: Path, element: str, dtype: str) -> None:
    nodes = [node("Identity", ["x"], ["y"])]
    shape: tuple[str, list[int | str]] = (element, ["rows", 4])
    replica = load(onnx_models.save(tmp_path / "same.onnx", nodes, {"x": shape}, {"y": shape}))
    assert [spec.dtype for spec in replica.signature.inputs] == [dtype]
    found = replica.predict({"x": X})["y"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, X.astype(dtype))


def test_bfloat16_is_rounded_to_the_nearest(tmp_path: Path) -> None:
    tensors = {"x": ("BFLOAT16", ["rows"])}, {"y": ("BFLOAT16", ["rows"])}
    replica = load(onnx_models.save(tmp_path / "same.onnx", [node("Identity", ["x"], ["y"])], *tensors))
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159, np.inf, np.nan, 3.4e38], np.float32)
    found = replica.predict({"x": values})["y"]
    # 1 + 1/256 and 1 + 3/256 lie between two values: ties go to the even one. The last is too large for any.
    np.testing.assert_array_equal(found, np.array([1.0, 1.0, 1.015625, -3.140625, np.inf, np.nan, np.inf], "f4"))


def test_a_dict_for_each_row_becomes_a_vector_in_the_order_of_its_classes(tmp_path: Path) -> None:
    path = onnx_models.save(
        tmp_path / "classes.onnx",
        [node("ZipMap", ["x"], ["share"], domain="ai.onnx.ml", classlabels_strings=["d", "b", "c", "a"])],
        MANY_ROWS,
        [onnx_models.map_output("share")],
        domains={"ai.onnx.ml": 3},
    )
    replica = load(path)
    assert replica.signature.notes == ("share holds one value for each class, in this order: a, b, c, d",)
    assert [spec.shape for spec in replica.signature.outputs] == [(4,)]
    np.testing.assert_array_equal(replica.predict({"x": X})["share"], X[:, [3, 1, 2, 0]].astype("f4"))


def test_a_file_for_one_row_is_fed_row_by_row(tmp_path: Path) -> None:
    path = onnx_models.save(
        tmp_path / "one.onnx", [node("Squeeze", ["x"], ["y"])], {"x": ("FLOAT", [1, 4])}, {"y": ("FLOAT", [4])}
    )
    replica = load(path, answers=Answers(top_k=2))
    assert replica.signature.fixed_batch is None
    assert replica.predict({"x": X})["classes:y"].tolist() == [[3, 2]] * 3


def test_sequences_are_refused_unless_they_are_not_asked_for(tmp_path: Path) -> None:
    outputs = [
        onnx.helper.make_tensor_value_info("same", onnx.TensorProto.FLOAT, ["rows", 4]),
        onnx_models.sequence_output("all"),
    ]
    nodes = [node("Identity", ["x"], ["same"]), node("SequenceConstruct", ["x"], ["all"])]
    path = onnx_models.save(tmp_path / "both.onnx", nodes, MANY_ROWS, outputs)
    with pytest.raises(ModelError, match=r"all: seq\(tensor\(float\)\)"):
        load(path)
    assert list(load(path, answers=Answers(outputs=("same",))).predict({"x": X})) == ["same"]


def test_operators_that_onnxruntime_does_not_have_are_named(tmp_path: Path) -> None:
    nodes = [node("Magic", ["x"], ["y"], domain="my.own")]
    path = onnx_models.save(tmp_path / "own.onnx", nodes, MANY_ROWS, {"y": MANY_ROWS["x"]}, domains={"my.own": 1})
    with pytest.raises(ModelError, match=r"my\.own:Magic") as caught:
        load(path)
    assert "operators of its own" in str(caught.value)


def test_an_opset_of_the_future_is_refused(tmp_path: Path) -> None:
    path = onnx_models.save(
        tmp_path / "new.onnx", [node("Identity", ["x"], ["y"])], MANY_ROWS, {"y": MANY_ROWS["x"]}, domains={"": 99}
    )
    with pytest.raises(ModelError, match="pip install --upgrade onnxruntime"):
        load(path)


def test_a_gpu_needs_a_build_for_it(tmp_path: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime was built for GPUs")
    path = onnx_models.save(tmp_path / "x.onnx", [node("Identity", ["x"], ["y"])], MANY_ROWS, {"y": MANY_ROWS["x"]})
    with pytest.raises(DeviceError, match="onnxruntime-gpu"):
        OnnxRuntime().load(ModelFile("onnx", str(path), "digest", ("onnx",)), Device("gpu", 0), 1)
