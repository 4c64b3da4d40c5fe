"""Which inputs of a plain file are rows, which are constants, and how batches become what the file takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.core.records import STRING, Columns, ModelFile, Signature, TensorSpec
from penstock.core.scaling import PRESETS
from penstock.errors import ModelError, UsageError
from penstock.runtimes.plain_inputs import (
    Declared,
    HostInputs,
    OneByOne,
    divide_inputs,
    parse_constant,
    rows_at_once,
)

ROWS = Declared("x", "float32", (None, 4))


def file(**options: Any) -> ModelFile:
    return ModelFile("onnx", "model.onnx", "digest", ("onnx",), **options)


@pytest.mark.parametrize(
    ("dtype", "shape", "text", "value"),
    [
        ("float32", (), "0.5", 0.5),
        ("int64", (), " -3 ", -3),
        ("bool", (), "true", True),
        ("bool", (), "0", False),
        ("bfloat16", (), "2", 2.0),
        (STRING, (), "a, b", b"a, b"),
        ("float32", (2,), "1, 2", [1, 2]),
        ("int32", (None, 2), "1,2,3,4", [[1, 2], [3, 4]]),
        ("uint64", (), str(2**64 - 1), 2**64 - 1),
        ("float16", (2,), "-inf,65504", [-np.inf, 65504]),
        ("float32", None, "1,2", [1, 2]),
        (STRING, None, "a,b", b"a,b"),
    ],
)
def test_a_constant_is_read_by_the_dtype_and_shape_of_its_input(
    dtype: str, shape: tuple[int | None, ...], text: str, value: Any
) -> None:
    assert parse_constant(Declared("k", dtype, shape), text).tolist() == value


@pytest.mark.parametrize(
    ("dtype", "shape", "text"),
    [("float32", (), "much"), ("int8", (), "300"), ("int32", (), "1.5"), ("bool", (), "2"), ("float32", (2,), "1")]
    + [("uint8", (), "-1"), ("float16", (), "65536"), ("int32", (None, None), "1,2"), ("variant", (), "1")],
)
def test_what_is_no_value_of_the_input_is_refused(dtype: str, shape: tuple[int | None, ...], text: str) -> None:
    with pytest.raises(UsageError, match="not a value of that input"):
        parse_constant(Declared("k", dtype, shape), text)


def test_an_input_without_a_batch_dimension_needs_a_constant() -> None:
    scalar = Declared("k", "float32", ())
    with pytest.raises(ModelError, match="--constant k=VALUE"):
        divide_inputs(file(), [ROWS, scalar])
    inputs = divide_inputs(file(constants={"k": "2"}), [ROWS, scalar])
    assert inputs.specs == (TensorSpec("x", "float32", (4,)),)
    assert inputs.constants["k"] == 2


def test_a_constant_for_an_unknown_input_is_refused_with_the_list() -> None:
    with pytest.raises(UsageError, match=r"x float32\[\?, 4\]"):
        divide_inputs(file(constants={"y": "2"}), [ROWS])


def test_a_model_of_constants_only_takes_no_rows() -> None:
    with pytest.raises(ModelError, match="takes no rows"):
        divide_inputs(file(constants={"x": "1,2,3,4"}), [ROWS])


def test_inputs_that_ask_for_different_numbers_of_rows_are_refused() -> None:
    assert rows_at_once([ROWS]) is None
    assert rows_at_once([ROWS, Declared("y", "int32", (8,))]) == 8
    with pytest.raises(ModelError, match="--constant z="):
        rows_at_once([Declared("y", "int32", (8,)), Declared("z", "int32", (4,))])


def test_pixels_are_scaled_before_they_are_cast() -> None:
    signature = Signature((TensorSpec("photo", "float16", (2, 2, 3)), TensorSpec("id", "int32", ())), ())
    host = HostInputs(file(scaling=PRESETS["scale-0-1"]), signature)
    pixels = np.full((5, 2, 2, 3), 51, np.uint8)
    scaled = host.prepare("photo", pixels)
    assert scaled.dtype == np.float16
    np.testing.assert_allclose(scaled, 0.2, rtol=1e-3)
    assert host.prepare("id", np.arange(5)).dtype == np.int32


def test_rows_that_go_in_one_by_one_come_out_as_one_batch() -> None:
    loop = OneByOne([Declared("kept", "float32", (1, 2)), Declared("squeezed", "float32", (3,))])
    assert loop.spec(Declared("kept", "float32", (1, 2))).shape == (2,)
    assert loop.spec(Declared("squeezed", "float32", (3,))).shape == (3,)

    def run(feeds: Columns) -> Columns:
        assert len(feeds["x"]) == 1
        return {"kept": feeds["x"][:, :2], "squeezed": feeds["x"][0, :3]}

    x = np.arange(20.0).reshape(5, 4)
    found = loop.run(run, {"x": x})
    np.testing.assert_array_equal(found["kept"], x[:, :2])
    np.testing.assert_array_equal(found["squeezed"], x[:, :3])


def answers_of(declared: Declared, counts: list[int], shape: tuple[int, ...] = (), **options: Any) -> Any:
    """What a model gives that answers a row with `n` times `shape`."""
    lead = (1,) if declared.shape is not None and declared.shape[:1] == (1,) else ()

    def run(feeds: Columns) -> Columns:
        return {declared.name: np.full((*lead, int(feeds["n"][0]), *shape), feeds["n"][0])}

    return OneByOne([declared], **options).run(run, {"n": np.array(counts)})[declared.name]


@pytest.mark.parametrize("shape", [(None, 2), (1, None, 2)], ids=str)
def test_answers_of_open_length_are_lists(shape: tuple[int | None, ...]) -> None:
    found = answers_of(Declared("boxes", "int64", shape), [2, 0, 1], (2,))
    assert found.to_pylist() == [[[2, 2], [2, 2]], [], [[1, 1]]]
    assert OneByOne([]).spec(Declared("boxes", "int64", shape)).shape == (None, 2)


def test_one_answer_in_each_row_of_a_batch_is_a_list_of_one_where_others_may_have_more() -> None:
    boxes = Declared("boxes", "int64", (None, 2))
    assert answers_of(boxes, [1, 1], (2,)).type == answers_of(boxes, [0, 3], (2,)).type


def test_an_open_first_dimension_is_the_batch_where_the_inputs_have_one() -> None:
    boxes = Declared("boxes", "int64", (None, 2))
    assert answers_of(boxes, [1, 1], (2,), has_open_batch=True).shape == (2, 2)
    with pytest.raises(ModelError, match="does not have one row for each row"):
        answers_of(boxes, [0, 2], (2,), has_open_batch=True)


@pytest.mark.parametrize("shape", [(2,), None], ids=str)
def test_rows_that_answer_in_shapes_that_were_not_declared_are_refused(shape: tuple[int | None, ...] | None) -> None:
    with pytest.raises(ModelError, match="another shape from row to row"):
        answers_of(Declared("boxes", "float32", shape), [1, 2])
