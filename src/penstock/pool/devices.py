"""What can compute here, seen without importing any framework."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import psutil

from penstock.core.records import Device
from penstock.errors import DeviceError
from penstock.options import DeviceRequest


def usable_cores() -> int:
    """The cores this process may use: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control group of version 2: no quota to respect
    return cores


def cpu_device(index: int = 0) -> Device:
    memory = psutil.virtual_memory()
    return Device("cpu", index, _cpu_name(), None, memory.total, memory.available)


def gpu_devices() -> list[Device]:
    """Every NVIDIA GPU that CUDA_VISIBLE_DEVICES leaves visible, numbered as the frameworks number them."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the driver's library may be missing, or refuse in ways of its own: then there is no GPU
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = []
        for index, handle in enumerate(handles):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name, uuid = _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlDeviceGetUUID(handle))
            found.append(Device("gpu", index, name, uuid, int(memory.total), int(memory.free)))
        return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
    finally:
        pynvml.nvmlShutdown()


def visible(devices: Sequence[Device], setting: str | None) -> list[Device]:
    """The devices that a value of CUDA_VISIBLE_DEVICES shows: indices or UUIDs, in its order, renumbered.

    As in CUDA, an entry that matches nothing hides itself and all after it, and an empty value hides everything.
    """
    if setting is None:
        return list(devices)
    shown: list[Device] = []
    for entry in (part.strip() for part in setting.split(",")):
        match = [
            device
            for device in devices
            if (entry.isascii() and entry.isdigit() and device.index == int(entry))
            or (entry.startswith("GPU-") and (device.uuid or "").startswith(entry))
        ]
        if len(match) != 1:
            break
        device = match[0]
        shown.append(Device("gpu", len(shown), device.name, device.uuid, device.memory_bytes, device.free_bytes))
    return shown


def choose(request: DeviceRequest) -> list[Device]:
    """One device for each replica.

    Raises:
        DeviceError: A GPU was asked for that is not there.
    """
    if request.kind == "cpu":
        return [cpu_device(index) for index in range(request.cpu_replicas or 1)]
    gpus = gpu_devices()
    if request.kind == "all":
        return gpus or [cpu_device()]
    if request.gpu_indices is None:
        if not gpus:
            raise DeviceError(
                "there is no GPU here",
                received=f"--devices {request}",
                allowed="cpu",
                hint="`penstock devices` shows what can run here",
            )
        return gpus
    by_index = {device.index: device for device in gpus}
    missing = [index for index in request.gpu_indices if index not in by_index]
    if missing:
        raise DeviceError(
            "there is no such GPU here",
            received=f"--devices {request}",
            allowed=", ".join(str(device) for device in gpus) or "cpu",
            hint="`penstock devices` shows what can run here",
        )
    return [by_index[index] for index in request.gpu_indices]


def share_of_cores(replicas: int) -> int:
    """The CPU threads that each of several replicas gets when nobody said otherwise."""
    return max(1, usable_cores() // max(1, replicas))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
