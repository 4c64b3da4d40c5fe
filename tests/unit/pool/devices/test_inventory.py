"""What can compute here, seen without importing any framework."""

from __future__ import annotations

import pytest

from penstock.core.records import Device
from penstock.errors import DeviceError
from penstock.options.records import DeviceRequest
from penstock.pool.devices import inventory as devices
from penstock.pool.devices import nvml
from penstock.pool.devices.inventory import (
    check_precision,
    check_room,
    choose,
    share_of_cores,
    supported_precisions,
    usable_cores,
)

GPUS = [Device("gpu", i, f"GPU model {i}", f"GPU-{uuid}-0000", 1000 + i, 500 + i) for i, uuid in enumerate("abcd")]


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_devices", lambda: GPUS)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_devices", list)


@pytest.fixture(autouse=True)
def cpu_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cpu_name", lambda: "a CPU")


def chosen(text: str) -> list[str]:
    return [str(device) for device in choose(DeviceRequest.parse(text))]


@pytest.mark.usefixtures("four_gpus")
def test_gpus_are_chosen_as_asked_for() -> None:
    assert chosen("all") == chosen("gpu") == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert chosen("gpu:2,0") == ["gpu:2", "gpu:0"]
    assert chosen("cpu") == ["cpu:0"]


@pytest.mark.usefixtures("no_gpu")
def test_cpu_is_chosen_where_there_is_no_gpu() -> None:
    assert chosen("all") == ["cpu:0"]
    assert chosen("cpu:3") == ["cpu:0", "cpu:1", "cpu:2"]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("text", ["gpu", "gpu:0"])
def test_gpu_that_is_not_there_is_told(text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        chosen(text)
    assert caught.value.received == f"--devices {text}"
    assert caught.value.allowed == "cpu"


@pytest.mark.usefixtures("four_gpus")
def test_gpu_beyond_the_last_is_told_with_those_there_are() -> None:
    with pytest.raises(DeviceError) as caught:
        chosen("gpu:1,7")
    assert caught.value.problem == "there is no such GPU here"
    assert caught.value.allowed == "gpu:0, gpu:1, gpu:2, gpu:3"


def test_cores_are_shared_and_nobody_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 8)
    assert [share_of_cores(n) for n in (0, 1, 2, 3, 8, 9, 100)] == [8, 8, 4, 2, 1, 1, 1]


def test_usable_cores_are_at_least_one() -> None:
    assert usable_cores() >= 1


def test_cpu_device_knows_its_memory() -> None:
    device = devices.cpu_device(2)
    assert (device.kind, device.index, device.name, device.uuid) == ("cpu", 2, "a CPU", None)
    assert 0 < device.free_bytes <= device.memory_bytes


def limits(text: str, replicas: int, fraction: float = 0.5) -> list[tuple[str, int]]:
    return [(str(device), device.memory_limit) for device in choose(DeviceRequest.parse(text), replicas, fraction)]


@pytest.mark.usefixtures("four_gpus")
def test_replicas_on_a_gpu_share_what_is_free_of_it() -> None:
    assert limits("gpu:0", 1) == [("gpu:0", 250)]
    assert limits("gpu:2,0", 2) == [("gpu:2", 125), ("gpu:0", 125), ("gpu:2", 125), ("gpu:0", 125)]
    assert limits("gpu:3", 3, 0.9) == [("gpu:3", 150)] * 3


@pytest.mark.usefixtures("no_gpu")
def test_replicas_on_the_cpu_have_no_share_of_their_own() -> None:
    assert limits("all", 2) == limits("cpu", 2) == [("cpu:0", 0), ("cpu:1", 0)]
    assert limits("cpu:3", 2) == [("cpu:0", 0), ("cpu:1", 0), ("cpu:2", 0)]


@pytest.mark.usefixtures("four_gpus")
def test_replicas_that_do_not_fit_are_told_with_what_each_would_have() -> None:
    two = choose(DeviceRequest.parse("gpu:0"), 2, 0.5)
    check_room(two, 125)
    with pytest.raises(DeviceError, match="2 replicas do not fit on one device") as caught:
        check_room(two, 126)
    assert caught.value.hint == "--replicas-per-device 1"
    with pytest.raises(DeviceError, match="the model does not fit"):
        check_room(choose(DeviceRequest.parse("gpu:0,1"), 1, 0.5), 251)
    check_room(choose(DeviceRequest.parse("cpu"), 2), 10**15)


INTEL = "avx2 avx512_bf16 amx_bf16 avx512_fp16"


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("", "model int8"),
        ("avx2 avx512f f16c fma", "model int8"),
        ("avx512_bf16", "model bfloat16 int8"),
        ("amx_bf16 amx_tile", "model bfloat16 int8"),
        (INTEL, "model bfloat16 float16 int8"),
        ("fp asimd fphp asimdhp", "model float16 int8"),
        ("fp asimd fphp asimdhp i8mm bf16", "model bfloat16 float16 int8"),
    ],
)
def test_precisions_of_a_cpu_are_those_it_has_instructions_for(
    monkeypatch: pytest.MonkeyPatch, features: str, expected: str
) -> None:
    monkeypatch.setattr(devices, "cpu_features", lambda: frozenset(features.split()))
    assert supported_precisions(Device("cpu", 0)) == tuple(expected.split())


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (None, "model int8"),
        ((3, 5), "model int8"),
        ((5, 3), "model float16 int8"),
        ((7, 5), "model float16 int8"),
        ((8, 0), "model bfloat16 float16 int8"),
        ((10, 0), "model bfloat16 float16 int8"),
    ],
)
def test_precisions_of_a_gpu_follow_from_its_generation(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, expected: str
) -> None:
    monkeypatch.setattr(nvml, "compute_capability", lambda uuid: capability)
    assert supported_precisions(GPUS[0]) == tuple(expected.split())


def test_precision_that_the_device_lacks_is_told_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_features", lambda: frozenset({"avx512_bf16"}))
    cpu = Device("cpu", 0, "a CPU")
    check_precision(cpu, "bfloat16")
    with pytest.raises(DeviceError) as caught:
        check_precision(cpu, "float16")
    assert caught.value.received == "--precision float16 on cpu:0 a CPU"
    assert caught.value.allowed == "model, bfloat16, int8"


def test_the_features_of_this_cpu_are_words() -> None:
    assert all(word.isascii() and word == word.strip() for word in devices.cpu_features())
