"""Scaling inside the compiled step, against the formulas that people know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.core.records import Array, Scaling, Shape, Signature, TensorSpec
from penstock.core.scaling import PRESETS, scaled_inputs
from penstock.errors import UsageError
from penstock.options.records import PRESETS as PRESET_NAMES

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3)).astype(np.float32)

FORMULAS: dict[str, Callable[[Array], Array]] = {
    "imagenet-torch": lambda x: (x / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225]),
    "imagenet-tf": lambda x: x / 127.5 - 1,
    "imagenet-caffe": lambda x: x[..., ::-1] - np.array([103.939, 116.779, 123.68]),
    "scale-0-1": lambda x: x / 255,
    "scale-1-1": lambda x: x / 127.5 - 1,
}


class TorchTensor:
    """Just enough of a tensor that flips and makes constants by methods of its own."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def flip(self, axis: int) -> TorchTensor:
        return TorchTensor(np.flip(self.array, axis))

    def new_tensor(self, values: tuple[float, ...]) -> Array:
        return np.asarray(values, self.array.dtype)

    def __mul__(self, other: Any) -> TorchTensor:
        return TorchTensor(self.array * other)

    def __add__(self, other: Any) -> TorchTensor:
        return TorchTensor(self.array + other)


def test_every_preset_that_can_be_asked_for_is_there() -> None:
    assert set(PRESETS) == set(PRESET_NAMES) == set(FORMULAS)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_the_formula_that_people_know(name: str) -> None:
    scaled = PRESETS[name].apply(PIXELS)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, FORMULAS[name](PIXELS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_the_same_for_tensors_that_flip_by_themselves(name: str) -> None:
    scaled = PRESETS[name].apply(TorchTensor(PIXELS)).array
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, FORMULAS[name](PIXELS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_single_numbers_leave_the_dtype_alone(dtype: str) -> None:
    assert Scaling((2.0,), (1.0,)).apply(PIXELS.astype(dtype)).dtype == dtype


def test_numbers_for_every_channel_go_to_their_channels() -> None:
    scaled = Scaling((1.0, 10.0, 100.0), (0.0, 1.0, 2.0)).apply(np.ones((1, 2, 2, 3), np.float32))
    assert scaled[0, 0, 0].tolist() == [1.0, 11.0, 102.0]


def test_scaling_by_nothing_changes_nothing() -> None:
    np.testing.assert_array_equal(Scaling().apply(PIXELS), PIXELS)


@pytest.mark.parametrize(
    ("scaling", "channels"),
    [
        (Scaling(), None),
        (Scaling((2.0,), (1.0,)), None),
        (Scaling((1.0, 2.0)), 2),
        (Scaling((1.0,), (1.0, 2.0, 3.0, 4.0)), 4),
        (Scaling((1.0,), is_reversed=True), 3),
        (PRESETS["imagenet-torch"], 3),
        (PRESETS["imagenet-caffe"], 3),
        (PRESETS["scale-0-1"], None),
    ],
)
def test_scaling_says_how_many_channels_it_wants(scaling: Scaling, channels: int | None) -> None:
    assert scaling.channels == channels


def model(**inputs: tuple[str, Shape | None]) -> Signature:
    return Signature(tuple(TensorSpec(name, dtype, shape) for name, (dtype, shape) in inputs.items()), ())


IMAGE = ("float32", (224, 224, 3))


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        (model(x=IMAGE), ("x",)),
        (model(x=IMAGE, age=("float32", (1,))), ("x",)),
        (model(left=IMAGE, right=IMAGE), ("left", "right")),
        (model(x=("float16", (None, None, 3))), ("x",)),
        (model(x=("bfloat16", (8, 8, 3))), ("x",)),
        (model(x=("float32", (784,))), ("x",)),
        (model(x=("float32", None)), ("x",)),
        (model(x=("float32", (10,)), ids=("int32", (5,))), ("x",)),
        (model(), ()),
    ],
)
def test_images_are_scaled_or_else_the_only_input_of_floats(signature: Signature, expected: tuple[str, ...]) -> None:
    assert scaled_inputs(PRESETS["scale-0-1"], signature) == expected


@pytest.mark.parametrize(
    "signature",
    [model(ids=("int32", (5,))), model(a=("float32", (3,)), b=("float32", (3,))), model(text=("string", ()))],
    ids=["integers", "two vectors", "text"],
)
def test_scaling_that_could_mean_anything_is_refused(signature: Signature) -> None:
    with pytest.raises(UsageError) as caught:
        scaled_inputs(PRESETS["scale-0-1"], signature)
    assert caught.value.problem == "it is not clear which input is to be scaled"
    assert signature.inputs[0].name in (caught.value.received or "")
    assert "--preprocess" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["imagenet-torch", "imagenet-caffe"])
def test_scaling_for_another_number_of_channels_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        scaled_inputs(PRESETS[name], model(x=("float32", (28, 28, 1))))
    assert caught.value.received == "3 channels for x float32[28, 28, 1]"


def test_number_of_channels_that_is_not_known_is_not_refused() -> None:
    assert scaled_inputs(PRESETS["imagenet-caffe"], model(x=("float32", (None, None, None)))) == ("x",)


def test_one_number_scales_any_number_of_channels() -> None:
    assert scaled_inputs(PRESETS["scale-1-1"], model(x=("float32", (28, 28, 1)))) == ("x",)
