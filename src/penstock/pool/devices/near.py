"""Which cores are near a GPU: those of its NUMA node, as the kernel reports them. What feeds the GPU runs there."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.core.records import Device, Placement
from penstock.pool.devices import nvml

_SYS = "/sys"

Cores = frozenset[int]
"""The cores that a process is bound to; if there are none, it runs anywhere."""
ANY: Cores = frozenset()


@dataclass(frozen=True)
class NearCores:
    """The cores that the processes of a job are bound to.

    Args:
        of_replicas: By the UUID of their GPU.
        of_loaders: Every loader feeds all replicas, so they have such cores only where those of all replicas are the
            same.
        most_loaders: How many loaders are bound. The others run anywhere, so that a GPU that is near few cores is fed
            by as many loaders as any other.
    """

    of_replicas: Mapping[str | None, Cores] = field(default_factory=dict)
    of_loaders: Cores = ANY
    most_loaders: int = 0


def find_near_cores(placement: Placement) -> NearCores:
    """The cores for a placement: none where there is one NUMA node, where the machine does not report it, or where a
    node has too few cores for all that would run there."""
    near = {device.uuid: _usable(device) for device in placement.devices}
    needed: Counter[Cores] = Counter()
    for device in placement.devices:
        needed[near[device.uuid]] += 1 if placement.has_loader_processes else placement.loaders
    bound = {uuid: cores for uuid, cores in near.items() if cores and len(cores) >= needed[cores]}
    if len(bound) < len(near) or len(set(bound.values())) != 1:
        return NearCores(bound)
    (cores,) = set(bound.values())
    # Two threads of one core do not load twice as much: loaders beyond one for each core are faster elsewhere.
    whole = {_read(f"devices/system/cpu/cpu{core}/topology/thread_siblings_list") or core for core in cores}
    return NearCores(bound, cores, max(0, len(whole) - placement.replicas))


def near_cores(device: Device) -> str | None:
    """The cores of a GPU's NUMA node, as the kernel lists them: `0-31,64-95`.

    None where there is only one node, or where the machine does not report it.
    """
    if device.kind != "gpu" or device.uuid is None or len(_numbers(_read("devices/system/node/has_cpu"))) < 2:
        return None
    address = nvml.pci_address(device.uuid)
    node = _read(f"bus/pci/devices/{address}/numa_node")
    if not node.isdecimal():  # -1 where it is not known
        return None
    return _read(f"devices/system/node/node{node}/cpulist") or None


@contextlib.contextmanager
def bound_to(cores: Cores) -> Iterator[None]:
    """Have processes that are started here run on these cores alone.

    A process inherits the cores of the thread that starts it: so it has them before libraries start threads of their
    own, which they do as soon as they are imported.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # the cores were taken away meanwhile: the process runs anywhere
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def _usable(device: Device) -> Cores:
    """The cores near a device that this process may use; none where it may use no others."""
    near = _numbers(near_cores(device) or "")
    if not near or not hasattr(os, "sched_getaffinity"):
        return ANY
    own = os.sched_getaffinity(0)
    return near & own if not own <= near else ANY


def _numbers(listed: str) -> Cores:
    """The numbers of a list as the kernel writes it."""
    ends = [part.partition("-") for part in listed.split(",") if part]
    return frozenset(core for first, _, last in ends for core in range(int(first), int(last or first) + 1))


def _read(path: str) -> str:
    """A file of sysfs; empty where there is none."""
    with contextlib.suppress(OSError), open(os.path.join(_SYS, path), encoding="ascii") as file:
        return file.read().strip()
    return ""
