"""The devices of this machine, found without importing a framework."""

import contextlib
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace

import psutil

from penstock.core.figures import gib
from penstock.core.records import Device
from penstock.errors import DeviceError
from penstock.options.records import PRECISIONS, DeviceRequest
from penstock.pool.devices import nvml
from penstock.pool.devices.visible import in_cuda_order, visible

MEMORY_FRACTION = 0.85
"""The share of the free memory for tensors. Frameworks use the rest: the state of CUDA, kernels, cuDNN."""

_CPU_FEATURES = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""A processor with one of these features (x86, then ARM) computes in that precision, and does not only store it."""
_LEAST_CAPABILITY = {"float16": (5, 3), "bfloat16": (8, 0)}


CORES = "PENSTOCK_CORES"
"""The variable that says how many cores to use at most: what a cluster lends of a machine."""


def usable_cores() -> int:
    """The cores this process may use: its affinity, the quota of its control group, and what it was lent."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    lent = os.environ.get(CORES, "")
    if lent.isdecimal():
        cores = min(cores, max(1, int(lent)))
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
    """Every NVIDIA GPU, or part of one, that CUDA_VISIBLE_DEVICES leaves visible, numbered as the frameworks do."""
    cards = in_cuda_order(nvml.find_cards(), os.environ.get("CUDA_DEVICE_ORDER"))
    return visible(cards, os.environ.get("CUDA_VISIBLE_DEVICES"))


def choose(
    request: DeviceRequest, replicas_per_device: int = 1, memory_fraction: float = MEMORY_FRACTION
) -> list[Device]:
    """One device for each replica, with its share of the memory that is free now.

    Several replicas on a GPU come round by round, so that the first ones are on different GPUs. On the CPU, `cpu:N`
    says how many there are; replicas there share all of the memory.

    Raises:
        DeviceError: The request names a GPU that is not there.
    """
    chosen = _asked_for(request)
    if chosen[0].kind == "cpu":
        return [replace(chosen[0], index=index) for index in range(request.cpu_replicas or replicas_per_device)]
    shares = [shared(device, int(device.free_bytes * memory_fraction), replicas_per_device) for device in chosen]
    return [device for turn in zip(*shares, strict=True) for device in turn]


def shared(device: Device, num_bytes: int, replicas: int) -> list[Device]:
    """One device for each of the replicas that have `num_bytes` of it together."""
    return [replace(device, memory_limit=num_bytes // replicas)] * replicas


def check_room(devices: Iterable[Device], least_bytes: int) -> None:
    """Refuse shares of a GPU that are too small for what each replica surely needs.

    Raises:
        DeviceError: A replica does not fit, or not so many of them.
    """
    devices = list(devices)
    for device in devices:
        if not 0 < device.memory_limit < least_bytes:
            continue
        count = sum(other.uuid == device.uuid and other.index == device.index for other in devices)
        raise DeviceError(
            f"{count} replicas do not fit on one device" if count > 1 else "the model does not fit on the device",
            received=f"{device} {device.name}: {gib(device.memory_limit)} for each replica, "
            f"which needs at least {gib(least_bytes)}",
            hint="--replicas-per-device 1" if count > 1 else "a larger --memory-fraction, or --devices cpu",
        )


def _asked_for(request: DeviceRequest) -> Sequence[Device]:
    if request.kind == "cpu":
        return [cpu_device()]
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
    """The CPU threads that each of several replicas gets unless the user says otherwise."""
    return max(1, usable_cores() // max(1, replicas))


def supported_precisions(device: Device) -> tuple[str, ...]:
    """The precisions that a device computes in. Every device can use 8-bit integers."""
    if device.kind == "cpu":
        has = cpu_features()
        able = {name for name, features in _CPU_FEATURES.items() if features & has}
    else:
        capability = nvml.compute_capability(device.uuid or "") or (0, 0)
        able = {name for name, least in _LEAST_CAPABILITY.items() if capability >= least}
    return tuple(name for name in PRECISIONS if name in able | {"model", "int8"})


def check_precision(device: Device, precision: str) -> None:
    """Refuse a precision that the device could only imitate, slowly.

    Raises:
        DeviceError: The device lacks it.
    """
    supported = supported_precisions(device)
    if precision not in supported:
        raise DeviceError(
            f"this device does not compute in {precision}",
            received=f"--precision {precision} on {device} {device.name}".rstrip(),
            allowed=", ".join(supported),
        )


def cpu_features() -> frozenset[str]:
    """The features of the processor, as the kernel lists them: `flags` on x86, `Features` on ARM."""
    return frozenset(_cpu_info("flags", "Features").split())


def _cpu_name() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_info(*names: str) -> str:
    """The first of these entries in the kernel's description of the processor; empty where there is none."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in names:
                return value.strip()
    return ""
