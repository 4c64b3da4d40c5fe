"""Options are checked when they are made."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import plugins
from penstock.errors import UsageError
from penstock.options.records import OPTIONS, DeviceRequest, PredictOptions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", DeviceRequest("all")),
        ("cpu", DeviceRequest("cpu")),
        ("gpu", DeviceRequest("gpu")),
        ("cpu:1", DeviceRequest("cpu", cpu_replicas=1)),
        ("cpu:4", DeviceRequest("cpu", cpu_replicas=4)),
        ("cpu:128", DeviceRequest("cpu", cpu_replicas=128)),
        ("gpu:0", DeviceRequest("gpu", gpu_indices=(0,))),
        ("gpu:0,2", DeviceRequest("gpu", gpu_indices=(0, 2))),
        ("gpu:3,1,2", DeviceRequest("gpu", gpu_indices=(3, 1, 2))),
    ],
)
def test_devices_are_read_and_written_alike(text: str, expected: DeviceRequest) -> None:
    assert DeviceRequest.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tpu",
        "CPU",
        "cpu:0",
        "cpu:-1",
        "cpu:",
        "cpu:x",
        "cpu:1.5",
        "cpu:99999",
        "gpu:",
        "gpu:0,",
        "gpu:,1",
        "gpu:0,0",
    ]
    + ["gpu:a", "gpu:-1", "all:2", "cpu,gpu", " cpu", "cpu\n", "gpu:0 1"],
)
def test_devices_that_are_not_understood_are_told(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        DeviceRequest.parse(text)
    assert caught.value.problem == "--devices is not understood"
    assert caught.value.received == f"devices={text!r}"
    assert "cpu:N" in (caught.value.allowed or "")


@given(st.text("acgplu:0123,-é ", max_size=12))
def test_any_text_is_a_device_or_a_usage_error(text: str) -> None:
    try:
        request = DeviceRequest.parse(text)
    except UsageError:
        return
    assert DeviceRequest.parse(str(request)) == request


def test_default_options_are_allowed() -> None:
    options = PredictOptions()
    assert options.format == "parquet"
    assert options.devices == DeviceRequest("all")
    assert (options.batch_size, options.threads, options.runtime) == (None, None, None)


@pytest.mark.parametrize("runtime", plugins.BUILT_IN[plugins.RUNTIMES])
@pytest.mark.parametrize("format", plugins.BUILT_IN[plugins.SINKS])
def test_known_runtimes_and_formats_are_allowed(runtime: str, format: str) -> None:
    options = PredictOptions(runtime=runtime, format=format)
    assert (options.runtime, options.format) == (runtime, format)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("runtime", "caffe", "unknown runtime"),
        ("runtime", "", "unknown runtime"),
        ("format", "xlsx", "unknown format"),
        ("batch_size", 0, "batch_size must be a positive whole number"),
        ("batch_size", -3, "batch_size must be a positive whole number"),
        ("batch_size", 1.5, "batch_size must be a positive whole number"),
        ("batch_size", "32", "batch_size must be a positive whole number"),
        ("batch_size", True, "batch_size must be a positive whole number"),
        ("threads", 0, "threads must be a positive whole number"),
        ("part_rows", 0, "part_rows must be a positive whole number"),
        ("max_failures", -0.1, "max_failures is out of range"),
        ("max_failures", 1.01, "max_failures is out of range"),
        ("max_failures", float("nan"), "max_failures is out of range"),
        ("keep", ("id", "id"), "a column is kept twice"),
    ],
)
def test_options_out_of_range_are_told(option: str, value: Any, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        PredictOptions(**{option: value})
    assert caught.value.problem == problem
    assert str(caught.value.received).startswith(option + "=")


@pytest.mark.parametrize("share", [0, 0.0, 0.5, 1, 1.0])
def test_any_share_of_failures_is_allowed(share: float) -> None:
    assert PredictOptions(max_failures=share).max_failures == share


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), {}),
        (("x=pixels",), {"x": ("pixels",)}),
        (("x=a,b", "y=pixels"), {"x": ("a", "b"), "y": ("pixels",)}),
        (("x=f*",), {"x": ("f*",)}),
        ((" x = a , b ",), {"x": ("a", "b")}),
        (("x=a=b",), {"x": ("a=b",)}),
    ],
)
def test_inputs_are_read(entries: tuple[str, ...], expected: dict[str, tuple[str, ...]]) -> None:
    assert OPTIONS["inputs"].read(entries) == expected


@pytest.mark.parametrize("entry", ["", "x", "x=", "=a", " =a", "x=a,", "x=,a", "x=a,,b", "x= "])
def test_inputs_that_are_not_understood_are_told(entry: str) -> None:
    with pytest.raises(UsageError) as caught:
        OPTIONS["inputs"].read((entry,))
    assert caught.value.received == f"--input {entry!r}"
    assert "NAME=COLUMN" in (caught.value.allowed or "")


def test_input_given_twice_is_told() -> None:
    with pytest.raises(UsageError, match="--input is given twice for one name"):
        OPTIONS["inputs"].read(("x=a", "x=b"))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [((), {}), (("dense=score",), {"dense": "score"}), (("a=b", "c=d"), {"a": "b", "c": "d"})],
)
def test_renames_are_read(entries: tuple[str, ...], expected: dict[str, str]) -> None:
    assert OPTIONS["rename"].read(entries) == expected


@pytest.mark.parametrize("entry", ["", "a", "a=", "=b"])
def test_renames_that_are_not_understood_are_told(entry: str) -> None:
    with pytest.raises(UsageError, match="--rename is not understood"):
        OPTIONS["rename"].read((entry,))
