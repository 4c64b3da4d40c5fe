"""How a process that trains starts: all its devices, its threads, and the backend of Keras."""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.core import kinds
from penstock.core.records import Device
from penstock.runtimes.frameworks import tf

_VIRTUAL = "--xla_force_host_platform_device_count="


def environment_for(backend: str, devices: Sequence[Device], threads: int) -> dict[str, str]:
    """The variables of a process that trains on these devices; those of a CPU are virtual ones."""
    first = devices[0]
    environment = kinds.runtime(backend).make().environment(first, threads)
    flags = os.environ.get("XLA_FLAGS", "")
    if first.kind == "gpu":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid or str(device.index) for device in devices)
        # Kernels that replicas need for equal bits cost time, and no bits are promised for training on a GPU.
        environment["XLA_FLAGS"] = flags
    elif backend == "jax" and len(devices) > 1:
        environment["XLA_FLAGS"] = f"{environment['XLA_FLAGS']} {_VIRTUAL}{len(devices)}".strip()
    return environment


def prepare(backend: str, devices: Sequence[Device], threads: int) -> None:
    """What is set in the process itself, before its framework computes anything."""
    if backend != "tensorflow":
        return
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if devices[0].kind == "cpu" and len(devices) > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(devices))
