"""Options of the loading side: which rows, how they are read, preprocessed, scaled and padded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.options.records import COLORS, OPTIONS, PRESETS, RESIZES, PredictOptions, ReadOptions


def refusal(**options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        PredictOptions(**options)
    return caught.value


class TestSize:
    @pytest.mark.parametrize(
        ("text", "size"),
        [("224x224", (224, 224)), ("224x320", (224, 320)), ("96", (96, 96)), ("1x1", (1, 1)), ("32×64", (32, 64))],
    )
    def test_height_comes_first(self, text: str, size: tuple[int, int]) -> None:
        assert OPTIONS["image_size"].read(text) == size

    @pytest.mark.parametrize(
        "text", ["", "x", "0", "0x5", "5x0", "-5", "5x", "x5", "5x5x5", "5 x 5", "5.5", "1e3", "12345678", "५x५"]
    )
    def test_what_is_no_size_is_told(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            OPTIONS["image_size"].read(text)
        assert caught.value.received == repr(text)
        assert "224x224" in (caught.value.allowed or "")

    @given(height=st.integers(1, 999_999), width=st.integers(1, 999_999))
    def test_any_size_is_read(self, height: int, width: int) -> None:
        assert OPTIONS["image_size"].read(f"{height}x{width}") == (height, width)


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "numbers"),
        [("1", (1.0,)), ("0.5,1,2", (0.5, 1.0, 2.0)), ("-1e-3", (-0.001,)), (" 1 , 2 ", (1.0, 2.0)), ("0", (0.0,))],
    )
    def test_one_or_several_are_read(self, text: str, numbers: tuple[float, ...]) -> None:
        assert OPTIONS["scale"].read(text) == numbers

    @pytest.mark.parametrize("text", ["", ",", "1,", ",1", "a", "1;2", "nan", "inf", "1,-inf", "0x10"])
    def test_what_are_no_numbers_is_told_with_the_flag(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            OPTIONS["offset"].read(text)
        assert caught.value.problem == "--offset is not understood"
        assert caught.value.received == repr(text)

    @given(numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
    def test_any_numbers_are_read_as_they_were_written(self, numbers: list[float]) -> None:
        assert OPTIONS["scale"].read(",".join(map(repr, numbers))) == tuple(numbers)


class TestFeatures:
    @pytest.mark.parametrize(
        ("entries", "features"),
        [
            ((), {}),
            (("image=uint8[28,28]",), {"image": "uint8[28,28]"}),
            (("a=int64", "b=string"), {"a": "int64", "b": "string"}),
            (("a=b=c",), {"a": "b=c"}),
        ],
    )
    def test_names_and_kinds_are_read(self, entries: tuple[str, ...], features: dict[str, str]) -> None:
        assert OPTIONS["features"].read(entries) == features

    @pytest.mark.parametrize("entries", [("",), ("a",), ("a=",), ("=int64",), ("a=int64", "a=int32")], ids=str)
    def test_what_is_not_understood_or_given_twice_is_told(self, entries: tuple[str, ...]) -> None:
        with pytest.raises(UsageError) as caught:
            OPTIONS["features"].read(entries)
        assert caught.value.received == f"--feature {entries[-1]!r}"


class TestReading:
    @pytest.mark.parametrize("resize", RESIZES)
    @pytest.mark.parametrize("color", [None, *COLORS])
    def test_known_ways_are_allowed(self, resize: str, color: str | None) -> None:
        options = ReadOptions(resize=resize, color=color)
        assert (options.resize, options.color) == (resize, color)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("resize", "squash"),
            ("resize", ""),
            ("color", "cmyk"),
            ("color", "RGB"),
            ("interpolation", "bilinear"),
            ("interpolation", "pillow"),
        ],
    )
    def test_unknown_ways_are_told(self, option: str, value: str) -> None:
        with pytest.raises(UsageError) as caught:
            ReadOptions(**{option: value})  # type: ignore[arg-type]
        assert caught.value.problem == f"unknown {option}"
        assert caught.value.received == f"{option}={value!r}"

    def test_fast_decode_is_on_or_off(self) -> None:
        assert not ReadOptions().fast_decode
        with pytest.raises(UsageError, match="fast_decode"):
            ReadOptions(fast_decode="no")  # type: ignore[arg-type]


class TestRows:
    @pytest.mark.parametrize(
        "options",
        [
            {"skip": 0},
            {"skip": 5},
            {"limit": 1},
            {"skip": 5, "limit": 10},
            {"sample": 10},
            {"sample": 10, "sample_by": "label", "seed": 3},
        ],
        ids=str,
    )
    def test_some_rows_may_be_asked_for(self, options: dict[str, Any]) -> None:
        made = PredictOptions(**options)
        assert {name: getattr(made, name) for name in options} == options

    @pytest.mark.parametrize("skip", [-1, 1.5, True, "3", None])
    def test_skip_that_is_no_whole_number_is_told(self, skip: Any) -> None:
        assert refusal(skip=skip).problem == "skip must be a whole number"

    @pytest.mark.parametrize("option", ["limit", "sample", "loaders"])
    @pytest.mark.parametrize("value", [0, -1, 2.5, True, "7"])
    def test_numbers_of_things_are_positive_and_whole(self, option: str, value: Any) -> None:
        assert refusal(**{option: value}).problem == f"{option} must be a positive whole number"

    @pytest.mark.parametrize("other", [{"skip": 1}, {"limit": 5}], ids=str)
    def test_sample_is_of_the_whole_input(self, other: dict[str, int]) -> None:
        error = refusal(sample=10, **other)
        assert error.problem == "a sample is taken of the whole input"
        assert error.allowed == "sample, or skip and limit"

    def test_sample_by_needs_a_number(self) -> None:
        assert refusal(sample_by="label").hint == "--sample N --sample-by label"


class TestPreprocessing:
    @pytest.mark.parametrize("option", ["preprocess", "preprocess_row"])
    @pytest.mark.parametrize("function", ["module:function", "package.module:f_1", len], ids=str)
    def test_functions_are_named_or_given(self, option: str, function: Any) -> None:
        assert getattr(PredictOptions(**{option: function}), option) is function

    @pytest.mark.parametrize("option", ["preprocess", "preprocess_row"])
    @pytest.mark.parametrize("name", ["", "function", "module:", ":f", "a:b:c", "a b:f", "m:f()", "../m:f", "m:f.g"])
    def test_names_that_are_not_understood_are_told(self, option: str, name: str) -> None:
        error = refusal(**{option: name})
        assert error.problem == "the preprocessing function is not understood"
        assert error.allowed == "module:function"

    def test_one_function_is_enough(self) -> None:
        assert refusal(preprocess=len, preprocess_row="m:f").problem == "one function preprocesses a job"

    @pytest.mark.parametrize("preset", PRESETS)
    def test_known_presets_are_allowed(self, preset: str) -> None:
        assert PredictOptions(preset=preset).preset == preset

    def test_unknown_preset_is_told(self) -> None:
        assert refusal(preset="imagenet").problem == "unknown preset"

    @pytest.mark.parametrize("numbers", [{"scale": (2.0,)}, {"offset": (1.0,)}], ids=str)
    def test_preset_and_numbers_of_ones_own_are_one_too_many(self, numbers: dict[str, tuple[float, ...]]) -> None:
        assert refusal(preset="scale-0-1", **numbers).problem == "a preset says how to scale"

    def test_scale_and_offset_go_together(self) -> None:
        options = PredictOptions(scale=(1.0, 2.0, 3.0), offset=(0.5,))
        assert (options.scale, options.offset) == ((1.0, 2.0, 3.0), (0.5,))


class TestLoading:
    @pytest.mark.parametrize("seconds", [0.001, 1, 120.0, float("inf")])
    def test_rows_may_take_any_time(self, seconds: float) -> None:
        assert PredictOptions(row_timeout=seconds).row_timeout == seconds

    @pytest.mark.parametrize("seconds", [0, -1, float("nan")])
    def test_time_that_is_none_is_told(self, seconds: float) -> None:
        assert refusal(row_timeout=seconds).problem == "row_timeout must be a number of seconds"

    @pytest.mark.parametrize("buckets", [(1,), (32,), (32, 64, 128)])
    def test_lengths_that_grow_are_buckets(self, buckets: tuple[int, ...]) -> None:
        assert PredictOptions(buckets=buckets).buckets == buckets

    @pytest.mark.parametrize(
        "buckets",
        [
            (),
            (0,),
            (0, 8),
            (64, 32),
            (8, 8),
            (-1,),
            (-8, 8),
        ],
        ids=str,
    )
    def test_lengths_that_do_not_grow_are_told(self, buckets: tuple[int, ...]) -> None:
        assert refusal(buckets=buckets).problem == "buckets are lengths that grow"

    def test_buckets_without_padding_are_told(self) -> None:
        told = refusal(buckets=(8, 16), padding="never")
        assert (told.received, told.allowed) == ("buckets and padding=never", "one of them")

    def test_unknown_padding_is_told_with_what_is_allowed(self) -> None:
        told = refusal(padding="sometimes")
        assert (told.received, told.allowed) == ("padding='sometimes'", "auto, always, never")
