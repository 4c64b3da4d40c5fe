"""Real numbers as small integers, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtimes.tflite import Quantisation

BYTES = Quantisation("int8", 0.5, -3)


@given(st.lists(st.integers(-128, 127), min_size=1))
def test_what_was_stored_is_stored_again(values: list[int]) -> None:
    stored = np.array(values, np.int8)
    np.testing.assert_array_equal(BYTES.to_stored(BYTES.to_real(stored)), stored)


def test_what_lies_outside_is_the_largest_or_smallest_there_is() -> None:
    assert BYTES.to_stored(np.array([-1e9, 0.0, 1e9])).tolist() == [-128, -3, 127]


def test_what_lies_outside_of_32_bits_does_not_wrap_around() -> None:
    words = Quantisation("int32", 1.0, 0)
    assert words.to_stored(np.array([-1e12, 1e12])).tolist() == [-(2**31), 2**31 - 1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"{value} cannot be stored as int8"):
        BYTES.to_stored(np.array([[0.0, value]]))


def test_only_integers_with_one_scale_are_quantised() -> None:
    def detail(dtype: type, scales: list[float]) -> dict[str, object]:
        return {"dtype": dtype, "quantization_parameters": {"scales": scales, "zero_points": [0] * len(scales)}}

    details = {"a": detail(np.int8, [0.5]), "b": detail(np.int32, []), "c": detail(np.float32, [])}
    assert list(Quantisation.of_all(details)) == ["a"]
