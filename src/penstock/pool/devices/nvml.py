"""Facts about NVIDIA GPUs, read through the driver's management library, which uses no memory of the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.core.records import Device
from penstock.pool.devices.visible import Card, Instance


@contextmanager
def _library() -> Iterator[Any]:
    """The library while it is open; None where there is no driver, or one that refuses."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the driver's library may be missing, or refuse in ways of its own: then there is no GPU
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def find_cards() -> list[Card]:
    """Every GPU of this machine, in bus order."""
    with _library() as nvml:
        if nvml is None:
            return []
        cards: list[Card] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            is_divided = _is_divided(nvml, handle)
            instances = tuple(_instances(nvml, handle)) if is_divided else ()
            cards.append(Card(_device(nvml, index, handle), is_divided, instances, _speed(nvml, handle)))
        return cards


def memory_of(uuid: str) -> tuple[int, int] | None:
    """The bytes that a device has and those that are free now; None where the driver does not answer."""
    with _library() as nvml:
        if nvml is None:
            return None
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid))
        except nvml.NVMLError:
            return None
        return int(memory.total), int(memory.free)


def compute_capability(uuid: str) -> tuple[int, int] | None:
    """The compute capability of a device: (9, 0) is Hopper; None where the driver does not answer."""
    with _library() as nvml:
        if nvml is None:
            return None
        try:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(_card(nvml, uuid))
        except nvml.NVMLError:
            return None
        return int(major), int(minor)


def pci_address(uuid: str) -> str | None:
    """The place of a device's card on the bus, as Linux spells it: `0000:3b:00.0`; None where the driver does not
    answer."""
    with _library() as nvml:
        if nvml is None:
            return None
        try:
            domain, _, place = _text(nvml.nvmlDeviceGetPciInfo(_card(nvml, uuid)).busId).lower().partition(":")
        except nvml.NVMLError:
            return None
        return f"{int(domain, 16):04x}:{place}"  # the driver writes the domain with eight digits


def _card(nvml: Any, uuid: str) -> Any:
    """The handle of a card, also for a part of one."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle


def _device(nvml: Any, index: int, handle: Any) -> Device:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
    return Device("gpu", index, name, uuid, int(memory.total), int(memory.free))


def _is_divided(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # it cannot be divided at all
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _instances(nvml: Any, handle: Any) -> Iterator[Instance]:
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            device = _device(nvml, place, part)
            numbers = nvml.nvmlDeviceGetGpuInstanceId(part), nvml.nvmlDeviceGetComputeInstanceId(part)
        except nvml.NVMLError:  # places may be empty, and belong to others
            continue
        yield Instance(device, int(numbers[0]), int(numbers[1]))


def _speed(nvml: Any, handle: Any) -> float:
    """Cores times clock. CUDA does not document how it ranks cards; this only has to tell unlike cards apart."""
    try:
        return float(nvml.nvmlDeviceGetNumGpuCores(handle)) * float(
            nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        )
    except nvml.NVMLError:
        return 0.0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
