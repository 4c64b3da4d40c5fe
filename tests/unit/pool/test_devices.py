"""What can compute here, seen without importing any framework."""

from __future__ import annotations

import pytest

from penstock.core.records import Device
from penstock.errors import DeviceError
from penstock.options import DeviceRequest
from penstock.pool import devices
from penstock.pool.devices import choose, share_of_cores, usable_cores, visible

GPUS = [Device("gpu", i, f"GPU model {i}", f"GPU-{uuid}-0000", 1000 + i, 500 + i) for i, uuid in enumerate("abcd")]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, "abcd"),
        ("", ""),
        ("-1", ""),
        ("none", ""),
        ("NoDevFiles", ""),
        ("0", "a"),
        ("2", "c"),
        ("0,1,2,3", "abcd"),
        ("3,1", "db"),
        (" 0 , 2 ", "ac"),
        ("0,-1,2", "a"),
        ("1,9,2", "b"),
        ("1,,2", "b"),
        ("1,", "b"),
        ("9", ""),
        ("GPU-a-0000", "a"),
        ("GPU-c", "c"),
        ("GPU-c,GPU-a", "ca"),
        ("GPU-c,0", "ca"),
        ("GPU-x", ""),
        ("GPU-", ""),
        ("GPU-a,GPU-x,GPU-b", "a"),
        ("gpu-a", ""),
        ("MIG-a", ""),
        ("0x1", ""),
        ("²", ""),
        ("1.0", ""),
    ],
)
def test_setting_shows_the_devices_that_cuda_would_show(setting: str | None, expected: str) -> None:
    shown = visible(GPUS, setting)
    assert [str(device.uuid)[4] for device in shown] == list(expected)


def test_devices_that_are_shown_are_numbered_anew_and_keep_the_rest() -> None:
    shown = visible(GPUS, "3,1")
    assert [(d.index, d.name, d.memory_bytes, d.free_bytes) for d in shown] == [
        (0, "GPU model 3", 1003, 503),
        (1, "GPU model 1", 1001, 501),
    ]


def test_no_device_is_shown_where_there_is_none() -> None:
    assert visible([], None) == visible([], "0") == []


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
